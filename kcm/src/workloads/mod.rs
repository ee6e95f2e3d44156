//! Workloads: controllers that create, limit, scale and clean up pods.

pub mod controller_revisions;
pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod pod_garbage_collector;
pub mod podgroup_protection;
pub mod replicaset;
pub mod statefulset;
pub mod ttl_after_finished;
