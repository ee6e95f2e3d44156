//! Nodes whose instances were reported missing: their state between two rounds.

use std::collections::HashMap;

use kinds::Uid;
use tokio::time::Instant;

use super::decide::Missing;

/// Nodes whose instances were reported missing, and those that were deleted.
#[derive(Debug, Default)]
pub(super) struct MissingInstances {
    missing: HashMap<Uid, Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Number of reports.
    times: u32,
    /// The time of the first report.
    first: Instant,
    /// The node was deleted, or is about to be.
    deleted: bool,
}

impl MissingInstances {
    /// Records a report that this node's instance does not exist. Returns the reports since the instance was last
    /// found.
    pub(super) fn report_missing(&mut self, node: &Uid, now: Instant) -> Missing {
        let entry = self.missing.entry(node.clone()).or_insert(Entry { times: 0, first: now, deleted: false });
        entry.times = entry.times.saturating_add(1);
        Missing { times: entry.times, since: now.duration_since(entry.first) }
    }

    /// Resets the reports of a node.
    pub(super) fn reset(&mut self, node: &Uid) {
        self.missing.remove(node);
    }

    /// Returns true if this controller has deleted the node, or is about to. The cache may still contain the node.
    pub(super) fn is_deleted(&self, node: &Uid) -> bool {
        self.missing.get(node).is_some_and(|entry| entry.deleted)
    }

    /// Records that the node is about to be deleted.
    pub(super) fn mark_deleting(&mut self, node: &Uid) {
        if let Some(entry) = self.missing.get_mut(node) {
            entry.deleted = true;
        }
    }

    /// Keeps only the nodes for which `keep` returns true.
    pub(super) fn retain(&mut self, keep: impl Fn(&Uid) -> bool) {
        self.missing.retain(|node, _| keep(node));
    }
}
