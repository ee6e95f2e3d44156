//! State that the reconcilers of claims and volumes share.

use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass};
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::write::Writer;

use super::matcher::Matcher;
use super::metrics::Operations;
use super::notices::Notices;
use super::recycler_pod::Recyclers;
use super::recycling::Recycling;
use crate::context::Clock;
use crate::storage::indexes::{pods_by_claim, using_claim};

/// Settings from the command line.
pub struct Settings {
    /// Delay after which an object that waits is reconciled again.
    pub sync_period: Duration,
    /// True if dynamic provisioning is enabled.
    pub is_dynamic: bool,
    /// True if host-path volumes are provisioned.
    pub has_host_path: bool,
    /// True if a claim that becomes bound gets the condition `Unused`.
    pub tracks_unused: bool,
    /// Pods that wipe volumes; an error if a template cannot be used.
    pub recyclers: Result<Recyclers, String>,
}

/// State that the reconcilers of claims and volumes share.
pub struct Binder {
    pub claims: Arc<Store<PersistentVolumeClaim>>,
    pub volumes: Arc<Store<PersistentVolume>>,
    pub classes: Arc<Store<StorageClass>>,
    pub pods: Arc<Store<Pod>>,
    /// `None` unless the host-path provisioner is enabled, which reads the nodes.
    pub nodes: Option<Arc<Store<Node>>>,
    pub writer: Writer,
    pub claim_queue: Arc<Queue<ObjectKey>>,
    pub volume_queue: Arc<Queue<ObjectKey>>,
    pub matcher: Arc<Matcher>,
    pub notices: Notices,
    pub operations: Operations,
    pub recycling: Recycling,
    /// Wall clock, for the times in conditions.
    pub clock: Clock,
    pub settings: Settings,
}

impl Binder {
    /// Returns the pods that still use the volumes of a claim: neither finished, nor being deleted without a running
    /// container.
    pub fn pods_using(&self, claim: &ObjectKey) -> Vec<Arc<Pod>> {
        active_users(self.pods.by_index(&pods_by_claim(), using_claim(&claim.namespace, &claim.name)), claim)
    }

    /// Returns true if there is a node with this name.
    pub fn has_node(&self, name: &str) -> bool {
        self.nodes.as_ref().is_some_and(|nodes| nodes.get(&ObjectKey::new("", name)).is_some())
    }
}

/// Returns those of the pods that still use the volumes of a claim, as in [`Binder::pods_using`].
pub fn active_users(mut pods: Vec<Arc<Pod>>, claim: &ObjectKey) -> Vec<Arc<Pod>> {
    let uses = |pod: &Pod| {
        let volumes = pod.volumes.as_deref().map_or(&[][..], |volumes| volumes.of_claim(&claim.name));
        pod.meta.namespace == claim.namespace && !volumes.is_empty()
    };
    pods.retain(|pod| !pod.has_released_volumes() && uses(pod));
    pods
}
