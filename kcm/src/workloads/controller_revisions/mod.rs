//! The history of a workload's template as ControllerRevisions, shared by StatefulSets and DaemonSets.
//!
//! A revision's data is a patch that restores the template. After a change from upstream's manager to this one or back,
//! each finds the other's revisions by the bytes of the patch. So `data` encodes the template as Go's JSON encoder
//! does, from the JSON that the API server returns. The workload is read from the API server only if [`Memory`] does
//! not contain its template. Upstream: pkg/controller/history.

mod data;
mod equality;
#[cfg(test)]
mod tests;
mod write;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use kinds::controller_revision::Fingerprint;
use kinds::meta::{Meta, ObjectKey};
use kinds::template::{Template, safe_name};
use kinds::{ControllerRevision, Str, Uid};
use runtime::lock::lock;

pub use data::{Snapshot, template_of};
pub use equality::are_semantically_equal;
pub use write::{CreationResult, Draft, History, UnmatchedRevisions};

/// The label with the hash of a StatefulSet's revision.
pub const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// Maximum length of a workload's name in the name of a revision, in bytes.
const MAX_PREFIX_BYTES: usize = 223;

/// Returns the name of a revision. Upstream: pkg/controller/history, ControllerRevisionName.
pub fn revision_name(owner: &str, hash: &str) -> String {
    format!("{}-{hash}", owner.get(..MAX_PREFIX_BYTES).unwrap_or(owner))
}

/// Returns the hash in a revision's name, which depends on the number of name collisions. Upstream:
/// pkg/controller/history, HashControllerRevision: FNV-1 of 32 bits.
pub fn hash(data: &[u8], collisions: Option<i32>) -> String {
    const OFFSET: u32 = 2_166_136_261;
    const PRIME: u32 = 16_777_619;
    let collisions = collisions.map(|count| count.to_string()).unwrap_or_default();
    let bytes = data.iter().chain(collisions.as_bytes());
    safe_name(bytes.fold(OFFSET, |hash, byte| hash.wrapping_mul(PRIME) ^ u32::from(*byte)))
}

/// Orders revisions oldest first: by number, then by age, then by name. Upstream: pkg/controller/history,
/// SortControllerRevisions.
pub fn by_number(a: &ControllerRevision, b: &ControllerRevision) -> Ordering {
    a.revision.cmp(&b.revision).then_with(|| a.meta.by_creation(&b.meta))
}

/// Returns the number of the revision that follows the sorted ones.
pub fn next_number(sorted: &[Arc<ControllerRevision>]) -> i64 {
    sorted.last().map_or(1, |newest| newest.revision.saturating_add(1))
}

/// Returns the newest revision with this data; `sorted` is oldest first.
pub fn find_equal(sorted: &[Arc<ControllerRevision>], data: &[u8]) -> Option<Arc<ControllerRevision>> {
    let wanted = Fingerprint::of(data);
    sorted.iter().rev().find(|revision| revision.data == wanted).cloned()
}

/// Returns the revisions beyond the history limit, oldest first. Revisions whose names are in `live` do not count
/// towards the limit, and are kept. A negative limit keeps everything. Upstream: pkg/controller/statefulset,
/// truncateHistory.
pub fn surplus(sorted: &[Arc<ControllerRevision>], live: &HashSet<Str>, limit: i32) -> Vec<Arc<ControllerRevision>> {
    let Ok(limit) = usize::try_from(limit) else { return Vec::new() };
    let mut history: Vec<_> = sorted.iter().filter(|revision| !live.contains(&revision.meta.name)).cloned().collect();
    history.truncate(history.len().saturating_sub(limit));
    history
}

/// The revision of each workload's template. Without it, each reconcile would read the template from the API server.
/// The reconcile after a workload's deletion removes its entry, also if the workload was deleted during a reconcile.
#[derive(Debug, Default)]
pub struct Memory {
    known: Mutex<HashMap<ObjectKey, Known>>,
}

/// A workload's template and the name of its revision.
#[derive(Debug)]
struct Known {
    owner: Uid,
    template: Template,
    revision: Str,
}

impl Memory {
    /// Returns the name of the recorded revision of a workload's template; `None` if no revision was recorded for this
    /// workload and template.
    pub fn recall(&self, owner: &Meta, template: &Template) -> Option<Str> {
        let all = lock(&self.known);
        let known = all.get(&owner.key()).filter(|known| known.owner == owner.uid && known.template == *template);
        known.map(|known| known.revision.clone())
    }

    /// Records the revision of a workload's template.
    pub fn remember(&self, owner: &Meta, template: &Template, revision: &Str) {
        let known = Known { owner: owner.uid.clone(), template: template.clone(), revision: revision.clone() };
        lock(&self.known).insert(owner.key(), known);
    }

    /// Removes the record of a deleted workload.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.known).remove(key);
    }
}
