//! The objects on the server whose newest states cannot be decoded.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kinds::meta::ObjectKey;

use crate::lock::lock;

/// Maximum size of all keys, in bytes. An aggregated API determines their number and length.
const MAX_BYTES: usize = 64 << 20;

/// Memory of a key in addition to its texts, in bytes.
const KEY_BYTES: usize = 96;

/// The keys of undecodable objects.
#[derive(Default)]
pub(super) struct Undecodable {
    keys: Mutex<Keys>,
    /// The number of keys, so that a read of the store needs no lock while there are none.
    count: AtomicUsize,
}

#[derive(Default)]
struct Keys {
    keys: HashSet<ObjectKey>,
    /// The size of all keys.
    bytes: usize,
}

fn size(key: &ObjectKey) -> usize {
    KEY_BYTES + key.namespace.len() + key.name.len()
}

impl Undecodable {
    /// Adds a key. Returns false if there are too many.
    pub(super) fn add(&self, key: ObjectKey) -> bool {
        let mut known = lock(&self.keys);
        if known.keys.contains(&key) {
            return true;
        }
        let bytes = known.bytes + size(&key);
        if bytes > MAX_BYTES {
            return false;
        }
        known.bytes = bytes;
        known.keys.insert(key);
        self.count.store(known.keys.len(), Ordering::Release);
        true
    }

    pub(super) fn remove(&self, key: &ObjectKey) {
        if self.is_empty() {
            return;
        }
        let mut known = lock(&self.keys);
        if known.keys.remove(key) {
            known.bytes -= size(key);
            self.count.store(known.keys.len(), Ordering::Release);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn contains(&self, key: &ObjectKey) -> bool {
        !self.is_empty() && lock(&self.keys).keys.contains(key)
    }

    /// Returns all keys.
    pub(super) fn all(&self) -> HashSet<ObjectKey> {
        if self.is_empty() { HashSet::new() } else { lock(&self.keys).keys.clone() }
    }

    /// Returns the number of keys for which `counts` returns true.
    pub(super) fn count(&self, counts: impl Fn(&ObjectKey) -> bool) -> usize {
        if self.is_empty() { 0 } else { lock(&self.keys).keys.iter().filter(|key| counts(key)).count() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_take_limited_memory() {
        let (undecodable, name) = (Undecodable::default(), "x".repeat(1 << 20));
        let key = |number: usize| ObjectKey::new("ns", format!("{name}{number}"));
        let added = (0..100).filter(|number| undecodable.add(key(*number))).count();
        assert!((60..64).contains(&added), "{added}");
        assert_eq!((undecodable.len(), undecodable.add(key(0))), (added, true), "it is known");
        (0..100).for_each(|number| undecodable.remove(&key(number)));
        assert!(undecodable.is_empty() && undecodable.add(key(99)));
    }
}
