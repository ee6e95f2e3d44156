//! The cloud controller manager's controllers over the mock cloud.

pub mod crashes;
pub mod node;
pub mod node_lifecycle;
pub mod service;
pub mod takeover;
