//! Devices of pods (dynamic resource allocation).

pub mod device_taint_eviction;
pub mod resource_claim;
pub mod resource_pool_status_request;
