//! Policy: the newest ReplicaSet of a Deployment, the mode of a sync, and the next step of a rollout.
//!
//! All policy of the controller is in the `decide*` files, as pure functions over records. Writes return updated
//! records: put them back with [`Sets::replace`], so that later decisions of the same sync use them.

use std::sync::Arc;

use kinds::deployment::{Deployment, Strategy};
use kinds::{Pod, ReplicaSet};

use super::decide_revision::{revision, rollback_requested};
use super::decide_scale::{Scale, is_stale, roll_new, roll_old, scale_to};
use super::sets::Sets;

/// The mode of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// The Deployment selects everything, which is refused: only `observedGeneration` is updated.
    Refuse,
    /// The Deployment is being deleted: only its status is kept up to date.
    Report,
    /// The Deployment is paused: all sets are scaled in proportion, and old history is deleted.
    Hold,
    /// Its template is rolled back to a revision; 0 stands for the previous one.
    RollBack(i64),
    /// Its scale was changed: its sets are scaled in proportion.
    Resize,
    /// Its newest template is rolled out to its pods.
    Rollout,
}

/// Returns the mode of a sync. Upstream: pkg/controller/deployment, syncDeployment and isScalingEvent.
pub fn sync_mode(deployment: &Deployment, sets: &Sets) -> SyncMode {
    if deployment.selector.is_everything() {
        SyncMode::Refuse
    } else if deployment.meta.is_deleting() {
        SyncMode::Report
    } else if deployment.paused {
        SyncMode::Hold
    } else if let Some(revision) = rollback_requested(deployment) {
        SyncMode::RollBack(revision)
    } else if sets.active().any(|set| is_stale(deployment, set)) {
        SyncMode::Resize
    } else {
        SyncMode::Rollout
    }
}

/// The next step of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the new set (see [`super::decide_revision::new_replica_set`]), then compute the next step again.
    Create,
    /// Write these scales, in this order, then only the status.
    Scale(Vec<Scale>),
    /// Old pods still exist.
    Wait,
    /// Nothing has to be scaled. Surplus history is deleted if the rollout is complete.
    Settled,
    /// The strategy has this unknown type.
    Unsupported(String),
}

/// Returns the next step of a rollout. `old_pods` returns true if pods of the old sets still run, see
/// [`old_pods_running`]; it is called only if the strategy is `Recreate`. Upstream: pkg/controller/deployment,
/// rolloutRolling and rolloutRecreate.
pub fn next_step(deployment: &Deployment, sets: &Sets, old_pods: impl FnOnce() -> bool) -> Step {
    match &deployment.strategy {
        Strategy::RollingUpdate { .. } => match &sets.new {
            None => Step::Create,
            Some(new) => scale_or_settled(match roll_new(deployment, sets, new) {
                Some(scale) => vec![scale],
                None => roll_old(deployment, sets, new),
            }),
        },
        Strategy::Recreate => {
            let down: Vec<_> = sets.old.iter().filter_map(|set| scale_to(deployment, set, 0)).collect();
            match &sets.new {
                _ if !down.is_empty() => Step::Scale(down),
                _ if old_pods() => Step::Wait,
                None => Step::Create,
                Some(new) => scale_or_settled(scale_to(deployment, new, deployment.replicas).into_iter().collect()),
            }
        }
        Strategy::Other(kind) => Step::Unsupported(kind.clone()),
    }
}

fn scale_or_settled(scales: Vec<Scale>) -> Step {
    if scales.is_empty() { Step::Settled } else { Step::Scale(scales) }
}

/// Returns true if the status of an old set counts pods, or if one of `pods` has not finished. `pods` are the pods of
/// all sets except the new one. Upstream: pkg/controller/deployment, oldPodsRunning.
pub fn old_pods_running<'a>(sets: &Sets, pods: impl IntoIterator<Item = &'a Pod>) -> bool {
    sets.old.iter().any(|set| set.status.replicas > 0) || pods.into_iter().any(|pod| !pod.is_terminal())
}

/// Returns the old sets beyond the history limit, lowest revision first, except sets that have pods or an outdated
/// status. Returns none while a rollback is requested. Upstream: pkg/controller/deployment, cleanupDeployment.
pub fn surplus_history(deployment: &Deployment, sets: &Sets) -> Vec<Arc<ReplicaSet>> {
    let limit = deployment.revision_history_limit.filter(|limit| *limit != i32::MAX);
    let Some(limit) = limit.filter(|_| rollback_requested(deployment).is_none()) else { return Vec::new() };
    let mut kept: Vec<_> = sets.old.iter().filter(|set| !set.meta.is_deleting()).cloned().collect();
    // A set whose revision is not a number keeps its place in the order by age, and no other set moves past it. The
    // sort is stable: sets of the same revision stay ordered by age.
    for of_revisions in kept.chunk_by_mut(|a, b| revision(a).is_some() && revision(b).is_some()) {
        of_revisions.sort_by_key(|set| revision(set));
    }
    let surplus = kept.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    kept.truncate(surplus);
    kept.retain(|set| {
        set.replicas == 0 && set.status.replicas == 0 && set.meta.generation <= set.status.observed_generation
    });
    kept
}
