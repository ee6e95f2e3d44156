//! The owners that a change of a pod affects.

use kinds::meta::ObjectKey;
use kinds::{Kind, Pod};
use runtime::children::{Urgency, owner_of};
use runtime::store::Change;

/// Returns the old and new owners of kind `K` of a changed pod, each with its urgency. An owner that did not change is
/// left out if controllers of workloads do not read the changed fields.
pub fn owners_of_pod<K: Kind>(change: &Change<'_, Pod>) -> Vec<(ObjectKey, Urgency)> {
    let owner = |pod: &std::sync::Arc<Pod>| owner_of::<K>(&pod.meta);
    let (before, after) = (change.old.and_then(owner), change.new.and_then(owner));
    let Some(new) = change.new else {
        return before.map(|key| (key, Urgency::Now)).into_iter().collect();
    };
    let mut keys = Vec::new();
    if before != after {
        keys.extend(before.map(|key| (key, Urgency::Now)));
    }
    let urgency = match change.old {
        Some(old) if !old.differs_for_workloads(new) => return keys,
        Some(old) if old.is_active() && !new.is_active() || old.meta.labels != new.meta.labels => Urgency::Now,
        _ => Urgency::Soon,
    };
    keys.extend(after.map(|key| (key, urgency)));
    keys
}
