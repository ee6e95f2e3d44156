//! Connection slots. A new connection evicts the oldest idle one if all slots are taken.
//!
//! Otherwise a few hundred idle connections, which need no credentials, would block the kubelet's probes until the
//! kubelet restarts the manager. Upstream has no limit of connections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::lock::lock;

/// The connection slots of a server.
#[derive(Clone)]
pub(super) struct ConnectionSlots(Arc<Inner>);

struct Inner {
    limit: usize,
    taken: Mutex<Taken>,
}

/// The taken slots.
#[derive(Default)]
struct Taken {
    /// The number of the next connection.
    next: u64,
    /// The connections by their numbers, the oldest first.
    slots: BTreeMap<u64, Occupant>,
}

/// The connection in a slot.
struct Occupant {
    /// A request is running.
    is_busy: bool,
    /// Notified when another connection takes the slot.
    evict: Arc<Notify>,
}

/// The slot of one connection; dropping it frees the slot.
pub(super) struct ConnectionSlot {
    slots: ConnectionSlots,
    id: u64,
    evict: Arc<Notify>,
}

impl ConnectionSlots {
    pub(super) fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { limit, taken: Mutex::default() }))
    }

    /// Takes a slot. If none is free, evicts the oldest connection without a request; if each has one, returns `None`.
    pub(super) fn take(&self) -> Option<ConnectionSlot> {
        let mut taken = self.taken();
        if taken.slots.len() >= self.0.limit {
            let oldest = taken.slots.iter().find(|(_, occupant)| !occupant.is_busy).map(|(id, _)| *id)?;
            if let Some(occupant) = taken.slots.remove(&oldest) {
                occupant.evict.notify_one();
            }
        }
        let (id, evict) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        taken.slots.insert(id, Occupant { is_busy: false, evict: evict.clone() });
        Some(ConnectionSlot { slots: self.clone(), id, evict })
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Taken> {
        lock(&self.0.taken)
    }
}

impl ConnectionSlot {
    /// Records whether a request is running.
    pub(super) fn set_busy(&self, is_busy: bool) {
        if let Some(occupant) = self.slots.taken().slots.get_mut(&self.id) {
            occupant.is_busy = is_busy;
        }
    }

    /// Completes when the slot was given to another connection.
    pub(super) async fn evicted(&self) {
        self.evict.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.taken().slots.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.evicted().now_or_never().is_some()
    }

    #[test]
    fn new_connection_evicts_the_oldest_idle_one_when_all_slots_are_taken() {
        let slots = ConnectionSlots::new(3);
        let [first, second, third] = [(); 3].map(|()| slots.take().expect("a slot"));
        first.set_busy(true);
        let fourth = slots.take().expect("the slot of the second");
        assert!(!is_evicted(&first) && is_evicted(&second) && !is_evicted(&third) && !is_evicted(&fourth));
        drop(second);
        first.set_busy(false);
        drop(third);
        let fifth = slots.take().expect("the slot of the third");
        assert!(!is_evicted(&first), "a slot was free");
        for slot in [&first, &fourth, &fifth] {
            slot.set_busy(true);
        }
        assert!(slots.take().is_none(), "all are busy");
    }
}
