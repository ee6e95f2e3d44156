//! The progress of one list of a kind, and its limits.
//!
//! An aggregated API may send any number of pages, objects or names. A list that would take too much memory fails, and
//! all objects that were added to the cache since the last complete list are removed, so that the next list starts with
//! the same amount of free memory; subscribers learn that these objects are unknown, not that they were deleted. After
//! any other failure they stay until a list is complete: the server had them.

use std::time::Duration;

use hashbrown::HashSet;
use kinds::meta::ObjectKey;
use tokio::time::Instant;

use super::frames::FrameError;
use super::request::WatchError;
use super::watched_store::WatchedStore;

/// Maximum number of pages: five million objects in pages of 100.
const MAX_PAGES: usize = 50_000;

/// Maximum time of a list, or of one page. An API server ends a list after one minute, and a watch that streams a list
/// after ten.
const MAX_TIME: Duration = Duration::from_secs(900);

/// Maximum number of objects, far above what an API server can store of one kind.
const MAX_OBJECTS: usize = 5_000_000;

/// Maximum size of all objects in bytes: twice the largest storage that etcd recommends.
const MAX_BYTES: u64 = 16 << 30;

/// Maximum memory, in bytes, of the records of a kind that an aggregated API may serve: about five million objects of
/// usual size.
const MAX_RECORD_BYTES: usize = 2 << 30;

/// The limits of lists and caches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pages: usize,
    objects: usize,
    bytes: u64,
    record_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { pages: MAX_PAGES, objects: MAX_OBJECTS, bytes: MAX_BYTES, record_bytes: MAX_RECORD_BYTES }
    }
}

impl Limits {
    /// Low limits for tests, so that lists exceed them soon.
    #[cfg(test)]
    pub(super) fn small() -> Self {
        Self { pages: 20, objects: 1000, bytes: 1 << 20, record_bytes: 100 << 10 }
    }

    /// Returns an error if a cache is larger than its limit, at the end of a list or after an event of the watch.
    /// After an event, the next list determines whether the server really has as many objects.
    pub(super) fn check_watched(&self, store: &dyn WatchedStore) -> Result<(), WatchError> {
        if store.limited_bytes() > self.record_bytes {
            return Err(WatchError::TooLarge("the records of the kind take too much memory"));
        }
        Ok(())
    }
}

/// The progress of a list.
pub(super) struct ListProgress {
    limits: Limits,
    /// Objects of the cache that the list has not contained yet.
    unseen: HashSet<ObjectKey>,
    /// Objects that this list, and incomplete lists before it, have added to the cache since the last complete list.
    /// Empty before the first complete list, when this applies to all objects of the cache.
    added: HashSet<ObjectKey>,
    /// No list was complete before.
    is_first: bool,
    pages: usize,
    objects: usize,
    bytes: u64,
    /// The start of the list, or of its current page.
    begun: Instant,
}

impl ListProgress {
    /// Begins a list. `added` are the objects that [`ListProgress::end`] has returned for the previous list.
    pub(super) fn new(store: &dyn WatchedStore, limits: Limits, added: Vec<ObjectKey>) -> Self {
        let (unseen, is_first) = (store.keys(), !store.progress().is_synced());
        let added = added.into_iter().collect();
        Self { limits, unseen, added, is_first, pages: 0, objects: 0, bytes: 0, begun: Instant::now() }
    }

    /// Counts a page.
    pub(super) fn begin_page(&mut self) -> Result<(), WatchError> {
        self.pages += 1;
        self.begun = Instant::now();
        if self.pages > self.limits.pages { Err(FrameError::NoList("it has too many pages").into()) } else { Ok(()) }
    }

    /// Counts an object before it is applied; `key` returns `None` if the name of the object cannot be read.
    pub(super) fn add(
        &mut self,
        store: &dyn WatchedStore,
        object: &[u8],
        key: impl FnOnce() -> Option<ObjectKey>,
    ) -> Result<(), WatchError> {
        self.objects += 1;
        self.bytes += object.len() as u64;
        if self.begun.elapsed() > MAX_TIME {
            return Err(FrameError::Slow(MAX_TIME).into());
        }
        if self.objects > self.limits.objects {
            return Err(WatchError::TooLarge("the list has too many objects"));
        }
        if self.bytes > self.limits.bytes {
            return Err(WatchError::TooLarge("the objects of the list are too large"));
        }
        // The cache may contain previous objects of the maximum size in addition to those of the list.
        if store.limited_bytes() > 2 * self.limits.record_bytes {
            return Err(WatchError::TooLarge("the records of the list take too much memory"));
        }
        if (!self.is_first || !self.unseen.is_empty())
            && let Some(key) = key()
            && !self.unseen.remove(&key)
            && !self.is_first
            && !store.contains(&key)
        {
            self.added.insert(key);
        }
        Ok(())
    }

    /// Removes the objects from the cache that the complete list did not contain: they were deleted.
    pub(super) fn finish(&self, store: &dyn WatchedStore) -> Result<(), WatchError> {
        self.unseen.iter().for_each(|key| store.remove(&key.namespace, &key.name));
        self.limits.check_watched(store)
    }

    /// Ends the list, with its error if it failed. Returns the objects that incomplete lists have added to the cache
    /// since the last complete list.
    pub(super) fn end(self, store: &dyn WatchedStore, error: Option<&WatchError>) -> Vec<ObjectKey> {
        let Some(error) = error else { return Vec::new() };
        if error.is_too_large() {
            let all = if self.is_first { store.keys() } else { self.added };
            all.iter().for_each(|key| store.discard(key));
            return Vec::new();
        }
        // A stream may have added and deleted any number of objects.
        self.added.into_iter().filter(|key| store.contains(key)).collect()
    }
}
