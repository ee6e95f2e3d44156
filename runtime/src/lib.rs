//! The controller runtime: watches, stores, queues, writes, leader election, events, metrics.
//!
//! It holds no controller logic and knows no cloud. Its parts, in the order in which a change passes through them:
//! [`watch`] keeps the [`store`]s equal to what the API server has; a subscriber turns a change into keys on a
//! [`queue`]; a [`controller`] worker reconciles one key, looking only into stores, and changes things only through
//! the [`write::Writer`]; [`expectations`] keep the key from being decided on again before the stores show the result.

pub mod batch;
pub mod client;
pub mod controller;
pub mod discovery;
pub mod election;
pub mod events;
pub mod expectations;
pub mod manager;
pub mod metrics;
pub mod owner;
pub mod queue;
pub mod sdk;
pub mod serve;
pub mod store;
pub mod stuck;
pub mod testing;
pub mod watch;
pub mod write;
