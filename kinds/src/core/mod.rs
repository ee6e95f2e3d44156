//! Kinds of the core API group.

pub mod config_map;
pub mod endpoints;
pub mod namespace;
pub mod namespace_deletion;
pub mod node;
pub mod node_cloud;
pub mod node_volumes;
pub mod persistent_volume;
pub mod persistent_volume_claim;
pub mod persistent_volume_claim_usage;
pub mod pod;
pub mod replicationcontroller;
pub mod resource_quota;
pub mod secret;
pub mod service;
pub mod service_account;
