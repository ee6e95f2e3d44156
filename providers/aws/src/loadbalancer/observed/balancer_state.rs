//! The recorded state of a Service's load balancer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use providers::{Ensured, LoadBalancerId, LoadBalancerSpec, Progress, Targets};
use tokio::time::Instant;

use crate::loadbalancer::names;
use crate::loadbalancer::observed::classic::Classic;
use crate::loadbalancer::observed::misses::Misses;
use crate::loadbalancer::observed::openings::Openings;
use crate::loadbalancer::observed::refusals::Refusals;
use crate::loadbalancer::observed::refused_targets::{Refused, RefusedTargets};
use crate::loadbalancer::observed::stack::{ObservedStack, ObservedTargetGroup};
use crate::loadbalancer::plan::{PACE, Step};
use crate::loadbalancer::types::{ClassicGroups, Desired, Protocol, Target, TargetHealth, TargetType};

/// The first pause while AWS works on a change; it doubles up to [`PACE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// The maximum pause while traffic waits for a healthy target, which may never exist.
const MAX_HEALTH_PAUSE: Duration = Duration::from_secs(60);

/// Time after which a created resource is visible with all its tags.
pub(crate) const VISIBLE: Duration = Duration::from_secs(60);

/// Number of reads whose pauses together exceed a minute.
const OVERDUE_READS: u32 = 12;

/// Number of reads, in about ten minutes, after which AWS is unlikely to finish by itself. Network interfaces of a
/// deleted load balancer exist for a few minutes.
const STUCK_READS: u32 = 60;

/// Pause before a load balancer is created again after AWS could not set it up. The pause doubles up to
/// [`MAX_SETUP_PAUSE`].
const FIRST_SETUP_PAUSE: Duration = Duration::from_secs(2);

/// Maximum pause before a load balancer is created again.
const MAX_SETUP_PAUSE: Duration = Duration::from_secs(300);

/// Pause before the first read of a load balancer that this process has just created. AWS sets it up in minutes, and
/// one listing then covers all load balancers that were created during the pause.
const SETUP_PAUSE: Duration = Duration::from_secs(2);

/// A target group as of this process's last read or change.
#[derive(Debug, Clone)]
pub(crate) struct KnownGroup {
    /// The port of a listener that uses the group, or the Service's port for a user's group.
    pub port: u16,
    /// For a group that sends traffic to another Service: the value of its resource tag, such as `default/green:8080`.
    pub backend: Option<String>,
    pub arn: String,
    pub name: String,
    pub target_type: TargetType,
    pub protocol: Protocol,
    pub ipv6: bool,
    pub targets: BTreeSet<Target>,
    /// Same as [`ObservedTargetGroup::recorded`].
    pub recorded: Option<BTreeSet<Target>>,
    /// The target group was created by a user: other clients may register targets there, and only the Service's own
    /// targets are changed.
    pub user: bool,
}

/// The resources of a Service that had none, as this process has created and changed them.
#[derive(Debug, Clone)]
struct CreatedStack {
    stack: ObservedStack,
    /// The inputs of the calls.
    spec: LoadBalancerSpec,
}

/// A load balancer that is settled according to a listing that may have lacked resources of the Service.
#[derive(Debug)]
pub(crate) struct Unverified {
    /// The time from which listings contain all resources of the Service.
    pub visible: Instant,
    /// The ARNs and ids of the resources that the listing contained or the `ensure` created.
    pub ids: BTreeSet<String>,
    /// The result of the `ensure`; `None`: it has not returned yet.
    pub ensured: Option<Ensured>,
}

/// The state of one Service's load balancer.
#[derive(Debug, Default)]
pub(crate) struct BalancerState {
    /// Time of this process's last attempt to change a resource of the Service: older reads are out of date.
    pub changed: Option<Instant>,
    /// ARNs and ids of created resources that may not be listed yet, with the time of creation.
    pub made: BTreeMap<String, Instant>,
    /// Names of resources whose creation got no response, with the time of the call: AWS may have executed it.
    pub unanswered: BTreeMap<String, Instant>,
    /// Set if the last `ensure` settled and relied on a listing that may have lacked resources.
    pub unverified: Option<Unverified>,
    /// The Service had no finalizer before its first `ensure`, so no other process has created anything for it.
    pub starts_empty: bool,
    /// Time of the last failed `ensure`: AWS may have executed a call although it returned an error.
    failed: Option<Instant>,
    /// Number of listings without any resource to delete since the last failure.
    empty_listings: Misses,
    /// Number of responses without a Classic Load Balancer.
    without_classic: Misses,
    /// The resources of a Service that had none, as this process has created them, while AWS works on them and until a
    /// call fails.
    created: Option<CreatedStack>,
    /// ARNs of load balancers that AWS returned as created, and whose tags could not be read since then, with the time.
    pub unconfirmed: BTreeMap<String, Instant>,
    /// Number of responses that lacked a resource to delete, by the resource's id.
    missing: BTreeMap<String, Misses>,
    /// The time at which a deletion first found resources whose tags may not be visible yet.
    pub incomplete_since: Option<Instant>,
    /// ARNs of resources whose deletion was requested.
    pub deleting: BTreeSet<String>,
    /// The load balancer's target groups, until a call fails.
    pub known: Option<Vec<KnownGroup>>,
    /// The name in the rules of the load balancer, if the load balancer has no security group.
    pub range_rule_name: Option<String>,
    /// Nodes' security groups that may have rules for the load balancer, if the load balancer has no security group;
    /// `None`: they were not read yet.
    pub range_rule_groups: Option<BTreeSet<String>>,
    /// The security groups that annotations name for a Classic Load Balancer.
    pub classic_groups: ClassicGroups,
    /// The security groups that were opened to the Service's load balancers. They include groups that AWS did not
    /// allow to open: the next `ensure` tries again.
    pub openings: Openings,
    /// The targets that AWS refused, and the security groups of targets that it did not allow to open.
    pub refusals: Refusals,
    /// The refused targets, with the time of the last attempt.
    pub refused_targets: RefusedTargets,
    /// The targets of the last call while the Service is invalid, if AWS refused some of them, or to open their
    /// security groups.
    pub followed: Option<Targets>,
    /// The Classic Load Balancer that is maintained, and true if no other load balancer serves the Service.
    pub classic: Option<(Classic, bool)>,
    /// There is no Classic Load Balancer: none is created while this process runs.
    pub no_classic: bool,
    /// Token of the request that created the endpoint service, until the endpoint service is visible.
    pub endpoint_token: Option<String>,
    /// Target groups of users in which this Service may have targets, by ARN, with the targets on record; `None`: the
    /// records were not read yet.
    pub registered: Option<BTreeMap<String, BTreeSet<Target>>>,
    /// The Service's ports for which it named the target groups of users last, by ARN.
    pub registered_ports: BTreeMap<String, u16>,
    /// The target groups of users that the Service names serve, so that former listeners of their ports are no longer
    /// needed. False until that was read.
    pub user_groups_serve: bool,
    /// Names of load balancers of groups that the Service was in, and that may have to be deleted after it left.
    pub groups: BTreeSet<String>,
    /// This process has searched for load balancers of groups that the Service used under an earlier process.
    pub groups_checked: bool,
    /// The Service needs no load balancer of its own, and its former load balancer is deleted.
    pub stack_removed: bool,
    /// Each target group with targets had a healthy target at the last read.
    pub serving: bool,
    /// The inputs of the last `ensure`, if everything is in the desired state since then.
    pub settled: Option<LoadBalancerSpec>,
    /// The time since which traffic waits for a healthy target; `None`: the last `ensure` settled, or did not wait.
    pub unhealthy_since: Option<Instant>,
    /// Number of consecutive reads while AWS works on a change.
    waits: u32,
    /// The load balancer is being deleted: `waits` counts reads of the deletion.
    is_deletion: bool,
    /// The last refusal of a deletion because the resource is in use.
    in_use: Option<String>,
    /// The smallest number of resources that the deletion has found so far.
    left: Option<usize>,
    /// Number of consecutive failed setups of the load balancer.
    failed_setups: u32,
    /// The time before which the load balancer is not created again, and the reason.
    next_setup: Option<(Instant, String)>,
}

impl BalancerState {
    /// Returns the time until the next read while AWS works on a change.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = FIRST_PAUSE * 2_u32.pow(self.waits.min(8));
        self.waits = self.waits.saturating_add(1);
        pause.min(PACE)
    }

    /// Returns the minimum time until the next read while traffic waits for a healthy target: a part of the time that
    /// it has waited already.
    pub(crate) fn pause_for_health(&mut self, now: Instant) -> Duration {
        let since = *self.unhealthy_since.get_or_insert(now);
        (now.saturating_duration_since(since) / 6).min(MAX_HEALTH_PAUSE)
    }

    /// Returns the time until the first read of a load balancer that this process has just created.
    pub(crate) fn pause_for_setup(&mut self) -> Duration {
        self.pause().max(SETUP_PAUSE)
    }

    /// Counts a listing without any resource to delete. Returns true if a resource may exist and not be visible yet: an
    /// earlier process, or a failed call of this process, may have created it in the last minute, and only a few
    /// listings lacked it. From `all_visible` on, listings contain everything that earlier processes have created.
    ///
    /// A successful `ensure` does not prove that no resource is invisible: the `ensure` may not have needed the
    /// resources that were created last.
    pub(crate) fn may_have_invisible(&mut self, now: Instant, all_visible: Instant) -> bool {
        let by_others = now < all_visible && !self.starts_empty;
        let by_failed_call = self.failed.is_some_and(|failed| now < failed + VISIBLE);
        if !by_others && !by_failed_call {
            return false;
        }
        if self.empty_listings == Misses::default() {
            // The pauses of the deletion have grown so far; they start again from the shortest one.
            self.waits = 0;
        }
        self.empty_listings.may_appear()
    }

    /// Returns the time from which listings contain all resources of the Service, if a listing that began at `begun`
    /// may lack some; `observed` are the resources that the listing contained or that were created since.
    ///
    /// A resource that the listing lacked and that the Service no longer needs would exist until the next check for
    /// drift.
    pub(crate) fn visible_later(
        &self,
        begun: Instant,
        observed: &ObservedStack,
        all_visible: Instant,
    ) -> Option<Instant> {
        let ids: BTreeSet<String> = observed.ids().collect();
        let by_others = (!self.starts_empty).then_some(all_visible);
        // Listings contain no listeners, which are deleted with their load balancer.
        let unlisted = self.made.iter().filter(|(id, _)| !ids.contains(*id) && Step::deletion_of(id).is_some());
        let unanswered = self.unanswered.iter().filter(|(name, _)| !observed.has_name(name));
        let created = unlisted.chain(unanswered).map(|(_, at)| *at + VISIBLE);
        by_others.into_iter().chain(created).max().filter(|visible| begun < *visible)
    }

    /// Counts a listing in which no load balancer uses the shared resources. Returns true if an earlier process may
    /// have created a load balancer, for any Service, that is not visible yet. Listings that
    /// [`may_have_invisible`](Self::may_have_invisible) has counted are counted here, too.
    pub(crate) fn may_have_invisible_sharer(&mut self, now: Instant, all_visible: Instant) -> bool {
        now < all_visible && self.empty_listings.may_appear()
    }

    /// Counts a response without a Classic Load Balancer. Returns true if cloud-provider-aws may have created one that
    /// is not visible yet.
    pub(crate) fn may_have_invisible_classic(&mut self, now: Instant, all_visible: Instant) -> bool {
        now < all_visible && !self.starts_empty && self.without_classic.may_appear()
    }

    /// Records a failed `ensure`: the next one reads the state from AWS.
    pub(crate) fn record_failure(&mut self, now: Instant) {
        self.forget();
        self.failed = Some(now);
        self.empty_listings = Misses::default();
    }

    /// Returns true if the health of the Service's targets must be read, because the former destination of traffic is
    /// deleted only once the load balancer serves.
    pub(crate) fn needs_health(&self) -> bool {
        self.classic.is_some() || self.registered.as_ref().is_some_and(|groups| !groups.is_empty())
    }

    /// Counts a response that lacks a resource. Returns true if the resource may exist and not be visible yet: it was
    /// created in the last minute, and only a few responses lacked it.
    pub(crate) fn may_appear(&mut self, id: &str, now: Instant) -> bool {
        let is_recent = self.made.get(id).is_some_and(|made| now < *made + VISIBLE);
        is_recent && self.missing.entry(id.to_owned()).or_default().may_appear()
    }

    /// Returns true if AWS takes longer than expected.
    pub(crate) fn is_overdue(&self) -> bool {
        self.waits >= OVERDUE_READS
    }

    /// Begins or continues a deletion (`true`) or a change. A switch from one to the other starts the count of reads
    /// again.
    pub(crate) fn begin(&mut self, is_deletion: bool) {
        if std::mem::replace(&mut self.is_deletion, is_deletion) != is_deletion {
            self.waits = 0;
            self.in_use = None;
            self.left = None;
        }
    }

    /// Records a step of a deletion: the number of resources that it found, and the refusal to delete one of them.
    ///
    /// The time limit for AWS starts again whenever fewer resources are found, or AWS no longer refuses the deletion.
    /// Otherwise each of the remaining steps would be reported as stuck, although the cause no longer exists.
    pub(crate) fn record_deletion(&mut self, found: usize, in_use: Option<String>) {
        let has_less = self.left.is_none_or(|left| found < left);
        if has_less || (self.in_use.is_some() && in_use.is_none()) {
            self.waits = 0;
        }
        self.left = Some(self.left.map_or(found, |left| left.min(found)));
        self.in_use = in_use;
    }

    /// Returns the last refusal of a deletion because the resource is in use.
    pub(crate) fn refusal_in_use(&self) -> Option<&str> {
        self.in_use.as_deref()
    }

    /// Returns true if AWS is unlikely to finish without a change by a user.
    pub(crate) fn is_stuck(&self) -> bool {
        self.waits >= STUCK_READS
    }

    /// Records that AWS could not set up the load balancer: another one is created after a pause.
    pub(crate) fn record_failed_setup(&mut self, reason: String, now: Instant) {
        let pause = FIRST_SETUP_PAUSE * 2_u32.pow(self.failed_setups.min(16));
        self.failed_setups = self.failed_setups.saturating_add(1);
        self.next_setup = Some((now + pause.min(MAX_SETUP_PAUSE), reason));
    }

    /// Returns the time until the load balancer may be created again.
    pub(crate) fn setup_pause(&self, now: Instant) -> Option<Duration> {
        let (next, _) = self.next_setup.as_ref()?;
        Some(next.saturating_duration_since(now)).filter(|pause| !pause.is_zero())
    }

    /// Returns the reason for which AWS could not set up the load balancer, until one is set up.
    pub(crate) fn setup_warning(&self) -> Option<String> {
        self.next_setup.as_ref().map(|(_, reason)| reason.clone())
    }

    /// Records that AWS has finished, and everything is in the desired state.
    pub(crate) fn settle(&mut self, spec: &LoadBalancerSpec) -> Progress {
        self.waits = 0;
        self.in_use = None;
        self.failed_setups = 0;
        self.next_setup = None;
        self.settled = Some(spec.clone());
        Progress::Settled
    }

    /// Drops the known target groups, the settled inputs and the created resources: the next call reads them from AWS.
    pub(crate) fn forget(&mut self) {
        self.known = None;
        self.settled = None;
        self.forget_created();
    }

    /// Drops the details of created resources: the next `ensure` reads them.
    pub(crate) fn forget_created(&mut self) {
        self.created = None;
    }

    /// Removes the resources from `created` and returns them if they have the same inputs. If the caller is interrupted
    /// before [`keep_created`](Self::keep_created), the next `ensure` reads the resources from AWS.
    pub(crate) fn take_created(&mut self, spec: &LoadBalancerSpec) -> Option<ObservedStack> {
        self.created.take().filter(|created| created.spec == *spec).map(|created| created.stack)
    }

    /// Keeps created resources while AWS works on them. Changes by other clients are found by the reads of the first
    /// `ensure` after that.
    pub(crate) fn keep_created(&mut self, stack: ObservedStack, spec: &LoadBalancerSpec, progress: Progress) {
        self.created = (progress != Progress::Settled).then(|| CreatedStack { stack, spec: spec.clone() });
    }

    /// Records the Service's target groups as last observed, and whether each of them serves.
    pub(crate) fn remember_groups(&mut self, id: &LoadBalancerId, desired: &Desired, observed: &ObservedStack) {
        let known = known(id, desired, observed);
        self.serving = known.iter().all(|group| is_serving(group, observed));
        self.known = Some(known);
    }

    /// Removes targets that AWS refused from the known and the observed groups: later reads lack them, too.
    pub(crate) fn remove_refused(&mut self, refused: &Refused, observed: &mut ObservedStack) {
        observed.remove_refused(refused);
        for group in self.known.iter_mut().flatten() {
            group.targets.retain(|target| !refused.contains_key(&(group.arn.clone(), target.clone())));
        }
    }
}

/// Converts a target group, without targets that are being deregistered.
pub(crate) fn known_group(id: &LoadBalancerId, port: u16, group: &ObservedTargetGroup) -> KnownGroup {
    let live = group.targets.iter().filter(|(_, health)| **health != TargetHealth::Draining);
    KnownGroup {
        port,
        backend: names::resource_id_of_another(&group.tags, id).map(str::to_owned),
        arn: group.arn.clone(),
        name: group.name.clone(),
        target_type: group.target_type,
        protocol: group.protocol,
        ipv6: group.ipv6,
        targets: live.map(|(target, _)| target.clone()).collect(),
        recorded: group.recorded.clone(),
        user: false,
    }
}

/// Returns the target groups that traffic goes to, with their current targets.
fn known(id: &LoadBalancerId, desired: &Desired, observed: &ObservedStack) -> Vec<KnownGroup> {
    let listeners = observed.balancer(&desired.balancer.name).map(|one| one.listeners.as_slice()).unwrap_or_default();
    let groups = listeners.iter().flat_map(|listener| {
        let arns = listener.forwards.iter().filter_map(|(arn, _)| observed.target_group_by_arn(arn));
        arns.map(|group| known_group(id, listener.port, group)).collect::<Vec<_>>()
    });
    without_duplicates(groups)
}

/// Removes duplicates: several listeners may use the same group of another Service.
pub(crate) fn without_duplicates(groups: impl IntoIterator<Item = KnownGroup>) -> Vec<KnownGroup> {
    let mut arns = BTreeSet::new();
    groups.into_iter().filter(|group| arns.insert(group.arn.clone())).collect()
}

/// Returns true if a target group has a healthy target, or has no targets.
fn is_serving(group: &KnownGroup, observed: &ObservedStack) -> bool {
    let Some(observed) = observed.target_group_by_arn(&group.arn) else { return false };
    group.targets.is_empty()
        || group.targets.iter().any(|one| observed.targets.get(one) == Some(&TargetHealth::Healthy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::observed::stack::ObservedSecurityGroup;
    use crate::loadbalancer::samples;

    #[test]
    fn change_that_takes_more_than_a_minute_is_overdue() {
        let mut state = BalancerState::default();
        let mut waited = Duration::ZERO;
        while !state.is_overdue() {
            waited += state.pause();
        }
        assert!((60..120).contains(&waited.as_secs()), "{waited:?}");
        assert_eq!(state.settle(&samples::spec(&[])), Progress::Settled);
        assert!(!state.is_overdue());
    }

    #[test]
    fn pause_grows_with_the_time_that_traffic_waits_for_a_healthy_target() {
        let (mut state, start) = (BalancerState::default(), Instant::now());
        for (waited, pause) in [(0, 0), (30, 5), (120, 20), (360, 60), (3600, 60)] {
            let found = state.pause_for_health(start + Duration::from_secs(waited));
            assert_eq!(found, Duration::from_secs(pause), "after {waited} s");
        }
    }

    #[test]
    fn pause_after_failed_setups_grows_until_one_succeeds() {
        let mut state = BalancerState::default();
        let now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..10 {
            state.record_failed_setup("no".into(), now);
            pauses.push(state.setup_pause(now).map(|pause| pause.as_secs()));
        }
        assert_eq!(pauses[..3], [Some(2), Some(4), Some(8)]);
        assert_eq!(pauses[9], Some(300));
        assert_eq!(state.setup_pause(now + MAX_SETUP_PAUSE), None);
        assert_eq!(state.setup_warning().as_deref(), Some("no"));
        state.settle(&samples::spec(&[]));
        assert_eq!((state.setup_pause(now), state.setup_warning()), (None, None));
    }

    #[test]
    fn deletion_is_stuck_only_until_aws_has_deleted_something() {
        let mut state = BalancerState::default();
        state.begin(true);
        let read_until_stuck = |state: &mut BalancerState, found: usize, in_use: Option<&str>| {
            let mut reads = 0;
            while !state.is_stuck() {
                state.record_deletion(found, in_use.map(str::to_owned));
                state.pause();
                reads += 1;
            }
            reads
        };
        assert_eq!(read_until_stuck(&mut state, 2, Some("a listener uses it")), STUCK_READS);
        assert_eq!(state.refusal_in_use(), Some("a listener uses it"));
        state.record_deletion(2, None);
        assert!(!state.is_stuck(), "AWS no longer refuses the deletion");
        assert_eq!(read_until_stuck(&mut state, 2, None), STUCK_READS, "AWS does not finish");
        state.record_deletion(1, None);
        assert!(!state.is_stuck(), "a resource was deleted");
        assert_eq!(read_until_stuck(&mut state, 2, None), STUCK_READS, "a listing had one resource less only once");
        state.record_deletion(0, None);
        assert!(!state.is_stuck() && state.refusal_in_use().is_none());
    }

    #[test]
    fn created_resources_are_known_until_they_are_settled_or_something_fails() {
        let spec = samples::spec(&[]);
        let mut state = BalancerState::default();
        let stack = ObservedStack { abandoned_listeners: vec!["arn:created".into()], ..ObservedStack::default() };
        let later = Progress::After(PACE);
        assert_eq!(state.take_created(&spec), None, "a new process has no records");
        state.keep_created(stack.clone(), &spec, later);
        assert_eq!(state.take_created(&spec), Some(stack.clone()));
        assert_eq!(state.take_created(&spec), None, "the last call did not finish");
        state.keep_created(stack.clone(), &spec, later);
        assert_eq!(state.take_created(&samples::spec(&[("internal", "true")])), None, "created for other inputs");
        assert_eq!(state.take_created(&spec), None, "other inputs came between");
        state.keep_created(stack.clone(), &spec, later);
        state.keep_created(stack.clone(), &spec, Progress::Settled);
        assert_eq!(state.take_created(&spec), None, "it is settled: the next call reads changes by other clients");
        state.keep_created(stack, &spec, later);
        state.forget();
        assert_eq!(state.take_created(&spec), None, "a call failed");
    }

    #[test]
    fn deletion_reads_again_where_an_earlier_process_may_have_created_something() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let reads = |mut state: BalancerState, now: Instant| -> usize {
            (0..10).take_while(|_| state.may_have_invisible(now, start + VISIBLE)).count()
        };
        assert_eq!(reads(BalancerState::default(), start), 4);
        assert_eq!(reads(BalancerState::default(), start + VISIBLE), 0, "an earlier process ended long ago");
        let new = BalancerState { starts_empty: true, ..BalancerState::default() };
        assert_eq!(reads(new, start), 0, "no other process has worked on it");
        let mut settled = BalancerState::default();
        settled.settle(&samples::spec(&[]));
        assert_eq!(
            reads(settled, start),
            4,
            "the Service may have changed, and need less than the earlier process created"
        );
        let failed = || {
            let mut failed = BalancerState { starts_empty: true, ..BalancerState::default() };
            failed.record_failure(start);
            failed
        };
        assert_eq!(reads(failed(), start + second), 4, "a response was lost");
        assert_eq!(reads(failed(), start + VISIBLE), 0, "a response was lost long ago");
        let mut repaired = failed();
        repaired.settle(&samples::spec(&[]));
        assert_eq!(reads(repaired, start + second), 4, "a response was lost, and the Service changed before the retry");
        let mut deleted = failed();
        while deleted.may_have_invisible(start, start) {}
        deleted.record_failure(start);
        assert_eq!(reads(deleted, start + second), 4, "its load balancer was deleted, and created again");
    }

    #[test]
    fn settled_load_balancer_is_checked_again_where_a_listing_may_lack_resources() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let all_visible = start + VISIBLE;
        let none = ObservedStack::default();
        let later = |state: &BalancerState, begun| state.visible_later(begun, &none, all_visible);
        assert_eq!(later(&BalancerState::default(), start), Some(all_visible), "an earlier process may have ended now");
        assert_eq!(later(&BalancerState::default(), all_visible), None, "an earlier process ended long ago");
        let mut new = BalancerState { starts_empty: true, ..BalancerState::default() };
        assert_eq!(later(&new, start), None, "no other process has worked on it");
        new.made.insert("arn:aws:elasticloadbalancing:eu-west-1:1:listener/net/a/1/2".into(), start);
        assert_eq!(later(&new, start), None, "listeners are not listed");
        new.made.insert("sg-1".into(), start);
        assert_eq!(later(&new, start + second), Some(start + VISIBLE), "what this process created is not listed");
        assert_eq!(later(&new, start + VISIBLE), None, "it no longer exists");
        let group =
            ObservedSecurityGroup { id: "sg-1".into(), name: "k8s-1".into(), tags: BTreeMap::new(), rules: Vec::new() };
        let listed = ObservedStack { security_groups: vec![group], ..none.clone() };
        assert_eq!(new.visible_later(start, &listed, all_visible), None);
        new.unanswered.insert("k8s-1".into(), start);
        assert_eq!(new.visible_later(start, &listed, all_visible), None, "it was created by a later call");
        new.unanswered.insert("k8s-2".into(), start + second);
        assert_eq!(new.visible_later(start, &listed, all_visible), Some(start + second + VISIBLE));
    }

    #[test]
    fn shared_resource_is_kept_while_a_load_balancer_of_an_earlier_process_may_be_invisible() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let reads = |state: &mut BalancerState, now: Instant| -> usize {
            (0..10).take_while(|_| state.may_have_invisible_sharer(now, start + VISIBLE)).count()
        };
        let new = || BalancerState { starts_empty: true, ..BalancerState::default() };
        assert_eq!(reads(&mut new(), start), 4, "other Services are older than this one");
        assert_eq!(reads(&mut new(), start + VISIBLE), 0, "an earlier process ended long ago");
        let mut old = BalancerState::default();
        while old.may_have_invisible(start, start + VISIBLE) {}
        assert_eq!(reads(&mut old, start + second), 0, "its deletion has read everything several times");
    }

    #[test]
    fn classic_load_balancer_may_appear_after_a_takeover() {
        let start = Instant::now();
        let reads = |mut state: BalancerState, now: Instant| -> usize {
            (0..10).take_while(|_| state.may_have_invisible_classic(now, start + VISIBLE)).count()
        };
        assert_eq!(reads(BalancerState::default(), start), 4);
        assert_eq!(reads(BalancerState::default(), start + VISIBLE), 0, "the takeover was long ago");
        assert_eq!(reads(BalancerState { starts_empty: true, ..BalancerState::default() }, start), 0, "it is new");
    }

    #[test]
    fn new_resource_may_appear_after_some_reads_without_it() {
        let mut state = BalancerState::default();
        let now = Instant::now();
        state.made.insert("sg-1".into(), now);
        let results: Vec<bool> = (0..6).map(|_| state.may_appear("sg-1", now)).collect();
        assert_eq!(results, [true, true, true, true, false, false]);
        state.made.insert("sg-2".into(), now);
        assert!(!state.may_appear("sg-2", now + VISIBLE), "it was created more than a minute ago");
        assert!(!state.may_appear("sg-3", now), "this process did not create it");
    }
}
