//! Updates of targets in target groups that the Service's current spec does not describe: the spec is invalid, AWS
//! refused the change to it, or the change is not finished.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::PoisonError;

use providers::{CloudError, ErrorKind, Followed, LoadBalancerId, LoadBalancerSpec};

use crate::loadbalancer::apply::backend_group::Opened;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::opening::TargetSecurityGroups;
use crate::loadbalancer::apply::range_rules::own_rule_names;
use crate::loadbalancer::apply::targets::{
    Access, change_of, note_refusals, note_refused_targets, requested, retry_pending,
};
use crate::loadbalancer::apply::{calls, target_records};
use crate::loadbalancer::model::failures::Failures;
use crate::loadbalancer::model::following::{self, Batch, Firewall, FollowedGroup, Following, NodePorts};
use crate::loadbalancer::model::range_rules::Reached;
use crate::loadbalancer::model::user_groups::is_allowed;
use crate::loadbalancer::model::{build, range_rules};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::{BalancerState, KnownGroup};
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::openings::Openings;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack};
use crate::loadbalancer::ownership::{self, Purpose};
use crate::loadbalancer::types::TargetType;

impl Balancers {
    /// Updates the targets of an invalid Service.
    pub(super) async fn follow(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Followed, CloudError> {
        state.refusals.begin();
        // The caller repeats a call with the same targets only after a pause.
        let is_retry = state.followed.take().is_some_and(|followed| followed == *work.targets);
        state.refused_targets.begin(is_retry);
        let (is_alone, updated) = self.update_classic(work, state).await;
        let others = if is_alone { Ok(BTreeSet::new()) } else { self.follow_service(spec, work, state).await };
        let refused = |text| CloudError::new(ErrorKind::Denied, "UpdateTargets", text);
        let refused = state.refusals.text().map(refused);
        if refused.is_some() {
            // No `ensure` tries again: the next call does.
            state.openings = Openings::default();
            state.followed = Some(work.targets.clone());
        }
        Ok(Followed { others: updated.and(others)?, refused })
    }

    /// Removes the stored target groups of an invalid Service, and returns them.
    pub(super) fn stop_following(&self, id: &LoadBalancerId) -> Option<Following> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner).remove(id)
    }

    async fn follow_service(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<BTreeSet<String>, CloudError> {
        let known = self.stop_following(work.id).filter(|following| following.spec == *spec);
        let mut following = match known {
            Some(following) => following,
            None => self.find_followed(spec, work, state).await?,
        };
        // After a failure, the next call reads the target groups again.
        state.known = None;
        let Following { batches, firewall, .. } = &mut following;
        let pending = self.follow_batches(work, batches, firewall, state).await?;
        let groups = following.batches.iter().flat_map(|batch| &batch.groups);
        state.known = Some(groups.map(|group| group.known.clone()).collect());
        let others = following.others.clone();
        self.following.lock().unwrap_or_else(PoisonError::into_inner).insert(work.id.clone(), following);
        retry_pending(&pending).map(|()| others)
    }

    /// Reads the target groups of an invalid Service.
    async fn find_followed(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Following, CloudError> {
        let Work { session, id, settings, .. } = *work;
        let listing = self.recent_listing(session, state).await?;
        let mut observed = listing.of(&session.cluster, id, Purpose::Ensure(settings.flavour));
        observed.remove_deleting(&state.deleting);
        // `elsewhere` are load balancers of users and of groups of Services.
        let elsewhere = std::mem::take(&mut observed.elsewhere);
        let shared = listing.balancers.iter().filter(|one| elsewhere.contains(&one.arn));
        observed.balancers.extend(shared.map(|one| ObservedBalancer { shared: true, ..one.clone() }));
        calls::details(session, &mut observed, false).await?;
        self.read_followed_records(work, &mut observed).await?;
        let following::Followed { groups, others } =
            following::followed(spec, &observed, &BTreeSet::new(), NodePorts::Current);
        let firewall = self.firewall(work, &listing, &observed);
        let mut batches = following::batches(settings, groups, firewall.opens_nodes());
        let names_groups = !settings.user_groups.is_empty();
        self.find_registrations(session, (id, names_groups), &listing, state).await?;
        let registered = registered_groups(state);
        let user_groups = self.read_followed_user_groups(spec, work, (&listing, &registered), state).await?;
        batches.extend(following::batches(settings, user_groups, false));
        if batches.is_empty() && observed.balancers.is_empty() {
            return Err(CloudError::new(ErrorKind::NotFound, "DescribeLoadBalancers", "there is no load balancer"));
        }
        Ok(Following { spec: spec.clone(), batches, firewall, others })
    }

    /// Reads the records of all of a Service's target groups: a record shows that other clusters register targets, too.
    async fn read_followed_records(&self, work: &Work<'_>, observed: &mut ObservedStack) -> Result<(), CloudError> {
        let Some(records) = self.records() else { return Ok(()) };
        for group in &mut observed.target_groups {
            match target_records::read(records, work.id, &target_records::name(&group.name)).await {
                Ok(recorded) => group.recorded = recorded,
                // Only Services with such groups depend on the permission to read records.
                Err(error) if error.kind == ErrorKind::Denied && !work.settings.shared_groups => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the load balancers to which nodes' security groups are opened.
    fn firewall(&self, work: &Work<'_>, listing: &Listing, observed: &ObservedStack) -> Firewall {
        let Work { session, id, .. } = *work;
        let backend = listing.backend(session, &id.cluster);
        let is_managed =
            |one: &&ObservedBalancer| !one.shared || ownership::group(&one.tags, &session.cluster).is_some();
        let has_backend = |one: &ObservedBalancer| backend.is_some_and(|group| one.security_groups.contains(&group.id));
        let without_groups = observed.balancers.iter().filter(|one| one.security_groups.is_empty());
        let described =
            |one: &ObservedBalancer| (names::rule_name(&session.cluster, id, &one.name), one.subnets.clone());
        Firewall {
            shared_group: observed.balancers.iter().filter(is_managed).any(has_backend),
            without_groups: without_groups.map(described).collect(),
            names: own_rule_names(session, id, listing, &observed.balancers),
        }
    }

    /// Reads target groups of users in which a Service has targets.
    async fn read_followed_user_groups(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        (listing, arns): (&Listing, &[String]),
        state: &BalancerState,
    ) -> Result<Vec<FollowedGroup>, CloudError> {
        let named = &work.settings.user_groups;
        let mut groups = Vec::new();
        for arn in arns {
            let Some((group, _)) = listing.target_groups.iter().find(|(group, _)| group.arn == *arn) else { continue };
            if !is_allowed(group, work.id, &work.session.cluster) {
                continue;
            }
            let port = named.iter().find(|one| one.arn == *arn).map(|one| one.port);
            let port = port.or_else(|| state.registered_ports.get(arn).copied());
            let known = self.read_known_user_group(work, port.unwrap_or_default(), group).await?;
            groups.extend(following::of_user(spec, group, known, port));
        }
        Ok(groups)
    }

    /// Updates the targets in target groups of users that a Service no longer names: they get traffic until its new
    /// destinations serve. Returns true if there are such groups.
    pub(super) async fn follow_former_user_groups(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<bool, CloudError> {
        let mut former = registered_groups(state);
        former.retain(|arn| !work.settings.user_groups.iter().any(|named| named.arn == *arn));
        if former.is_empty() {
            return Ok(false);
        }
        let mut groups = self.read_followed_user_groups(spec, work, (listing, &former), state).await?;
        retain_with_known_targets(work, &mut groups);
        let mut batches = following::batches(work.settings, groups, false);
        self.follow_batches(work, &mut batches, &Firewall::default(), state).await?;
        let registered = state.registered.get_or_insert_default();
        for FollowedGroup { known, .. } in batches.into_iter().flat_map(|batch| batch.groups) {
            // These targets are deregistered even if the record is lost.
            registered.entry(known.arn).or_default().extend(known.recorded.into_iter().flatten());
        }
        Ok(true)
    }

    /// Updates the targets of the load balancers that a Service had before all of its ports moved to target groups of
    /// users, including a Classic Load Balancer.
    pub(super) async fn follow_former_stack(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let (_, classic) = self.update_classic(work, state).await;
        let mut observed = listing.of(&work.session.cluster, work.id, Purpose::Ensure(work.settings.flavour));
        observed.remove_deleting(&state.deleting);
        if !observed.target_groups.is_empty() {
            calls::details(work.session, &mut observed, false).await?;
            self.read_followed_records(work, &mut observed).await?;
            // Security groups that AWS did not allow to open are tried again.
            state.openings = Openings::default();
            let followed = (&BTreeSet::new(), NodePorts::Current);
            self.follow_undescribed(spec, work, (&observed, listing), followed, state).await?;
        }
        match classic {
            // The Classic Load Balancer with the Service's name belongs to another owner.
            Err(error) if error.kind == ErrorKind::Conflict => Ok(()),
            classic => classic,
        }
    }

    /// Updates the targets of target groups, and opens the security groups of the targets. Targets are registered even
    /// if their security group cannot be opened, and also if those of another batch cannot be changed. Returns the
    /// addresses of pods whose security groups are not known yet.
    async fn follow_batches(
        &self,
        work: &Work<'_>,
        batches: &mut [Batch],
        firewall: &Firewall,
        state: &mut BalancerState,
    ) -> Result<BTreeSet<IpAddr>, CloudError> {
        let mut pending = BTreeSet::new();
        let mut opened = Ok(());
        let mut failures = Failures::default();
        for Batch { groups, settings } in batches {
            let work = Work { settings, ..*work };
            let shared = if firewall.shared_group {
                self.open_to_shared_group(&work, state).await
            } else {
                Ok(Access::default())
            };
            for more in [shared, self.open_ranges(&work, groups, firewall, state).await] {
                match more {
                    Ok(more) => pending.extend(more.pending),
                    Err(error) => opened = opened.and(Err(error)),
                }
            }
            let changes = groups.iter().map(|group| change_of(&work, &group.requested, &group.known)).collect();
            let mut known: Vec<KnownGroup> = groups.iter().map(|group| group.known.clone()).collect();
            match self.change_targets(work.session, work.id, (&mut known, changes), state).await {
                Ok(refused) => {
                    note_refused_targets(&work, &refused, state);
                    groups.iter_mut().zip(known).for_each(|(group, known)| group.known = known);
                }
                Err(error) => failures.add(error)?,
            }
        }
        failures.into_result().and(opened).map(|()| pending)
    }

    /// Opens the security groups of new targets to load balancers without security groups, whose rules depend on the
    /// clients. The clients are read from the rules in other security groups.
    async fn open_ranges(
        &self,
        work: &Work<'_>,
        groups: &[FollowedGroup],
        firewall: &Firewall,
        state: &mut BalancerState,
    ) -> Result<Access, CloudError> {
        let Work { session, settings, .. } = *work;
        if !settings.opens_targets() || firewall.without_groups.is_empty() {
            return Ok(Access::default());
        }
        let (listing, TargetSecurityGroups { groups: nodes, pending, .. }, ports) = self.find_opening(work).await?;
        let access = Access { pending, ..Access::default() };
        let sources: Vec<String> = firewall.without_groups.iter().map(|(name, _)| name.clone()).collect();
        if state.openings.covers(&sources, &nodes, &ports) {
            return Ok(access);
        }
        let network = self.networks.network(session).await?;
        let mut shared = self.shared.lock().await;
        let mut others = shared.groups_with_rules(session, &firewall.names).await?;
        others.extend(listing.tagged_groups(session).into_iter().map(|group| group.id.clone()));
        let requested = build::clients(settings, groups.iter().any(|group| group.known.ipv6));
        let clients = shared.known_clients(session, &others, (&firewall.names, &requested, &ports)).await?;
        if clients.is_empty() {
            // Without a rule for clients, users open nodes to the load balancer themselves.
            state.openings.add(&sources, &nodes, &ports);
            return Ok(access);
        }
        let reached: Vec<Reached> = groups.iter().map(|group| group.reached(settings, work.targets)).collect();
        let wanted = range_rules::followed(&firewall.without_groups, &clients, &reached, &network);
        let opened = shared.add_range_rules(session, &nodes, (&firewall.names, &wanted)).await?;
        drop(shared);
        let Opened { refused, .. } = self.forget_missing_group(opened).await?;
        note_refusals(work, &refused, state);
        if let Some(opened) = &mut state.range_rule_groups {
            opened.extend(nodes.iter().cloned());
        }
        state.openings.add(&sources, &nodes, &ports);
        Ok(access)
    }

    /// Opens the security groups of targets of known target groups to load balancers without security groups.
    pub(super) async fn open_ranges_of_known(
        &self,
        work: &Work<'_>,
        (observed, listing): (&ObservedStack, &Listing),
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let known = state.known.iter().flatten().filter(|group| !group.user);
        let described = known.filter_map(|known| {
            let requested = requested(work, known)?.clone();
            Some(FollowedGroup { known: known.clone(), requested, node_labels: None })
        });
        let described: Vec<FollowedGroup> = described.collect();
        self.open_ranges(work, &described, &self.firewall(work, listing, observed), state).await.map(drop)
    }

    /// Updates the targets of existing target groups other than the `described` ones, to which the load balancer still
    /// sends traffic: AWS refused to change it, or the change takes time.
    pub(super) async fn follow_undescribed(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        (observed, listing): (&ObservedStack, &Listing),
        (described, node_ports): (&BTreeSet<String>, NodePorts),
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        if observed.target_groups.iter().all(|group| described.contains(&group.arn)) {
            return Ok(());
        }
        let mut observed = observed.clone();
        for arn in std::mem::take(&mut observed.elsewhere) {
            let Some(former) = listing.balancers.iter().find(|one| one.arn == arn) else { continue };
            match calls::listeners(work.session, &arn).await {
                Err(error) if error.is_not_found() => {}
                listeners => {
                    let listeners = listeners?;
                    observed.balancers.push(ObservedBalancer { shared: true, listeners, ..former.clone() });
                }
            }
        }
        let mut groups = following::followed(spec, &observed, described, node_ports).groups;
        retain_with_known_targets(work, &mut groups);
        let firewall = self.firewall(work, listing, &observed);
        let mut batches = following::batches(work.settings, groups, firewall.opens_nodes());
        self.follow_batches(work, &mut batches, &firewall, state).await.map(drop)
    }
}

/// Returns the ARNs of the target groups of users in which a Service has targets, as far as they are known.
fn registered_groups(state: &BalancerState) -> Vec<String> {
    state.registered.iter().flatten().map(|(arn, _)| arn.clone()).collect()
}

/// Drops target groups for pods if no pod is known: the caller does not always read endpoints for a Service whose
/// targets should be nodes.
fn retain_with_known_targets(work: &Work<'_>, groups: &mut Vec<FollowedGroup>) {
    groups.retain(|group| group.known.target_type != TargetType::Ip || !work.targets.endpoints.is_empty());
}
