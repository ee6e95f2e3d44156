//! Maps changes to the volumes that have to be reconciled.

use std::collections::BTreeSet;
use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::node_volumes::NodeVolumes;
use kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, Str, VolumeAttachment};
use runtime::store::Change;

use super::changes::{Extent, Pods};
use super::observe::{Caches, state_of};
use super::reconcile::AttachDetach;
use super::resolve;
use crate::pods::indexes::{by_node, on_node};
use crate::storage::inline_volume;
use crate::storage::volume_name::{Plugin, is_attachment_of, of_inline, of_volume};

/// Subscribes to changes, and adds the volumes and nodes that they affect to the queues.
pub fn subscribe(shared: &Arc<AttachDetach>) {
    let caches = &shared.caches;
    let add = |shared: &AttachDetach, extent: &Extent, volumes: Vec<Str>| {
        volumes.into_iter().for_each(|volume| shared.requeue(volume, extent.clone()));
    };
    let own = shared.clone();
    caches.pods.subscribe(move |change| {
        own.memory.definitions.apply(change);
        let volumes = of_pod(&own, change);
        if volumes.is_empty() {
            return;
        }
        let pods = [change.old, change.new].into_iter().flatten();
        let nodes = Extent::of_nodes(pods.clone().map(|pod| pod.node.clone()));
        add(&own, &Extent { pods: Pods::Some(pods.map(|pod| pod.meta.key()).collect()), ..nodes }, volumes);
    });
    let own = shared.clone();
    caches.claims.subscribe(move |change| add(&own, &Extent::ALL, of_claim(&own.caches, change)));
    let own = shared.clone();
    caches.volumes.subscribe(move |change| {
        resolve::apply_volume(&own, change);
        add(&own, &Extent::ALL, of_persistent_volume(&own, change));
    });
    let own = shared.clone();
    caches.attachments.subscribe(move |change| {
        resolve::apply_attachment(&own, change);
        let nodes = [change.old, change.new].into_iter().flatten().map(|attachment| attachment.node.clone());
        add(&own, &Extent::of_nodes(nodes), of_attachment(&own, change));
    });
    let own = shared.clone();
    caches.drivers.subscribe(move |change| add(&own, &Extent::ALL, of_driver(&own, change)));
    let own = shared.clone();
    caches.nodes.subscribe(move |change| {
        own.memory.keep_deleted(change);
        let volumes = of_node(&own, change);
        let Some(node) = change.new.or(change.old) else { return };
        if !volumes.is_empty() {
            own.node_queue.add(node.meta.name.clone());
        }
        let extent = Extent::of_nodes([node.meta.name.clone()]);
        let extent = if is_newly_managed(change) { Extent { pods: Pods::All, ..extent } } else { extent };
        add(&own, &extent, volumes);
    });
}

impl Caches {
    fn name_of_claim(&self, claim: &PersistentVolumeClaim) -> Option<Str> {
        if claim.volume_name.is_empty() {
            return None;
        }
        of_volume(&*self.volumes.get(&ObjectKey::new("", claim.volume_name.clone()))?)
    }

    /// Returns the unique names of a pod's attachable volumes, without those whose claim or PersistentVolume is not
    /// cached.
    pub(super) fn names_of_pod(&self, pod: &Pod) -> impl Iterator<Item = Str> {
        let claims = pod.volumes.iter().flat_map(|volumes| &volumes.claims);
        let behind_claims = claims.filter_map(|volume| {
            let claim = self.claims.get(&ObjectKey::new(pod.meta.namespace.clone(), volume.claim.clone()))?;
            self.name_of_claim(&claim)
        });
        behind_claims.chain(inline_volume::names(pod).map(|(_, name)| name))
    }
}

fn of_pod(shared: &AttachDetach, change: &Change<'_, Pod>) -> Vec<Str> {
    let holds = |pod: &Arc<Pod>| {
        let is_holding = !pod.node.is_empty() && !pod.has_released_volumes();
        is_holding.then(|| (pod.node.clone(), pod.meta.uid.clone()))
    };
    if change.old.and_then(holds) == change.new.and_then(holds) {
        return Vec::new();
    }
    let Some(pod) = change.new.or(change.old) else { return Vec::new() };
    let mut names: BTreeSet<Str> = shared.caches.names_of_pod(pod).collect();
    names.extend(shared.memory.of_pod(&pod.meta.key()));
    names.into_iter().collect()
}

fn of_claim(caches: &Caches, change: &Change<'_, PersistentVolumeClaim>) -> Vec<Str> {
    let binding = |claim: &Arc<PersistentVolumeClaim>| (claim.phase, claim.volume_name.clone(), claim.meta.uid.clone());
    if change.old.map(binding) == change.new.map(binding) {
        return Vec::new();
    }
    change.new.and_then(|claim| caches.name_of_claim(claim)).into_iter().collect()
}

/// Returns the volumes, before and after the change, of a PersistentVolume whose volume, claim, access modes or UID has
/// changed. A new PersistentVolume counts only if its volume may be used on, or attached to, a node: otherwise a
/// starting manager would reconcile thousands of unused volumes. An object that later refers to a volume requeues the
/// volume.
fn of_persistent_volume(shared: &AttachDetach, change: &Change<'_, PersistentVolume>) -> Vec<Str> {
    if let (None, Some(new)) = (change.old, change.new) {
        let name = of_volume(new).filter(|name| shared.caches.may_have_places(name, new, &shared.memory));
        return name.into_iter().collect();
    }
    let parts = |volume: &Arc<PersistentVolume>| {
        (of_volume(volume), volume.claim.clone(), volume.access_modes.clone(), volume.meta.uid.clone())
    };
    if change.old.map(parts) == change.new.map(parts) {
        return Vec::new();
    }
    let names = [change.old, change.new].into_iter().flatten().filter_map(|volume| of_volume(volume));
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

fn of_attachment(shared: &AttachDetach, change: &Change<'_, VolumeAttachment>) -> Vec<Str> {
    if is_only_metadata(change) {
        return Vec::new();
    }
    let Some(attachment) = change.new.or(change.old) else { return Vec::new() };
    let volume = shared.caches.volumes.get(&ObjectKey::new("", attachment.volume.clone()));
    let name = volume.as_deref().and_then(of_volume).or_else(|| of_inline(attachment));
    let is_of = |name: &Str| is_attachment_of(attachment, name);
    let mut names = Vec::new();
    if !name.as_ref().is_some_and(is_of) {
        // The attachment's volume was deleted, or replaced by one with other storage: the remembered state of the node
        // still has the volume's name.
        names = shared.memory.of_node(&attachment.node);
        names.retain(is_of);
    }
    names.extend(name);
    names
}

/// Returns true if only the metadata of an attachment changed, for example when csi-attacher adds its finalizer. Each
/// failure counts as a change, even if its message is the same.
fn is_only_metadata(change: &Change<'_, VolumeAttachment>) -> bool {
    let (Some(old), Some(new)) = (change.old, change.new) else { return false };
    let is_same =
        (&old.meta.uid, old.attached, old.meta.is_deleting()) == (&new.meta.uid, new.attached, new.meta.is_deleting());
    let is_resync = old.meta.version == new.meta.version;
    is_same && !is_resync && new.attach_error.is_none() && new.detach_error.is_none()
}

/// Returns all volumes of a driver that begins or ceases to require attachments: its PersistentVolumes, volumes that
/// pods define themselves, and attached volumes. Such a change is rare.
fn of_driver(shared: &AttachDetach, change: &Change<'_, CsiDriver>) -> Vec<Str> {
    let is_required = |driver: Option<&Arc<CsiDriver>>| driver.is_none_or(|driver| driver.attach_required);
    if is_required(change.old) == is_required(change.new) {
        return Vec::new();
    }
    let Some(name) = change.new.or(change.old).map(|driver| &*driver.meta.name) else { return Vec::new() };
    let caches = &shared.caches;
    let (volumes, pods) = (caches.volumes.all(), caches.pods.all());
    let of_cluster = volumes.iter().filter_map(|volume| of_volume(volume));
    let of_pods = pods.iter().flat_map(|pod| inline_volume::names(pod)).map(|(_, name)| name);
    let all = of_cluster.chain(of_pods).chain(shared.memory.volumes());
    let is_of_driver = |volume: &Str| matches!(Plugin::of(volume), Some(Plugin::Csi { driver, .. }) if driver == name);
    all.filter(is_of_driver).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the volumes that one status lists and another one does not, or that the kubelet uses only according to the
/// first. A node may have hundreds of volumes of which one changes.
fn volumes_only_in(one: &NodeVolumes, other: &NodeVolumes) -> impl Iterator<Item = Str> {
    let listed = one.attached().iter().map(|entry| &entry.name).filter(|name| !other.lists(name));
    listed.chain(one.in_use().iter().filter(|name| !other.uses(name))).cloned()
}

/// Returns true if this controller begins to attach the volumes of a node: the node's pods count as users from now on.
fn is_newly_managed(change: &Change<'_, Node>) -> bool {
    let is_managed = |node: Option<&Arc<Node>>| state_of(node.map(|node| &**node)).is_managed;
    is_managed(change.new) && !is_managed(change.old)
}

/// Returns the volumes that the node's status gains or loses, and all volumes of the node if the node's state changes.
fn of_node(shared: &AttachDetach, change: &Change<'_, Node>) -> Vec<Str> {
    let Some(node) = change.new.or(change.old) else { return Vec::new() };
    let (old, new) = (change.old.map(|node| &**node), change.new.map(|node| &**node));
    let (was, is) = (state_of(old), state_of(new));
    let uid = |node: Option<&Node>| node.map(|node| node.meta.uid.clone());
    let is_same_node = was == is && uid(old) == uid(new);
    // Most changes are heartbeats.
    if is_same_node && old.map(|node| &node.volumes) == new.map(|node| &node.volumes) {
        return Vec::new();
    }
    let empty = NodeVolumes::default();
    let [before, after] = [old, new].map(|node| node.and_then(|node| node.volumes.as_deref()).unwrap_or(&empty));
    let mut names: BTreeSet<Str> = volumes_only_in(before, after).chain(volumes_only_in(after, before)).collect();
    if !is_same_node {
        names.extend(shared.memory.of_node(&node.meta.name));
    }
    if is_newly_managed(change) {
        for pod in shared.caches.pods.by_index(&by_node(), on_node(&node.meta.name)) {
            names.extend(shared.caches.names_of_pod(&pod));
        }
    }
    names.into_iter().collect()
}
