//! Which of a DaemonSet's revisions is the current one, and which are kept: no IO.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::ControllerRevision;
use kinds::controller_revision::Fingerprint;
use kinds::daemonset::REVISION_HASH_LABEL;
use kinds::intern::label;

use crate::workloads::controller_revisions::next_number;

/// A DaemonSet's revisions, sorted out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sorted {
    /// The newest one of the current template.
    pub current: Option<Arc<ControllerRevision>>,
    /// Further ones of the current template, which should not be.
    pub twins: Vec<Arc<ControllerRevision>>,
    /// Those of other templates, oldest first.
    pub old: Vec<Arc<ControllerRevision>>,
}

impl Sorted {
    /// Sorts revisions by whether their data is that of the current template (pkg/controller/daemon, constructHistory);
    /// `revisions` are oldest first.
    pub fn by(revisions: Vec<Arc<ControllerRevision>>, template: Fingerprint) -> Self {
        let (mut same, old): (Vec<_>, Vec<_>) = revisions.into_iter().partition(|revision| revision.data == template);
        Self { current: same.pop(), twins: same, old }
    }

    /// Returns the number that the current revision should at least have.
    pub fn number(&self) -> i64 {
        next_number(&self.old)
    }
}

/// Returns the hash by which pods know a revision. One without the label is known by its name, so that nothing need be
/// computed that may collide.
pub fn hash_of(revision: &ControllerRevision) -> &str {
    label(&revision.meta.labels, REVISION_HASH_LABEL).unwrap_or(&revision.meta.name)
}

/// Returns the old revisions beyond the limit, oldest first; those that pods still carry count and stay
/// (pkg/controller/daemon, cleanupHistory).
pub fn surplus<'a>(
    old: &'a [Arc<ControllerRevision>],
    live: &HashSet<&str>,
    limit: i32,
) -> Vec<&'a Arc<ControllerRevision>> {
    let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.iter().filter(|revision| !live.contains(hash_of(revision))).take(surplus).collect()
}
