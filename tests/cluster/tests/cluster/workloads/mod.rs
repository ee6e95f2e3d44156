//! Controllers of pods: from ReplicaSets to autoscalers and budgets.

pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod job_scheduling;
pub mod pod_garbage_collector;
pub mod podgroup_protection;
pub mod refused_creations;
pub mod released_pods;
pub mod replicaset;
pub mod replicaset_pods;
pub mod replicationcontroller;
pub mod rollout;
pub mod statefulset;
