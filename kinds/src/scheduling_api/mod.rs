//! Kinds of the API group `scheduling.k8s.io`.

pub mod pod_group;
pub mod pod_group_workload;
