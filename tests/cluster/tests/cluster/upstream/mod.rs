//! Comparison with upstream's manager, and takeovers from and to it.

pub mod attach_takeover;
pub mod cluster_handover;
pub mod differential;
pub mod handover;
pub mod manager;
pub mod operations;
pub mod small_controllers_takeover;
pub mod statefulset_takeover;
pub mod takeover;
pub mod volume_takeover;
