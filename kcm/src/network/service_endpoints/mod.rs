//! Shared parts of the controllers of Service endpoints: the pods of a Service, their ports, and the times of changes.
//!
//! Traffic follows the writes of these controllers, and the removal of an endpoint that must not get traffic is the
//! most urgent one. Unless a flag sets a batch period, a change is written immediately if no write of its Service is in
//! flight; changes that arrive during a write share the next one, at a bounded [`pace`]. The exception is the removal
//! of endpoints that get no traffic ([`IDLE_REMOVAL_DELAY`]).

pub mod identity;
pub mod pace;
pub mod pods;
pub mod selectors;
pub mod slice_keys;
pub mod slice_writes;
pub mod subsets;
pub mod trigger;

use std::time::Duration;

/// The longest delay of a write that only removes endpoints, or addresses, that get no traffic.
///
/// No client acts on such a removal, and a rollout causes such removals one by one. A new endpoint is never delayed,
/// even if it is not ready: cloud load balancers register an endpoint before it may become ready.
pub const IDLE_REMOVAL_DELAY: Duration = Duration::from_secs(1);

/// Maximum time for which a change waits because a creation for its Service was refused. Traffic follows outdated
/// endpoints in the meantime.
pub const MAX_REFUSAL_DELAY: Duration = Duration::from_secs(60);
