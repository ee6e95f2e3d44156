//! Policy: the current revision of a DaemonSet, and the revisions to keep.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::ControllerRevision;
use kinds::controller_revision::Fingerprint;
use kinds::daemonset::REVISION_HASH_LABEL;
use kinds::intern::label;

use crate::workloads::controller_revisions::next_number;

/// A DaemonSet's revisions by their template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionsByTemplate {
    /// The newest revision of the current template.
    pub current: Option<Arc<ControllerRevision>>,
    /// Duplicates: further revisions of the current template.
    pub duplicates: Vec<Arc<ControllerRevision>>,
    /// Revisions of other templates, oldest first.
    pub old: Vec<Arc<ControllerRevision>>,
}

impl RevisionsByTemplate {
    /// Splits `revisions`, which are oldest first, into those of the current template and those of other templates.
    /// Upstream: pkg/controller/daemon, constructHistory.
    pub fn by(revisions: Vec<Arc<ControllerRevision>>, template: Fingerprint) -> Self {
        let (mut same, old): (Vec<_>, Vec<_>) = revisions.into_iter().partition(|revision| revision.data == template);
        Self { current: same.pop(), duplicates: same, old }
    }

    /// Returns the lowest number that the current revision may have: one more than the highest of the other templates'
    /// revisions.
    pub fn number(&self) -> i64 {
        next_number(&self.old)
    }
}

/// Returns the hash in the label of a revision's pods. A revision without the label is identified by its name, because
/// a computed hash may collide.
pub fn hash_of(revision: &ControllerRevision) -> &str {
    label(&revision.meta.labels, REVISION_HASH_LABEL).unwrap_or(&revision.meta.name)
}

/// Returns the old revisions beyond the limit, oldest first. Revisions of existing pods count towards the limit, but
/// are kept. Upstream: pkg/controller/daemon, cleanupHistory.
pub fn surplus<'a>(
    old: &'a [Arc<ControllerRevision>],
    live: &HashSet<&str>,
    limit: i32,
) -> Vec<&'a Arc<ControllerRevision>> {
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.iter().filter(|revision| !live.contains(hash_of(revision))).take(surplus).collect()
}
