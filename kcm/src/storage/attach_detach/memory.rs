//! State of volumes and nodes that the caches do not contain: timers, reported events, and requests without a response.
//! Its loss is safe, and only delays steps.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::node_volumes::AttachedVolume;
use kinds::{Str, Uid};
use runtime::lock::lock;
use tokio::time::Instant;

use super::changes::{Changes, Scope};
use super::definitions::Definitions;
use super::node_list::NodeList;

/// A pod that uses a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Namespace and name of the pod.
    pub pod: ObjectKey,
    /// UID of the pod.
    pub uid: Uid,
}

/// Remembered state of a volume on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteMemory {
    /// Pods that use the volume here. A pod stays until it has released its volumes, even if its claim can no longer be
    /// resolved.
    pub users: Vec<User>,
    /// When the volume was first found not to be wanted here.
    pub unwanted_since: Option<Instant>,
    /// True if the node's last known status has the volume in use.
    pub was_in_use: Option<bool>,
    /// The volume, of a plugin whose kubelet attaches it, is reserved for the node.
    pub is_held: bool,
    /// The volume, of a plugin whose kubelet attaches it, was detached by force: it counts as released although the node's
    /// last status has it in use.
    pub is_abandoned: bool,
    /// When a request to attach was sent whose response was lost.
    pub uncertain_since: Option<Instant>,
    /// When the current attempt to attach began, or was last reported as timed out.
    pub attach_started: Option<Instant>,
    /// When the current attempt to detach began.
    pub detach_started: Option<Instant>,
    /// The success was recorded as an event, or needs none.
    pub is_announced: bool,
    /// The wait for another node was recorded as an event.
    pub is_wait_reported: bool,
    /// Version of the VolumeAttachment whose error was recorded last.
    pub reported_version: u64,
    /// There is an attachment.
    pub is_attached: bool,
    /// The attachment was deleted while the volume was wanted. The volume is attached again only if the kubelet reports
    /// it as in use, because the cache of pods may be behind.
    pub must_confirm: bool,
}

/// The next write of the list in a node's status.
#[derive(Debug, PartialEq, Eq)]
pub enum NodeWrite {
    /// The list is right.
    None,
    /// It has to be written after this time.
    After(Duration),
    /// This list has to be written.
    Now(Vec<AttachedVolume>),
}

/// The nodes of a volume, by name.
pub type Sites = BTreeMap<Str, SiteMemory>;

#[derive(Debug, Default)]
struct State {
    volumes: HashMap<Str, Sites>,
    /// The volumes of each pod, with their nodes: two pods may have had the name.
    by_pod: HashMap<ObjectKey, BTreeSet<(Str, Str)>>,
    by_node: HashMap<Str, BTreeSet<Str>>,
    lists: HashMap<Str, NodeList>,
}

/// Remembered state of all volumes and nodes.
#[derive(Debug, Default)]
pub struct Memory {
    /// The volumes that pods define themselves.
    pub definitions: Definitions,
    /// The nodes of volumes that have changed.
    pub changes: Changes,
    state: Mutex<State>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Returns the nodes of a volume, of those in the scope.
    pub fn sites(&self, volume: &str, scope: &Scope) -> Sites {
        let state = self.lock();
        let Some(sites) = state.volumes.get(volume) else { return Sites::new() };
        match scope {
            Scope::All => sites.clone(),
            Scope::Nodes(nodes) => {
                nodes.iter().filter_map(|node| Some((node.clone(), sites.get(node)?.clone()))).collect()
            }
        }
    }

    /// Returns true if the volume is wanted, attached or listed on a node.
    pub fn has_sites(&self, volume: &str) -> bool {
        self.lock().volumes.contains_key(volume)
    }

    /// Stores the nodes of a volume, of those in the scope. Returns the nodes that have to be reconciled: their lists need
    /// no longer wait for this volume.
    pub fn store(&self, volume: &Str, scope: &Scope, sites: Sites) -> Vec<Str> {
        let mut state = self.lock();
        let State { volumes, by_pod, by_node, lists } = &mut *state;
        let current = volumes.entry(volume.clone()).or_default();
        let old = match scope {
            Scope::All => std::mem::take(current),
            Scope::Nodes(nodes) => nodes.iter().filter_map(|node| current.remove_entry(node)).collect(),
        };
        let users = |sites: &Sites| -> BTreeSet<(ObjectKey, Str)> {
            let of_site = |(node, site): (&Str, &SiteMemory)| {
                site.users.iter().map(|user| (user.pod.clone(), node.clone())).collect::<Vec<_>>()
            };
            sites.iter().flat_map(of_site).collect()
        };
        let (before, after) = (users(&old), users(&sites));
        for (pod, node) in before.difference(&after) {
            unlink(by_pod, pod, &(volume.clone(), node.clone()));
        }
        for (pod, node) in after.difference(&before) {
            by_pod.entry(pod.clone()).or_default().insert((volume.clone(), node.clone()));
        }
        for node in sites.keys().filter(|node| !old.contains_key(*node)) {
            by_node.entry(node.clone()).or_default().insert(volume.clone());
        }
        let mut ready = Vec::new();
        for node in old.keys().filter(|node| !sites.contains_key(*node)) {
            unlink(by_node, node, volume);
            if let Some(list) = lists.get_mut(node) {
                if list.forget(volume) {
                    ready.push(node.clone());
                }
                if list.is_empty() {
                    lists.remove(node);
                }
            }
        }
        current.extend(sites);
        if current.is_empty() {
            volumes.remove(volume);
        }
        ready
    }

    /// Returns all volumes that are wanted, attached or listed on a node.
    pub fn volumes(&self) -> Vec<Str> {
        self.lock().volumes.keys().cloned().collect()
    }

    /// Returns the volumes that a pod uses, as far as they are remembered.
    pub fn of_pod(&self, pod: &ObjectKey) -> Vec<Str> {
        let state = self.lock();
        let volumes: BTreeSet<&Str> = state.by_pod.get(pod).into_iter().flatten().map(|(volume, _)| volume).collect();
        volumes.into_iter().cloned().collect()
    }

    /// Returns the volumes of a node.
    pub fn of_node(&self, node: &str) -> Vec<Str> {
        self.lock().by_node.get(node).into_iter().flatten().cloned().collect()
    }

    /// Decides whether a node's status has to list a volume, and whether a pod waits for that. Returns true if the node has
    /// to be reconciled.
    pub fn decide_listing(&self, node: &Str, volume: &Str, is_listed: bool, is_awaited: bool) -> bool {
        self.lock().lists.entry(node.clone()).or_default().decide(volume, is_listed, is_awaited)
    }

    /// Notes whether the volume's entry in the node's status will change soon. Returns true if the node has to be
    /// reconciled, because no further change is expected.
    pub fn expect_change(&self, node: &Str, volume: &Str, is_expected: bool) -> bool {
        let mut state = self.lock();
        if is_expected {
            state.lists.entry(node.clone()).or_default().expect_change(volume);
            return false;
        }
        let Some(list) = state.lists.get_mut(node) else { return false };
        let is_last = list.expect_no_change(volume);
        if list.is_empty() {
            state.lists.remove(node);
        }
        is_last
    }

    /// Returns true if a write that lists the volume in the node's status may be under way.
    pub fn may_be_writing(&self, node: &str, volume: &str) -> bool {
        self.lock().lists.get(node).is_some_and(|list| list.may_be_writing(volume))
    }

    /// Returns the next write of a node's status. If it is due, notes that it is about to be written.
    pub fn begin_write(&self, node: &str, current: &[AttachedVolume], now: Instant) -> NodeWrite {
        let mut state = self.lock();
        let Some(list) = state.lists.get_mut(node) else { return NodeWrite::None };
        let Some(planned) = list.plan(current) else { return NodeWrite::None };
        let pause = list.pause(current, now);
        if !pause.is_zero() {
            return NodeWrite::After(pause);
        }
        list.begin_write(&planned);
        NodeWrite::Now(planned)
    }

    /// Notes that a write to a node's status has succeeded after this time. Its kubelet did not use the removed volumes in
    /// `released`.
    pub fn written(&self, node: &str, took: Duration, released: Vec<Str>) {
        if let Some(list) = self.lock().lists.get_mut(node) {
            list.written(Instant::now(), took, released);
        }
    }

    /// Reports, once, whether the kubelet did not use a volume when it was removed from the node's status a short time ago.
    pub fn take_release(&self, node: &str, volume: &str) -> bool {
        self.lock().lists.get_mut(node).is_some_and(|list| list.take_release(volume, Instant::now()))
    }

    /// Notes that the last write to a node's status has ended. Returns the volumes that were in it and are not in the
    /// current list.
    pub fn end_write(&self, node: &str, current: &[AttachedVolume]) -> Vec<Str> {
        let mut state = self.lock();
        let Some(list) = state.lists.get_mut(node) else { return Vec::new() };
        let written = list.end_write(current);
        if list.is_empty() {
            state.lists.remove(node);
        }
        written
    }

    /// Counts pairs of volume and node by the labels that `label` returns for them.
    pub fn count<L: Ord>(&self, label: impl Fn(&str, &SiteMemory) -> Vec<L>) -> BTreeMap<L, u64> {
        let mut counts = BTreeMap::new();
        for (volume, sites) in &self.lock().volumes {
            for found in sites.values().flat_map(|site| label(volume, site)) {
                *counts.entry(found).or_default() += 1;
            }
        }
        counts
    }
}

fn unlink<K: Eq + Hash, V: Ord>(index: &mut HashMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used_by(pod: &str) -> SiteMemory {
        let pod = ObjectKey::new("default", pod);
        SiteMemory { users: vec![User { pod, uid: Uid::parse("u") }], ..SiteMemory::default() }
    }

    #[test]
    fn volume_is_found_by_its_pods_and_nodes_until_it_is_removed() {
        let memory = Memory::default();
        let volume = Str::from("v");
        let node = Str::from("n");
        memory.store(&volume, &Scope::All, Sites::from([(node.clone(), used_by("a"))]));
        assert_eq!(memory.of_pod(&ObjectKey::new("default", "a")), std::slice::from_ref(&volume));
        assert_eq!(memory.of_node("n"), std::slice::from_ref(&volume));
        memory.store(&volume, &Scope::All, Sites::from([(node.clone(), used_by("b"))]));
        assert!(memory.of_pod(&ObjectKey::new("default", "a")).is_empty());
        assert_eq!(memory.of_pod(&ObjectKey::new("default", "b")), std::slice::from_ref(&volume));
        memory.decide_listing(&node, &volume, true, true);
        memory.store(&volume, &Scope::All, Sites::new());
        let state = memory.lock();
        assert!(state.volumes.is_empty() && state.by_pod.is_empty() && state.by_node.is_empty());
        assert!(state.lists.is_empty());
    }

    #[test]
    fn nodes_outside_the_scope_are_kept() {
        let memory = Memory::default();
        let volume = Str::from("v");
        let [a, b] = ["a", "b"].map(Str::from);
        let only = |node: &Str| Scope::Nodes([node.clone()].into());
        // A pod was replaced by one of its name on another node.
        memory.store(&volume, &only(&a), Sites::from([(a.clone(), used_by("web"))]));
        memory.store(&volume, &only(&b), Sites::from([(b.clone(), used_by("web"))]));
        assert_eq!(memory.sites("v", &Scope::All).keys().collect::<Vec<_>>(), [&a, &b]);
        assert_eq!(memory.sites("v", &only(&b)).keys().collect::<Vec<_>>(), [&b]);
        memory.store(&volume, &only(&a), Sites::new());
        assert_eq!(memory.sites("v", &Scope::All).keys().collect::<Vec<_>>(), [&b]);
        assert!(memory.of_node("a").is_empty());
        assert_eq!(memory.of_pod(&ObjectKey::new("default", "web")), std::slice::from_ref(&volume));
        memory.store(&volume, &only(&b), Sites::new());
        let state = memory.lock();
        assert!(state.volumes.is_empty() && state.by_pod.is_empty() && state.by_node.is_empty());
    }
}
