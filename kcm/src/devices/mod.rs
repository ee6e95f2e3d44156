//! Devices of pods (dynamic resource allocation).

pub mod device_taint_eviction;
pub mod resource_claim;
