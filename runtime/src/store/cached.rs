//! Cache reads on which a decision may be based.
//!
//! The check that the cache contains earlier writes precedes the read of the object. In the other order, the watch may
//! advance in between, and an outdated object would count as up to date.

use std::sync::Arc;

use kinds::Kind;
use kinds::meta::ObjectKey;

use super::Store;
use crate::wake::Wake;

/// An object in the cache, if a decision may be based on it.
#[must_use]
#[derive(Debug)]
pub enum Cached<K> {
    /// The cache lacks an earlier write, or a write to the object is in progress. The key is requeued when that may
    /// have changed.
    Lagging,
    /// The cache has no record of the object: it does not exist, or none of its states could be decoded.
    Absent,
    /// The object, at least as new as the last write of this process to it.
    Current(Arc<K>),
}

impl<K> Cached<K> {
    /// Returns the object, if a decision may be based on it.
    pub fn current(self) -> Option<Arc<K>> {
        match self {
            Self::Current(object) => Some(object),
            Self::Lagging | Self::Absent => None,
        }
    }
}

impl<K> From<Option<Arc<K>>> for Cached<K> {
    fn from(object: Option<Arc<K>>) -> Self {
        object.map_or(Self::Absent, Self::Current)
    }
}

impl<K: Kind> Store<K> {
    /// Reads an object that several controllers write, if [`Store::is_settled`] holds for it. Otherwise returns
    /// [`Cached::Lagging`], and `wake` runs when that may have changed.
    pub fn read_settled(&self, key: &ObjectKey, wake: impl Into<Wake>) -> Cached<K> {
        if self.is_settled(key, wake) { self.get(key).into() } else { Cached::Lagging }
    }
}
