//! What the controllers of Service endpoints share: which pods stand behind a Service, on which ports, and since when.

pub mod pods;
pub mod selectors;
pub mod slice_keys;
pub mod slice_writes;
pub mod subsets;
pub mod trigger;

use std::time::Duration;

/// Pods' changes follow each other closely while a workload rolls: further ones within this time of a sync are taken
/// together at first, and over up to the second time while they keep coming. The first change goes out at once.
pub const WINDOW: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(400));

/// A Service whose pods keep changing rests so many times as long as its sync took: the slower the server, the more
/// changes are taken together.
pub const REST: u32 = 3;

/// After so many failures in a row a key is dropped until it changes (pkg/controller/endpoint and others, maxRetries).
pub const MAX_RETRIES: u32 = 15;
