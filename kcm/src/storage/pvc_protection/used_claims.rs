//! Whole claims as the API server returned them when they became used: the base of the next write of their condition.
//!
//! A record is only a part of its claim, and this controller's role has no patch verb, so a write needs the whole
//! claim. When a pod ends, its claim mostly still has the version that was written when the pod appeared. Claims
//! without a user are not kept: most of them stay unused.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use kinds::PersistentVolumeClaim;
use kinds::meta::ObjectKey;
use kinds::whole::WholeObject;
use runtime::lock::lock;

/// Maximum size in bytes of all claims together; those that were kept first are dropped first. A claim without managed
/// fields has about 700 bytes.
const LIMIT: usize = 2 << 20;

#[derive(Debug)]
struct Kept {
    version: u64,
    order: u64,
    object: Box<WholeObject>,
}

#[derive(Debug, Default)]
struct State {
    claims: HashMap<ObjectKey, Kept>,
    by_order: BTreeMap<u64, ObjectKey>,
    next_order: u64,
    size: usize,
}

impl State {
    fn remove(&mut self, key: &ObjectKey) -> Option<Kept> {
        let kept = self.claims.remove(key)?;
        self.by_order.remove(&kept.order);
        self.size -= kept.object.bytes().len();
        Some(kept)
    }
}

/// Whole claims by their keys.
#[derive(Debug, Default)]
pub struct UsedClaims(Mutex<State>);

impl UsedClaims {
    /// Keeps a claim that was written, at this version.
    pub fn keep(&self, key: &ObjectKey, version: u64, object: Box<WholeObject>) {
        let mut state = lock(&self.0);
        state.remove(key);
        let order = state.next_order;
        state.next_order += 1;
        state.size += object.bytes().len();
        state.by_order.insert(order, key.clone());
        state.claims.insert(key.clone(), Kept { version, order, object });
        while state.size > LIMIT
            && let Some((_, oldest)) = state.by_order.first_key_value()
        {
            let oldest = oldest.clone();
            state.remove(&oldest);
        }
    }

    /// Returns the whole claim, once, if it was kept at the version of its record.
    pub fn take(&self, record: &PersistentVolumeClaim) -> Option<Box<WholeObject>> {
        let kept = lock(&self.0).remove(&record.meta.key())?;
        (kept.version == record.meta.version).then_some(kept.object)
    }

    /// Removes a claim that was deleted.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.0).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use kinds::wire::Put;

    use super::*;
    use crate::storage::testing::claim;

    fn whole(size: usize) -> Box<WholeObject> {
        let mut object = Vec::new();
        object.put_message(2, |spec| spec.put_str(99, &"x".repeat(size)));
        WholeObject::read(&object).expect("well-formed").expect("small enough")
    }

    #[test]
    fn claim_is_returned_once_and_only_at_the_version_of_its_record() {
        let claims = UsedClaims::default();
        let mut record = claim("data");
        record.meta.version = 7;
        let key = record.meta.key();
        claims.keep(&key, 7, whole(5));
        assert_eq!(claims.take(&record), Some(whole(5)));
        assert_eq!(claims.take(&record), None);
        claims.keep(&key, 6, whole(5));
        assert_eq!(claims.take(&record), None, "another client has written it");
        claims.keep(&key, 7, whole(5));
        claims.forget(&key);
        assert_eq!(claims.take(&record), None, "it was deleted");
        let state = lock(&claims.0);
        assert!(state.claims.is_empty() && state.by_order.is_empty() && state.size == 0);
    }

    #[test]
    fn oldest_claims_are_dropped_when_all_together_are_too_large() {
        let claims = UsedClaims::default();
        for number in 0..2_000 {
            claims.keep(&ObjectKey::new("shop", format!("data-{number}")), 1, whole(4_000));
        }
        let state = lock(&claims.0);
        assert!(state.size <= LIMIT && state.size > LIMIT - 5_000, "{}", state.size);
        assert_eq!(state.claims.len(), state.by_order.len());
        assert!(state.claims.contains_key(&ObjectKey::new("shop", "data-1999")));
        assert!(!state.claims.contains_key(&ObjectKey::new("shop", "data-0")));
    }
}
