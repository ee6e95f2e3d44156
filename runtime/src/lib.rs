//! The controller runtime: watches, stores, queues, writes, leader election, events, metrics.
//!
//! It holds no controller logic and knows no cloud. Its parts, in the order in which a change passes through them:
//! [`watch`] keeps the [`store`]s equal to what the API server has; a subscriber turns a change into keys on a
//! [`queue`]; a [`worker`] reconciles one key, looking only into stores, and changes things only through
//! the [`write::Writer`]; [`consistency`] keeps the key from being decided on again before the stores show the result.

pub mod children;
pub mod client;
pub mod consistency;
pub mod controller_ref;
pub mod debounce;
pub mod diagnostics;
pub mod discovery;
pub mod election;
pub mod events;
pub mod fence;
pub mod handover;
pub mod journal;
pub mod lock;
pub mod manager;
pub mod metrics;
pub mod page;
pub mod queue;
pub mod scale;
pub mod sdk;
pub mod serve;
pub mod slow_start;
pub mod store;
pub mod telemetry;
pub mod testing;
pub mod text;
pub mod wake;
pub mod watch;
pub mod worker;
pub mod write;
