//! The number of pods that the owners of a budget's pods request: from the caches for known kinds, otherwise from the
//! scale subresource.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kinds::meta::{ObjectKey, OwnerRef};
use kinds::{Deployment, Kind, Pod, ReplicaSet, ReplicationController, StatefulSet, Uid};
use runtime::scale::Scales;
use runtime::store::Store;

/// The sources of owners' scales.
pub struct Owners {
    pub replication_controllers: Arc<Store<ReplicationController>>,
    pub replica_sets: Arc<Store<ReplicaSet>>,
    pub deployments: Arc<Store<Deployment>>,
    pub stateful_sets: Arc<Store<StatefulSet>>,
    pub scales: Scales,
}

/// The pods that the owners request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DesiredPods {
    /// The sum of the owners' scales.
    pub pods: i32,
    /// Names of pods without a controller.
    pub unmanaged: Vec<String>,
}

/// The reason why the scale of an owner could not be determined.
#[derive(Debug, PartialEq, Eq)]
pub struct ScaleError {
    /// The message of the event and the condition.
    pub message: String,
    /// A retry may succeed although no watched object changes: the API server could not be read, or does not serve the
    /// owner's kind or its scale yet.
    pub transient: bool,
}

impl ScaleError {
    fn permanent(message: String) -> Self {
        Self { message, transient: false }
    }
}

/// UID and scale of the controller that determines the number of pods: the pod's owner, or the owner of that owner.
type Scale = (Uid, i32);

impl Owners {
    /// Adds up the scales of the pods' controllers. Each controller counts once.
    pub async fn desired_pods(&self, pods: &[Arc<Pod>]) -> Result<DesiredPods, ScaleError> {
        let mut desired = DesiredPods::default();
        let mut scales: HashMap<Uid, i32> = HashMap::new();
        let mut visited: HashSet<&Uid> = HashSet::new();
        for pod in pods {
            let Some(owner) = pod.meta.controller() else {
                desired.unmanaged.push(pod.meta.name.to_string());
                continue;
            };
            if !visited.insert(&owner.uid) {
                continue;
            }
            let Some((uid, replicas)) = self.scale(owner, &pod.meta.namespace).await? else {
                return Err(ScaleError::permanent(format!("found no controllers for pod {:?}", &*pod.meta.name)));
            };
            scales.insert(uid, replicas);
        }
        desired.pods = scales.values().fold(0, |sum, replicas| sum.saturating_add(*replicas));
        Ok(desired)
    }

    async fn scale(&self, owner: &OwnerRef, namespace: &str) -> Result<Option<Scale>, ScaleError> {
        match self.cached_scale(owner, namespace) {
            Some(scale) => Ok(Some(scale)),
            None => self.read_scale(owner, namespace).await,
        }
    }

    /// Returns the scale of an owner of a cached kind; for a Deployment's ReplicaSet, the scale of the Deployment.
    ///
    /// Upstream: pkg/controller/disruption, getPodReplicationController, getPodDeployment, getPodReplicaSet and
    /// getPodStatefulSet.
    fn cached_scale(&self, owner: &OwnerRef, namespace: &str) -> Option<Scale> {
        match &*owner.kind {
            "ReplicationController" if group(owner).is_empty() => {
                let found = self.replication_controllers.get_with_uid(namespace, &owner.name, &owner.uid)?;
                Some((owner.uid.clone(), found.set.replicas))
            }
            "ReplicaSet" if is_workload(owner) => {
                let set = self.replica_sets.get_with_uid(namespace, &owner.name, &owner.uid)?;
                match set.meta.controller().filter(|above| &*above.kind == Deployment::RESOURCE.kind) {
                    // The set's owner is a `Deployment` of another API group: the scale subresource of the set is read.
                    Some(above) if !is_workload(above) => None,
                    Some(above) => {
                        let found = self.deployments.get_with_uid(namespace, &above.name, &above.uid)?;
                        Some((above.uid.clone(), found.replicas))
                    }
                    None => Some((owner.uid.clone(), set.replicas)),
                }
            }
            "StatefulSet" if group(owner) == StatefulSet::RESOURCE.group => {
                let found = self.stateful_sets.get_with_uid(namespace, &owner.name, &owner.uid)?;
                Some((owner.uid.clone(), found.replicas))
            }
            _ => None,
        }
    }

    /// Returns the scale of an owner of any kind from the API server.
    async fn read_scale(&self, owner: &OwnerRef, namespace: &str) -> Result<Option<Scale>, ScaleError> {
        let transient = |message: String| ScaleError { message, transient: true };
        let (kind, version) = (&*owner.kind, &*owner.api_version);
        let found = self.scales.of_kind(version, kind).await.map_err(|error| transient(error.to_string()))?;
        let Some(served) = found else {
            return Err(transient(format!("no matches for kind {kind:?} in version {version:?}")));
        };
        if !served.scales {
            let name = served.resource.qualified();
            return Err(transient(format!("{name} does not implement the scale subresource")));
        }
        let key = ObjectKey::new(namespace, owner.name.clone());
        match self.scales.get(&served.resource, &key).await {
            Ok(scale) if scale.uid == owner.uid => Ok(Some((scale.uid, scale.replicas))),
            Ok(_) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(transient(error.to_string())),
        }
    }
}

fn group(owner: &OwnerRef) -> &str {
    owner.api_version.rsplit_once('/').map_or("", |(group, _)| group)
}

/// Returns true if a reference's API group has, or once had, the kinds Deployment and ReplicaSet.
fn is_workload(owner: &OwnerRef) -> bool {
    matches!(group(owner), "apps" | "extensions")
}
