//! Devices of dynamic resource allocation.

pub mod resource_pools;
pub mod taint_eviction;
