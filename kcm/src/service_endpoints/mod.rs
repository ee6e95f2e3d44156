//! What the controllers of Service endpoints share: which pods stand behind a Service, on which ports, and since when.

pub mod pods;
pub mod selectors;
pub mod slice_keys;
pub mod slice_writes;
pub mod subsets;
pub mod trigger;

use std::time::Duration;

/// Pods' changes follow each other closely while a workload rolls: further ones of a Service within this time of a sync
/// are taken together at first, and over up to the second time while they keep coming. The first change goes out at
/// once.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// First and longest time.
    pub window: (Duration, Duration),
    /// A Service whose pods keep changing rests so many times as long as its sync took: the slower the server, the more
    /// changes are taken together.
    pub rest: u32,
}

/// For EndpointSlices: traffic follows them.
pub const SLICES: Patience = Patience { window: (Duration::from_millis(20), Duration::from_millis(100)), rest: 14 };

/// For Endpoints: each write is that of all addresses, and what follows traffic reads EndpointSlices.
pub const ENDPOINTS: Patience =
    Patience { window: (Duration::from_millis(100), Duration::from_millis(1000)), rest: 20 };

/// After so many failures in a row a key is dropped until it changes (pkg/controller/endpoint and others, maxRetries).
pub const MAX_RETRIES: u32 = 15;
