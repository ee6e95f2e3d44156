//! Crashes, lost responses and stale caches; invariants that always hold.

pub mod bait;
pub mod cluster_crashes;
pub mod crashes;
pub mod faults;
pub mod gated_crashes;
pub mod hostile_names;
pub mod hostile_objects;
pub mod hostile_tenant;
pub mod invariants;
pub mod refusing_admission;
pub mod scenario;
pub mod secrecy;
pub mod terminating_namespace;
