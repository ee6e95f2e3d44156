//! UIDs of pods and PodGroups that were deleted, so that their reservations can be removed without a read.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;

use kinds::Uid;
use runtime::lock::lock;

/// Number of UIDs that are kept. For a UID that was dropped, the API server is read.
const CAPACITY: usize = 500;

/// The UIDs of the objects that were deleted last.
#[derive(Debug, Default)]
pub struct DeletedUids(Mutex<Uids>);

#[derive(Debug, Default)]
struct Uids {
    known: HashSet<Uid>,
    /// Oldest first.
    order: VecDeque<Uid>,
}

impl DeletedUids {
    /// Adds the UID of an object whose deletion the watch has delivered.
    pub fn add(&self, uid: &Uid) {
        let mut uids = lock(&self.0);
        if !uids.known.insert(uid.clone()) {
            return;
        }
        uids.order.push_back(uid.clone());
        if uids.order.len() > CAPACITY
            && let Some(oldest) = uids.order.pop_front()
        {
            uids.known.remove(&oldest);
        }
    }

    /// Returns true if the object with this UID was deleted. `false` means unknown.
    pub fn contains(&self, uid: &Uid) -> bool {
        lock(&self.0).known.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_uids_are_dropped_when_the_memory_is_full() {
        let deleted = DeletedUids::default();
        let uid = |n: usize| Uid::parse(&n.to_string());
        for n in 0..=CAPACITY {
            deleted.add(&uid(n));
            deleted.add(&uid(n));
        }
        assert!(!deleted.contains(&uid(0)) && deleted.contains(&uid(1)) && deleted.contains(&uid(CAPACITY)));
    }
}
