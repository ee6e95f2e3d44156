//! Target groups that users made: a Service's targets are registered in them, and nothing else about them is changed.
//!
//! Other Services and clusters may register targets there, too: only targets on record are deregistered. Records are
//! kept in the cluster, and written before targets are registered, so that a crash leaves no target that is not on
//! record. If a Service no longer names a group, or is deleted, the group is found by the record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use providers::{
    CloudError, Deletion, Ensured, ErrorKind, Ingress, LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus, Progress,
};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::apply::classic::{self, later};
use crate::loadbalancer::apply::target_records;
use crate::loadbalancer::apply::targets::change_of;
use crate::loadbalancer::model::build;
use crate::loadbalancer::model::target_change::{Sharing, plan_changes};
use crate::loadbalancer::model::user_groups::{is_allowed, refusal, removable};
use crate::loadbalancer::observed::balancer_state::{BalancerState, KnownGroup, known_group};
use crate::loadbalancer::observed::convert;
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::refused_targets;
use crate::loadbalancer::observed::report::ingress;
use crate::loadbalancer::observed::stack::ObservedTargetGroup;
use crate::loadbalancer::ownership::{self, Purpose};
use crate::loadbalancer::plan::PACE;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::UserGroup;
use crate::loadbalancer::spec::user_groups::SUFFIX;
use crate::loadbalancer::types::{Target, TargetHealth};
use crate::session::Session;

/// Time until the next read of a target group that no load balancer uses yet.
const UNUSED_PERIOD: Duration = Duration::from_secs(60);

/// The target groups of users that a Service names.
#[derive(Debug, Default)]
pub(super) struct UserGroups {
    known: Vec<KnownGroup>,
    /// The addresses of the load balancers that use the target groups.
    addresses: Vec<Ingress>,
    warnings: Vec<String>,
    /// Each target group is used by a load balancer, and has a healthy target or should have no targets.
    serving: bool,
    /// A load balancer uses each target group.
    used: bool,
}

/// A target group of a user with its targets.
struct ReadGroup {
    group: KnownGroup,
    healthy: BTreeSet<Target>,
}

impl ReadGroup {
    fn serves(&self) -> bool {
        let wanted = self.group.recorded.as_ref().unwrap_or(&self.group.targets);
        wanted.is_empty() || wanted.iter().any(|target| self.healthy.contains(target))
    }
}

impl Balancers {
    /// Brings a Service to the desired state: its targets in target groups of the user, then its own load balancer. The
    /// former destinations of traffic are kept until the new ones serve.
    pub(super) async fn ensure_service(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        state: &mut BalancerState,
    ) -> Result<Ensured, CloudError> {
        let listing = self.recent_listing(work.session, state).await?;
        state.user_groups_serve = false;
        let groups = self.ensure_user_groups(work, &listing, state).await?;
        state.user_groups_serve = groups.serving;
        let has_stack = !work.settings.listeners.is_empty();
        let mut ensured = if has_stack {
            state.stack_removed = false;
            self.ensure_with_classic(spec, work, state).await?
        } else {
            self.ensure_without_stack(spec, work, &listing, &groups, state).await?
        };
        let current = self.current_group(work);
        let left = state.groups.iter().any(|name| Some(name.as_str()) != current.as_deref());
        let unchecked = !state.groups_checked && listing.has_groups(&work.session.cluster);
        if (left || unchecked) && ensured.progress == Progress::Settled {
            // The Service leaves a group only once everything is settled: until its new listeners serve, the old ones
            // use the group's load balancer.
            if !self.leave_groups(work.session, work.id, current.as_deref(), state).await? {
                ensured = later(ensured, PACE);
            }
            // An earlier process may have created a load balancer of a group that this listing does not contain yet.
            state.groups_checked = state.starts_empty || listing.begun >= self.all_visible();
        }
        let serving = groups.serving && (!has_stack || (ensured.progress == Progress::Settled && state.serving));
        let named = work.settings.user_groups.iter().map(|one| one.arn.as_str()).collect();
        if serving {
            self.leave_user_groups(work.session, work.id, (&listing, &named), state).await?;
        } else if self.follow_former_user_groups(spec, work, &listing, state).await? {
            ensured = later(ensured, state.pause_for_health(Instant::now()).max(PACE));
        }
        if !groups.used {
            ensured = later(ensured, UNUSED_PERIOD);
        }
        let new = groups.addresses.into_iter().filter(|address| !ensured.status.ingress.contains(address));
        let new: Vec<Ingress> = new.collect();
        ensured.status.ingress.extend(new);
        ensured.warnings.extend(groups.warnings);
        match &mut state.known {
            Some(known) => known.extend(groups.known),
            None if !has_stack => state.known = Some(groups.known),
            None => {}
        }
        Ok(ensured)
    }

    /// Registers the Service's targets in the target groups of the user.
    async fn ensure_user_groups(
        &self,
        work: &Work<'_>,
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<UserGroups, CloudError> {
        let names_groups = !work.settings.user_groups.is_empty();
        self.find_registrations(work.session, (work.id, names_groups), listing, state).await?;
        let mut all = UserGroups { serving: true, used: true, ..UserGroups::default() };
        for wanted in &work.settings.user_groups {
            let found = self.find_user_group(work, listing, wanted).await;
            if found.is_err() {
                self.remember_own_targets(work, listing, wanted, state).await?;
            }
            let (group, users) = found?;
            let ReadGroup { group, healthy } = self.read_user_group(work.session, work.id, wanted.port, group).await?;
            state.registered_ports.insert(group.arn.clone(), wanted.port);
            let registered = state.registered.get_or_insert_default().entry(group.arn.clone()).or_default();
            registered.extend(group.recorded.iter().flatten().cloned());
            let change = change_of(work, &wanted.group, &group);
            // These targets are deregistered even if the record is lost.
            registered.extend(change.record_before.iter().flatten().cloned());
            let mut groups = [group];
            let refused = self.change_targets(work.session, work.id, (&mut groups, vec![change]), state).await?;
            let [group] = groups;
            let balancers = users.iter().filter_map(|arn| listing.balancers.iter().find(|one| one.arn == *arn));
            let addresses: Vec<Ingress> = balancers.filter_map(ingress).collect();
            if users.is_empty() {
                all.used = false;
                let arn = &wanted.arn;
                let port = wanted.port;
                all.warnings.push(format!(
                    "no load balancer uses the target group {arn}: port {port} gets no traffic there, and its former \
                     destination is kept"
                ));
            }
            state.refusals.add(&refused_targets::texts(&refused));
            all.warnings.extend(refused_targets::warning(&refused));
            all.addresses
                .extend(addresses.into_iter().filter(|address| !all.addresses.contains(address)).collect::<Vec<_>>());
            let read = ReadGroup { group, healthy };
            all.serving &= read.serves() && !users.is_empty();
            all.known.push(read.group);
        }
        Ok(all)
    }

    /// Returns the target group that the user names, and the ARNs of the load balancers that use it.
    ///
    /// # Errors
    /// `Invalid` with the fix, if there is no such target group, the Service may not register targets there, or they do
    /// not fit.
    async fn find_user_group<'a>(
        &self,
        work: &Work<'_>,
        listing: &'a Listing,
        wanted: &UserGroup,
    ) -> Result<(&'a ObservedTargetGroup, &'a [String]), CloudError> {
        let refuse =
            |fix: &str| CloudError::invalid_annotation(&format!("{PREFIX}{SUFFIX}{}", wanted.port), &wanted.arn, fix);
        let Some((group, users)) = listing.target_groups.iter().find(|(group, _)| group.arn == wanted.arn) else {
            return Err(refuse(&fix_of_unlisted(work.session, &wanted.arn).await?));
        };
        match refusal(group, wanted, work.settings, work.id, &work.session.cluster) {
            Some(fix) => {
                // The user adds a tag after this error, so the next attempt must not use cached tags.
                self.inventory.forget(&wanted.arn);
                Err(refuse(&fix))
            }
            None => Ok((group, users)),
        }
    }

    /// Returns the target groups of the user that can be used, with their targets.
    pub(super) async fn find_usable_user_groups(
        &self,
        work: &Work<'_>,
        listing: &Listing,
    ) -> Result<Vec<KnownGroup>, CloudError> {
        let mut usable = Vec::new();
        for wanted in &work.settings.user_groups {
            match self.find_user_group(work, listing, wanted).await {
                Ok((group, _)) => {
                    usable.push(self.read_user_group(work.session, work.id, wanted.port, group).await?.group);
                }
                Err(error) if error.is_invalid() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(usable)
    }

    /// Reads the targets of a target group that a user made, and the record of this Service's targets; also the records
    /// of other Services that this process has not reconciled yet.
    async fn read_user_group(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        port: u16,
        group: &ObservedTargetGroup,
    ) -> Result<ReadGroup, CloudError> {
        let records = self.records().ok_or_else(no_records)?;
        let recorded = target_records::read_of_user_group(records, id, &group.arn).await?;
        let others = self.claims().unread(id, &group.arn);
        for other in others.iter().filter(|other| is_allowed(group, other, &session.cluster)) {
            let recorded = match target_records::read_of_user_group(records, other, &group.arn).await {
                // A record that this process may not read is one that it could not have written.
                Err(error) if error.kind == ErrorKind::Denied => None,
                recorded => recorded?,
            };
            self.claims().restore(other, &group.arn, recorded);
        }
        self.claims().begin_read(id, &group.arn);
        let request = session.api.elb.describe_target_health().target_group_arn(&group.arn);
        let response = session.api.read(Class::ElbRead, "DescribeTargetHealth", || request.clone().send()).await?;
        let targets: BTreeMap<Target, TargetHealth> =
            response.target_health_descriptions().iter().filter_map(convert::health).collect();
        let healthy = targets.iter().filter(|(_, health)| **health == TargetHealth::Healthy);
        let healthy = healthy.map(|(target, _)| target.clone()).collect();
        let observed = ObservedTargetGroup { targets, recorded, ..group.clone() };
        let group = KnownGroup { user: true, backend: None, ..known_group(id, port, &observed) };
        Ok(ReadGroup { group, healthy })
    }

    /// Deletes the Service's own load balancer once the target groups of the user serve, because no port needs it. Until
    /// then, its targets follow nodes and pods.
    async fn ensure_without_stack(
        &self,
        spec: &LoadBalancerSpec,
        work: &Work<'_>,
        listing: &Listing,
        groups: &UserGroups,
        state: &mut BalancerState,
    ) -> Result<Ensured, CloudError> {
        let old = listing.of(&work.session.cluster, work.id, Purpose::Delete);
        // The known groups belong to the former stack.
        state.known = None;
        let progress = if state.stack_removed {
            state.settle(spec)
        } else if groups.serving {
            state.classic = None;
            match self.remove_stack(work.session, work.id, state).await? {
                Deletion::Gone => {
                    state.stack_removed = true;
                    state.settle(spec)
                }
                Deletion::InProgress(again) => Progress::After(again),
            }
        } else {
            self.follow_former_stack(spec, work, listing, state).await?;
            if old.is_empty() && state.classic.is_none() {
                state.settle(spec)
            } else {
                let pause = state.pause();
                Progress::After(pause.max(state.pause_for_health(Instant::now())))
            }
        };
        let mut status = LoadBalancerStatus::default();
        if groups.addresses.is_empty() && !state.stack_removed {
            status.ingress.extend(old.balancers.iter().filter(|one| !one.shared).find_map(ingress));
            if let Some((classic, _)) = state.classic.as_ref().filter(|_| status.ingress.is_empty()) {
                status = classic::status(classic);
            }
        }
        Ok(Ensured { progress, ..Ensured::settled(status) })
    }

    /// Reads the targets of a target group that a user made, for one port of the Service.
    pub(super) async fn read_known_user_group(
        &self,
        work: &Work<'_>,
        port: u16,
        group: &ObservedTargetGroup,
    ) -> Result<KnownGroup, CloudError> {
        Ok(self.read_user_group(work.session, work.id, port, group).await?.group)
    }

    /// Finds the target groups of users in which a Service has targets: once by its records for groups that allow it,
    /// then by its claims. `names_groups`: the Service names such groups.
    pub(super) async fn find_registrations(
        &self,
        session: &Session,
        (id, names_groups): (&LoadBalancerId, bool),
        listing: &Listing,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let claimed = self.claims().of(id);
        if let Some(registered) = &mut state.registered {
            for (arn, targets) in claimed {
                registered.entry(arn).or_default().extend(targets);
            }
            return Ok(());
        }
        let Some(records) = self.records() else { return if names_groups { Err(no_records()) } else { Ok(()) } };
        let mut found: BTreeMap<String, BTreeSet<Target>> = claimed.into_iter().collect();
        let groups = listing.target_groups.iter().map(|(group, _)| group);
        for group in groups.filter(|group| is_allowed(group, id, &session.cluster)) {
            match target_records::read_of_user_group(records, id, &group.arn).await {
                Ok(recorded) => {
                    if let Some(recorded) = recorded.filter(|targets| !targets.is_empty()) {
                        found.entry(group.arn.clone()).or_default().extend(recorded);
                    }
                }
                // Services without such groups must not depend on this permission. It may be granted later.
                Err(error) if error.kind == ErrorKind::Denied && !names_groups => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        state.registered = Some(found);
        Ok(())
    }

    /// Remembers the Service's own current targets that are on its record for a target group that it may not use: its
    /// owner may have withdrawn the consent before this process started.
    async fn remember_own_targets(
        &self,
        work: &Work<'_>,
        listing: &Listing,
        wanted: &UserGroup,
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let group = listing.target_groups.iter().map(|(group, _)| group).find(|group| group.arn == wanted.arn);
        let registered = state.registered.get_or_insert_default();
        let Some(group) =
            group.filter(|group| !registered.contains_key(&group.arn) && !ownership::is_of_a_service(&group.tags))
        else {
            return Ok(());
        };
        let records = self.records().ok_or_else(no_records)?;
        let recorded = target_records::read_of_user_group(records, work.id, &group.arn).await?;
        let own = build::targets(work.settings, &wanted.group, group.ipv6, work.targets);
        let own = removable(Some(recorded.unwrap_or_default()), own, false);
        if !own.is_empty() {
            registered.insert(group.arn.clone(), own);
        }
        Ok(())
    }

    /// Deregisters a Service's targets from the target groups of users that it does not name.
    async fn leave_user_groups(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        (listing, named): (&Listing, &BTreeSet<&str>),
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let left = state.registered.iter().flatten().filter(|(arn, _)| !named.contains(arn.as_str()));
        let left: Vec<(String, BTreeSet<Target>)> = left.map(|(arn, targets)| (arn.clone(), targets.clone())).collect();
        for (arn, remembered) in left {
            let listed = listing.target_groups.iter().find(|(group, _)| group.arn == arn);
            let left = match listed {
                Some((group, _)) => self.deregister_all(session, id, (group, remembered), state).await,
                None => self.check_absence(session, &arn).await,
            };
            match left {
                // The user has deleted the target group.
                Err(error) if error.is_not_found() => {}
                result => result?,
            }
            self.claims().leave(id, &arn);
            if let Some(registered) = &mut state.registered {
                registered.remove(&arn);
            }
            state.registered_ports.remove(&arn);
        }
        Ok(())
    }

    async fn deregister_all(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        (group, remembered): (&ObservedTargetGroup, BTreeSet<Target>),
        state: &mut BalancerState,
    ) -> Result<(), CloudError> {
        let is_allowed = is_allowed(group, id, &session.cluster);
        let mut group = self.read_user_group(session, id, 0, group).await?.group;
        let recorded = removable(group.recorded.take(), remembered, is_allowed);
        let sharing = Sharing::Shared(Some(&recorded));
        let change = plan_changes(&BTreeSet::new(), &group.targets, sharing, None, false);
        group.recorded = Some(recorded);
        self.change_targets(session, id, (&mut [group], vec![change]), state).await.map(drop)
    }

    /// Reads a target group that is not listed. If the listing was incomplete, targets would be left there.
    ///
    /// # Errors
    /// `NotFound` if it no longer exists; `Transient` if a retry has to find it in a listing.
    async fn check_absence(&self, session: &Session, arn: &str) -> Result<(), CloudError> {
        let request = session.api.elb.describe_target_groups().target_group_arns(arn);
        let response = session.api.read(Class::ElbRead, "DescribeTargetGroups", || request.clone().send()).await?;
        let in_network = response.target_groups().iter().filter(|group| group.vpc_id() == Some(&session.vpc));
        if in_network.filter_map(convert::target_group).next().is_none() {
            // A group in another network, or of another kind, has no targets of a Service.
            return Ok(());
        }
        self.inventory.expire().await;
        Err(CloudError::new(ErrorKind::Transient, "DescribeTargetGroups", format!("{arn} is not listed")))
    }

    /// Deregisters all of a Service's targets from target groups of users, then deletes its own load balancer; `last`
    /// are the groups that the Service named last.
    pub(super) async fn remove(
        &self,
        session: &Session,
        id: &LoadBalancerId,
        last: &[UserGroup],
        state: &mut BalancerState,
    ) -> Result<Deletion, CloudError> {
        let listing = self.recent_listing(session, state).await?;
        let is_listed = |arn: &str| listing.target_groups.iter().any(|(group, _)| group.arn == arn);
        for unlisted in last.iter().filter(|group| !is_listed(&group.arn)) {
            match self.check_absence(session, &unlisted.arn).await {
                Err(error) if error.is_not_found() || error.is_invalid() => {}
                result => result?,
            }
        }
        self.find_registrations(session, (id, !last.is_empty()), &listing, state).await?;
        self.leave_user_groups(session, id, (&listing, &BTreeSet::new()), state).await?;
        self.remove_stack(session, id, state).await
    }

    /// Returns a description of each of the users' target groups that a Service names.
    ///
    /// # Errors
    /// `Invalid`, with the reason, if one of them cannot be used.
    pub(super) async fn forecast_user_groups(
        &self,
        work: &Work<'_>,
        listing: &Listing,
    ) -> Result<Vec<String>, CloudError> {
        let mut words = Vec::new();
        for wanted in &work.settings.user_groups {
            self.find_user_group(work, listing, wanted).await?;
            words.push(format!("targets of port {} are registered in {}", wanted.port, wanted.arn));
        }
        Ok(words)
    }
}

/// Returns the error about records that the process has not received access to yet.
fn no_records() -> CloudError {
    CloudError::new(ErrorKind::Transient, "ReadRecord", "records of targets cannot be read yet")
}

/// Returns the fix for a target group that is not listed: it does not exist, is in another network, or is of a kind
/// that cannot have a Service's targets.
async fn fix_of_unlisted(session: &Session, arn: &str) -> Result<String, CloudError> {
    let request = session.api.elb.describe_target_groups().target_group_arns(arn);
    let response = session.api.read(Class::ElbRead, "DescribeTargetGroups", || request.clone().send()).await;
    let region = &session.api.region;
    let absent = || format!("use the ARN of a target group that exists in {region} in the account of this process");
    let response = match response {
        Err(error) if error.is_not_found() || error.is_invalid() => return Ok(absent()),
        response => response?,
    };
    let Some(found) = response.target_groups().first() else { return Ok(absent()) };
    if found.vpc_id().is_some_and(|vpc| vpc != session.vpc) {
        return Ok(format!(
            "use a target group in {}: this one is in {}",
            session.vpc,
            found.vpc_id().unwrap_or_default()
        ));
    }
    if convert::target_group(found).is_none() {
        let kind = found.target_type().map_or("", |kind| kind.as_str());
        let protocol = found.protocol().map_or("none", |protocol| protocol.as_str());
        return Ok(format!(
            "use a target group of type instance or ip for TCP, UDP, TCP_UDP or TLS: this one has type {kind} and protocol \
             {protocol}"
        ));
    }
    Err(CloudError::new(ErrorKind::Transient, "DescribeTargetGroups", format!("{arn} is not listed yet")))
}
