//! Policy: the pods to create and delete so that each node has the pods that it should have, and the status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::daemonset::{DaemonSetStatus, REVISION_HASH_LABEL, Strategy, TEMPLATE_GENERATION_LABEL};
use kinds::intern::label;
use kinds::pod::Phase;
use kinds::{DaemonSet, Pod, Str};

use super::decide_place::{Fit, Place};
use crate::pods::availability::is_available;
use crate::pods::status_delay::CHANGING_COUNTS;

/// The largest number of pods created, and of pods deleted, in one reconcile. Upstream: pkg/controller/daemon,
/// BurstReplicas.
pub const BURST: usize = 250;

/// A finding that is reported to the user by an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A failed pod was found, and is deleted.
    Failed(Str),
    /// A succeeded pod was found, and is deleted.
    Succeeded(Str),
}

/// The pods to create and delete.
#[derive(Debug, Default)]
pub struct Plan {
    /// Nodes that need a pod.
    pub create: Vec<Str>,
    /// Pods to delete.
    pub delete: Vec<Arc<Pod>>,
    /// Events, each with its node.
    pub notices: Vec<(Str, Notice)>,
    /// Time until the first failed pod that is kept may be deleted.
    pub again: Option<Duration>,
}

impl Plan {
    /// Returns true if there is nothing to create or delete.
    pub fn is_nothing(&self) -> bool {
        self.create.is_empty() && self.delete.is_empty()
    }
}

/// Returns the nodes whose pods are created in one attempt, in order.
///
/// An attempt ends with the first refusal. The next one begins with another node, so that one node whose pod is refused
/// does not block all others. `refused` is the number of attempts that were refused in a row.
pub fn attempt_order(mut nodes: Vec<Str>, refused: usize) -> Vec<Str> {
    let first = refused % nodes.len().max(1);
    nodes.rotate_left(first);
    nodes.truncate(BURST);
    nodes
}

/// The revision that pods should have.
#[derive(Debug, Clone, Copy)]
pub struct Revision<'a> {
    /// Value of the hash label.
    pub hash: &'a str,
    /// The template's generation, which identifies pods that were created without a hash label.
    pub generation: Option<i64>,
}

impl Revision<'_> {
    /// Returns true if a pod has the hash label of this revision.
    fn has_hash(&self, pod: &Pod) -> bool {
        !self.hash.is_empty() && label(&pod.meta.labels, REVISION_HASH_LABEL) == Some(self.hash)
    }

    /// Returns true if a pod has the template of this revision. Upstream: pkg/controller/daemon/util, IsPodUpdated.
    pub fn is_of(&self, pod: &Pod) -> bool {
        let by_generation = || {
            self.generation.is_some_and(|generation| {
                label(&pod.meta.labels, TEMPLATE_GENERATION_LABEL) == Some(generation.to_string().as_str())
            })
        };
        self.has_hash(pod) || by_generation()
    }
}

/// Returns true if two pods of the DaemonSet may run on a node during a rollout. Upstream: pkg/controller/daemon/util,
/// AllowsSurge.
pub fn allows_surge(set: &DaemonSet) -> bool {
    match &set.strategy {
        Strategy::RollingUpdate { max_surge: Some(surge), .. } => surge.scaled(1, true).is_some_and(|surge| surge > 0),
        _ => false,
    }
}

/// Returns the pods to create and delete for each node. `waits` returns the time for which failed pods of a node are
/// kept, if any. Without that delay, a kubelet that rejects pods would get new ones continuously. Upstream:
/// pkg/controller/daemon, manage.
pub fn manage(
    set: &DaemonSet,
    places: &[Place],
    revision: Revision<'_>,
    now: Timestamp,
    waits: impl Fn(&str) -> Option<Duration>,
) -> Plan {
    let mut plan = Plan::default();
    let surge = allows_surge(set);
    for place in places {
        let staying = place.pods.iter().filter(|pod| !pod.meta.is_deleting());
        match place.fit {
            // The node does not exist: the scheduler never binds these pods, and no other controller deletes them.
            None => plan.delete.extend(staying.filter(|pod| pod.node.is_empty()).cloned()),
            Some(Fit { runs: true, .. }) if place.pods.is_empty() => plan.create.push(place.node.clone()),
            Some(Fit { stays: true, .. }) => {
                let waiting = plan.delete_ended(place, &waits);
                let running: Vec<_> = staying.filter(|pod| !pod.is_terminal()).cloned().collect();
                if running.is_empty() {
                    // Without surge, the new pod is created once the ended one is deleted. A failed pod that is kept
                    // blocks the creation in any case.
                    if surge && place.runs() && !waiting {
                        plan.create.push(place.node.clone());
                    }
                } else if surge {
                    plan.delete.extend(surplus_in_surge(running, set.min_ready_seconds, revision, now));
                } else {
                    plan.delete.extend(in_order(running).into_iter().skip(1));
                }
            }
            Some(_) => plan.delete.extend(staying.cloned()),
        }
    }
    plan
}

impl Plan {
    /// Plans the deletion of a node's ended pods. Returns true if a failed one is kept for now.
    fn delete_ended(&mut self, place: &Place, waits: &impl Fn(&str) -> Option<Duration>) -> bool {
        let mut wait = waits(&place.node);
        let mut waiting = false;
        for pod in place.pods.iter().filter(|pod| !pod.meta.is_deleting()) {
            let found = match pod.phase {
                Phase::Failed => {
                    if let Some(wait) = wait {
                        self.again = Some(self.again.map_or(wait, |again| again.min(wait)));
                        waiting = true;
                        continue;
                    }
                    // The first deletion starts the node's backoff: its next failed pod is kept for the first delay.
                    wait = Some(Backoff::FIRST);
                    Notice::Failed(pod.meta.name.clone())
                }
                Phase::Succeeded => Notice::Succeeded(pod.meta.name.clone()),
                _ => continue,
            };
            self.notices.push((place.node.clone(), found));
            self.delete.push(pod.clone());
        }
        waiting
    }
}

/// Sorts bound pods before others, then by age. Upstream: pkg/controller/daemon, podByCreationTimestampAndPhase.
fn in_order(mut pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
    pods.sort_by(|a, b| order(a).cmp(&order(b)));
    pods
}

fn order(pod: &Pod) -> (bool, kinds::Time, &str) {
    (pod.node.is_empty(), pod.meta.created, &pod.meta.name)
}

/// Returns a node's surplus pods during a surge: all except the first pod of the current revision and the first other
/// pod. If both exist, that other pod is surplus, too, once it is not ready or the pod of the current revision is
/// available.
fn surplus_in_surge(
    running: Vec<Arc<Pod>>,
    min_ready_seconds: i32,
    revision: Revision<'_>,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    let (current, others): (Vec<_>, Vec<_>) = in_order(running).into_iter().partition(|pod| revision.has_hash(pod));
    let replaced = match (current.first(), others.first()) {
        (Some(new), Some(old)) => !old.ready || is_available(new, min_ready_seconds, now),
        _ => false,
    };
    current.into_iter().skip(1).chain(others.into_iter().skip(usize::from(!replaced))).collect()
}

/// Returns the status. If `acted` is false, no decision was made, and the generation does not count as observed.
/// Upstream: pkg/controller/daemon, updateDaemonSetStatus.
pub fn status(
    set: &DaemonSet,
    places: &[Place],
    revision: Revision<'_>,
    now: Timestamp,
    acted: bool,
) -> DaemonSetStatus {
    let mut status = DaemonSetStatus { collision_count: set.status.collision_count, ..DaemonSetStatus::default() };
    status.observed_generation = if acted { set.meta.generation } else { set.status.observed_generation };
    for place in places {
        let first = place.pods.iter().min_by_key(|pod| order(pod));
        match (place.runs(), first) {
            (true, first) => {
                status.desired += 1;
                let Some(pod) = first else { continue };
                status.current += 1;
                status.ready += i32::from(pod.ready);
                status.available += i32::from(is_available(pod, set.min_ready_seconds, now));
                status.updated += i32::from(revision.is_of(pod));
            }
            (false, Some(_)) if place.fit.is_some() => status.misscheduled += 1,
            _ => {}
        }
    }
    status.unavailable = status.desired - status.available;
    status
}

/// Returns the maximum delay of a status write, from the time at which the status first differed from the set's.
/// Changed counts are delayed, except at the end of a rollout and after an unexpected loss of a pod. These, and all
/// other fields, are written immediately.
pub fn delay(set: &DaemonSet, status: &DaemonSetStatus) -> Duration {
    let was = &set.status;
    let only_counts = DaemonSetStatus {
        current: was.current,
        ready: was.ready,
        updated: was.updated,
        available: was.available,
        unavailable: was.unavailable,
        ..status.clone()
    } == *was;
    if status == was || !only_counts {
        return Duration::ZERO;
    }
    let rolls = matches!(set.strategy, Strategy::RollingUpdate { .. }) && status.updated < status.desired;
    let moves = rolls || status.current < status.desired;
    let is_final = [status.ready, status.available] == [status.desired; 2] && !moves;
    let lost = status.ready < was.ready || status.available < was.available;
    if is_final || lost && !moves { Duration::ZERO } else { CHANGING_COUNTS }
}

/// Returns the time until the next ready pod has been ready for long enough to be available.
pub fn next_check(places: &[Place], min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    let remaining = |pod: &Arc<Pod>| {
        let at = i128::from(pod.ready_since.0 + i64::from(min_ready_seconds)) * 1_000_000_000;
        u64::try_from(at - now.as_nanosecond()).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    };
    let pods = || places.iter().flat_map(|place| &place.pods);
    let waiting = pods().filter(|pod| pod.ready && !pod.ready_since.is_zero()).filter_map(remaining).min();
    waiting.filter(|_| min_ready_seconds > 0)
}

/// Backoff of the failed pods of each node: a delay that doubles each time a failed pod is deleted, and restarts after
/// twice [`Backoff::MAX`] without such a deletion. Upstream: client-go/util/flowcontrol, Backoff.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    nodes: BTreeMap<Str, (Duration, Timestamp)>,
}

impl Backoff {
    /// The first delay.
    pub const FIRST: Duration = Duration::from_secs(1);
    /// The maximum delay.
    pub const MAX: Duration = Duration::from_secs(15 * 60);

    fn known(&self, node: &str, now: Timestamp) -> Option<(Duration, Duration)> {
        let (delay, since) = self.nodes.get(node)?;
        let waited = Duration::try_from(now.duration_since(*since)).unwrap_or_default();
        (waited <= Self::MAX * 2).then_some((*delay, waited))
    }

    /// Returns the time for which a node's failed pods are still kept; `None` if they may be deleted.
    pub fn remaining(&self, node: &str, now: Timestamp) -> Option<Duration> {
        let (delay, waited) = self.known(node, now)?;
        delay.checked_sub(waited).filter(|remaining| !remaining.is_zero())
    }

    /// Records the deletion of a node's failed pod.
    pub fn grow(&mut self, node: &Str, now: Timestamp) {
        let delay = self.known(node, now).map_or(Self::FIRST, |(delay, _)| (delay * 2).min(Self::MAX));
        self.nodes.retain(|_, (_, since)| {
            Duration::try_from(now.duration_since(*since)).unwrap_or_default() <= Self::MAX * 2
        });
        self.nodes.insert(node.clone(), (delay, now));
    }
}
