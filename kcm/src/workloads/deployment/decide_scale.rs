//! Policy: the scale of each ReplicaSet: bounds of a rolling update, its steps, and scaling in proportion.
//!
//! The available pods of a set count only up to its scale. Pods above the scale will be deleted: if they counted, a
//! scale-down would be repeated while the set's status is outdated.

use std::cmp::Ordering;
use std::sync::Arc;

use kinds::ReplicaSet;
use kinds::deployment::{Deployment, Strategy};
use kinds::int_or_string::IntOrString;
use kinds::raw_object::AnnotationEdits;

use super::notice::Notice;
use super::sets::{Sets, edit, sum};

/// Annotation of a ReplicaSet: the Deployment's scale when the set was last scaled. If the Deployment has another
/// scale, it was scaled since.
pub const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
/// Annotation of a ReplicaSet: the Deployment's maximum number of pods when the set was last scaled; proportions are
/// relative to it.
pub const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// A change to a set's scale, or only to its annotations about the Deployment's scale.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scale {
    /// The current set.
    pub set: Arc<ReplicaSet>,
    /// Its new scale.
    pub replicas: i32,
    /// Annotations to change.
    pub annotations: AnnotationEdits,
}

impl Scale {
    /// Returns the event to record once the write was accepted; none if only annotations change. Upstream:
    /// pkg/controller/deployment, scaleReplicaSet.
    pub fn notice(&self) -> Option<Notice> {
        scaled_notice(&self.set.meta.name, self.set.replicas, self.replicas)
    }
}

/// Returns the event about a change of a set's scale; `None` if it is the same. `from` is 0 if the set was just
/// created.
pub fn scaled_notice(set: &str, from: i32, to: i32) -> Option<Notice> {
    let direction = match to.cmp(&from) {
        Ordering::Greater => "up",
        Ordering::Less => "down",
        Ordering::Equal => return None,
    };
    let message = format!("Scaled {direction} replica set {set} from {from} to {to}");
    Some(Notice { warning: false, reason: "ScalingReplicaSet", message })
}

/// Returns the numbers of pods that may be added and that may be missing; `None` if a bound is neither a number nor a
/// percentage. They are never both zero, so that a rollout can start. Upstream: pkg/controller/deployment/util,
/// ResolveFenceposts.
pub fn fenceposts(
    max_surge: Option<&IntOrString>,
    max_unavailable: Option<&IntOrString>,
    desired: i32,
) -> Option<(i32, i32)> {
    let scaled = |bound: Option<&IntOrString>, up| bound.map_or(Some(0), |bound| bound.scaled(desired, up));
    Some(match (scaled(max_surge, true)?, scaled(max_unavailable, false)?) {
        (0, 0) => (0, 1),
        bounds => bounds,
    })
}

fn bounds(deployment: &Deployment) -> (i32, i32) {
    match &deployment.strategy {
        Strategy::RollingUpdate { max_unavailable, max_surge } => {
            fenceposts(max_surge.as_ref(), max_unavailable.as_ref(), deployment.replicas).unwrap_or((0, 0))
        }
        _ => (0, 0),
    }
}

/// Returns the number of pods that a rolling update may add; 0 for another strategy, or if a bound is invalid.
/// Upstream: pkg/controller/deployment/util, MaxSurge.
pub fn max_surge(deployment: &Deployment) -> i32 {
    bounds(deployment).0
}

/// Returns the maximum number of pods of a Deployment. It saturates, because the scale may be the largest number.
pub fn max_pods(deployment: &Deployment) -> i32 {
    deployment.replicas.saturating_add(max_surge(deployment))
}

/// Returns the number of pods that may be missing during a rolling update; 0 for another strategy, or if a bound is
/// invalid. Upstream: pkg/controller/deployment/util, MaxUnavailable.
pub fn max_unavailable(deployment: &Deployment) -> i32 {
    bounds(deployment).1.min(deployment.replicas)
}

/// Returns a number of pods from an annotation; `None` when the annotation is missing or empty, contains other
/// characters than digits, or is out of range. Upstream: pkg/controller/deployment/util,
/// getNonNegativeInt32FromAnnotation.
pub fn count_annotation(set: &ReplicaSet, key: &str) -> Option<i32> {
    set.annotation(key).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// Returns true if the set was last scaled for another scale of the Deployment. An invalid annotation is ignored.
/// Upstream: pkg/controller/deployment, isScalingEvent.
pub fn is_stale(deployment: &Deployment, set: &ReplicaSet) -> bool {
    count_annotation(set, DESIRED_REPLICAS).is_some_and(|desired| desired != deployment.replicas)
}

/// Returns the edits that set the annotations about the Deployment's scale. Upstream: pkg/controller/deployment/util,
/// SetReplicasAnnotations.
pub fn scale_annotations(deployment: &Deployment, set: &ReplicaSet) -> AnnotationEdits {
    let mut edits = AnnotationEdits::new();
    let max = max_pods(deployment);
    for (key, value) in [(DESIRED_REPLICAS, deployment.replicas), (MAX_REPLICAS, max)] {
        edit(&mut edits, set.annotation(key), key, &value.to_string());
    }
    edits
}

/// Returns the set with this scale and up-to-date annotations; `None` if nothing changes.
fn refreshed(deployment: &Deployment, set: &Arc<ReplicaSet>, replicas: i32) -> Option<Scale> {
    let annotations = scale_annotations(deployment, set);
    let changes = set.replicas != replicas || !annotations.is_empty();
    changes.then(|| Scale { set: set.clone(), replicas, annotations })
}

/// Returns the set with this scale; `None` if it has this scale already, regardless of its annotations. Upstream:
/// pkg/controller/deployment, scaleReplicaSet.
pub fn scale_to(deployment: &Deployment, set: &Arc<ReplicaSet>, replicas: i32) -> Option<Scale> {
    if set.replicas == replicas { None } else { refreshed(deployment, set, replicas) }
}

/// Returns the next scale of the new set; `current` is its scale, and `total` the sum of the scales of all sets.
/// Upstream: pkg/controller/deployment/util, NewRSNewReplicas.
pub fn new_replicas(deployment: &Deployment, total: i32, current: i32) -> i32 {
    match deployment.strategy {
        Strategy::RollingUpdate { .. } => {
            let room = max_pods(deployment).saturating_sub(total);
            if room <= 0 { current } else { current + room.min(deployment.replicas - current) }
        }
        _ => deployment.replicas,
    }
}

/// Returns the next scale of the new set in a rolling update. Upstream: pkg/controller/deployment,
/// reconcileNewReplicaSet.
pub fn roll_new(deployment: &Deployment, sets: &Sets, new: &Arc<ReplicaSet>) -> Option<Scale> {
    let target = if new.replicas > deployment.replicas {
        deployment.replicas
    } else {
        new_replicas(deployment, sets.total(), new.replicas)
    };
    scale_to(deployment, new, target)
}

/// Returns the number of available pods of a set that should have `replicas`, without those that will be deleted.
fn available(set: &ReplicaSet, replicas: i32) -> i32 {
    set.status.available_replicas.min(replicas)
}

/// Returns the next scales of the old sets in a rolling update: first unavailable pods are removed, then as many
/// available pods as may be missing, from the oldest sets first. Unavailable pods of the new set count as missing.
/// There is one write per set; upstream makes up to two. Upstream: pkg/controller/deployment, reconcileOldReplicaSets.
pub fn roll_old(deployment: &Deployment, sets: &Sets, new: &Arc<ReplicaSet>) -> Vec<Scale> {
    let min = deployment.replicas - max_unavailable(deployment);
    let new_available = available(new, new.replicas);
    let mut budget = (sets.total() - min).saturating_sub(new.replicas.saturating_sub(new_available));
    if budget <= 0 {
        return Vec::new();
    }
    let mut targets: Vec<i32> = sets.old.iter().map(|set| set.replicas).collect();
    for (target, set) in targets.iter_mut().zip(&sets.old) {
        let unhealthy = target.saturating_sub(available(set, *target)).min(budget);
        *target -= unhealthy;
        budget -= unhealthy;
    }
    let old_available = sum(targets.iter().zip(&sets.old).map(|(target, set)| available(set, *target)));
    let mut spare = (sum([new_available, old_available]) - min).max(0);
    for target in &mut targets {
        let down = (*target).min(spare);
        *target -= down;
        spare -= down;
    }
    sets.old.iter().zip(targets).filter_map(|(set, target)| scale_to(deployment, set, target)).collect()
}

/// Returns the only active set. If none is active, returns the new set, or else the newest old one. Returns `None` when
/// several sets are active, or there are no sets at all. Upstream: pkg/controller/deployment/util, FindActiveOrLatest.
pub fn active_or_latest(sets: &Sets) -> Option<&Arc<ReplicaSet>> {
    let mut active = sets.active();
    match (active.next(), active.next()) {
        (None, _) => sets.new.as_ref().or(sets.old.last()),
        (only, None) => only,
        _ => None,
    }
}

/// Returns true if scale and annotation of the new set equal the Deployment's scale, and all its pods are available.
/// Upstream: pkg/controller/deployment/util, IsSaturated.
pub fn is_saturated(deployment: &Deployment, set: &ReplicaSet) -> bool {
    count_annotation(set, DESIRED_REPLICAS) == Some(deployment.replicas)
        && set.replicas == deployment.replicas
        && set.status.available_replicas == deployment.replicas
}

/// Returns the scales of the sets of a Deployment that is paused or was scaled. If the new set is saturated, the old
/// sets are scaled to 0, newest first. Upstream: pkg/controller/deployment, scale.
///
/// Differs from upstream: a set with the right scale but wrong annotations is corrected, even with a strategy that does
/// not scale in proportion. Otherwise each sync would count as a scaling event, and no rollout would happen.
pub fn resize(deployment: &Deployment, sets: &Sets) -> Vec<Scale> {
    let corrected = |set| refreshed(deployment, set, set.replicas).filter(|_| is_stale(deployment, set));
    if let Some(set) = active_or_latest(sets) {
        let scale = scale_to(deployment, set, deployment.replicas);
        return scale.or_else(|| corrected(set).filter(|_| set.replicas > 0)).into_iter().collect();
    }
    if sets.new.as_ref().is_some_and(|new| is_saturated(deployment, new)) {
        return sets.old.iter().rev().filter_map(|set| scale_to(deployment, set, 0)).collect();
    }
    match deployment.strategy {
        Strategy::RollingUpdate { .. } => in_proportion(deployment, sets),
        _ => sets.active().filter_map(corrected).collect(),
    }
}

/// Distributes the difference to the maximum number of pods among the active sets, largest set first; the largest set
/// also gets the rounding remainder. Of sets of the same size, newer ones grow first and older ones shrink first. The
/// annotations of all active sets are updated.
fn in_proportion(deployment: &Deployment, sets: &Sets) -> Vec<Scale> {
    let mut active: Vec<_> = sets.active().collect();
    let allowed = if deployment.replicas > 0 { max_pods(deployment) } else { 0 };
    let difference = allowed - sum(active.iter().map(|set| set.replicas));
    if difference != 0 {
        active.sort_by(|a, b| {
            let age = a.meta.by_creation(&b.meta);
            b.replicas.cmp(&a.replicas).then(if difference > 0 { age.reverse() } else { age })
        });
    }
    let mut rest = difference;
    let mut targets: Vec<i32> = Vec::with_capacity(active.len());
    for set in &active {
        let share = share(deployment, set);
        let share = if difference > 0 { share.min(rest) } else { share.max(rest) };
        let share = if rest == 0 { 0 } else { share };
        targets.push(set.replicas.saturating_add(share));
        rest -= share;
    }
    if let Some(largest) = targets.first_mut() {
        *largest = largest.saturating_add(rest).max(0);
    }
    active.into_iter().zip(targets).filter_map(|(set, target)| refreshed(deployment, set, target)).collect()
}

/// Returns the growth of a set that keeps its proportion of the Deployment; negative if it shrinks. Without
/// [`MAX_REPLICAS`], the base is the number of pods in the Deployment's status. Upstream:
/// pkg/controller/deployment/util, getReplicaSetFraction.
pub fn share(deployment: &Deployment, set: &ReplicaSet) -> i32 {
    if deployment.replicas == 0 {
        return -set.replicas;
    }
    let annotated = count_annotation(set, MAX_REPLICAS).filter(|max| *max != 0);
    let before = annotated.unwrap_or(deployment.status.replicas);
    if before == 0 {
        return 0;
    }
    let after = max_pods(deployment);
    let size = f64::from(set.replicas) * f64::from(after) / f64::from(before);
    size.round() as i32 - set.replicas
}
