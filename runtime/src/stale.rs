//! Stale records that a reconcile has read: the newest states of their objects cannot be decoded, so that the cache has
//! only older ones.
//!
//! Nothing may be deleted because of a state that is known to be outdated, and a reconcile cannot know which of its reads
//! matter. So the Writer refuses the deletions of every reconcile that has read a stale record, and the key is requeued
//! with backoff.

use std::cell::RefCell;

tokio::task_local! {
    static READ: RefCell<Option<String>>;
}

/// Records in the reconcile that runs in this task that it has read a stale record; does nothing outside of a reconcile.
pub(crate) fn note(object: impl FnOnce() -> String) {
    // An error means that no reconcile runs in this task.
    let _ = READ.try_with(|read| {
        read.borrow_mut().get_or_insert_with(object);
    });
}

/// Returns the first stale record that the reconcile in this task has read.
pub(crate) fn read() -> Option<String> {
    READ.try_with(|read| read.borrow().clone()).ok().flatten()
}

/// Runs a reconcile, and records the stale records that it reads.
pub(crate) fn noting<F: Future>(reconcile: F) -> impl Future<Output = F::Output> {
    READ.scope(RefCell::default(), reconcile)
}
