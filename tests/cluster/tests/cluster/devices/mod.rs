//! Devices of dynamic resource allocation.

pub mod taint_eviction;
