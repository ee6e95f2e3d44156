//! Nodes: health, taints, and eviction.

pub mod node_lifecycle;
pub mod taint_eviction;
pub mod ttl;
