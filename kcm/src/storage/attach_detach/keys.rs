//! Maps changes to the volumes that have to be reconciled.

use std::collections::BTreeSet;
use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::node_volumes::NodeVolumes;
use kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, Str, VolumeAttachment};
use runtime::store::Change;

use super::changes::Scope;
use super::observe::{Caches, state_of};
use super::reconcile::AttachDetach;
use crate::pods::indexes::{by_node, on_node};
use crate::storage::inline_volume;
use crate::storage::volume_name::{Plugin, attachment_name, of_inline, of_volume};

/// Subscribes to changes, and adds their keys to the queues.
pub fn subscribe(shared: &Arc<AttachDetach>) {
    let caches = &shared.caches;
    let add = |shared: &AttachDetach, scope: Scope, volumes: Vec<Str>| {
        volumes.into_iter().for_each(|volume| shared.requeue(volume, scope.clone()));
    };
    let own = shared.clone();
    caches.pods.subscribe(move |change| {
        own.memory.definitions.apply(change);
        let nodes = [change.old, change.new].into_iter().flatten().map(|pod| pod.node.clone());
        add(&own, Scope::Nodes(nodes.collect()), of_pod(&own, change));
    });
    let own = shared.clone();
    caches.claims.subscribe(move |change| add(&own, Scope::All, of_claim(&own.caches, change)));
    let own = shared.clone();
    caches.volumes.subscribe(move |change| add(&own, Scope::All, of_persistent_volume(&own, change)));
    let own = shared.clone();
    caches.attachments.subscribe(move |change| {
        let nodes = [change.old, change.new].into_iter().flatten().map(|attachment| attachment.node.clone());
        add(&own, Scope::Nodes(nodes.collect()), of_attachment(&own, change));
    });
    let own = shared.clone();
    caches.drivers.subscribe(move |change| add(&own, Scope::All, of_driver(&own, change)));
    let own = shared.clone();
    caches.nodes.subscribe(move |change| {
        let volumes = of_node(&own, change);
        let Some(node) = change.new.or(change.old) else { return };
        if !volumes.is_empty() {
            own.node_queue.add(node.meta.name.clone());
        }
        add(&own, Scope::Nodes([node.meta.name.clone()].into()), volumes);
    });
}

impl Caches {
    fn name_of_claim(&self, claim: &PersistentVolumeClaim) -> Option<Str> {
        if claim.volume_name.is_empty() {
            return None;
        }
        of_volume(&*self.volumes.get(&ObjectKey::new("", claim.volume_name.clone()))?)
    }

    /// Returns the unique names of a pod's volumes.
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

/// Returns the volume of a PersistentVolume whose definition has changed. Most new ones have no node yet: a manager
/// that starts does not reconcile thousands of them. An object that refers to a volume later requeues it.
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
    if let Some(name) = volume.as_deref().and_then(of_volume).or_else(|| of_inline(attachment)) {
        return vec![name];
    }
    // Its volume was deleted: the remembered state of the node still names it.
    let mut names = shared.memory.of_node(&attachment.node);
    names.retain(|name| match Plugin::of(name) {
        Some(Plugin::Csi { driver, handle }) => {
            attachment_name(driver, handle, &attachment.node) == *attachment.meta.name
        }
        _ => false,
    });
    names
}

/// Returns true if nothing happened to the volume, as when csi-attacher adds its finalizer. Each failure counts, even if its
/// message is the same.
fn is_only_metadata(change: &Change<'_, VolumeAttachment>) -> bool {
    let (Some(old), Some(new)) = (change.old, change.new) else { return false };
    let is_same =
        (&old.meta.uid, old.attached, old.meta.is_deleting()) == (&new.meta.uid, new.attached, new.meta.is_deleting());
    let is_resync = old.meta.version == new.meta.version;
    is_same && !is_resync && new.attach_error.is_none() && new.detach_error.is_none()
}

/// Returns all volumes of a driver whose volumes must be attached from now on, or no longer need to be: those of the
/// cluster, those that pods define themselves, and those that are attached. A driver's object is rarely changed.
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

/// Returns the volumes that one status lists and another one does not, or that its kubelet uses only there. A node may have
/// hundreds of volumes of which one changes.
fn volumes_only_in(one: &NodeVolumes, other: &NodeVolumes) -> impl Iterator<Item = Str> {
    let listed = one.attached().iter().map(|entry| &entry.name).filter(|name| !other.lists(name));
    listed.chain(one.in_use().iter().filter(|name| !other.uses(name))).cloned()
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
    if is.is_managed && !was.is_managed {
        for pod in shared.caches.pods.by_index(&by_node(), on_node(&node.meta.name)) {
            names.extend(shared.caches.names_of_pod(&pod));
        }
    }
    names.into_iter().collect()
}
