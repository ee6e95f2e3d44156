//! Policy: the replacement of pods of old revisions within the strategy's bounds.

use std::sync::Arc;

use jiff::Timestamp;
use kinds::daemonset::Strategy;
use kinds::int_or_string::IntOrString;
use kinds::{DaemonSet, Pod, Str};

use super::decide::{Plan, Revision};
use super::decide_place::Place;
use crate::pods::availability::is_available;

/// The strategy's bounds in numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Nodes that should have a pod.
    pub desired: usize,
    /// Nodes that may be without an available pod.
    pub unavailable: usize,
    /// Nodes that may have a second pod.
    pub surge: usize,
}

/// Returns the bounds, or `None` when the controller does not replace pods (strategy `OnDelete`). Both bounds round up;
/// if both are zero, one node may be without an available pod. Upstream: pkg/controller/daemon,
/// updatedDesiredNodeCounts.
///
/// # Errors
/// When a bound is neither a number nor a percentage.
pub fn bounds(set: &DaemonSet, places: &[Place]) -> Result<Option<Bounds>, String> {
    let Strategy::RollingUpdate { max_unavailable, max_surge } = &set.strategy else { return Ok(None) };
    let desired = places.iter().filter(|place| place.runs()).count();
    let count = |name: &str, bound: &Option<IntOrString>| {
        let Some(bound) = bound else { return Ok(0) };
        let scaled = bound.scaled(i32::try_from(desired).unwrap_or(i32::MAX), true);
        let scaled = scaled
            .ok_or_else(|| format!("invalid value for {name}: {bound:?} is neither a number nor a percentage"))?;
        Ok::<usize, String>(usize::try_from(scaled).unwrap_or(0))
    };
    let (unavailable, surge) = (count("maxUnavailable", max_unavailable)?, count("maxSurge", max_surge)?);
    let unavailable = if desired > 0 && unavailable == 0 && surge == 0 { 1 } else { unavailable };
    Ok(Some(Bounds { desired, unavailable, surge }))
}

/// The pods of a node that are not being deleted: at most one pod of the current revision, and at most one other pod.
struct Pair<'a> {
    new: Option<&'a Arc<Pod>>,
    old: Option<&'a Arc<Pod>>,
}

impl<'a> Pair<'a> {
    fn at(place: &'a Place, revision: Revision<'_>) -> Option<Self> {
        let staying = place.pods.iter().filter(|pod| !pod.meta.is_deleting());
        let (new, old): (Vec<_>, Vec<_>) = staying.partition(|pod| revision.is_of(pod));
        (new.len() <= 1 && old.len() <= 1).then(|| Self { new: new.first().copied(), old: old.first().copied() })
    }
}

/// Returns the next step of a rolling update. This is called only if [`super::decide::manage`] plans nothing, except
/// on nodes that cannot be decoded. Upstream: pkg/controller/daemon, rollingUpdate.
pub fn roll(set: &DaemonSet, places: &[Place], bounds: Bounds, revision: Revision<'_>, now: Timestamp) -> Plan {
    let available = |pod: &Arc<Pod>| is_available(pod, set.min_ready_seconds, now);
    // A node that should have no pod, and has none, does not count as unavailable.
    let relevant = places.iter().filter(|place| place.runs() || !place.pods.is_empty());
    if bounds.surge == 0 {
        replace(relevant, bounds, revision, available)
    } else {
        surge(relevant, bounds, revision, available)
    }
}

/// Without surge: deletes old pods that are not available, and as many others as the limit of unavailable nodes allows.
fn replace<'a>(
    places: impl Iterator<Item = &'a Place>,
    bounds: Bounds,
    revision: Revision<'_>,
    available: impl Fn(&Arc<Pod>) -> bool,
) -> Plan {
    let mut down = 0;
    let (mut useless, mut useful) = (Vec::new(), Vec::new());
    for place in places {
        match Pair::at(place, revision) {
            Some(Pair { new: Some(new), old: None }) => down += usize::from(!available(new)),
            Some(Pair { new: None, old: Some(old) }) if available(old) => useful.push(old.clone()),
            Some(Pair { new: None, old: Some(old) }) => {
                down += 1;
                useless.push(old.clone());
            }
            _ => down += 1,
        }
    }
    useful.truncate(bounds.unavailable.saturating_sub(down));
    useless.extend(useful);
    Plan { delete: useless, ..Plan::default() }
}

/// With surge: creates a new pod immediately on nodes whose old pod is not available, and on as many other nodes as the
/// surge allows. An old pod is deleted when its successor is available.
fn surge<'a>(
    places: impl Iterator<Item = &'a Place>,
    bounds: Bounds,
    revision: Revision<'_>,
    available: impl Fn(&Arc<Pod>) -> bool,
) -> Plan {
    let (mut surging, mut up) = (0, 0);
    let (mut create, mut delete): (Vec<Str>, Vec<Arc<Pod>>) = (Vec::new(), Vec::new());
    let (mut candidates, mut misplaced) = (Vec::new(), Vec::new());
    for place in places {
        let Some(Pair { new, old }) = Pair::at(place, revision) else {
            surging += 1;
            continue;
        };
        up += usize::from(old.or(new).is_some_and(&available));
        match (new, old) {
            (_, None) => {}
            (None, Some(old)) => match (place.runs(), available(old)) {
                (true, true) => candidates.push(place.node.clone()),
                (true, false) => create.push(place.node.clone()),
                (false, true) => misplaced.push(old.clone()),
                (false, false) => delete.push(old.clone()),
            },
            (Some(new), Some(old)) if available(new) => delete.push(old.clone()),
            (Some(_), Some(_)) => surging += 1,
        }
    }
    // Available pods on nodes that should have none are deleted only while enough other pods are available.
    misplaced.truncate(up.saturating_sub(bounds.desired));
    candidates.truncate(bounds.surge.saturating_sub(surging));
    create.extend(candidates);
    delete.extend(misplaced);
    Plan { create, delete, ..Plan::default() }
}
