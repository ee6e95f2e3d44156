//! Gathers the state of one volume from the caches and the memory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::Phase;
use kinds::{CsiDriver, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, Str, Uid, VolumeAttachment};
use runtime::store::Store;
use runtime::write::Writer;
use tokio::time::Instant;

use super::changes::Scope;
use super::decide::{Attachment, NodeState, Site};
use super::definitions::Definitions;
use super::indexes::{
    attachments_by_volume, listed_volume, nodes_by_attached_volume, of_inline_volume, of_volume, of_volume_on,
    pods_by_claim_and_node, using_claim_on,
};
use super::memory::{Memory, SiteMemory, Sites, User};
use crate::shared_read::SharedReads;
use crate::storage::indexes::{pods_by_claim, using_claim};
use crate::storage::inline_volume::{InlineVolume, defining, pods_by_inline_volume};
use crate::storage::unused::volumes_of;
use crate::storage::volume_name::{
    self, Plugin, attachment_name, is_attached_by_kubelet, named, volumes_by_unique_name,
};

/// Taint of a node that is shut down permanently; its value and effect do not matter.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The caches.
#[derive(Clone)]
pub struct Caches {
    pub pods: Arc<Store<Pod>>,
    pub nodes: Arc<Store<Node>>,
    pub claims: Arc<Store<PersistentVolumeClaim>>,
    pub volumes: Arc<Store<PersistentVolume>>,
    pub attachments: Arc<Store<VolumeAttachment>>,
    pub drivers: Arc<Store<CsiDriver>>,
}

/// A node of a volume.
pub struct Place {
    pub node: Str,
    pub site: Site,
    pub memory: SiteMemory,
    /// This controller's attachment.
    pub attachment: Option<Arc<VolumeAttachment>>,
}

/// State of a volume.
pub struct Observation {
    /// Its nodes, by name.
    pub places: Vec<Place>,
    /// Name of its PersistentVolume, or its unique name if that was deleted.
    pub label: Str,
    /// The PersistentVolume; of several with the same storage, one that a pod uses.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The volume as the specs of pods define it, if no PersistentVolume defines it.
    pub inline: Option<InlineVolume>,
    /// It may be attached to one node only.
    pub is_exclusive: bool,
}

#[cfg(test)]
impl Observation {
    /// Returns the number of nodes and of users.
    pub fn size(&self) -> usize {
        self.places.iter().map(|place| 1 + place.memory.users.len()).sum()
    }
}

/// Pods that use a volume. Thousands of them may share one.
#[derive(Default)]
struct Users {
    by_node: BTreeMap<Str, Vec<User>>,
    known: HashSet<Uid>,
}

impl Users {
    fn add(&mut self, node: &Str, user: User) {
        if self.known.insert(user.uid.clone()) {
            self.by_node.entry(node.clone()).or_default().push(user);
        }
    }
}

/// Reads nodes from the API server. Volumes of one node share a read that starts after their requests.
pub fn uncached_nodes(writer: Writer, cache: Arc<Store<Node>>) -> SharedReads<Option<Node>> {
    SharedReads::new(move |name| {
        let (writer, cache) = (writer.clone(), cache.clone());
        async move {
            match writer.get(&Node::RESOURCE, &ObjectKey::new("", name)).await {
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error.to_string()),
                Ok(response) => response.decode(cache.decoding()).map(Some).map_err(|error| error.to_string()),
            }
        }
        .boxed()
    })
}

/// Returns the state of a node that was read from the API server or the cache.
pub fn state_of(node: Option<&Node>) -> NodeState {
    let Some(node) = node else { return NodeState::default() };
    NodeState {
        exists: true,
        is_managed: node.volumes.as_ref().is_some_and(|volumes| volumes.is_managed),
        is_ready: node.ready() == Some("True"),
        is_out_of_service: node.taints.iter().any(|taint| &*taint.key == OUT_OF_SERVICE),
    }
}

impl Caches {
    /// Returns a node.
    pub fn node(&self, name: &Str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectKey::new("", name.clone()))
    }

    /// Returns true if the volumes of a plugin have to be attached. A driver without a CSIDriver object requires it.
    fn is_attachable(&self, plugin: Plugin<'_>) -> bool {
        match plugin {
            Plugin::Csi { driver, .. } => {
                self.drivers.get(&ObjectKey::new("", driver)).is_none_or(|driver| driver.attach_required)
            }
            Plugin::Kubelet(_) => true,
        }
    }

    /// Returns true if what happens to a volume on one node does not depend on its other nodes: only PersistentVolumes that
    /// several nodes may have define it.
    pub fn has_independent_nodes(&self, name: &Str, plugin: Plugin<'_>) -> bool {
        let has_inline_attachments = || match plugin {
            Plugin::Csi { driver, handle } => {
                self.attachments.count(&attachments_by_volume(), of_inline_volume(driver, handle)) > 0
            }
            Plugin::Kubelet(_) => false,
        };
        let volumes = self.volumes_named(name);
        !volumes.is_empty()
            && !volumes.iter().any(|volume| volume_name::is_exclusive(volume))
            && self.pods.count(&pods_by_inline_volume(), defining(name)) == 0
            && !has_inline_attachments()
    }

    /// Returns the PersistentVolumes with this unique name, sorted by their own names.
    fn volumes_named(&self, name: &Str) -> Vec<Arc<PersistentVolume>> {
        let mut volumes = self.volumes.by_index(&volumes_by_unique_name(), named(name));
        volumes.retain(|volume| volume_name::of_volume(volume).as_ref() == Some(name));
        volumes.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
        volumes
    }

    /// Gathers the state of a volume on the nodes in the scope. A scope of some nodes requires that they
    /// [are independent](Self::has_independent_nodes).
    pub fn observe(
        &self,
        (name, plugin): (&Str, Plugin<'_>),
        scope: &Scope,
        memory: &Memory,
        now: Instant,
    ) -> Observation {
        let volumes = self.volumes_named(name);
        let mut sites = memory.sites(name, scope);
        let mut users = Users::default();
        let (mut used, mut inline) = (None, None);
        if self.is_attachable(plugin) {
            self.keep_users(&sites, &mut users);
            if *scope == Scope::All {
                inline = self.add_inline_users(name, &memory.definitions, &mut users);
            }
            for volume in &volumes {
                let is_used = self.add_users(volume, scope, &mut users);
                used = used.or_else(|| is_used.then(|| volume.clone()));
            }
        }
        let attachments = self.attachments_of(name, plugin, scope, &volumes);
        let foreign = foreign_nodes(plugin, &attachments);
        let attached = attachments.iter().map(|attachment| &attachment.node);
        let mut nodes: BTreeSet<Str> = sites.keys().chain(users.by_node.keys()).chain(attached).cloned().collect();
        nodes.extend(self.listing_nodes(name, scope));
        let place = |node: Str| {
            let mut memory_of_site = sites.remove(&node).unwrap_or_default();
            memory_of_site.users = users.by_node.remove(&node).unwrap_or_default();
            let attachment = self.attachment(plugin, &node);
            let is_writing = memory.may_be_writing(&node, name);
            let has_foreign = foreign.contains(&node);
            self.place(name, node, memory_of_site, attachment, (is_writing, has_foreign), now)
        };
        let places = nodes.into_iter().map(place).collect();
        // Several volumes with the same storage: the strictest rule holds, as for a volume whose access modes are unknown
        // because it was deleted: a pod on a second node may still wait for it.
        let is_unknown = volumes.is_empty() && inline.is_none();
        let is_exclusive = is_unknown
            || volumes.iter().any(|volume| volume_name::is_exclusive(volume))
            || inline.as_ref().is_some_and(|inline| inline.is_exclusive);
        let inline = inline.filter(|_| used.is_none());
        let volume = used.or_else(|| volumes.first().cloned());
        let label = match (&inline, &volume) {
            (Some(inline), _) => inline.label.as_str().into(),
            (None, Some(volume)) => volume.meta.name.clone(),
            (None, None) => name.clone(),
        };
        Observation { places, label, volume, inline, is_exclusive }
    }

    /// Returns the nodes in the scope whose status lists a volume, or whose kubelet uses and attaches it.
    fn listing_nodes(&self, name: &Str, scope: &Scope) -> Vec<Str> {
        match scope {
            Scope::All => {
                let listing = self.nodes.by_index(&nodes_by_attached_volume(), listed_volume(name));
                listing.iter().map(|node| node.meta.name.clone()).collect()
            }
            Scope::Nodes(nodes) => {
                let lists = |node: &Arc<Node>| {
                    let volumes = node.volumes.as_ref();
                    volumes.is_some_and(|volumes| {
                        volumes.lists(name) || is_attached_by_kubelet(name) && volumes.uses(name)
                    })
                };
                nodes.iter().filter(|node| self.node(node).as_ref().is_some_and(lists)).cloned().collect()
            }
        }
    }

    /// Returns false if [`Caches::observe`] would return no node for a volume: no pod refers to it, no node and no
    /// attachment names it, and nothing is remembered about it.
    pub fn may_have_places(&self, name: &Str, volume: &PersistentVolume, memory: &Memory) -> bool {
        let has_pods = volume
            .claim
            .as_ref()
            .is_some_and(|claim| self.pods.count(&pods_by_claim(), using_claim(&claim.namespace, &claim.name)) > 0);
        let attachments = |key| self.attachments.count(&attachments_by_volume(), key) > 0;
        let has_inline_attachments = || match Plugin::of(name) {
            Some(Plugin::Csi { driver, handle }) => attachments(of_inline_volume(driver, handle)),
            _ => false,
        };
        has_pods
            || self.pods.count(&pods_by_inline_volume(), defining(name)) > 0
            || attachments(of_volume(&volume.meta.name))
            || has_inline_attachments()
            || self.nodes.count(&nodes_by_attached_volume(), listed_volume(name)) > 0
            || self.volumes.count(&volumes_by_unique_name(), named(name)) > 1
            || memory.has_sites(name)
    }

    /// Adds the pods that define a volume themselves. Returns the volume, if there are any; of several definitions one that
    /// allows only one node.
    fn add_inline_users(&self, name: &Str, definitions: &Definitions, users: &mut Users) -> Option<InlineVolume> {
        let mut found: Option<InlineVolume> = None;
        for pod in self.pods.by_index(&pods_by_inline_volume(), defining(name)) {
            let defined = definitions.find(&pod, name);
            if let Some(defined) = defined.filter(|_| self.add_user(&pod, users)) {
                found = Some(found.filter(|known| known.is_exclusive).unwrap_or(defined));
            }
        }
        found
    }

    /// Adds a pod that uses a volume, unless it is not on a node, has ended, or its kubelet attaches volumes itself. Returns
    /// true if it is among the users.
    fn add_user(&self, pod: &Pod, users: &mut Users) -> bool {
        if pod.node.is_empty() || pod.has_released_volumes() {
            return false;
        }
        if users.known.contains(&pod.meta.uid) {
            return true;
        }
        if !state_of(self.node(&pod.node).as_deref()).is_managed {
            return false;
        }
        users.add(&pod.node, User { pod: pod.meta.key(), uid: pod.meta.uid.clone() });
        true
    }

    /// Keeps the remembered users that still use the volume.
    fn keep_users(&self, sites: &Sites, users: &mut Users) {
        for (node, site) in sites {
            let holds = |user: &&User| {
                let pod = self.pods.get_with_uid(&user.pod.namespace, &user.pod.name, &user.uid);
                pod.is_some_and(|pod| pod.node == *node && !pod.has_released_volumes())
            };
            site.users.iter().filter(holds).for_each(|user| users.add(node, user.clone()));
        }
    }

    /// Adds the pods that use a volume through its claim. Returns true if there are any.
    fn add_users(&self, volume: &PersistentVolume, scope: &Scope, users: &mut Users) -> bool {
        let Some(reference) = &volume.claim else { return false };
        let key = ObjectKey::new(reference.namespace.clone(), reference.name.clone());
        let is_bound = |claim: &Arc<PersistentVolumeClaim>| {
            claim.phase == Phase::Bound
                && claim.volume_name == volume.meta.name
                && reference.uid.as_ref() == Some(&claim.meta.uid)
        };
        let Some(claim) = self.claims.get(&key).filter(is_bound) else { return false };
        let (namespace, name) = (&key.namespace, &key.name);
        let pods = match scope {
            Scope::All => self.pods.by_index(&pods_by_claim(), using_claim(namespace, name)),
            Scope::Nodes(nodes) => {
                let index = pods_by_claim_and_node();
                let on = |node: &Str| self.pods.by_index(&index, using_claim_on(namespace, name, node));
                nodes.iter().flat_map(on).collect()
            }
        };
        let mut is_used = false;
        for pod in pods.iter().filter(|pod| scope.contains(&pod.node)) {
            is_used |= volumes_of(pod, &claim).next().is_some() && self.add_user(pod, users);
        }
        is_used
    }

    /// Returns the attachments of a volume to the nodes in the scope, of all clients.
    fn attachments_of(
        &self,
        name: &Str,
        plugin: Plugin<'_>,
        scope: &Scope,
        volumes: &[Arc<PersistentVolume>],
    ) -> Vec<Arc<VolumeAttachment>> {
        let Plugin::Csi { driver, handle } = plugin else { return Vec::new() };
        let index = attachments_by_volume();
        let by_name = volumes.iter().flat_map(|volume| {
            let mut found = match scope {
                Scope::All => self.attachments.by_index(&index, of_volume(&volume.meta.name)),
                Scope::Nodes(nodes) => {
                    let on = |node: &Str| self.attachments.by_index(&index, of_volume_on(&volume.meta.name, node));
                    nodes.iter().flat_map(on).collect()
                }
            };
            found.retain(|attachment| attachment.volume == volume.meta.name && scope.contains(&attachment.node));
            found
        });
        let mut inline = self.attachments.by_index(&index, of_inline_volume(driver, handle));
        inline.retain(|attachment| {
            volume_name::of_inline(attachment).as_ref() == Some(name) && scope.contains(&attachment.node)
        });
        by_name.chain(inline).collect()
    }

    /// Returns this controller's attachment of a volume to a node.
    fn attachment(&self, plugin: Plugin<'_>, node: &str) -> Option<Arc<VolumeAttachment>> {
        let Plugin::Csi { driver, handle } = plugin else { return None };
        self.attachments.get(&ObjectKey::new("", attachment_name(driver, handle, node)))
    }

    fn place(
        &self,
        name: &Str,
        node: Str,
        mut memory: SiteMemory,
        attachment: Option<Arc<VolumeAttachment>>,
        (is_writing, has_foreign): (bool, bool),
        now: Instant,
    ) -> Place {
        let record = self.node(&node);
        let volumes = record.as_ref().and_then(|node| node.volumes.as_ref());
        let is_listed = volumes.is_some_and(|volumes| volumes.lists(name));
        if let Some(volumes) = volumes {
            memory.was_in_use = Some(volumes.uses(name));
        }
        let is_wanted = !memory.users.is_empty();
        if is_wanted {
            memory.unwanted_since = None;
        } else {
            memory.unwanted_since.get_or_insert(now);
        }
        if attachment.is_some() {
            memory.uncertain_since = None;
        }
        let is_by_kubelet = is_attached_by_kubelet(name);
        memory.is_held |= is_by_kubelet && is_listed;
        // A machine may still use the volume after its Node was deleted.
        let was_used_at_the_end = record.is_none() && memory.is_attached && memory.was_in_use == Some(true);
        // The kubelet of a wanted volume reports it as in use before it may attach it.
        let is_used = volumes.map_or(was_used_at_the_end, |volumes| volumes.uses(name));
        let is_unreleased = is_by_kubelet && !is_wanted && is_used;
        memory.is_abandoned &= is_unreleased;
        let state = match &attachment {
            Some(attachment) if attachment.meta.is_deleting() => Attachment::Deleting,
            Some(attachment) if attachment.attached => Attachment::Attached,
            Some(_) => Attachment::Requested,
            None if memory.uncertain_since.is_some() => Attachment::Uncertain,
            None if memory.is_held => Attachment::Attached,
            None if is_unreleased && !memory.is_abandoned => Attachment::Uncertain,
            None => Attachment::Absent,
        };
        memory.must_confirm |= memory.is_attached && state == Attachment::Absent && !is_by_kubelet;
        memory.is_attached = state != Attachment::Absent;
        let site = Site {
            is_wanted,
            attachment: state,
            has_foreign,
            is_listed: is_listed || is_writing,
            is_in_use: memory.was_in_use.unwrap_or(true),
            node: state_of(record.as_deref()),
            unwanted_for: memory.unwanted_since.map(|since| now - since).unwrap_or_default(),
        };
        Place { node, site, memory, attachment }
    }
}

/// Returns the nodes to which other clients have requested attachments of a volume, of all its attachments.
fn foreign_nodes(plugin: Plugin<'_>, attachments: &[Arc<VolumeAttachment>]) -> BTreeSet<Str> {
    let Plugin::Csi { driver, handle } = plugin else { return BTreeSet::new() };
    let is_foreign = |attachment: &&Arc<VolumeAttachment>| {
        &*attachment.attacher == driver && *attachment.meta.name != *attachment_name(driver, handle, &attachment.node)
    };
    attachments.iter().filter(is_foreign).map(|attachment| attachment.node.clone()).collect()
}
