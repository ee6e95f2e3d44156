//! Gathers the state of one volume from the caches and the memory.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use futures::FutureExt;
use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::Phase;
use kinds::{CsiDriver, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, Str, Uid, VolumeAttachment};
use runtime::store::Store;
use runtime::write::Writer;
use tokio::time::Instant;

use super::changes::{Extent, Pods, Scope};
use super::decide::{Attachment, NodeState, Site};
use super::indexes::{
    attachments_by_volume, listed_volume, nodes_by_attached_volume, of_inline_volume, of_volume, of_volume_on,
    pods_by_claim_and_node, using_claim_on,
};
use super::memory::{Memory, SiteMemory, Users};
use super::unresolved::Unresolved;
use crate::shared_read::SharedReads;
use crate::storage::indexes::{pods_by_claim, using_claim};
use crate::storage::inline_volume::{InlineVolume, defining, pods_by_inline_volume};
use crate::storage::unused::volumes_of;
use crate::storage::volume_name::{
    self, Plugin, attachment_name, is_attached_by_kubelet, named, volumes_by_unique_name,
};

/// Taint of a node that is shut down permanently; its value and effect do not matter.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Caches of the kinds that the controller reads.
#[derive(Clone)]
pub struct Caches {
    pub pods: Arc<Store<Pod>>,
    pub nodes: Arc<Store<Node>>,
    pub claims: Arc<Store<PersistentVolumeClaim>>,
    pub volumes: Arc<Store<PersistentVolume>>,
    pub attachments: Arc<Store<VolumeAttachment>>,
    pub drivers: Arc<Store<CsiDriver>>,
    /// Attachments whose PersistentVolume is missing or undecodable, or has other storage by now.
    pub unresolved: Arc<Unresolved>,
}

/// A node of a volume.
pub struct Place {
    pub node: Str,
    pub site: Site,
    pub memory: SiteMemory,
    /// The attachment that this controller has created.
    pub attachment: Option<Arc<VolumeAttachment>>,
}

/// State of a volume.
pub struct Observation {
    /// Its nodes, by name.
    pub places: Vec<Place>,
    /// Name of the volume in events and logs: of its PersistentVolume or of its inline definition; the unique name if
    /// both were deleted.
    pub label: Str,
    /// The PersistentVolume; of several with the same storage, preferably one that a pod uses.
    pub volume: Option<Arc<PersistentVolume>>,
    /// The volume as the specs of pods define it, if no pod uses it through a PersistentVolume.
    pub inline: Option<InlineVolume>,
    /// The volume may be attached to one node only, according to its definitions.
    pub is_exclusive: bool,
    /// A pod may use the volume although none is known, because an object is undecodable.
    pub may_have_undecodable_users: bool,
    /// A PersistentVolume that cannot be decoded may have the same storage, and allow one node only.
    pub may_have_undecodable_volumes: bool,
}

/// A volume by its unique name.
pub struct NamedVolume<'a> {
    pub name: &'a Str,
    pub plugin: Plugin<'a>,
    /// The PersistentVolumes with this name, sorted by their own names.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// Pods define the volume themselves.
    pub is_defined_by_pods: bool,
    /// The nodes to which attachments of other PersistentVolumes attach the volume.
    pub unresolved: Vec<Str>,
    /// The PersistentVolumes that cannot be decoded. Each may have the same storage.
    pub undecodable_volumes: HashSet<ObjectKey>,
}

impl Observation {
    /// Returns true if the volume is attached to one node only.
    pub fn is_for_one_node(&self) -> bool {
        self.is_exclusive || self.may_have_undecodable_volumes
    }
}

impl NamedVolume<'_> {
    /// Returns true if a change of a pod cannot change the definition of the volume: the change affects this pod only.
    pub fn has_one_definition(&self) -> bool {
        self.volumes.len() <= 1 && !self.is_defined_by_pods
    }

    /// Returns true if an attachment names a PersistentVolume that cannot be decoded, which an unknown pod may use.
    fn is_of_undecodable(&self, attachment: &VolumeAttachment) -> bool {
        !self.undecodable_volumes.is_empty()
            && self.undecodable_volumes.contains(&ObjectKey::new("", attachment.volume.clone()))
    }
}

/// State of a volume on a node, without the state of the node itself.
struct KnownSite {
    is_wanted: bool,
    is_writing: bool,
    has_foreign: bool,
    /// The attachment is undecodable; or the node is, if its kubelet attaches the volume.
    is_undecodable: bool,
    /// The PersistentVolume that the attachment names is undecodable.
    has_undecodable_volume: bool,
    attachment: Option<Arc<VolumeAttachment>>,
    memory: SiteMemory,
}

/// The definitions of a volume: a PersistentVolume that a pod uses, and the specs of pods.
type DefinedBy = (Option<Arc<PersistentVolume>>, Option<InlineVolume>);

/// Returns a reader of nodes in the API server. Volumes of one node share a read that starts after their requests.
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
    /// Returns the cached node with this name.
    pub fn node(&self, name: &Str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectKey::new("", name.clone()))
    }

    /// Returns true if the volumes of a plugin have to be attached. A driver without a CSIDriver object requires
    /// attachments.
    fn is_attachable(&self, plugin: Plugin<'_>) -> bool {
        match plugin {
            Plugin::Csi { driver, .. } => {
                self.drivers.get(&ObjectKey::new("", driver)).is_none_or(|driver| driver.attach_required)
            }
            Plugin::Kubelet(_) => true,
        }
    }

    /// Returns a volume with its definitions.
    pub fn volume<'a>(&self, name: &'a Str, plugin: Plugin<'a>) -> NamedVolume<'a> {
        // These are read first: an object that arrives in between counts twice instead of not at all.
        let unresolved = self.unresolved.nodes(plugin);
        let undecodable_volumes = self.volumes.undecodable_without_record();
        let mut volumes = self.volumes.by_index(&volumes_by_unique_name(), named(name));
        volumes.retain(|volume| volume_name::of_volume(volume).as_ref() == Some(name));
        volumes.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
        let is_defined_by_pods = self.pods.count(&pods_by_inline_volume(), defining(name)) > 0;
        NamedVolume { name, plugin, volumes, is_defined_by_pods, unresolved, undecodable_volumes }
    }

    /// Returns true if the steps for a volume on one node do not depend on its other nodes: the volume is defined only
    /// by PersistentVolumes that may be attached to several nodes, and all PersistentVolumes can be decoded.
    pub fn has_independent_nodes(&self, volume: &NamedVolume<'_>) -> bool {
        let has_inline_attachments = || match volume.plugin {
            Plugin::Csi { driver, handle } => {
                self.attachments.count(&attachments_by_volume(), of_inline_volume(driver, handle)) > 0
            }
            Plugin::Kubelet(_) => false,
        };
        !volume.volumes.is_empty()
            && !volume.volumes.iter().any(|volume| volume_name::is_exclusive(volume))
            && !volume.is_defined_by_pods
            && volume.undecodable_volumes.is_empty()
            && !has_inline_attachments()
    }

    /// Updates the remembered users of a volume, and gathers the state of the volume on the nodes of the extent. If the
    /// extent contains only some nodes, [the nodes must be independent](Self::has_independent_nodes). If it contains
    /// only some pods, [the volume must have one definition](NamedVolume::has_one_definition).
    pub fn observe(&self, named: &NamedVolume<'_>, extent: &Extent, memory: &Memory, now: Instant) -> Observation {
        let NamedVolume { name, plugin, volumes, .. } = named;
        let (name, plugin, scope) = (*name, *plugin, &extent.nodes);
        let undecodable = self.undecodable_attachments(plugin);
        let may_have_undecodable_users = self.may_have_undecodable_users(named);
        let (used, inline) = self.update_users(named, extent, memory);
        let mut sites = memory.sites(name, scope);
        let wanted = memory.nodes_with_users(name, scope);
        let attachments = self.attachments_of(name, plugin, scope, volumes);
        let foreign = foreign_nodes(plugin, &attachments);
        let attached = attachments.iter().map(|attachment| &attachment.node);
        let mut nodes: BTreeSet<Str> = sites.keys().chain(&wanted).chain(attached).cloned().collect();
        nodes.extend(self.listing_nodes(name, scope));
        nodes.extend(undecodable.nodes(&self.nodes, scope));
        nodes.extend(named.unresolved.iter().filter(|node| scope.contains(node)).cloned());
        memory.link(name, &nodes);
        let place = |node: Str| {
            let attachment = self.attachment(plugin, &node);
            let site = KnownSite {
                is_wanted: wanted.contains(&node),
                is_writing: memory.may_be_writing(&node, name),
                has_foreign: foreign.contains(&node),
                is_undecodable: undecodable.has(&node),
                has_undecodable_volume: attachment
                    .as_ref()
                    .is_some_and(|attachment| named.is_of_undecodable(attachment)),
                attachment,
                memory: sites.remove(&node).unwrap_or_default(),
            };
            self.place(name, node, site, memory, now)
        };
        let places = nodes.into_iter().map(place).collect();
        // If several volumes have the same storage, the strictest rule applies. A volume whose access modes are
        // unknown, because it was deleted, may be attached to one node only: a pod on a second node may still wait for
        // it.
        let is_exclusive = volumes.is_empty() && inline.is_none()
            || volumes.iter().any(|volume| volume_name::is_exclusive(volume))
            || inline.as_ref().is_some_and(|inline| inline.is_exclusive);
        let inline = inline.filter(|_| used.is_none());
        let volume = used.or_else(|| volumes.first().cloned());
        let label = match (&inline, &volume) {
            (Some(inline), _) => inline.label.as_str().into(),
            (None, Some(volume)) => volume.meta.name.clone(),
            (None, None) => name.clone(),
        };
        let may_have_undecodable_volumes = !named.undecodable_volumes.is_empty();
        Observation {
            places,
            label,
            volume,
            inline,
            is_exclusive,
            may_have_undecodable_users,
            may_have_undecodable_volumes,
        }
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

    /// Returns false if a reconcile of a volume would do nothing: no pod refers to it, no node and no attachment names
    /// it, nothing is remembered about it, and no other PersistentVolume has the same storage.
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

    /// Updates the remembered users of a volume in the extent. Returns the definitions of the volume: those by pods
    /// only if the extent contains all nodes, and none if the volume need not be attached or the extent contains only
    /// some pods.
    fn update_users(&self, volume: &NamedVolume<'_>, extent: &Extent, memory: &Memory) -> DefinedBy {
        let (name, scope) = (volume.name, &extent.nodes);
        if !self.is_attachable(volume.plugin) {
            memory.set_users(name, scope, Users::new());
            return (None, None);
        }
        if let Pods::Some(pods) = &extent.pods {
            #[cfg(test)]
            memory.visit(pods.len());
            for key in pods {
                memory.set_user(name, key, self.user(volume, key, memory));
            }
            return (None, None);
        }
        let mut users = memory.users(name, scope);
        users.iter_mut().for_each(|(node, pods)| pods.retain(|pod, uid| self.holds(node, pod, uid)));
        let inline = if *scope == Scope::All { self.add_inline_users(name, memory, &mut users) } else { None };
        let mut used = None;
        for volume in &volume.volumes {
            let is_used = self.add_users(volume, scope, &mut users);
            used = used.or_else(|| is_used.then(|| volume.clone()));
        }
        #[cfg(test)]
        memory.visit(users.values().map(|pods| pods.len()).sum());
        memory.set_users(name, scope, users);
        (used, inline)
    }

    /// Returns true if a remembered pod has not released its volumes.
    fn holds(&self, node: &Str, pod: &ObjectKey, uid: &Uid) -> bool {
        let pod = self.pods.get_with_uid(&pod.namespace, &pod.name, uid);
        pod.is_some_and(|pod| pod.node == *node && !pod.has_released_volumes())
    }

    /// Returns the node where a pod uses a volume, and the pod's uid; `None` if the pod does not use the volume.
    fn user(&self, volume: &NamedVolume<'_>, key: &ObjectKey, memory: &Memory) -> Option<(Str, Uid)> {
        let pod = self.pods.get(key).filter(|pod| is_holding(pod))?;
        let is_user = memory.is_user(volume.name, &pod.node, key, &pod.meta.uid)
            || self.is_managed(&pod.node) && volume.volumes.iter().any(|volume| self.uses(&pod, volume));
        is_user.then(|| (pod.node.clone(), pod.meta.uid.clone()))
    }

    /// Returns true if a pod uses a volume through its claim.
    fn uses(&self, pod: &Pod, volume: &PersistentVolume) -> bool {
        self.claim_of(volume).is_some_and(|claim| volumes_of(pod, &claim).next().is_some())
    }

    fn is_managed(&self, node: &Str) -> bool {
        state_of(self.node(node).as_deref()).is_managed
    }

    /// Adds the pods that define a volume themselves. Returns the volume, if a pod defines it. If several pods define
    /// it, a definition that allows only one node takes precedence.
    fn add_inline_users(&self, name: &Str, memory: &Memory, users: &mut Users) -> Option<InlineVolume> {
        let mut found: Option<InlineVolume> = None;
        for pod in self.pods.by_index(&pods_by_inline_volume(), defining(name)) {
            let defined = memory.definitions.find(&pod, name);
            if let Some(defined) = defined.filter(|_| self.add_user(&pod, users)) {
                found = Some(found.filter(|known| known.is_exclusive).unwrap_or(defined));
            }
        }
        found
    }

    /// Adds a pod that uses a volume, if it is on a node, has not released its volumes, and its kubelet does not attach
    /// volumes itself. Returns true if the pod is among the users.
    fn add_user(&self, pod: &Pod, users: &mut Users) -> bool {
        if !is_holding(pod) {
            return false;
        }
        let key = pod.meta.key();
        if users.get(&pod.node).and_then(|pods| pods.get(&key)) == Some(&pod.meta.uid) {
            return true;
        }
        if !self.is_managed(&pod.node) {
            return false;
        }
        users.entry(pod.node.clone()).or_default().insert(key, pod.meta.uid.clone());
        true
    }

    /// Returns the claim of a volume, if they are bound to each other.
    fn claim_of(&self, volume: &PersistentVolume) -> Option<Arc<PersistentVolumeClaim>> {
        let reference = volume.claim.as_ref()?;
        let key = ObjectKey::new(reference.namespace.clone(), reference.name.clone());
        self.claims.get(&key).filter(|claim| {
            claim.phase == Phase::Bound
                && claim.volume_name == volume.meta.name
                && reference.uid.as_ref() == Some(&claim.meta.uid)
        })
    }

    /// Adds the pods that use a volume through its claim. Returns true if there are any.
    fn add_users(&self, volume: &PersistentVolume, scope: &Scope, users: &mut Users) -> bool {
        let Some(claim) = self.claim_of(volume) else { return false };
        let (namespace, name) = (&claim.meta.namespace, &claim.meta.name);
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

    fn place(&self, name: &Str, node: Str, known: KnownSite, remembered: &Memory, now: Instant) -> Place {
        let KnownSite {
            is_wanted,
            is_writing,
            has_foreign,
            is_undecodable,
            has_undecodable_volume,
            attachment,
            mut memory,
        } = known;
        let record = self.node(&node);
        let volumes = record.as_ref().and_then(|node| node.volumes.as_ref());
        let is_listed = volumes.is_some_and(|volumes| volumes.lists(name));
        // The last use of a deleted node is read after its record was found missing. It may not be stored yet.
        let last_use = if record.is_none() { remembered.last_use(&node, name) } else { None };
        let is_in_use = volumes.map(|volumes| volumes.uses(name)).or(last_use);
        if is_wanted {
            memory.unwanted_since = None;
        } else {
            memory.unwanted_since.get_or_insert(now);
        }
        let is_by_kubelet = is_attached_by_kubelet(name);
        let is_unknown = is_undecodable && if is_by_kubelet { record.is_none() } else { attachment.is_none() };
        if attachment.is_some() || is_unknown {
            memory.uncertain_since = None;
        }
        memory.is_held |= is_by_kubelet && is_listed;
        // A kubelet may still use the volume after its Node was deleted.
        let can_be_used = record.is_some() || memory.is_attached;
        // A kubelet reports a wanted volume as in use before it attaches the volume.
        let is_unreleased = is_by_kubelet && !is_wanted && can_be_used && is_in_use.unwrap_or(record.is_none());
        memory.is_abandoned &= is_unreleased;
        let state = match &attachment {
            Some(attachment) if attachment.meta.is_deleting() => Attachment::Deleting,
            Some(_) if has_undecodable_volume && !is_wanted => Attachment::Unknown,
            Some(attachment) if attachment.attached => Attachment::Attached,
            Some(_) => Attachment::Requested,
            None if is_unknown => Attachment::Unknown,
            None if memory.uncertain_since.is_some() => Attachment::Uncertain,
            None if memory.is_held => Attachment::Attached,
            None if is_unreleased && !memory.is_abandoned => Attachment::Uncertain,
            None => Attachment::Absent,
        };
        memory.must_confirm |= memory.is_attached && state == Attachment::Absent && !is_by_kubelet;
        memory.is_attached = state != Attachment::Absent;
        memory.end_attempts(is_wanted, state);
        let site = Site {
            is_wanted,
            attachment: state,
            awaits_kubelet: memory.must_confirm && is_in_use != Some(true),
            has_foreign,
            is_listed: is_listed || is_writing,
            is_in_use: is_in_use.unwrap_or(true),
            node: state_of(record.as_deref()),
            unwanted_for: memory.unwanted_since.map(|since| now - since).unwrap_or_default(),
        };
        Place { node, site, memory, attachment }
    }
}

/// Returns true if a pod is on a node and has not released its volumes.
fn is_holding(pod: &Pod) -> bool {
    !pod.node.is_empty() && !pod.has_released_volumes()
}

/// Returns the nodes to which other clients have requested to attach a volume, from the volume's attachments.
fn foreign_nodes(plugin: Plugin<'_>, attachments: &[Arc<VolumeAttachment>]) -> BTreeSet<Str> {
    let Plugin::Csi { driver, handle } = plugin else { return BTreeSet::new() };
    let is_foreign = |attachment: &&Arc<VolumeAttachment>| {
        &*attachment.attacher == driver && *attachment.meta.name != *attachment_name(driver, handle, &attachment.node)
    };
    attachments.iter().filter(is_foreign).map(|attachment| attachment.node.clone()).collect()
}
