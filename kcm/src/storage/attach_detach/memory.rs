//! State of volumes and nodes that the caches do not contain: timers, reported events, and requests without a response.
//! Its loss is safe, and only delays steps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
#[cfg(test)]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::node_volumes::AttachedVolume;
use kinds::{Node, Str, Uid};
use runtime::lock::lock;
use runtime::store::Change;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::changes::{Changes, Scope};
use super::decide::Attachment;
use super::definitions::Definitions;
use super::node_list::NodeList;

/// The reason why a volume is not attached to a second node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The volume may be attached to one node only.
    Exclusive,
    /// An undecodable PersistentVolume may have the same storage, and allow only one node.
    Undecodable,
}

/// Remembered state of a volume on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SiteMemory {
    /// Time at which a reconcile first found that no pod on the node uses the volume: the volume is not wanted there.
    pub unwanted_since: Option<Instant>,
    /// The volume is reserved for the node. Only for plugins whose volumes are attached by kubelets.
    pub is_held: bool,
    /// The volume was detached: it counts as released even if the node's last status still reports it as in use, as
    /// after a forced detachment. Only for plugins whose volumes are attached by kubelets.
    pub is_abandoned: bool,
    /// Time of a request to attach whose response was lost.
    pub uncertain_since: Option<Instant>,
    /// Time at which the current attempt to attach began, or was last reported as timed out.
    pub attach_started: Option<Instant>,
    /// Time at which the current attempt to detach began.
    pub detach_started: Option<Instant>,
    /// The success of the attachment was recorded as an event, or needs no event.
    pub is_announced: bool,
    /// The reason of the wait for another node that was recorded as an event last.
    pub reported_wait: Option<WaitReason>,
    /// Version of the VolumeAttachment whose error was recorded last.
    pub reported_version: u64,
    /// An attachment exists, or may exist.
    pub is_attached: bool,
    /// The attachment was deleted while the volume was wanted or listed. The volume is attached again only if the
    /// kubelet reports it as in use, because the cache of pods may be behind.
    pub must_confirm: bool,
    /// The pause after failures of the last step.
    pub backoff: Option<Backoff>,
}

impl SiteMemory {
    /// Removes the start of each attempt that no longer matters: to attach a volume that no pod uses or that is being
    /// detached, and to detach a volume that a pod uses before the attachment is deleted.
    pub fn end_attempts(&mut self, is_wanted: bool, attachment: Attachment) {
        if !is_wanted || attachment == Attachment::Deleting {
            self.attach_started = None;
        }
        if is_wanted && !matches!(attachment, Attachment::Absent | Attachment::Deleting) {
            self.detach_started = None;
        }
    }
}

/// The next write of the list in a node's status.
#[derive(Debug, PartialEq, Eq)]
pub enum NodeWrite {
    /// The list is up to date.
    None,
    /// The list has to be written after this delay.
    After(Duration),
    /// This list has to be written.
    Now(Vec<AttachedVolume>),
}

/// The nodes of a volume, by name.
pub type Sites = BTreeMap<Str, SiteMemory>;

/// The pods that use a volume, by node. A pod is kept until it has released its volumes, even if its claim can no
/// longer be resolved. Thousands of them may share one volume.
pub type Users = BTreeMap<Str, BTreeMap<ObjectKey, Uid>>;

#[derive(Debug, Default)]
struct State {
    volumes: HashMap<Str, Sites>,
    users: HashMap<Str, Users>,
    /// The volumes of each pod name, with their nodes: pods with the same name may have run on several nodes.
    by_pod: HashMap<ObjectKey, BTreeSet<(Str, Str)>>,
    by_node: HashMap<Str, BTreeSet<Str>>,
    /// Last records of deleted nodes that still have volumes.
    deleted_nodes: HashMap<Str, Arc<Node>>,
    lists: HashMap<Str, NodeList>,
    /// Nodes whose list has to be written, or is being written.
    due: HashSet<Str>,
}

impl State {
    /// Forgets the list of a node if there is nothing to remember.
    fn drop_empty_list(&mut self, node: &str) {
        if self.lists.get(node).is_some_and(NodeList::is_empty) {
            self.lists.remove(node);
            self.due.remove(node);
        }
    }
}

/// Remembered state of all volumes and nodes.
#[derive(Debug, Default)]
pub struct Memory {
    /// The volumes that pods define themselves.
    pub definitions: Definitions,
    /// Changes of the nodes and pods of volumes.
    pub changes: Changes,
    /// Number of nodes and pods that reconciles of volumes have visited.
    #[cfg(test)]
    pub visited: AtomicUsize,
    state: Mutex<State>,
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    #[cfg(test)]
    pub fn visit(&self, nodes_or_pods: usize) {
        self.visited.fetch_add(nodes_or_pods, Ordering::Relaxed);
    }

    /// Returns the nodes of a volume that are in the scope.
    pub fn sites(&self, volume: &str, scope: &Scope) -> Sites {
        self.lock().volumes.get(volume).map_or_else(Sites::new, |sites| of_nodes(sites, scope))
    }

    /// Returns true if the volume is wanted, attached or listed on a node.
    pub fn has_sites(&self, volume: &str) -> bool {
        self.lock().volumes.contains_key(volume)
    }

    /// Adds nodes to a volume before their state is read, so that each later change of them requeues the volume.
    pub fn link(&self, volume: &Str, nodes: &BTreeSet<Str>) {
        let mut state = self.lock();
        let State { volumes, by_node, .. } = &mut *state;
        if nodes.is_empty() {
            return;
        }
        let sites = volumes.entry(volume.clone()).or_default();
        for node in nodes {
            if !sites.contains_key(node) {
                sites.insert(node.clone(), SiteMemory::default());
                by_node.entry(node.clone()).or_default().insert(volume.clone());
            }
        }
    }

    /// Stores the nodes of a volume that are in the scope. Returns the nodes that have to be reconciled, because their
    /// lists need no longer wait for this volume.
    pub fn store(&self, volume: &Str, scope: &Scope, sites: Sites) -> Vec<Str> {
        let mut state = self.lock();
        let State { volumes, by_node, deleted_nodes, lists, due, .. } = &mut *state;
        let current = volumes.entry(volume.clone()).or_default();
        let old = take_nodes(current, scope);
        for node in sites.keys().filter(|node| !old.contains_key(*node)) {
            by_node.entry(node.clone()).or_default().insert(volume.clone());
        }
        let mut ready = Vec::new();
        for node in old.keys().filter(|node| !sites.contains_key(*node)) {
            unlink(by_node, node, volume);
            if !by_node.contains_key(node) {
                deleted_nodes.remove(node);
            }
            if let Some(list) = lists.get_mut(node) {
                if list.forget(volume) {
                    ready.push(node.clone());
                }
                if list.is_empty() {
                    lists.remove(node);
                    due.remove(node);
                }
            }
        }
        current.extend(sites);
        if current.is_empty() {
            volumes.remove(volume);
        }
        ready
    }

    /// Returns the pods that use a volume on the nodes in the scope.
    pub fn users(&self, volume: &str, scope: &Scope) -> Users {
        self.lock().users.get(volume).map_or_else(Users::new, |users| of_nodes(users, scope))
    }

    /// Returns the nodes in the scope where pods use a volume.
    pub fn nodes_with_users(&self, volume: &str, scope: &Scope) -> BTreeSet<Str> {
        let state = self.lock();
        let nodes = state.users.get(volume).into_iter().flat_map(Users::keys);
        match scope {
            Scope::All => nodes.cloned().collect(),
            Scope::Nodes(scope) => scope.iter().filter(|node| uses(&state, volume, node)).cloned().collect(),
        }
    }

    /// Returns true if a pod uses a volume on a node.
    pub fn is_user(&self, volume: &str, node: &str, pod: &ObjectKey, uid: &Uid) -> bool {
        let state = self.lock();
        let users = state.users.get(volume).and_then(|users| users.get(node));
        users.is_some_and(|users| users.get(pod) == Some(uid))
    }

    /// Stores the pods that use a volume on the nodes in the scope.
    pub fn set_users(&self, volume: &Str, scope: &Scope, users: Users) {
        let mut state = self.lock();
        let State { users: all, by_pod, .. } = &mut *state;
        let current = all.entry(volume.clone()).or_default();
        let old = take_nodes(current, scope);
        let differing = |some: &Users, others: &Users| -> Vec<(ObjectKey, Str)> {
            let has = |node: &Str, pod: &ObjectKey| others.get(node).is_some_and(|pods| pods.contains_key(pod));
            let pairs = some.iter().flat_map(|(node, pods)| pods.keys().map(move |pod| (node, pod)));
            pairs.filter(|(node, pod)| !has(node, pod)).map(|(node, pod)| (pod.clone(), node.clone())).collect()
        };
        for (pod, node) in differing(&old, &users) {
            unlink(by_pod, &pod, &(volume.clone(), node));
        }
        for (pod, node) in differing(&users, &old) {
            by_pod.entry(pod).or_default().insert((volume.clone(), node));
        }
        current.extend(users.into_iter().filter(|(_, pods)| !pods.is_empty()));
        if current.is_empty() {
            all.remove(volume);
        }
    }

    /// Stores the node on which a pod uses a volume, with the pod's uid; `None` if the pod does not use the volume.
    pub fn set_user(&self, volume: &Str, pod: &ObjectKey, user: Option<(Str, Uid)>) {
        let mut state = self.lock();
        let State { users: all, by_pod, .. } = &mut *state;
        let linked = by_pod.get(pod).into_iter().flatten().filter(|(name, _)| name == volume);
        let old: Vec<Str> = linked.map(|(_, node)| node.clone()).collect();
        let users = all.entry(volume.clone()).or_default();
        for node in old {
            unlink(by_pod, pod, &(volume.clone(), node.clone()));
            if let Some(pods) = users.get_mut(&node) {
                pods.remove(pod);
                if pods.is_empty() {
                    users.remove(&node);
                }
            }
        }
        if let Some((node, uid)) = user {
            by_pod.entry(pod.clone()).or_default().insert((volume.clone(), node.clone()));
            users.entry(node).or_default().insert(pod.clone(), uid);
        }
        if users.is_empty() {
            all.remove(volume);
        }
    }

    /// Returns all volumes that are wanted, attached or listed on any node.
    pub fn volumes(&self) -> Vec<Str> {
        self.lock().volumes.keys().cloned().collect()
    }

    /// Returns the stored volumes of a pod.
    pub fn of_pod(&self, pod: &ObjectKey) -> Vec<Str> {
        let state = self.lock();
        let volumes: BTreeSet<&Str> = state.by_pod.get(pod).into_iter().flatten().map(|(volume, _)| volume).collect();
        volumes.into_iter().cloned().collect()
    }

    /// Returns the volumes of a node.
    pub fn of_node(&self, node: &str) -> Vec<Str> {
        self.lock().by_node.get(node).into_iter().flatten().cloned().collect()
    }

    /// Keeps the last record of a deleted node as long as the node has volumes. The next reconcile of one of them may
    /// begin after the deletion, and depends on whether the kubelet used the volume when the node was deleted.
    pub fn keep_deleted(&self, change: &Change<'_, Node>) {
        match (change.old, change.new) {
            (Some(old), None) => {
                let mut state = self.lock();
                if state.by_node.contains_key(&old.meta.name) {
                    state.deleted_nodes.insert(old.meta.name.clone(), old.clone());
                }
            }
            (None, Some(new)) => drop(self.lock().deleted_nodes.remove(&new.meta.name)),
            _ => {}
        }
    }

    /// Returns true if the kubelet of a deleted node used a volume when the node was deleted; `None` if that is not
    /// known.
    pub fn last_use(&self, node: &str, volume: &str) -> Option<bool> {
        let state = self.lock();
        let volumes = state.deleted_nodes.get(node)?.volumes.as_ref()?;
        Some(volumes.uses(volume))
    }

    /// Stores the decision whether a node's status has to list a volume, and whether a pod waits for the write. Returns
    /// true if the node has to be reconciled.
    pub fn decide_listing(&self, node: &Str, volume: &Str, is_listed: bool, is_awaited: bool) -> bool {
        self.lock().lists.entry(node.clone()).or_default().decide(volume, is_listed, is_awaited)
    }

    /// Records whether the volume's entry in the node's status will change soon. Returns true if the node has to be
    /// reconciled, because no further change is expected.
    pub fn expect_change(&self, node: &Str, volume: &Str, is_expected: bool) -> bool {
        let mut state = self.lock();
        if is_expected {
            state.lists.entry(node.clone()).or_default().expect_change(volume);
            return false;
        }
        let Some(list) = state.lists.get_mut(node) else { return false };
        let is_last = list.expect_no_change(volume);
        state.drop_empty_list(node);
        is_last
    }

    /// Returns true if a write that lists the volume in the node's status may be under way.
    pub fn may_be_writing(&self, node: &str, volume: &str) -> bool {
        self.lock().lists.get(node).is_some_and(|list| list.may_be_writing(volume))
    }

    /// Returns the next write of a node's status. If it is due, records its start.
    pub fn begin_write(&self, node: &str, current: &[AttachedVolume], now: Instant) -> NodeWrite {
        let mut state = self.lock();
        let State { lists, due, .. } = &mut *state;
        let Some(list) = lists.get_mut(node) else { return NodeWrite::None };
        let Some(planned) = list.plan(current) else {
            due.remove(node);
            return NodeWrite::None;
        };
        if !due.contains(node) {
            due.insert(node.into());
        }
        let pause = list.pause(current, due.len(), now);
        if !pause.is_zero() {
            return NodeWrite::After(pause);
        }
        list.begin_write(&planned);
        NodeWrite::Now(planned)
    }

    /// Records that no write of a node's status is due, because the node does not exist.
    pub fn not_due(&self, node: &str) {
        self.lock().due.remove(node);
    }

    /// Records a successful write to a node's status, its duration, and the removed volumes that the node's kubelet did
    /// not use.
    pub fn written(&self, node: &str, took: Duration, released: Vec<Str>) {
        if let Some(list) = self.lock().lists.get_mut(node) {
            list.written(Instant::now(), took, released);
        }
    }

    /// Returns true, once, if the kubelet did not use a volume when it was removed from the node's status a short time
    /// ago.
    pub fn take_release(&self, node: &str, volume: &str) -> bool {
        self.lock().lists.get_mut(node).is_some_and(|list| list.take_release(volume, Instant::now()))
    }

    /// Records that a write to a node's status over the `current` list ended without a response.
    pub fn lose_write(&self, node: &str, current: &[AttachedVolume]) {
        if let Some(list) = self.lock().lists.get_mut(node) {
            list.lose_write(current, Instant::now());
        }
    }

    /// Records that the last write to a node's status has ended, unless the API server may still make an earlier one.
    /// Returns the volumes that were in them and are not in the current list, and the time until the check has to be
    /// repeated, if it has.
    pub fn end_write(&self, node: &str, current: &[AttachedVolume]) -> (Vec<Str>, Option<Duration>) {
        let mut state = self.lock();
        let Some(list) = state.lists.get_mut(node) else { return (Vec::new(), None) };
        let now = Instant::now();
        let written = list.end_write(current, now);
        let remaining = list.time_to_fail(now);
        state.drop_empty_list(node);
        (written, (!remaining.is_zero()).then_some(remaining))
    }

    /// Counts pairs of volume and node by the labels that `label` returns for them. `label` gets the volume, true if
    /// pods use it on the node, and the remembered state.
    pub fn count<L: Ord>(&self, label: impl Fn(&str, bool, &SiteMemory) -> Vec<L>) -> BTreeMap<L, u64> {
        let mut counts = BTreeMap::new();
        let state = self.lock();
        for (volume, sites) in &state.volumes {
            for found in sites.iter().flat_map(|(node, site)| label(volume, uses(&state, volume, node), site)) {
                *counts.entry(found).or_default() += 1;
            }
        }
        counts
    }
}

/// Returns true if pods use a volume on a node.
fn uses(state: &State, volume: &str, node: &str) -> bool {
    state.users.get(volume).is_some_and(|users| users.contains_key(node))
}

/// Returns a copy of the nodes in the scope.
fn of_nodes<V: Clone>(nodes: &BTreeMap<Str, V>, scope: &Scope) -> BTreeMap<Str, V> {
    match scope {
        Scope::All => nodes.clone(),
        Scope::Nodes(scope) => scope.iter().filter_map(|node| Some((node.clone(), nodes.get(node)?.clone()))).collect(),
    }
}

/// Removes the nodes in the scope, and returns them.
fn take_nodes<V>(nodes: &mut BTreeMap<Str, V>, scope: &Scope) -> BTreeMap<Str, V> {
    match scope {
        Scope::All => std::mem::take(nodes),
        Scope::Nodes(scope) => scope.iter().filter_map(|node| nodes.remove_entry(node)).collect(),
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

    fn key(pod: &str) -> ObjectKey {
        ObjectKey::new("default", pod)
    }

    fn used_by(node: &Str, pods: &[&str]) -> Users {
        Users::from([(node.clone(), pods.iter().map(|pod| (key(pod), Uid::parse("u"))).collect())])
    }

    fn is_empty(memory: &Memory) -> bool {
        let state = memory.lock();
        let has_no_node = state.volumes.is_empty() && state.by_node.is_empty() && state.lists.is_empty();
        has_no_node
            && state.due.is_empty()
            && state.deleted_nodes.is_empty()
            && state.users.is_empty()
            && state.by_pod.is_empty()
    }

    #[test]
    fn volume_is_found_by_its_pods_and_nodes_until_it_is_removed() {
        let memory = Memory::default();
        let volume = Str::from("v");
        let node = Str::from("n");
        memory.store(&volume, &Scope::All, Sites::from([(node.clone(), SiteMemory::default())]));
        memory.set_users(&volume, &Scope::All, used_by(&node, &["a"]));
        assert_eq!(memory.of_pod(&key("a")), std::slice::from_ref(&volume));
        assert_eq!(memory.of_node("n"), std::slice::from_ref(&volume));
        memory.set_users(&volume, &Scope::All, used_by(&node, &["b"]));
        assert!(memory.of_pod(&key("a")).is_empty());
        assert_eq!(memory.of_pod(&key("b")), std::slice::from_ref(&volume));
        memory.decide_listing(&node, &volume, true, true);
        memory.store(&volume, &Scope::All, Sites::new());
        memory.set_users(&volume, &Scope::All, Users::new());
        assert!(is_empty(&memory));
    }

    #[test]
    fn volume_is_found_by_a_node_from_the_beginning_of_its_reconcile() {
        let memory = Memory::default();
        let (volume, [a, b]) = (Str::from("v"), ["a", "b"].map(Str::from));
        let known = SiteMemory { is_attached: true, ..SiteMemory::default() };
        memory.store(&volume, &Scope::All, Sites::from([(a.clone(), known.clone())]));
        memory.link(&volume, &[a.clone(), b.clone()].into());
        assert_eq!(memory.sites("v", &Scope::All), Sites::from([(a, known), (b, SiteMemory::default())]));
        assert_eq!(memory.of_node("b"), std::slice::from_ref(&volume));
        memory.store(&volume, &Scope::All, Sites::new());
        memory.link(&volume, &BTreeSet::new());
        assert!(is_empty(&memory));
    }

    /// Other nodes count only while their lists have to be written.
    #[tokio::test(start_paused = true)]
    async fn pod_waits_for_the_nodes_whose_lists_have_to_be_written() {
        const TOOK: Duration = Duration::from_millis(50);
        let memory = Memory::default();
        let now = Instant::now();
        let nodes: Vec<Str> = (0..10).map(|number| Str::from(format!("node-{number}"))).collect();
        let listed = |name: &str| [AttachedVolume { name: name.into(), device_path: "".into() }];
        let begin = |node: &str, current: &[AttachedVolume]| memory.begin_write(node, current, now);
        for node in &nodes {
            memory.decide_listing(node, &"a".into(), true, true);
            assert_eq!(begin(node, &[]), NodeWrite::Now(listed("a").into()), "{node}");
            memory.written(node, TOOK, Vec::new());
            assert_eq!(begin(node, &listed("a")), NodeWrite::None, "the cache contains the write of {node}");
        }
        for (at, node) in nodes.iter().enumerate() {
            memory.decide_listing(node, &"b".into(), true, true);
            let turns = u32::try_from(at + 1).expect("few nodes");
            assert_eq!(begin(node, &listed("a")), NodeWrite::After((TOOK * turns).max(TOOK * 2)), "{node}");
        }
        // The volumes of nine nodes are no longer wanted.
        for node in &nodes[1..] {
            memory.decide_listing(node, &"b".into(), false, true);
            assert_eq!(begin(node, &listed("a")), NodeWrite::None);
        }
        assert_eq!(begin(&nodes[0], &listed("a")), NodeWrite::After(TOOK * 2));
    }

    #[tokio::test]
    async fn attempt_ends_when_its_result_no_longer_matters() {
        use Attachment::{Absent, Attached, Deleting, Requested};
        for (is_wanted, attachment, attaches, detaches) in [
            (true, Absent, true, true),
            (true, Requested, true, false),
            (true, Attached, true, false),
            (true, Deleting, false, true),
            (false, Requested, false, true),
            (false, Attached, false, true),
            (false, Deleting, false, true),
        ] {
            let started = Some(Instant::now());
            let mut memory = SiteMemory { attach_started: started, detach_started: started, ..SiteMemory::default() };
            memory.end_attempts(is_wanted, attachment);
            let current = (memory.attach_started.is_some(), memory.detach_started.is_some());
            assert_eq!(current, (attaches, detaches), "wanted: {is_wanted}, {attachment:?}");
        }
    }

    #[test]
    fn nodes_outside_the_scope_are_kept() {
        let memory = Memory::default();
        let volume = Str::from("v");
        let [a, b] = ["a", "b"].map(Str::from);
        let only = |node: &Str| Scope::Nodes([node.clone()].into());
        // A pod was replaced by one with its name on another node.
        for node in [&a, &b] {
            memory.store(&volume, &only(node), Sites::from([(node.clone(), SiteMemory::default())]));
            memory.set_users(&volume, &only(node), used_by(node, &["web"]));
        }
        assert_eq!(memory.sites("v", &Scope::All).keys().collect::<Vec<_>>(), [&a, &b]);
        assert_eq!(memory.sites("v", &only(&b)).keys().collect::<Vec<_>>(), [&b]);
        assert_eq!(memory.nodes_with_users("v", &only(&b)), [b.clone()].into());
        memory.store(&volume, &only(&a), Sites::new());
        memory.set_users(&volume, &only(&a), Users::new());
        assert_eq!(memory.sites("v", &Scope::All).keys().collect::<Vec<_>>(), [&b]);
        assert_eq!(memory.users("v", &Scope::All), used_by(&b, &["web"]));
        assert!(memory.of_node("a").is_empty());
        assert_eq!(memory.of_pod(&key("web")), std::slice::from_ref(&volume));
        memory.store(&volume, &only(&b), Sites::new());
        memory.set_users(&volume, &only(&b), Users::new());
        assert!(is_empty(&memory));
    }

    #[test]
    fn one_user_changes_while_the_others_are_kept() {
        let memory = Memory::default();
        let volume = Str::from("v");
        let [a, b] = ["a", "b"].map(Str::from);
        let uid = Uid::parse("u");
        memory.set_users(&volume, &Scope::All, used_by(&a, &["web", "db"]));
        memory.set_user(&volume, &key("web"), Some((b.clone(), uid.clone())));
        assert_eq!(
            memory.users("v", &Scope::All),
            [used_by(&a, &["db"]), used_by(&b, &["web"])].into_iter().flatten().collect()
        );
        assert!(memory.is_user("v", "b", &key("web"), &uid) && !memory.is_user("v", "a", &key("web"), &uid));
        assert!(!memory.is_user("v", "b", &key("web"), &Uid::parse("another")));
        assert_eq!(memory.nodes_with_users("v", &Scope::All), [a, b].into());
        for pod in ["web", "db", "unknown"] {
            memory.set_user(&volume, &key(pod), None);
            assert!(memory.of_pod(&key(pod)).is_empty(), "{pod}");
        }
        assert!(is_empty(&memory));
    }
}
