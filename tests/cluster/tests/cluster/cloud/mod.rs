//! The cloud controller manager's controllers with the mock cloud.

pub mod crashes;
pub mod credentials;
pub mod failover;
pub mod kubevirt;
pub mod kubevirt_changes;
pub mod node;
pub mod node_lifecycle;
pub mod node_updates;
pub mod service;
pub mod takeover;
