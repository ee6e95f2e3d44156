//! What the controllers of Service endpoints share: which pods stand behind a Service, on which ports, and since when.

pub mod pods;
pub mod selectors;
pub mod slice_keys;
pub mod slice_writes;
pub mod subsets;
pub mod trigger;

use std::time::Duration;

use runtime::queue::QueueOptions;

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
    /// After a write it rests at least so long for each of its pods: what is written goes to every node. The more pods
    /// there are, the less it matters when one of them is shown.
    pub rest_each: Duration,
    /// No rest is longer.
    pub longest_rest: Duration,
}

impl Patience {
    /// A queue of Services with this patience.
    pub fn queue(self, name: &'static str) -> QueueOptions {
        let Self { window: (window, longest_window), rest, longest_rest, .. } = self;
        QueueOptions { window, longest_window, rest, longest_rest, ..QueueOptions::named(name) }
    }

    /// How long a Service with so many pods rests after a write.
    pub fn after_write(self, pods: usize) -> Duration {
        self.rest_each.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX)).min(self.longest_rest)
    }
}

/// For EndpointSlices: traffic follows them.
pub const SLICES: Patience = Patience {
    window: (Duration::from_millis(20), Duration::from_millis(100)),
    rest: 15,
    rest_each: Duration::from_millis(4),
    longest_rest: Duration::from_secs(2),
};

/// For Endpoints: each write is that of all addresses, and what follows traffic reads EndpointSlices.
pub const ENDPOINTS: Patience = Patience {
    window: (Duration::from_millis(100), Duration::from_millis(1000)),
    rest: 20,
    rest_each: Duration::from_millis(16),
    longest_rest: Duration::from_secs(4),
};

/// After so many failures in a row a key is dropped until it changes (pkg/controller/endpoint and others, maxRetries).
pub const MAX_RETRIES: u32 = 15;
