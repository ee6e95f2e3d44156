//! Calls to AWS: the reads of details of a Service's resources, and the calls of steps that create load balancers and
//! target groups, change targets, or change rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aws_sdk_elasticloadbalancingv2::types as elb;
use futures::future::{try_join, try_join_all, try_join3};
use providers::{CloudError, ErrorKind, LoadBalancerId, Records};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::apply::target_records;
use crate::loadbalancer::model::registration::{Batches, TARGETS_PER_CALL};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::refused_targets::{POSTPONED, Refused, RefusedTargets};
use crate::loadbalancer::observed::stack::{
    CreatedResource, ObservedBalancer, ObservedListener, ObservedStack, ObservedTargetGroup, State,
};
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::observed::{convert, network};
use crate::loadbalancer::ownership;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::types::{
    Attributes, Balancer, Listener, Probe, Protocol, Rule, Tags, Target, TargetGroup, TargetHealth, TargetType,
};
use crate::session::Session;

/// Reads the details that listings lack: listeners, attributes, targets, rules.
pub(crate) async fn details(session: &Session, observed: &mut ObservedStack, capacity: bool) -> Result<(), CloudError> {
    let ids: Vec<String> = observed.security_groups.iter().map(|group| group.id.clone()).collect();
    let balancers = try_join_all(observed.balancers.iter_mut().map(|one| balancer(session, one, capacity)));
    let groups = try_join_all(observed.target_groups.iter_mut().map(|one| target_group(session, one)));
    let (_, _, mut rules) = try_join3(balancers, groups, network::rules(session, &ids)).await?;
    for group in &mut observed.security_groups {
        group.rules = rules.remove(&group.id).unwrap_or_default();
    }
    Ok(())
}

async fn balancer(session: &Session, balancer: &mut ObservedBalancer, capacity: bool) -> Result<(), CloudError> {
    let arn = balancer.arn.clone();
    let request = session.api.elb.describe_load_balancer_attributes().load_balancer_arn(&arn);
    let attributes = session.api.read(Class::ElbRead, "DescribeLoadBalancerAttributes", || request.clone().send());
    let (attributes, listeners) = try_join(attributes, listeners(session, &arn)).await?;
    let pair = |one: &elb::LoadBalancerAttribute| {
        (one.key().unwrap_or_default().to_owned(), one.value().unwrap_or_default().to_owned())
    };
    balancer.attributes = attributes.attributes().iter().map(pair).collect();
    balancer.listeners = listeners;
    if capacity {
        let request = session.api.elb.describe_capacity_reservation().load_balancer_arn(&arn);
        let send = || request.clone().send();
        let response = session.api.read(Class::ElbRead, "DescribeCapacityReservation", send).await?;
        balancer.capacity = response.minimum_load_balancer_capacity().and_then(|capacity| capacity.capacity_units());
    }
    Ok(())
}

/// Reads the listeners of a load balancer, without their tags.
pub(super) async fn listeners(session: &Session, balancer: &str) -> Result<Vec<ObservedListener>, CloudError> {
    let mut all = Vec::new();
    let mut marker = None;
    loop {
        let request = session.api.elb.describe_listeners().load_balancer_arn(balancer).set_marker(marker);
        let response = session.api.read(Class::ElbRead, "DescribeListeners", || request.clone().send()).await?;
        all.extend(response.listeners().iter().filter_map(convert::listener));
        marker = response.next_marker().filter(|marker| !marker.is_empty()).map(str::to_owned);
        if marker.is_none() {
            break;
        }
    }
    for listener in all.iter_mut().filter(|listener| listener.protocol == Protocol::Tls) {
        let request = session.api.elb.describe_listener_certificates().listener_arn(&listener.arn).page_size(400);
        let send = || request.clone().send();
        let response = session.api.read(Class::ElbRead, "DescribeListenerCertificates", send).await?;
        let more = response.certificates().iter().filter(|one| one.is_default() != Some(true));
        let more = more.filter_map(|one| one.certificate_arn()).map(str::to_owned);
        let default = listener.certificates.first().cloned();
        listener.certificates.extend(more.filter(|arn| Some(arn) != default.as_ref()));
    }
    Ok(all)
}

/// Reads the attributes of a listener; needed only where a Service sets some.
pub(crate) async fn listener_attributes(session: &Session, arn: &str) -> Result<Attributes, CloudError> {
    let request = session.api.elb.describe_listener_attributes().listener_arn(arn);
    let response = session.api.read(Class::ElbRead, "DescribeListenerAttributes", || request.clone().send()).await?;
    let pair = |one: &elb::ListenerAttribute| {
        (one.key().unwrap_or_default().to_owned(), one.value().unwrap_or_default().to_owned())
    };
    Ok(response.attributes().iter().map(pair).collect())
}

async fn target_group(session: &Session, group: &mut ObservedTargetGroup) -> Result<(), CloudError> {
    let arn = group.arn.clone();
    let request = session.api.elb.describe_target_group_attributes().target_group_arn(&arn);
    let attributes = session.api.read(Class::ElbRead, "DescribeTargetGroupAttributes", || request.clone().send());
    let (attributes, targets) = try_join(attributes, targets(session, &arn)).await?;
    let pair = |one: &elb::TargetGroupAttribute| {
        (one.key().unwrap_or_default().to_owned(), one.value().unwrap_or_default().to_owned())
    };
    group.attributes = attributes.attributes().iter().map(pair).collect();
    group.targets = targets;
    Ok(())
}

/// Reads the targets of a target group.
async fn targets(session: &Session, group: &str) -> Result<BTreeMap<Target, TargetHealth>, CloudError> {
    let request = session.api.elb.describe_target_health().target_group_arn(group);
    let health = session.api.read(Class::ElbRead, "DescribeTargetHealth", || request.clone().send()).await?;
    Ok(health.target_health_descriptions().iter().filter_map(convert::health).collect())
}

/// Adds the details of resources that this process has just created. The details are known from the calls; only the
/// health of targets is read, if it matters (`needs_health`) and a load balancer is active. Returns false if other
/// resources are listed.
pub(crate) async fn details_of_created(
    session: &Session,
    observed: &mut ObservedStack,
    created: &ObservedStack,
    needs_health: bool,
) -> Result<bool, CloudError> {
    if !observed.take_details(created) {
        return Ok(false);
    }
    if needs_health && observed.balancers.iter().any(|balancer| balancer.state != State::Provisioning) {
        let read = async |group: &mut ObservedTargetGroup| {
            group.targets = targets(session, &group.arn).await?;
            Ok::<(), CloudError>(())
        };
        try_join_all(observed.target_groups.iter_mut().map(read)).await?;
    }
    Ok(true)
}

/// Returns a target as calls name it. An address outside of the network has the zone `all`; without it, AWS refuses to
/// register and to deregister the target.
fn described(network: &Network, target_type: TargetType, target: &Target) -> elb::TargetDescription {
    let address = target.id.parse::<IpAddr>().ok().filter(|_| target_type == TargetType::Ip);
    let outside = address.is_some_and(|address| !network.ranges.iter().any(|range| range.contains(&address)));
    let zone = outside.then(|| "all".to_owned());
    elb::TargetDescription::builder().id(&target.id).port(target.port.into()).set_availability_zone(zone).build()
}

/// Executes the steps of a plan.
pub(crate) struct Caller<'a> {
    pub session: &'a Session,
    pub network: &'a Network,
    pub id: &'a LoadBalancerId,
    /// Storage for the record of this cluster's targets in shared target groups, if there is one.
    pub records: Option<&'a dyn Records>,
    /// Targets that AWS refused, now or shortly before, while the others succeeded.
    pub refused: Refused,
    /// Load balancers that AWS returned as created, and that could not be confirmed to be the Service's.
    pub unconfirmed: Vec<String>,
}

/// Returns the error for a step whose resource no longer exists.
pub(super) fn gone(what: &str, name: &str) -> CloudError {
    CloudError::new(ErrorKind::Conflict, "FollowPlan", format!("{what} {name} no longer exists"))
}

impl Caller<'_> {
    pub(super) async fn create_balancer(&mut self, wanted: &Balancer) -> Result<CreatedResource, CloudError> {
        let groups = Some(wanted.security_groups.clone()).filter(|groups| !groups.is_empty());
        let request = self
            .session
            .api
            .elb
            .create_load_balancer()
            .name(&wanted.name)
            .r#type(elb::LoadBalancerTypeEnum::Network)
            .scheme(elb::LoadBalancerSchemeEnum::from(wanted.scheme.as_str()))
            .ip_address_type(elb::IpAddressType::from(wanted.address_type.as_str()))
            .set_subnet_mappings(Some(wanted.subnets.iter().map(convert::subnet_mapping).collect()))
            .set_security_groups(groups)
            .set_enable_prefix_for_ipv6_source_nat(
                wanted.source_nat.then_some(elb::EnablePrefixForIpv6SourceNatEnum::On),
            )
            .set_tags(convert::elb_tags(&wanted.tags));
        let response = self.session.api.change(Class::ElbChange, "CreateLoadBalancer", request.send()).await?;
        let made = response.load_balancers().first();
        let arn = made.and_then(|one| one.load_balancer_arn()).unwrap_or_default();
        if !names::is_generated(self.id, &wanted.name) && !wanted.tags.contains_key(names::GROUP) {
            let checked = self.check_creation(arn, &wanted.name).await;
            if checked.as_ref().is_err_and(|error| !error.is_invalid()) {
                self.unconfirmed.push(arn.to_owned());
            }
            checked?;
        }
        Ok(CreatedResource {
            id: arn.to_owned(),
            dns: made.and_then(|one| one.dns_name()).unwrap_or_default().to_ascii_lowercase(),
            rules: Vec::new(),
        })
    }

    /// Refuses a load balancer that AWS returned as created and that another Service or program owns. Creation is
    /// idempotent by name, and a user can give the same name to two Services.
    async fn check_creation(&self, arn: &str, name: &str) -> Result<(), CloudError> {
        let request = self.session.api.elb.describe_tags().resource_arns(arn);
        let response = self.session.api.read(Class::ElbRead, "DescribeTags", || request.clone().send()).await?;
        let tags: Tags = response
            .tag_descriptions()
            .iter()
            .flat_map(|one| one.tags())
            .map(|tag| (tag.key().unwrap_or_default().to_owned(), tag.value().unwrap_or_default().to_owned()))
            .collect();
        if ownership::is_own_creation(&tags, &self.session.cluster, self.id) {
            return Ok(());
        }
        if ownership::is_incomplete(&tags, &self.session.cluster) {
            let message = format!("the tags of {arn} are not visible yet");
            return Err(CloudError::new(ErrorKind::Conflict, "DescribeTags", message));
        }
        let owner = tags.get(names::SERVICE).or_else(|| tags.get(names::STACK));
        let owner = owner.map_or_else(|| "another owner".to_owned(), |service| format!("Service {service}"));
        let fix = format!("use another name: the load balancer {arn} with this name belongs to {owner}");
        Err(CloudError::invalid_annotation(&format!("{PREFIX}name"), name, &fix))
    }

    pub(super) async fn create_target_group(&self, wanted: &TargetGroup) -> Result<CreatedResource, CloudError> {
        let health = &wanted.health;
        let ipv6 = wanted.ipv6.then_some(elb::TargetGroupIpAddressTypeEnum::Ipv6);
        let request = self
            .session
            .api
            .elb
            .create_target_group()
            .name(&wanted.name)
            .vpc_id(&self.session.vpc)
            .protocol(elb::ProtocolEnum::from(wanted.protocol.as_str()))
            .port(wanted.port.into())
            .target_type(elb::TargetTypeEnum::from(wanted.target_type.as_str()))
            .set_ip_address_type(ipv6)
            .health_check_enabled(true)
            .health_check_protocol(convert::probe(health.protocol))
            .health_check_port(&health.port)
            .set_health_check_path(health.path.clone().filter(|_| health.protocol != Probe::Tcp))
            .set_matcher(health.codes.as_ref().map(|codes| elb::Matcher::builder().http_code(codes).build()))
            .health_check_interval_seconds(health.interval.cast_signed())
            .set_health_check_timeout_seconds(health.timeout.map(u32::cast_signed))
            .healthy_threshold_count(health.healthy.cast_signed())
            .unhealthy_threshold_count(health.unhealthy.cast_signed())
            .set_tags(convert::elb_tags(&wanted.tags));
        let response = self.session.api.change(Class::ElbChange, "CreateTargetGroup", request.send()).await?;
        let arn = response.target_groups().first().and_then(|group| group.target_group_arn());
        Ok(CreatedResource { id: arn.unwrap_or_default().to_owned(), ..CreatedResource::default() })
    }

    /// Registers targets, without those in `known` whose next attempt is not due yet. If AWS refuses one of them,
    /// batches are halved until the refused target is alone, so that all others are registered. If too many are
    /// refused, some targets are postponed to the next attempt.
    ///
    /// # Errors
    /// `Quota` if the target group is full; targets that fit are registered.
    pub(crate) async fn register(
        &mut self,
        arn: &str,
        target_type: TargetType,
        targets: &BTreeSet<Target>,
        known: &mut RefusedTargets,
    ) -> Result<(), CloudError> {
        let mut register = targets.clone();
        self.refused.extend(known.withhold(arn, &mut register, Instant::now()));
        let all: Vec<&Target> = register.iter().collect();
        let mut batches = Batches::new(&all);
        let mut full = None;
        while let Some(batch) = batches.take() {
            let described = batch.iter().map(|target| described(self.network, target_type, target)).collect();
            let request = self.session.api.elb.register_targets().target_group_arn(arn).set_targets(Some(described));
            match self.session.api.change(Class::ElbChange, "RegisterTargets", request.send()).await {
                Err(error) if error.is_invalid() => {
                    if batches.halve(batch, &mut known.halvings) {
                        continue;
                    }
                    let reason = if batch.len() > 1 { POSTPONED } else { &error.message };
                    let refused = batch.iter().map(|target| ((arn.to_owned(), (*target).clone()), reason.to_owned()));
                    let refused: Refused = refused.collect();
                    if batch.len() > 1 {
                        known.postpone();
                    } else {
                        known.record(&refused, Instant::now());
                    }
                    self.refused.extend(refused);
                }
                Err(error) if error.kind == ErrorKind::Quota => {
                    if !batches.halve_full(batch) {
                        full.get_or_insert(error);
                    }
                }
                response => {
                    drop(response?);
                    known.accept(arn, batch);
                }
            }
        }
        full.map_or(Ok(()), Err)
    }

    /// Records this cluster's targets in a target group, under the name of its record.
    pub(crate) async fn record(&self, name: &str, targets: &BTreeSet<Target>) -> Result<(), CloudError> {
        match self.records {
            Some(records) => target_records::write(records, self.id, name, targets).await,
            None => Ok(()),
        }
    }

    /// Deregisters targets.
    pub(crate) async fn deregister(
        &self,
        arn: &str,
        target_type: TargetType,
        targets: &BTreeSet<Target>,
    ) -> Result<(), CloudError> {
        let all: Vec<&Target> = targets.iter().collect();
        for batch in all.chunks(TARGETS_PER_CALL) {
            let described = batch.iter().map(|target| described(self.network, target_type, target)).collect();
            let request = self.session.api.elb.deregister_targets().target_group_arn(arn).set_targets(Some(described));
            self.session.api.change(Class::ElbChange, "DeregisterTargets", request.send()).await?;
        }
        Ok(())
    }
}

/// A listener's default certificate, TLS policy and ALPN policy.
pub(super) type Encryption = (Option<Vec<elb::Certificate>>, Option<String>, Option<Vec<String>>);

pub(super) fn encryption(listener: &Listener) -> Encryption {
    let certificates = listener.certificates.first().map(|arn| vec![certificate(arn)]);
    let tls = listener.protocol == Protocol::Tls;
    let alpn = tls.then(|| vec![listener.alpn.clone().unwrap_or_else(|| "None".into())]);
    (certificates, listener.policy.clone(), alpn)
}

pub(super) fn certificate(arn: &str) -> elb::Certificate {
    elb::Certificate::builder().certificate_arn(arn).build()
}

/// Adds rules; returns their ids, an empty one for each rule that the response lacks.
pub(crate) async fn authorize(session: &Session, group: &str, rules: &[Rule]) -> Result<Vec<String>, CloudError> {
    let permissions: Vec<_> = rules.iter().map(convert::permission).collect();
    let request = session.api.ec2.authorize_security_group_ingress().group_id(group);
    let request = request.set_ip_permissions(Some(permissions));
    let response = session.api.change(Class::Ec2Change, "AuthorizeSecurityGroupIngress", request.send()).await?;
    let made: Vec<_> = response.security_group_rules().iter().filter_map(convert::rule).collect();
    let id = |rule: &Rule| made.iter().find(|one| one.rule.key() == rule.key()).map(|one| one.id.clone());
    Ok(rules.iter().map(|rule| id(rule).unwrap_or_default()).collect())
}

/// Revokes rules by id, so that other rules that allow the same traffic stay.
pub(crate) async fn revoke(session: &Session, group: &str, rules: &[String]) -> Result<(), CloudError> {
    let request = session.api.ec2.revoke_security_group_ingress().group_id(group);
    let request = request.set_security_group_rule_ids(Some(rules.to_vec()));
    match session.api.change(Class::Ec2Change, "RevokeSecurityGroupIngress", request.send()).await {
        Err(error) if error.is_not_found() => Ok(()),
        response => response.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;

    #[test]
    fn address_outside_of_the_network_is_in_all_zones() {
        let network = samples::network();
        for (target_type, id, expected) in [
            (TargetType::Ip, "10.0.1.7", None),
            (TargetType::Ip, "192.168.0.7", Some("all")),
            (TargetType::Instance, "i-0123456789abcdef0", None),
        ] {
            let target = Target { id: id.into(), port: 80 };
            assert_eq!(described(&network, target_type, &target).availability_zone(), expected, "{id}");
        }
    }
}
