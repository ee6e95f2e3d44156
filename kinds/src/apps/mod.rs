//! Kinds of the API group `apps`.

pub mod controller_revision;
pub mod daemonset;
pub mod deployment;
pub mod replicaset;
pub mod statefulset;
