//! The common part of ReplicaSets and ReplicationControllers: a number of pods of one template.

use kinds::{Kind, ReplicaSet, ReplicationController};

use crate::context::QueueKeys;

/// A kind whose objects request a number of pods of one template, and the names of its controller.
pub trait PodSet: Kind {
    /// The controller's name.
    const CONTROLLER: &'static str;
    /// Its service account.
    const SERVICE_ACCOUNT: &'static str;
    /// The source of its events.
    const COMPONENT: &'static str;
    /// Its queue.
    const QUEUES: &'static [QueueKeys];
    /// The flag for the number of its workers.
    const WORKERS: &'static str;
    /// True if the status has a number of terminating pods.
    const REPORTS_TERMINATING: bool;

    /// Returns the spec and status of the object as a ReplicaSet.
    fn replica_set(&self) -> &ReplicaSet;
}

impl PodSet for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const SERVICE_ACCOUNT: &'static str = "replicaset-controller";
    const COMPONENT: &'static str = "replicaset-controller";
    const QUEUES: &'static [QueueKeys] = &[QueueKeys::of("replicaset", "ReplicaSet")];
    const WORKERS: &'static str = "concurrent-replicaset-syncs";
    const REPORTS_TERMINATING: bool = true;

    fn replica_set(&self) -> &ReplicaSet {
        self
    }
}

/// The names are upstream's. Upstream: pkg/controller/replication, NewReplicationManager.
impl PodSet for ReplicationController {
    const CONTROLLER: &'static str = "replicationcontroller-controller";
    const SERVICE_ACCOUNT: &'static str = "replication-controller";
    const COMPONENT: &'static str = "replication-controller";
    const QUEUES: &'static [QueueKeys] = &[QueueKeys::of("replicationmanager", "ReplicationController")];
    const WORKERS: &'static str = "concurrent-rc-syncs";
    const REPORTS_TERMINATING: bool = false;

    fn replica_set(&self) -> &ReplicaSet {
        &self.set
    }
}
