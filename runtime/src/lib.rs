//! The controller runtime: watches, caches, queues, writes, leader election, events, metrics.
//!
//! It contains no controllers, and no code for a specific cloud. Its parts, in the order in which a change passes
//! through them: a [`watch`] keeps the [`store`] of a kind equal to the API server; a subscriber maps a change to keys
//! on a [`queue`]; a [`worker`] reconciles one key at a time, reads from stores, and writes only through the
//! [`write::Writer`]; [`consistency`] delays the next reconcile of the key until the stores contain the writes of the
//! last one.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod backoff;
pub mod children;
pub mod client;
pub mod consistency;
pub mod controller_ref;
pub mod debounce;
pub mod diagnostics;
pub mod discovery;
pub mod election;
pub mod events;
mod fair;
pub mod fence;
pub mod former_owners;
pub mod handover;
pub mod health_checks;
pub mod journal;
pub mod lock;
pub mod manager;
pub mod metrics;
pub mod openapi;
pub mod page;
pub mod queue;
pub mod scale;
pub mod sdk;
pub mod serve;
pub mod slow_start;
pub mod stale;
pub mod stall;
mod stealing;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod testing;
pub mod text;
pub mod wake;
pub mod watch;
pub mod worker;
pub mod write;
