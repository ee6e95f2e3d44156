//! Changes of the targets of existing load balancers. Targets that this process stored in an earlier call are not read
//! again.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use providers::{CloudError, ErrorKind, LoadBalancerId, LoadBalancerSpec};
use tokio::time::Instant;

use crate::loadbalancer::apply::backend_group::Opened;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::calls::{self, Caller};
use crate::loadbalancer::apply::opening::TargetSecurityGroups;
use crate::loadbalancer::apply::target_records;
use crate::loadbalancer::model::failures::Failures;
use crate::loadbalancer::model::following::NodePorts;
use crate::loadbalancer::model::target_change::{Sharing, TargetChanges, plan_changes};
use crate::loadbalancer::model::{build, node_rules};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::{BalancerState, KnownGroup, known_group, without_duplicates};
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::openings::Openings;
use crate::loadbalancer::observed::refused_targets::{self, Refused, RefusedTargets};
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack};
use crate::loadbalancer::ownership::Purpose;
use crate::loadbalancer::spec::settings::{GroupSettings, Other, Settings};
use crate::loadbalancer::types::Ports;
use crate::session::Session;

/// The maximum age of a listing from which the security groups with the cluster's tag are taken.
const MAX_LISTING_AGE: Duration = Duration::from_secs(30 * 60);

/// The result of opening the security groups of targets.
#[derive(Debug, Default)]
pub(super) struct Access {
    /// The load balancer has no security groups, and its rules must change.
    pub needs_stack: bool,
    /// Addresses of new pods whose security groups are not known yet.
    pub pending: BTreeSet<IpAddr>,
}

/// Applies a sent change to the known state of its target group.
fn note_change(group: &mut KnownGroup, change: TargetChanges) {
    group.targets.extend(change.register);
    group.targets.retain(|target| !change.deregister.contains(target));
    group.recorded = change.record_after.or(change.record_before).or(group.recorded.take());
}

/// Returns the settings that a group was made from. A listener's own group is found by its port, a group for another
/// Service by that Service's name and port, a user's group by its ARN.
pub(super) fn requested<'a>(work: &Work<'a>, group: &KnownGroup) -> Option<&'a GroupSettings> {
    let settings = work.settings;
    if group.user {
        return settings.user_groups.iter().find(|requested| requested.arn == group.arn).map(|one| &one.group);
    }
    let Some(part) = &group.backend else {
        return settings
            .listeners
            .iter()
            .find(|requested| requested.port == group.port)
            .map(|requested| &requested.group);
    };
    settings.backends().filter(|requested| requested.protocol == group.protocol).find(|requested| {
        let named =
            requested.backend.as_ref().map(|one| names::resource_id(&work.id.namespace, &one.service, one.port));
        named.as_ref() == Some(part)
    })
}

/// Returns the change from the known to the wanted targets of a group.
pub(super) fn change_of(work: &Work<'_>, requested: &GroupSettings, group: &KnownGroup) -> TargetChanges {
    let settings = work.settings;
    let wanted = build::targets(settings, requested, group.ipv6, work.targets);
    let sharing = Sharing::of(settings.shared_groups || group.user, group.recorded.as_ref());
    plan_changes(&wanted, &group.targets, sharing, settings.max_targets, work.targets.incomplete)
}

/// Returns the name of the record of a group's targets.
fn record_name(id: &LoadBalancerId, group: &KnownGroup) -> String {
    if group.user { target_records::user_record_name(id, &group.arn) } else { target_records::name(&group.name) }
}

/// Registers the new targets of a group, which are recorded before.
async fn register(
    caller: &mut Caller<'_>,
    group: &KnownGroup,
    change: &TargetChanges,
    state: &mut BalancerState,
) -> Result<(), CloudError> {
    if let Some(before) = &change.record_before {
        caller.record(&record_name(caller.id, group), before).await?;
    }
    caller.register(&group.arn, group.target_type, &change.register, &mut state.refused_targets).await
}

impl Balancers {
    /// Reads this cluster's records for target groups that others share.
    pub(super) async fn read_records(&self, work: &Work<'_>, observed: &mut ObservedStack) -> Result<(), CloudError> {
        let Some(records) = self.records().filter(|_| work.settings.shared_groups) else { return Ok(()) };
        for group in &mut observed.target_groups {
            group.recorded = target_records::read(records, work.id, &target_records::name(&group.name)).await?;
        }
        Ok(())
    }

    /// Updates the targets of known target groups; `None` if they are not known, or the spec does not describe them
    /// all.
    pub(super) async fn update_targets(
        &self,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Option<()>, CloudError> {
        let Some(mut groups) = state.known.take() else { return Ok(None) };
        let mut changes = Vec::new();
        for group in &groups {
            let Some(requested) = requested(work, group).filter(|_| group.target_type == work.settings.target_type)
            else {
                return Ok(None);
            };
            changes.push(change_of(work, requested, group));
        }
        let refused = self.change_targets(work.session, work.id, (&mut groups, changes), state).await?;
        note_refused_targets(work, &refused, state);
        state.known = Some(groups);
        Ok(Some(()))
    }

    /// Changes the targets of groups. New targets are registered before old ones are deregistered, unless the group has
    /// no room for them. Targets that AWS refused shortly before are left out. Returns them and newly refused ones.
    ///
    /// # Errors
    /// The first error of a group. The other groups are changed nevertheless, unless their calls would fail, too.
    pub(super) async fn change_targets(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        (groups, mut changes): (&mut [KnownGroup], Vec<TargetChanges>),
        state: &mut BalancerState,
    ) -> Result<Refused, CloudError> {
        let network = self.networks.network(session).await?;
        let mut caller = self.caller(session, &network, id);
        for (group, change) in groups.iter().zip(&mut changes).filter(|(group, _)| group.user) {
            self.claims().claim(id, &group.arn, group.recorded.as_ref(), change);
        }
        state.changed = Some(Instant::now());
        let changed = self.send_changes(&mut caller, (groups, &changes), state).await;
        state.changed = Some(Instant::now());
        changed?;
        for (group, change) in groups.iter_mut().zip(changes) {
            note_change(group, change);
            group.targets.retain(|target| !caller.refused.contains_key(&(group.arn.clone(), target.clone())));
        }
        Ok(caller.refused)
    }

    /// Makes the calls for changes of target groups.
    ///
    /// # Errors
    /// The first error of a group, after the calls for all others; without these calls, if the error is not about the
    /// group.
    async fn send_changes(
        &self,
        caller: &mut Caller<'_>,
        (groups, changes): (&[KnownGroup], &[TargetChanges]),
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let mut failures = Failures::default();
        let mut full = Vec::new();
        let mut registered = Vec::new();
        for (group, change) in groups.iter().zip(changes) {
            match register(caller, group, change, state).await {
                Ok(()) => registered.push((group, change)),
                Err(error) if error.kind == ErrorKind::Quota => {
                    registered.push((group, change));
                    full.push((group, change));
                }
                Err(error) => failures.add(error)?,
            }
        }
        for (group, change) in registered {
            if let Err(error) = self.deregister(caller, group, change).await {
                failures.add(error)?;
                full.retain(|(other, _)| other.arn != group.arn);
            }
        }
        for (group, change) in full {
            // The record has the state after the deregistration already.
            let again = caller.register(&group.arn, group.target_type, &change.register, &mut state.refused_targets);
            if let Err(error) = again.await {
                failures.add(error)?;
            }
        }
        failures.into_result()
    }

    /// Deregisters the former targets of a group, which are then removed from its record. Registers those again that
    /// other Services have claimed in the meantime.
    async fn deregister(
        &self,
        caller: &mut Caller<'_>,
        group: &KnownGroup,
        change: &TargetChanges,
    ) -> Result<(), CloudError> {
        if !change.deregister.is_empty() {
            let deregistered = caller.deregister(&group.arn, group.target_type, &change.deregister).await;
            // AWS may have executed a call although it returned an error.
            let claimed = self.claims().note_deregistered(caller.id, &group.arn, &change.deregister);
            // Pauses after refusals are those of the other Services.
            caller.register(&group.arn, group.target_type, &claimed, &mut RefusedTargets::default()).await?;
            deregistered?;
        }
        if let Some(after) = &change.record_after {
            caller.record(&record_name(caller.id, group), after).await?;
        }
        Ok(())
    }

    /// Finds the target groups that a Service's load balancer forwards to and that the request describes, and those of
    /// the user. Returns all that was observed of the load balancer.
    ///
    /// AWS may refuse changes of a load balancer: it then lacks listeners, or has groups of another kind, which are
    /// left out.
    pub(super) async fn find_groups(
        &self,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<(ObservedStack, Arc<Listing>), CloudError> {
        let listing = self.recent_listing(work.session, state).await?;
        let (mut groups, observed) = self.find_own_groups(work, &listing, state).await?;
        groups.extend(self.find_usable_user_groups(work, &listing).await?);
        state.known = Some(groups).filter(|groups| !groups.is_empty());
        Ok((observed, listing))
    }

    /// Finds target groups as [`find_groups`](Self::find_groups), and updates the targets of all others to which a load
    /// balancer of the Service, or a listener of its user, sends traffic. Returns true if there are others.
    pub(super) async fn find_groups_and_follow(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        let (observed, listing) = self.find_groups(work, state).await?;
        if let Err(error) = self.open_ranges_of_known(work, (&observed, &listing), state).await {
            tracing::warn!(service = %work.id, %error, "security groups of targets were not opened");
        }
        let described: BTreeSet<String> = state.known.iter().flatten().map(|group| group.arn.clone()).collect();
        let followed = (&described, NodePorts::Current);
        let updated = self.follow_undescribed(spec, work, (&observed, &listing), followed, state).await;
        let has_former = self.follow_former_user_groups(spec, work, &listing, state).await;
        updated?;
        Ok(has_former? || observed.target_groups.iter().any(|group| !described.contains(&group.arn)))
    }

    async fn find_own_groups(
        &self,
        work: &Work<'_>,
        listing: &Listing,
        state: &BalancerState,
    ) -> Result<(Vec<KnownGroup>, ObservedStack), CloudError> {
        let mut observed = listing.of(&work.session.cluster, work.id, Purpose::Ensure(work.settings.flavour));
        observed.remove_deleting(&state.deleting);
        self.add_user_balancer(work, listing, &mut observed)?;
        self.add_group(work, listing, &mut observed);
        if observed.balancers.is_empty() {
            return Ok((Vec::new(), observed));
        }
        calls::details(work.session, &mut observed, false).await?;
        self.read_records(work, &mut observed).await?;
        let existing = build::existing(work.settings, work.id, &observed);
        let forwarded = existing.map(|existing| forwarded(work.settings, work.id, existing, &observed));
        let usable = |group: &KnownGroup| {
            let is_of_type = group.target_type == work.settings.target_type && work.settings.alb.is_none();
            is_of_type && requested(work, group).is_some()
        };
        let groups = without_duplicates(forwarded.unwrap_or_default());
        Ok((groups.into_iter().filter(usable).collect(), observed))
    }

    /// Keeps targets current although the load balancer could not be brought to the desired state.
    pub(super) async fn update_existing_targets(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let (is_alone, updated) = self.update_classic(work, state).await;
        if is_alone {
            return updated;
        }
        let groups = self.update_existing_groups(spec, work, state).await;
        updated.and(groups)
    }

    async fn update_existing_groups(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        // Security groups that AWS did not allow to open are tried again here: the failing `ensure` may never reach
        // that point.
        state.openings = Openings::default();
        let undescribed = self.find_groups_and_follow(spec, work, state).await;
        if state.known.is_none() {
            return undescribed.map(drop);
        }
        let opened = self.open_nodes(work, state).await;
        self.update_targets(work, state).await?;
        // The next call starts from the state in AWS.
        state.known = None;
        opened.and(undescribed).map(drop)
    }

    /// Finds the security groups of targets, and the ports to open there. Returns them with the listing of the groups.
    pub(super) async fn find_opening(
        &self,
        work: &Work<'_>,
    ) -> Result<(Arc<Listing>, TargetSecurityGroups, Ports), CloudError> {
        let now = Instant::now();
        // The tags of nodes' groups hardly ever change, so an old listing suffices.
        let long_ago = now.checked_sub(MAX_LISTING_AGE).unwrap_or(now);
        let listing = self.inventory.listing_since(work.session, long_ago).await?;
        let groups = self.target_security_groups(work, &listing).await?;
        Ok((listing, groups, node_rules::requested_ports(work.settings, work.targets)))
    }

    /// Opens the security groups of new targets, and for new ports the security groups of all targets, to the load
    /// balancer in its desired state. If the load balancer has no security groups, nothing is opened here, and the
    /// result states whether its rules must change.
    pub(super) async fn open_nodes(&self, work: &Work<'_>, state: &mut BalancerState) -> Result<Access, CloudError> {
        let settings = work.settings;
        match &state.range_rule_name {
            Some(name) if settings.opens_targets() => {
                let (_, TargetSecurityGroups { groups, pending, .. }, ports) = self.find_opening(work).await?;
                let needs_stack = !state.openings.covers(from_ref(name), &groups, &ports);
                Ok(Access { needs_stack, pending })
            }
            _ => self.open_to_shared_group(work, state).await,
        }
    }

    /// Opens the security groups of targets to the group that all load balancers share.
    pub(super) async fn open_to_shared_group(
        &self,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Access, CloudError> {
        let Work { session, settings, .. } = *work;
        if !settings.opens_targets() {
            return Ok(Access::default());
        }
        let (listing, TargetSecurityGroups { groups, pending, .. }, ports) = self.find_opening(work).await?;
        let access = Access { pending, ..Access::default() };
        let backend = listing.backend(session, &work.id.cluster).filter(|_| settings.existing.is_none());
        let Some(backend) = backend.map(|group| group.id.clone()) else { return Ok(access) };
        if state.openings.covers(from_ref(&backend), &groups, &ports) {
            return Ok(access);
        }
        let Opened { refused, .. } = self.open_targets(session, &groups, &backend, &ports).await?;
        note_refusals(work, &refused, state);
        state.openings.add(from_ref(&backend), &groups, &ports);
        Ok(access)
    }
}

/// Returns the target groups that the desired listeners forward to. While one target group is exchanged for another,
/// both are returned.
fn forwarded(
    settings: &Settings,
    id: &LoadBalancerId,
    existing: &ObservedBalancer,
    observed: &ObservedStack,
) -> Vec<KnownGroup> {
    let mut groups = Vec::new();
    for requested in &settings.listeners {
        let others = requested.spread.as_ref().map(|spread| spread.others.as_slice()).unwrap_or_default();
        let foreign = |arn: &String| others.iter().any(|(other, _)| *other == Other::Arn(arn.clone()));
        let listener = existing.listeners.iter().find(|one| one.port == requested.port);
        let forwards = listener.map(|listener| listener.forwards.as_slice()).unwrap_or_default();
        let arns = forwards.iter().map(|(arn, _)| arn).filter(|arn| !foreign(arn));
        groups.extend(arns.filter_map(|arn| Some(known_group(id, requested.port, observed.target_group_by_arn(arn)?))));
    }
    groups
}

/// Logs and records targets that AWS refused.
pub(super) fn note_refused_targets(work: &Work<'_>, refused: &Refused, state: &mut BalancerState) {
    if let Some(warning) = refused_targets::warning(refused) {
        tracing::warn!(service = %work.id, "{warning}");
    }
    state.refusals.add(&refused_targets::texts(refused));
}

/// Logs and records security groups of targets that AWS did not allow to open.
pub(super) fn note_refusals(work: &Work<'_>, refused: &[String], state: &mut BalancerState) {
    for refusal in refused {
        tracing::warn!(service = %work.id, "{refusal}");
    }
    state.refusals.add(refused);
}

/// Returns an error that makes the caller retry while the security groups of new pods are not known: their targets are
/// registered and get no traffic yet.
pub(super) fn retry_pending(pending: &BTreeSet<IpAddr>) -> Result<(), CloudError> {
    let Some(first) = pending.first() else { return Ok(()) };
    let message = match pending.len() {
        1 => format!("no network interface has the address {first} of a pod yet"),
        number => format!("no network interfaces have the addresses of {number} pods yet, such as {first}"),
    };
    Err(CloudError::new(ErrorKind::Transient, "DescribeNetworkInterfaces", message))
}
