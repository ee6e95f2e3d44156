//! The endpoint service (AWS PrivateLink) of a Service's load balancer: the reads, and the call of each step.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_sdk_ec2::types::{Filter, ResourceType, ServiceConfiguration, ServiceState, UnsuccessfulItem};
use futures::future::try_join_all;
use providers::{CloudError, ErrorKind, LoadBalancerId};

use crate::client::Class;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::calls::Caller;
use crate::loadbalancer::model::endpoint_service::{self, Modification, ObservedEndpointService, Step};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::BalancerState;
use crate::loadbalancer::observed::convert;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack, State};
use crate::loadbalancer::spec::endpoint_service::EndpointServiceSettings;
use crate::loadbalancer::{ownership, plan};
use crate::session::Session;
use crate::tags::by_key;

/// Returns true if the tag of one of these load balancers shows that an endpoint service may use it.
pub(super) fn is_marked(balancers: &[ObservedBalancer]) -> bool {
    balancers.iter().any(|balancer| !balancer.shared && balancer.tags.contains_key(names::ENDPOINT_SERVICE))
}

impl Balancers {
    /// Brings the Service's endpoint service to the desired state, if its load balancer is active. Afterwards, an old
    /// load balancer can be deleted.
    pub(super) async fn ensure_endpoint_service(
        &self,
        work: &Work<'_>,
        balancer: Option<&ObservedBalancer>,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let Some(settings) = &work.settings.endpoint_service else { return Ok(()) };
        let Some(balancer) = balancer.filter(|one| one.state == State::Active) else { return Ok(()) };
        let mut observed = read(work.session, work.id).await?;
        if observed.is_empty() {
            let token = state.endpoint_token.get_or_insert_with(|| token(work.id));
            observed.push(create(work, settings, &balancer.arn, token).await?);
        } else {
            // A creation after the deletion of this endpoint service needs another token.
            state.endpoint_token = None;
        }
        for step in endpoint_service::steps(Some((settings, &balancer.arn)), &observed) {
            apply(work.session, &step).await?;
        }
        Ok(())
    }

    /// Prepares the endpoint service for changes of the load balancer: an old load balancer cannot be deleted while the
    /// endpoint service uses it. Returns true if a load balancer had the tag of an endpoint service before. In that
    /// case, the endpoint service is in the desired state, unless the Service's load balancer is not active yet.
    pub(super) async fn prepare_endpoint_service(
        &self,
        work: &Work<'_>,
        caller: &mut Caller<'_>,
        balancer: &str,
        observed: &mut ObservedStack,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        match (is_marked(&observed.balancers), work.settings.endpoint_service.is_some()) {
            (false, _) => return Ok(false),
            (true, true) => self.ensure_endpoint_service(work, observed.balancer(balancer), state).await?,
            (true, false) => self.drop_endpoint_service(caller, observed, state).await?,
        }
        Ok(true)
    }

    /// Deletes endpoint services of a Service that no longer requests one, and then the tag of its load balancers.
    async fn drop_endpoint_service(
        &self,
        caller: &mut Caller<'_>,
        observed: &mut ObservedStack,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        delete_all(caller.session, caller.id).await?;
        let marked: Vec<String> = observed
            .balancers
            .iter()
            .filter(|one| one.tags.contains_key(names::ENDPOINT_SERVICE))
            .map(|one| one.arn.clone())
            .collect();
        for arn in marked {
            let step = plan::Step::RemoveTags { arn, keys: [names::ENDPOINT_SERVICE.to_owned()].into() };
            self.step(caller, &step, observed, state).await?;
        }
        Ok(())
    }
}

/// Deletes all endpoint services of a Service.
///
/// # Errors
/// `Conflict` while consumers are connected.
pub(super) async fn delete_all(session: &Session, id: &LoadBalancerId) -> Result<(), CloudError> {
    for step in endpoint_service::steps(None, &read(session, id).await?) {
        apply(session, &step).await?;
    }
    Ok(())
}

/// Returns the idempotency token of a creation: AWS creates one endpoint service for each token, even if the request is
/// repeated.
fn token(id: &LoadBalancerId) -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}-{time:x}", id.uid).chars().take(64).collect()
}

/// Reads the endpoint services of a Service, except those that are being deleted.
async fn read(session: &Session, id: &LoadBalancerId) -> Result<Vec<ObservedEndpointService>, CloudError> {
    let mut all = Vec::new();
    let mut token = None;
    let filter = Filter::builder().name(format!("tag:{}", names::UID)).values(&id.uid).build();
    loop {
        let request = session.api.ec2.describe_vpc_endpoint_service_configurations();
        let request = request.filters(filter.clone()).set_next_token(token);
        let send = || request.clone().send();
        let response = session.api.read(Class::Ec2Read, "DescribeVpcEndpointServiceConfigurations", send).await?;
        let own = |one: &&ServiceConfiguration| {
            let tags = by_key(one.tags());
            ownership::is_own_creation(&tags, &session.cluster, id)
        };
        let is_being_deleted = |one: &&ServiceConfiguration| {
            matches!(one.service_state(), Some(ServiceState::Deleting | ServiceState::Deleted))
        };
        let found = response.service_configurations().iter().filter(own).filter(|one| !is_being_deleted(one));
        all.extend(found.map(converted));
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            break;
        }
    }
    let principals = all.iter().map(|one| principals(session, &one.id));
    let principals = try_join_all(principals).await?;
    for (one, principals) in all.iter_mut().zip(principals) {
        one.principals = principals.into_iter().collect();
    }
    Ok(all)
}

/// Converts an endpoint service, without its principals.
fn converted(from: &ServiceConfiguration) -> ObservedEndpointService {
    ObservedEndpointService {
        id: from.service_id().unwrap_or_default().to_owned(),
        balancers: from.network_load_balancer_arns().iter().cloned().collect(),
        acceptance: from.acceptance_required().unwrap_or(true),
        principals: BTreeSet::new(),
        private_name: from.private_dns_name().filter(|name| !name.is_empty()).map(str::to_owned),
    }
}

async fn principals(session: &Session, id: &str) -> Result<Vec<String>, CloudError> {
    let mut all = Vec::new();
    let mut token = None;
    loop {
        let request = session.api.ec2.describe_vpc_endpoint_service_permissions().service_id(id).set_next_token(token);
        let send = || request.clone().send();
        let response = session.api.read(Class::Ec2Read, "DescribeVpcEndpointServicePermissions", send).await?;
        all.extend(response.allowed_principals().iter().filter_map(|one| one.principal()).map(str::to_owned));
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(all);
        }
    }
}

/// Creates an endpoint service, without its principals.
async fn create(
    work: &Work<'_>,
    wanted: &EndpointServiceSettings,
    balancer: &str,
    token: &str,
) -> Result<ObservedEndpointService, CloudError> {
    let Work { session, id, settings, .. } = *work;
    let mut tags = settings.tags.clone();
    tags.extend(names::tags(&session.cluster, settings.flavour, id, "EndpointService"));
    let request = session
        .api
        .ec2
        .create_vpc_endpoint_service_configuration()
        .network_load_balancer_arns(balancer)
        .acceptance_required(wanted.acceptance)
        .set_private_dns_name(wanted.private_name.clone())
        .client_token(token)
        .tag_specifications(convert::ec2_tags_of(ResourceType::VpcEndpointService, &tags));
    let send = request.send();
    let response = session.api.change(Class::Ec2Change, "CreateVpcEndpointServiceConfiguration", send).await?;
    let made = response.service_configuration().map(converted).unwrap_or_default();
    let name = response.service_configuration().and_then(|one| one.service_name()).unwrap_or_default();
    tracing::info!(service = %id, endpoint_service = name, "created an endpoint service");
    Ok(made)
}

async fn apply(session: &Session, step: &Step) -> Result<(), CloudError> {
    let list = |set: &BTreeSet<String>| Some(set.iter().cloned().collect::<Vec<_>>()).filter(|list| !list.is_empty());
    let api = &session.api;
    match step {
        Step::Modify(id, Modification { add, remove, acceptance, private_name }) => {
            let removed = private_name.as_ref().is_some_and(String::is_empty);
            let request = api
                .ec2
                .modify_vpc_endpoint_service_configuration()
                .service_id(id)
                .set_add_network_load_balancer_arns(list(add))
                .set_remove_network_load_balancer_arns(list(remove))
                .set_acceptance_required(*acceptance)
                .set_remove_private_dns_name(removed.then_some(true))
                .set_private_dns_name(private_name.clone().filter(|_| !removed));
            api.change(Class::Ec2Change, "ModifyVpcEndpointServiceConfiguration", request.send()).await?;
        }
        Step::SetPrincipals { id, add, remove } => {
            let request = api.ec2.modify_vpc_endpoint_service_permissions().service_id(id);
            let request = request.set_add_allowed_principals(list(add)).set_remove_allowed_principals(list(remove));
            api.change(Class::Ec2Change, "ModifyVpcEndpointServicePermissions", request.send()).await?;
        }
        Step::Delete(ids) => {
            let request = api.ec2.delete_vpc_endpoint_service_configurations().set_service_ids(list(ids));
            let send = request.send();
            let response = api.change(Class::Ec2Change, "DeleteVpcEndpointServiceConfigurations", send).await?;
            refusal(response.unsuccessful())?;
        }
    }
    Ok(())
}

/// Returns an error if one of the endpoint services could not be deleted. One that no longer exists counts as deleted.
fn refusal(unsuccessful: &[UnsuccessfulItem]) -> Result<(), CloudError> {
    for item in unsuccessful {
        let code = item.error().and_then(|error| error.code()).unwrap_or_default();
        let message = item.error().and_then(|error| error.message()).unwrap_or_default();
        if code.ends_with("NotFound") {
            continue;
        }
        let id = item.resource_id().unwrap_or_default();
        let fix = "reject the connections of consumers or delete their endpoints: then it is deleted";
        let message = format!("endpoint service {id} is not deleted: {code}: {message}; {fix}");
        return Err(CloudError::new(ErrorKind::Conflict, "DeleteVpcEndpointServiceConfigurations", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::UnsuccessfulItemError;

    use super::*;
    use crate::loadbalancer::samples;

    #[test]
    fn connected_endpoint_service_is_an_error_with_a_fix() {
        let item = |code: &str| {
            let error = UnsuccessfulItemError::builder().code(code).message("m").build();
            UnsuccessfulItem::builder().resource_id("vpce-svc-1").error(error).build()
        };
        assert_eq!(refusal(&[]), Ok(()));
        assert_eq!(refusal(&[item("InvalidVpcEndpointService.NotFound")]), Ok(()));
        let error = refusal(&[item("InvalidVpcEndpointService.NotFound"), item("ExistingVpcEndpointConnections")]);
        let error = error.unwrap_err();
        assert!(error.kind == ErrorKind::Conflict && error.message.contains("reject the connections"), "{error}");
    }

    #[test]
    fn creations_have_different_tokens() {
        let one = token(&samples::id());
        let two = token(&samples::id());
        assert!(one != two && one.len() <= 64 && one.starts_with(&samples::id().uid), "{one} {two}");
    }
}
