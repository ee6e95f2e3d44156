//! Load balancers that several Services share. Each Service has its own listeners and target groups, with its tags, and
//! its own rules in the security group, with its uid in their descriptions. The load balancer and its security group
//! have the tag of the group and no owner tags of a Service. They are deleted with the last Service.
//!
//! A load balancer without listeners is deleted by the reconcile of any Service that finds it, even after a crash. One
//! lock for each group keeps a Service from deleting resources that another one has just created.

use std::collections::BTreeSet;
use std::sync::Arc;

use providers::{CloudError, ErrorKind, Forecast, LoadBalancerId, PlannedChange, Targets};
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::apply::backend_group::create_group;
use crate::loadbalancer::apply::balancers::{Balancers, Work, name_taken};
use crate::loadbalancer::apply::calls::{self, revoke};
use crate::loadbalancer::apply::ensure::failed_setup_warning;
use crate::loadbalancer::apply::group_locks::Created;
use crate::loadbalancer::model::build::{self, StackInputs};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::{BalancerState, VISIBLE};
use crate::loadbalancer::observed::inventory::{ListedGroup, Listing};
use crate::loadbalancer::observed::network;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack, State};
use crate::loadbalancer::ownership;
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::{Group, Settings};
use crate::loadbalancer::types::{Balancer, Scheme, Tags};
use crate::session::Session;

/// Returns the scheme of the load balancer of a group that a Service uses: a group has one load balancer for each
/// scheme.
fn scheme(settings: &Settings) -> Scheme {
    settings.scheme.unwrap_or(Scheme::Internal)
}

/// Returns the name of the load balancer of a group that a Service uses.
fn name(session: &Session, settings: &Settings, group: &Group) -> String {
    names::group_balancer(&session.cluster.id, &group.key, scheme(settings))
}

/// Returns the load balancer of a group with this name, if it is listed.
fn find<'a>(session: &Session, listing: &'a Listing, name: &str) -> Option<&'a ObservedBalancer> {
    listing.balancers.iter().find(|one| one.name == name && ownership::group(&one.tags, &session.cluster).is_some())
}

impl Balancers {
    /// Locks the group of a Service, if it has one, for the time in which the Service's listeners are created.
    pub(super) async fn lock_group(&self, work: &Work<'_>) -> Result<Option<OwnedMutexGuard<Created>>, CloudError> {
        let Some(group) = &work.settings.group else { return Ok(None) };
        if work.session.cluster.id.is_empty() {
            let fix = "set KubernetesClusterID in the cloud config: the load balancer is found by the cluster's tag";
            return Err(CloudError::invalid_annotation(&format!("{PREFIX}group"), &group.key, fix));
        }
        Ok(Some(self.groups.lock(&name(work.session, work.settings, group)).await))
    }

    /// Adds the load balancer of the Service's group and its security group to the observed state. Returns false if the
    /// Service has a group whose load balancer does not exist yet, or could not be set up by AWS.
    pub(super) fn add_group(&self, work: &Work<'_>, listing: &Listing, observed: &mut ObservedStack) -> bool {
        let session = work.session;
        let settings = work.settings;
        let Some(group) = &settings.group else { return true };
        let name = name(session, settings, group);
        let Some(found) = find(session, listing, &name).filter(|one| one.state != State::Failed) else { return false };
        observed.elsewhere.remove(&found.arn);
        let leads = found.tags.get(names::GROUP_LEAD) == Some(&work.id.uid);
        observed.balancers.push(ObservedBalancer { shared: true, leads, ..found.clone() });
        let security = listing.security_groups.iter().filter(|one| one.name == name);
        let security = security.filter(|one| ownership::group(&one.tags, &session.cluster).is_some());
        observed.security_groups.extend(security.map(ListedGroup::observed));
        true
    }

    /// Creates the load balancer of a group for its first Service, whose annotations about the load balancer itself
    /// take effect. Listings contain it only later.
    pub(super) async fn create_group_balancer(
        &self,
        work: &Work<'_>,
        created: &mut Created,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let Work { session, id, settings, .. } = *work;
        let Some(group) = &settings.group else { return Ok(()) };
        let name = name(session, settings, group);
        state.groups.insert(name.clone());
        state.changed = Some(Instant::now());
        // Another Service may have created it since the last listing.
        let listing = self.inventory.listing_since(session, Instant::now()).await?;
        if let Some(listed) = find(session, &listing, &name) {
            return delete_failed(session, listed, state).await;
        }
        let foreign = |one: &&ObservedBalancer| !ownership::is_incomplete(&one.tags, &session.cluster);
        if let Some(other) = listing.balancer(&name).filter(foreign) {
            return Err(name_taken(other));
        }
        let now = Instant::now();
        if created.balancer.is_some_and(|at| now < at + VISIBLE) || state.setup_pause(now).is_some() {
            return Ok(());
        }
        created.add_user(id, now);
        let network = self.networks.network(session).await?;
        let common = build::group_tags(group, settings, &session.cluster);
        let security = security_group(session, &listing, &name, &common, created).await?;
        // The load balancer gets the shared security group, which rules in nodes' security groups reference, even if
        // the first Service needs no such rules: later Services may need them.
        let backend = if self.policy.no_node_rules {
            None
        } else {
            Some(self.shared.lock().await.backend(session, &self.inventory, &listing, id).await?)
        };
        let alone = Settings { group: None, name: None, scheme: Some(scheme(settings)), ..settings.clone() };
        let none = ObservedStack::default();
        let no_targets = Targets::default();
        let inputs = StackInputs {
            id,
            cluster: &session.cluster,
            network: &network,
            observed: &none,
            backend: backend.as_deref(),
            named_groups: &[],
            targets: &no_targets,
        };
        let (desired, _) = build::desired(&alone, &inputs)?;
        let mut tags = settings.tags.clone();
        tags.extend(common);
        tags.insert(names::GROUP_LEAD.into(), id.uid.clone());
        let security_groups = std::iter::once(security).chain(backend).collect();
        let wanted = Balancer { name, tags, security_groups, ..desired.balancer };
        let mut caller = self.caller(session, &network, id);
        caller.execute(&Step::CreateBalancer(wanted), &none, &mut state.refused_targets).await?;
        created.balancer = Some(Instant::now());
        state.changed = created.balancer;
        tracing::info!(service = %id, group = group.key, "created the load balancer of a group");
        Ok(())
    }

    /// Returns warnings about annotations that have no effect because the group's load balancer was created for another
    /// Service.
    pub(super) fn warn_of_group(&self, work: &Work<'_>, observed: &ObservedStack) -> Vec<String> {
        let Some(group) = &work.settings.group else { return Vec::new() };
        if observed.balancers.iter().any(|one| one.shared && one.leads) {
            return Vec::new();
        }
        let one = |suffix: &String| {
            format!(
                "annotation {PREFIX}{suffix} has no effect: the load balancer of the group {} was created for another Service",
                group.key
            )
        };
        group.balancer_annotations.iter().map(one).collect()
    }

    /// Removes a Service's rules from the security groups of load balancer groups that it is not in. Deletes the load
    /// balancers and security groups that no Service uses any longer. Returns false while AWS has not finished the
    /// deletions for the Service's former groups.
    pub(super) async fn leave_groups(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        current: Option<&str>,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        let listing = self.recent_listing(session, state).await?;
        let of_group = |tags| ownership::group(tags, &session.cluster).is_some();
        let security: Vec<_> = listing.security_groups.iter().filter(|one| of_group(&one.tags)).collect();
        let ids: Vec<String> = security.iter().map(|one| one.id.clone()).collect();
        if !ids.is_empty() {
            let rules = network::rules(session, &ids).await?;
            for group in security.iter().filter(|one| Some(one.name.as_str()) != current) {
                let own = rules.get(&group.id).into_iter().flatten();
                let own: Vec<String> = own
                    .filter(|rule| names::is_group_rule(id, &rule.rule.description))
                    .map(|rule| rule.id.clone())
                    .collect();
                if !own.is_empty() {
                    state.groups.insert(group.name.clone());
                    revoke(session, &group.id, &own).await?;
                }
            }
        }
        let balancers: Vec<_> = listing.balancers.iter().filter(|one| of_group(&one.tags)).collect();
        let listed = security.iter().map(|one| &one.name).chain(balancers.iter().map(|one| &one.name));
        // This process may have created load balancers of groups that are not listed yet.
        let names: BTreeSet<String> = listed.chain(&state.groups).cloned().collect();
        let mut busy = BTreeSet::new();
        for name in names.into_iter().filter(|name| Some(name.as_str()) != current) {
            match self.end_group((session, id), &listing, &name, state).await {
                Ok(true) => {}
                Ok(false) => drop(busy.insert(name)),
                // Leaked resources of other groups must not keep a Service from being deleted.
                Err(error) if !state.groups.contains(&name) => {
                    tracing::warn!(load_balancer = name, %error, "an unused load balancer of a group was not deleted");
                }
                Err(error) => return Err(error),
            }
        }
        state.groups.retain(|name| busy.contains(name) || Some(name.as_str()) == current);
        Ok(busy.is_disjoint(&state.groups))
    }

    /// Deletes the load balancer and the security group of a group that no Service uses. Returns false while AWS has
    /// not finished.
    async fn end_group(
        &self,
        (session, id): (&Session, &LoadBalancerId),
        listing: &Listing,
        name: &str,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        let mut created = self.groups.lock(name).await;
        created.remove_user(id);
        let newer = if state.groups.contains(name) {
            self.listing_after_others(session, listing, &mut created).await?
        } else {
            None
        };
        let listing = newer.as_deref().unwrap_or(listing);
        if created.is_used_by_another(id, Instant::now()) {
            return Ok(true);
        }
        if let Some(balancer) = find(session, listing, name) {
            return self.end_group_balancer(session, listing, balancer, &mut created, state).await;
        }
        let security = listing.security_groups.iter().filter(|one| one.name == name);
        for group in security.filter(|one| ownership::group(&one.tags, &session.cluster).is_some()) {
            if listing.is_security_group_used(&group.id) {
                continue;
            }
            *created = Created::default();
            state.changed = Some(Instant::now());
            // The next listing shows whether the group is deleted.
            delete_security_group(session, &group.id).await?;
            return Ok(false);
        }
        let now = Instant::now();
        if created.may_have_invisible_balancer(now) {
            state.changed = Some(now);
            return Ok(false);
        }
        Ok(true)
    }

    /// Deletes the load balancer of a group. Returns true if it has a listener and is kept, and false while AWS has not
    /// finished.
    async fn end_group_balancer(
        &self,
        session: &Session,
        listing: &Listing,
        balancer: &ObservedBalancer,
        created: &mut Created,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        // Each listener sends traffic to a target group. If a listed target group is used by the load balancer, there
        // is a listener, and no further call is needed.
        if listing.target_groups.iter().any(|(_, users)| users.contains(&balancer.arn)) {
            created.note_listeners();
            return Ok(true);
        }
        match calls::listeners(session, &balancer.arn).await {
            Ok(listeners) if !listeners.is_empty() => {
                created.note_listeners();
                return Ok(true);
            }
            Err(error) if error.is_not_found() => {}
            listeners => {
                listeners?;
                let now = Instant::now();
                if created.may_have_invisible_listener(now, self.all_visible()) {
                    state.changed = Some(now);
                    state.groups.insert(balancer.name.clone());
                    return Ok(false);
                }
                delete_balancer(session, &balancer.arn).await?;
                tracing::info!(load_balancer = balancer.arn, "deleted a load balancer of a group: no Service uses it");
            }
        }
        *created = Created::default();
        state.changed = Some(Instant::now());
        state.groups.insert(balancer.name.clone());
        Ok(false)
    }

    /// Records that a Service leaves a group. If another Service has left since `listing` began, returns a newer
    /// listing: otherwise each of the two Services might find the listeners of the other and keep the load balancer.
    async fn listing_after_others(
        &self,
        session: &Session,
        listing: &Listing,
        created: &mut Created,
    ) -> Result<Option<Arc<Listing>>, CloudError> {
        let newer = match created.last_left.filter(|left| listing.begun < *left) {
            Some(left) => Some(self.inventory.listing_since(session, left).await?),
            None => None,
        };
        created.last_left = Some(Instant::now());
        Ok(newer)
    }

    /// Returns the actions of the next `ensure` of a Service in a group.
    pub(super) fn forecast_group(&self, work: &Work<'_>, listing: &Listing, group: &Group) -> Forecast {
        let name = name(work.session, work.settings, group);
        let (change, reason) = match find(work.session, listing, &name) {
            Some(_) => (PlannedChange::Kept, format!("it uses the load balancer {name} of the group {}", group.key)),
            None => (PlannedChange::Created, format!("the group {} has no load balancer yet: {name}", group.key)),
        };
        Forecast { change, reasons: vec![reason] }
    }

    /// Returns the name of the load balancer of the Service's group.
    pub(super) fn current_group(&self, work: &Work<'_>) -> Option<String> {
        work.settings.group.as_ref().map(|group| name(work.session, work.settings, group))
    }

    /// Returns the name of the load balancer of the group that a deleted Service was in, if it was in one.
    pub(super) fn former_groups(&self, session: &Session, settings: &Settings) -> BTreeSet<String> {
        settings.group.iter().map(|group| name(session, settings, group)).collect()
    }
}

/// Returns the security group of a load balancer that a group of Services shares; creates it if it does not exist.
async fn security_group(
    session: &Session,
    listing: &Listing,
    name: &str,
    tags: &Tags,
    created: &mut Created,
) -> Result<String, CloudError> {
    let own = |one: &&ListedGroup| one.name == name && ownership::group(&one.tags, &session.cluster).is_some();
    if let Some(listed) = listing.security_groups.iter().find(own) {
        return Ok(listed.id.clone());
    }
    let now = Instant::now();
    if let Some((id, _)) = created.security_group.as_ref().filter(|(_, at)| now < *at + VISIBLE) {
        return Ok(id.clone());
    }
    let id = create_group(session, name, tags).await?;
    created.security_group = Some((id.clone(), now));
    Ok(id)
}

/// Requests the deletion of a security group. It may still exist afterwards, for one of two reasons. Network interfaces
/// of the deleted load balancer use it; or it is new, and this call does not find it although lists contain it.
async fn delete_security_group(session: &Session, id: &str) -> Result<(), CloudError> {
    let request = session.api.ec2.delete_security_group().group_id(id);
    match session.api.change(Class::Ec2Change, "DeleteSecurityGroup", request.send()).await {
        Err(error) if error.is_not_found() || error.kind == ErrorKind::Conflict => Ok(()),
        response => response.map(drop),
    }
}

/// Deletes a listed load balancer if AWS could not set it up; another one is created after a pause.
async fn delete_failed(
    session: &Session,
    listed: &ObservedBalancer,
    state: &mut BalancerState,
) -> Result<(), CloudError> {
    if listed.state != State::Failed {
        return Ok(());
    }
    state.record_failed_setup(failed_setup_warning(listed), Instant::now());
    delete_balancer(session, &listed.arn).await
}

async fn delete_balancer(session: &Session, arn: &str) -> Result<(), CloudError> {
    let request = session.api.elb.delete_load_balancer().load_balancer_arn(arn);
    match session.api.change(Class::ElbChange, "DeleteLoadBalancer", request.send()).await {
        Err(error) if error.is_not_found() => Ok(()),
        response => response.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;

    #[test]
    fn group_is_used_while_a_new_listener_of_another_service_may_be_invisible() {
        let own = samples::id();
        let other = LoadBalancerId { uid: "other".into(), ..own.clone() };
        let mut created = Created::default();
        let start = Instant::now();
        assert!(!created.is_used_by_another(&own, start), "nothing was created");
        created.add_user(&own, start);
        assert!(!created.is_used_by_another(&own, start), "only the Service itself uses it");
        created.add_user(&other, start);
        assert!(created.is_used_by_another(&own, start));
        assert!(!created.is_used_by_another(&own, start + VISIBLE), "its listener is visible by now");
        created.remove_user(&other);
        assert!(!created.is_used_by_another(&own, start), "the other one has left");
    }

    #[test]
    fn group_is_read_again_while_a_listener_of_an_earlier_process_may_be_invisible() {
        let start = Instant::now();
        let mut created = Created::default();
        let all_visible = start + VISIBLE;
        let mut reads = || (0..10).take_while(|_| created.may_have_invisible_listener(start, all_visible)).count();
        assert_eq!(reads(), 4);
        assert_eq!(reads(), 0);
        created.note_listeners();
        assert!(created.may_have_invisible_listener(start, all_visible), "a read has returned listeners");
        assert!(!created.may_have_invisible_listener(all_visible, all_visible));
    }
}
