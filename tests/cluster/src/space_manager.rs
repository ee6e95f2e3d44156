//! Starts of managers for a test's namespace.

use anyhow::Result;

use crate::faults::Faults;
use crate::manager::{Manager, NEEDS_GARBAGE_COLLECTOR};
use crate::space::Space;

/// Controllers of cluster-scoped objects, which a manager for one namespace does not run by default: the managers of
/// concurrent tests would all process the same objects.
const CLUSTER_WIDE: &[&str] = &[
    "certificatesigningrequest-approving-controller",
    "certificatesigningrequest-cleaner-controller",
    "certificatesigningrequest-signing-controller",
    "clusterrole-aggregation-controller",
    "device-taint-eviction-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    "node-lifecycle-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "service-cidr-controller",
    NEEDS_GARBAGE_COLLECTOR,
    "taint-eviction-controller",
    "ttl-controller",
    "volumeattributesclass-protection-controller",
];

/// The controller of quotas, which is not started by default: tests of other controllers write the statuses of quotas
/// themselves.
const QUOTA_CONTROLLER: &str = "resourcequota-controller";

impl Manager {
    /// Starts kcm as `system:kube-controller-manager` with a service account per controller, as kubeadm does, for the
    /// objects of the space's namespace. Leader election, the garbage collector, the quota controller and controllers
    /// of cluster-scoped objects are off, unless `flags` turn them on.
    pub async fn start_with(space: &Space, faults: &Faults, flags: &[&str]) -> Result<Self> {
        let chosen = flags.iter().any(|flag| flag.starts_with("--controllers"));
        let without = CLUSTER_WIDE.join(",-");
        let others = format!("--controllers=*,-{QUOTA_CONTROLLER},-{without}");
        let flags: Vec<&str> = flags.iter().copied().chain((!chosen).then_some(&*others)).collect();
        Self::start_in(&space.bed.cluster, &space.namespace, faults, &flags, Some(space.namespace.clone())).await
    }

    /// Like [`Manager::start_with`], for the whole cluster. Unless `flags` select others, all controllers that `*`
    /// selects run, except the garbage collector and the storage version migrator, which needs it.
    pub async fn start_cluster_wide(space: &Space, faults: &Faults, flags: &[&str]) -> Result<Self> {
        Self::start_in(&space.bed.cluster, &space.namespace, faults, flags, None).await
    }

    /// Like [`Manager::start_with`], without additional flags.
    pub async fn start(space: &Space, faults: &Faults) -> Result<Self> {
        Self::start_with(space, faults, &[]).await
    }
}
