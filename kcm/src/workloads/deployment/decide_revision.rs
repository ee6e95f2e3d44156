//! Policy: revisions, the annotations and the name of a new ReplicaSet, and rollbacks.

use kinds::deployment::{Deployment, NewReplicaSet, Strategy};
use kinds::raw_object::{AnnotationEdits, LAST_APPLIED};
use kinds::template::{POD_TEMPLATE_HASH, Template};
use kinds::{ReplicaSet, Str};

use super::decide_scale::{DESIRED_REPLICAS, MAX_REPLICAS, max_pods, new_replicas};
use super::notice::Notice;
use super::sets::{Sets, edit, has_template_of};

/// Annotation: the revision of a ReplicaSet; on a Deployment, that of its newest ReplicaSet.
pub const REVISION: &str = "deployment.kubernetes.io/revision";
/// Annotation: earlier revisions of a ReplicaSet that was rolled back to, separated by commas.
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// Annotation: a request to roll back, left over from extensions/v1beta1.
pub const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// Maximum length of the revision history in bytes.
const HISTORY_LIMIT: usize = 2000;
/// Maximum length of a ReplicaSet's name in bytes.
const MAX_NAME_BYTES: usize = 253;

/// Returns true for annotations that belong to one object alone and are never copied. Upstream:
/// pkg/controller/deployment/util, skipCopyAnnotation.
fn is_own(key: &str) -> bool {
    [LAST_APPLIED, REVISION, REVISION_HISTORY, DESIRED_REPLICAS, MAX_REPLICAS, ROLLBACK_TO].contains(&key)
}

/// Returns a set's revision; 0 without the annotation, `None` when it is not a number. Upstream:
/// pkg/controller/deployment/util, Revision.
pub fn revision(set: &ReplicaSet) -> Option<i64> {
    set.annotation(REVISION).map_or(Some(0), |text| text.parse().ok())
}

fn revisions(sets: &Sets) -> impl Iterator<Item = i64> {
    sets.all().filter_map(|set| revision(set))
}

/// Returns the lowest revision that the new set may have: one more than the highest of the old sets. Upstream:
/// pkg/controller/deployment, getNewReplicaSet.
pub fn next_revision(sets: &Sets) -> i64 {
    sets.old.iter().filter_map(|set| revision(set)).fold(0, i64::max).saturating_add(1)
}

/// Returns the second highest revision; 0 when there is none. Upstream: pkg/controller/deployment/util, LastRevision.
pub fn last_revision(sets: &Sets) -> i64 {
    let mut sorted: Vec<i64> = revisions(sets).filter(|revision| *revision > 0).collect();
    sorted.sort_unstable();
    sorted.iter().rev().nth(1).copied().unwrap_or(0)
}

/// Returns a revision history with one more revision. The oldest revisions are dropped, so that the history takes at
/// most `limit` bytes. Returns `None` if the new revision alone takes more, unless the history was empty. Upstream:
/// pkg/controller/deployment/util, SetNewReplicaSetAnnotations.
pub fn appended_history(history: &str, revision: &str, limit: usize) -> Option<String> {
    if history.is_empty() {
        return Some(revision.to_owned());
    }
    let mut kept = history;
    while kept.len() + 1 + revision.len() > limit {
        match kept.split_once(',') {
            Some((_, rest)) => kept = rest,
            None => return (revision.len() <= limit).then(|| revision.to_owned()),
        }
    }
    Some(format!("{kept},{revision}"))
}

/// Returns the annotations to change on an existing new set: those of the Deployment are copied, the revision is
/// raised to `next_revision`, and the set's previous revision is appended to its history. Nothing changes if the set's
/// revision is not a number. Upstream: pkg/controller/deployment, getNewReplicaSet.
pub fn synced_annotations(deployment: &Deployment, new: &ReplicaSet, next_revision: i64) -> AnnotationEdits {
    let mut edits = AnnotationEdits::new();
    let text = new.annotation(REVISION).unwrap_or_default();
    let current = if text.is_empty() { Some(0) } else { text.parse::<i64>().ok() };
    let Some(current) = current else { return edits };
    for (key, value) in deployment.annotations.iter().filter(|(key, _)| !is_own(key)) {
        edit(&mut edits, new.annotation(key), key, value);
    }
    if current < next_revision {
        edit(&mut edits, None, REVISION, &next_revision.to_string());
        let history = new.annotation(REVISION_HISTORY).unwrap_or_default();
        if let Some(history) = appended_history(history, text, HISTORY_LIMIT).filter(|_| !text.is_empty()) {
            edit(&mut edits, None, REVISION_HISTORY, &history);
        }
    }
    edits
}

/// Returns the changed annotations of an existing new set, empty if only its `minReadySeconds` differs; `None` if it
/// needs no update. The write must also contain the Deployment's `min_ready_seconds`. Upstream:
/// pkg/controller/deployment, getNewReplicaSet.
pub fn new_set_update(deployment: &Deployment, sets: &Sets) -> Option<AnnotationEdits> {
    let new = sets.new.as_ref()?;
    let edits = synced_annotations(deployment, new, next_revision(sets));
    (!edits.is_empty() || new.min_ready_seconds != deployment.min_ready_seconds).then_some(edits)
}

/// Returns the edit of the Deployment's revision annotation if it differs from that of the newest set. The write of the
/// status contains the edit. Upstream: pkg/controller/deployment/util, SetDeploymentRevision.
pub fn revision_edit(deployment: &Deployment, sets: &Sets) -> AnnotationEdits {
    let mut edits = AnnotationEdits::new();
    if let Some(new) = &sets.new {
        let current = deployment.annotation(REVISION).unwrap_or_default();
        edit(&mut edits, Some(current), REVISION, new.annotation(REVISION).unwrap_or_default());
    }
    edits
}

/// Returns the set to be created for the Deployment's template; `None` when the template was not decoded. Upstream:
/// pkg/controller/deployment, getNewReplicaSet.
pub fn new_replica_set(deployment: &Deployment, sets: &Sets) -> Option<NewReplicaSet> {
    let hash = deployment.template.as_ref()?.hash(deployment.status.collision_count);
    let copied = deployment.annotations.iter().filter(|(key, _)| !is_own(key));
    let own = [
        (REVISION, next_revision(sets).to_string()),
        (DESIRED_REPLICAS, deployment.replicas.to_string()),
        (MAX_REPLICAS, max_pods(deployment).to_string()),
    ];
    let mut annotations: Vec<_> = copied.map(|(key, value)| (key.to_string(), value.to_string())).collect();
    annotations.extend(own.map(|(key, value)| (key.to_owned(), value)));
    annotations.sort_unstable();
    // With the strategy Recreate, a rollback may create this set while old pods still exist: the set has no pods at
    // first.
    let overlaps = deployment.strategy == Strategy::Recreate && sets.active().next().is_some();
    let replicas = if overlaps { 0 } else { new_replicas(deployment, sets.total(), 0) };
    Some(NewReplicaSet { name: set_name(&deployment.meta.name, &hash), hash, replicas, annotations })
}

/// Returns a ReplicaSet's name: the Deployment's name, truncated if necessary, and the hash. Upstream:
/// pkg/controller/deployment, generateReplicaSetName.
pub fn set_name(deployment: &str, hash: &str) -> String {
    let room = MAX_NAME_BYTES.checked_sub(1 + hash.len()).filter(|room| *room > 0);
    let kept = room.and_then(|room| deployment.get(..room)).unwrap_or(deployment);
    format!("{kept}-{hash}")
}

/// Returns true if the existing set with the name of the new set is that new set: it is managed by this Deployment and
/// has its template. Otherwise the hash collided. Upstream: pkg/controller/deployment, getNewReplicaSet.
pub fn is_ours(deployment: &Deployment, found: &ReplicaSet) -> bool {
    found.meta.is_controlled_by(&deployment.meta.uid) && has_template_of(found, deployment)
}

/// Returns the revision to roll back to, if one is requested; 0 stands for the previous one. Upstream:
/// pkg/controller/deployment, getRollbackTo.
pub fn rollback_requested(deployment: &Deployment) -> Option<i64> {
    deployment.annotation(ROLLBACK_TO)?.parse().ok()
}

/// A requested rollback: the update of the Deployment (without status), and its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollback {
    /// The template to roll back to; `None` keeps the current one.
    pub template: Option<Template>,
    /// Annotations to change; the request is always removed.
    pub annotations: AnnotationEdits,
    /// The event to record once the update was accepted.
    pub notice: Notice,
}

/// Returns the rollback of the Deployment to `requested_revision`; 0 stands for the previous one. The sets must include
/// the new one: it determines the previous revision. Upstream: pkg/controller/deployment, rollback.
pub fn rollback(deployment: &Deployment, sets: &Sets, requested_revision: i64) -> Rollback {
    let refuse = |reason, message: String| Rollback {
        template: None,
        annotations: vec![(ROLLBACK_TO.into(), None)],
        notice: Notice { warning: true, reason, message },
    };
    let wanted = if requested_revision == 0 { last_revision(sets) } else { requested_revision };
    if wanted == 0 {
        return refuse("DeploymentRollbackRevisionNotFound", "Unable to find last revision.".to_owned());
    }
    let found = sets.all().find(|set| revision(set) == Some(wanted));
    let Some((set, template)) = found.and_then(|set| Some((set, set.template.as_ref()?))) else {
        let message = "Unable to find the revision to rollback to.".to_owned();
        return refuse("DeploymentRollbackRevisionNotFound", message);
    };
    let name = &deployment.meta.name;
    if has_template_of(set, deployment) {
        let message = format!("The rollback revision contains the same template as current deployment {name:?}");
        return refuse("DeploymentRollbackTemplateUnchanged", message);
    }
    Rollback {
        template: Some(template.with_label(POD_TEMPLATE_HASH, None)),
        annotations: annotations_of(deployment, set),
        notice: Notice {
            warning: false,
            reason: "DeploymentRollback",
            message: format!("Rolled back deployment {name:?} to revision {wanted}"),
        },
    }
}

/// Returns the edits that give a Deployment the annotations of a set, so that for example the change cause is rolled
/// back too. Upstream: pkg/controller/deployment/util, SetDeploymentAnnotationsTo.
fn annotations_of(deployment: &Deployment, set: &ReplicaSet) -> AnnotationEdits {
    let foreign = |(key, _): &&(Str, Str)| !is_own(key);
    let removed = deployment.annotations.iter().filter(foreign).filter(|(key, _)| set.annotation(key).is_none());
    let mut edits: AnnotationEdits = removed.map(|(key, _)| (key.clone(), None)).collect();
    for (key, value) in set.annotations.iter().filter(foreign) {
        edit(&mut edits, deployment.annotation(key), key, value);
    }
    edits.push((ROLLBACK_TO.into(), None));
    edits
}
