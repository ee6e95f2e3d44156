//! Devices of dynamic resource allocation.

pub mod group_claims;
pub mod resource_claims;
pub mod resource_pools;
pub mod taint_eviction;
