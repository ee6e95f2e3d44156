//! Connection slots. If all slots are taken, a new connection evicts one that serves no authorized request.
//!
//! Without evictions, a few hundred connections without credentials would block the kubelet's probes until the kubelet
//! restarts the manager: idle connections, and connections whose requests wait for the review of invented tokens. The
//! oldest connection of the network with the most connections is evicted, so that a client that opens thousands of
//! connections evicts only its own. Upstream has no limit of connections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::lock::lock;

/// Number of connections over loopback up to which connections from other networks are evicted first. Probes and
/// proxies of the host need no more, and a local process with hundreds of connections gets no advantage.
const PROTECTED_OF_HOST: usize = 16;

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
    network: IpAddr,
    /// Number of running requests of authenticated and authorized users.
    requests: u32,
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

    /// Takes a slot for a connection from an address. If none is free, evicts a connection without an authorized
    /// request; if each has one, returns `None`.
    pub(super) fn take(&self, from: IpAddr) -> Option<ConnectionSlot> {
        let mut taken = self.taken();
        if taken.slots.len() >= self.0.limit {
            let victim = taken.victim()?;
            if let Some(occupant) = taken.slots.remove(&victim) {
                occupant.evict.notify_one();
            }
        }
        let (id, evict) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        taken.slots.insert(id, Occupant { network: network(from), requests: 0, evict: evict.clone() });
        Some(ConnectionSlot { slots: self.clone(), id, evict })
    }

    fn taken(&self) -> std::sync::MutexGuard<'_, Taken> {
        lock(&self.0.taken)
    }
}

impl Taken {
    /// Returns the connection to evict: the oldest of the network with the most connections. Connections over
    /// loopback, such as probes of a manager with the host's network, come last, unless there are more than
    /// [`PROTECTED_OF_HOST`].
    fn victim(&self) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for occupant in self.slots.values() {
            *counts.entry(occupant.network).or_default() += 1;
        }
        let rank = |(id, occupant): &(&u64, &Occupant)| {
            let count = counts.get(&occupant.network).copied().unwrap_or_default();
            let is_protected = occupant.network.is_loopback() && count <= PROTECTED_OF_HOST;
            (!is_protected, count, Reverse(**id))
        };
        let evictable = self.slots.iter().filter(|(_, occupant)| occupant.requests == 0);
        evictable.max_by_key(rank).map(|(id, _)| *id)
    }
}

/// Returns the network of a client: its IPv4 address, or the first 64 bits of its IPv6 address.
fn network(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            const HOST_BITS: u32 = 64;
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> HOST_BITS << HOST_BITS))
        }
        address => address,
    }
}

impl ConnectionSlot {
    /// Records the start of a request of an authenticated and authorized user: the connection is not evicted before its
    /// end.
    pub(super) fn begin_request(&self) {
        self.change(|occupant| occupant.requests += 1);
    }

    /// Records the end of a request that [`ConnectionSlot::begin_request`] counts.
    pub(super) fn end_request(&self) {
        self.change(|occupant| occupant.requests -= 1);
    }

    fn change(&self, change: impl FnOnce(&mut Occupant)) {
        if let Some(occupant) = self.slots.taken().slots.get_mut(&self.id) {
            change(occupant);
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

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.evicted().now_or_never().is_some()
    }

    #[test]
    fn new_connection_evicts_the_oldest_idle_one_when_all_slots_are_taken() {
        let slots = ConnectionSlots::new(3);
        let from = address("192.0.2.1");
        let [first, second, third] = [(); 3].map(|()| slots.take(from).expect("a slot"));
        first.begin_request();
        let fourth = slots.take(from).expect("the slot of the second");
        assert!(!is_evicted(&first) && is_evicted(&second) && !is_evicted(&third) && !is_evicted(&fourth));
        drop(second);
        first.end_request();
        drop(third);
        let fifth = slots.take(from).expect("the slot of the third");
        assert!(!is_evicted(&first), "a slot was free");
        for slot in [&first, &fourth, &fifth] {
            slot.begin_request();
        }
        assert!(slots.take(from).is_none(), "all serve authorized requests");
    }

    #[test]
    fn connection_is_not_evicted_before_the_last_of_its_requests_ends() {
        let slots = ConnectionSlots::new(1);
        let slot = slots.take(address("192.0.2.1")).expect("a slot");
        slot.begin_request();
        slot.begin_request();
        slot.end_request();
        assert!(slots.take(address("192.0.2.2")).is_none(), "a request is running");
        slot.end_request();
        assert!(slots.take(address("192.0.2.2")).is_some() && is_evicted(&slot));
    }

    #[test]
    fn network_with_the_most_connections_loses_its_oldest() {
        let slots = ConnectionSlots::new(4);
        let take = |from: &str| slots.take(address(from)).expect("a slot");
        let kubelet = take("192.0.2.1");
        let crowd = ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:3"].map(take);
        let prometheus = take("::ffff:192.0.2.9");
        assert!(!is_evicted(&kubelet) && is_evicted(&crowd[0]) && !is_evicted(&crowd[1]));
        let second = take("192.0.2.9");
        assert!(!is_evicted(&kubelet) && is_evicted(&crowd[1]));
        let third = take("192.0.2.1");
        assert!(!is_evicted(&kubelet) && is_evicted(&prometheus), "both addresses are the same IPv4 address");
        drop((second, third));
    }

    #[test]
    fn connection_of_this_host_is_evicted_last() {
        let slots = ConnectionSlots::new(3);
        let take = |from: &str| slots.take(address(from)).expect("a slot");
        let local = ["127.0.0.1", "127.0.0.1"].map(take);
        let remote = take("192.0.2.1");
        let next = take("192.0.2.2");
        assert!(is_evicted(&remote) && !is_evicted(&local[0]));
        next.begin_request();
        let _last = take("192.0.2.3");
        assert!(is_evicted(&local[0]) && !is_evicted(&local[1]) && !is_evicted(&next));
    }

    #[test]
    fn many_connections_of_this_host_evict_no_remote_one() {
        let slots = ConnectionSlots::new(20);
        let take = |from: &str| slots.take(address(from)).expect("a slot");
        let local: Vec<_> = (0..19).map(|_| take("127.0.0.1")).collect();
        let remote = take("192.0.2.1");
        let next = take("127.0.0.1");
        assert!(is_evicted(&local[0]) && !is_evicted(&remote) && !is_evicted(&next));
    }
}
