//! The graph of owners and dependents: all objects by UID, as the watches deliver them, and the checks that follow from
//! each change.
//!
//! An owner that no watch has delivered is a virtual node with the coordinates of a dependent's reference. It stays
//! virtual until a watch delivers it or it is known not to exist. Nothing here does IO: a change returns effects.
//! Upstream: pkg/controller/garbagecollector, GraphBuilder.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kinds::meta::{Meta, OwnerRef};
use kinds::{Resource, Str, Uid};

use super::decide::{FOREGROUND, ORPHAN};
use super::identity::{AbsentOwners, Identity};
use super::owner_reads::OwnerReads;

/// An action that a change of the graph requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Check if this object exists and has to be deleted.
    Check(Uid),
    /// Like [`Effect::Check`], with backoff.
    CheckLater(Uid),
    /// Orphan the dependents of this object.
    Orphan(Uid),
    /// Record an event: a dependent refers to an owner in another namespace.
    WrongNamespace {
        /// The dependent.
        dependent: Identity,
        /// The owner, with the coordinates in the reference.
        owner: Identity,
    },
}

/// The state of an object, apart from its place in the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// A watch has delivered it.
    pub observed: bool,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// It is being deleted and waits for the deletion of its dependents.
    pub foreground: bool,
    /// It is being deleted and waits until its dependents are orphaned.
    pub orphaning: bool,
}

impl State {
    fn of(meta: &Meta) -> Self {
        let deleting = meta.is_deleting();
        let waits = |finalizer: &str| deleting && meta.finalizers.iter().any(|found| **found == *finalizer);
        Self { observed: true, deleting, foreground: waits(FOREGROUND), orphaning: waits(ORPHAN) }
    }
}

#[derive(Debug)]
struct Node {
    identity: Identity,
    owners: Arc<[OwnerRef]>,
    #[allow(clippy::box_collection, reason = "most objects own nothing: that is 8 bytes instead of 48")]
    dependents: Option<Box<HashSet<Uid>>>,
    state: State,
}

impl Node {
    fn dependents(&self) -> impl Iterator<Item = &Uid> {
        self.dependents.iter().flat_map(|dependents| dependents.iter())
    }
}

/// One object, for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Its coordinates; for a virtual node, the coordinates to read next.
    pub identity: Identity,
    /// Its state.
    pub state: State,
    /// It refers to owners.
    pub owned: bool,
    /// The watches have delivered all its owners with the coordinates in its references, and none is being deleted in
    /// the foreground: nothing has to be done.
    pub settled: bool,
}

/// A dependent that the deletion of its owner has to wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocking {
    /// Its uid.
    pub uid: Uid,
    /// Its own deletion has begun.
    pub deleting: bool,
}

/// An object in the graph, with its owner references.
#[derive(Debug, Clone, Copy)]
pub struct GraphObject<'a> {
    /// Its coordinates.
    pub identity: &'a Identity,
    /// Its owners.
    pub owners: &'a [OwnerRef],
    /// Its state.
    pub state: State,
    /// Other objects refer to it.
    pub has_dependents: bool,
}

impl<'a> GraphObject<'a> {
    fn of(node: &'a Node) -> Self {
        let has_dependents = node.dependents().next().is_some();
        Self { identity: &node.identity, owners: &node.owners, state: node.state, has_dependents }
    }
}

/// All objects and their owners.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: HashMap<Uid, Node>,
    /// Owners that are known not to exist.
    pub absent: AbsentOwners,
    /// Results of recent reads of owners from the API server.
    pub owner_reads: OwnerReads,
    /// Versions and kinds as shared strings.
    kinds: HashMap<Resource, (Str, Str)>,
}

impl Graph {
    fn identity(&mut self, resource: &Resource, meta: &Meta) -> Identity {
        let (api_version, kind) =
            self.kinds.entry(*resource).or_insert_with(|| (resource.api_version().into(), resource.kind.into()));
        Identity {
            kind: kind.clone(),
            api_version: api_version.clone(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        }
    }

    /// Returns all objects, in no particular order.
    pub fn objects(&self) -> impl Iterator<Item = GraphObject<'_>> {
        self.nodes.values().map(GraphObject::of)
    }

    /// Returns an object.
    pub fn object(&self, uid: &Uid) -> Option<GraphObject<'_>> {
        self.nodes.get(uid).map(GraphObject::of)
    }

    /// Returns the namespace of an object; empty if the object is cluster-scoped or not in the graph.
    pub fn namespace(&self, uid: &Uid) -> Str {
        self.nodes.get(uid).map(|node| node.identity.namespace.clone()).unwrap_or_default()
    }

    /// Applies an added or changed object.
    pub fn observe(&mut self, resource: &Resource, meta: &Meta) -> Vec<Effect> {
        let uid = &meta.uid;
        let now = State::of(meta);
        if let Some(node) = self.nodes.get(uid)
            && node.state == now
            && (Arc::ptr_eq(&node.owners, &meta.owners) || node.owners == meta.owners)
        {
            return Vec::new();
        }
        self.owner_reads.forget(uid);
        let mut effects = Vec::new();
        let identity = self.identity(resource, meta);
        if self.nodes.get(uid).is_some_and(|node| !node.state.observed && node.identity != identity) {
            self.check_contradicted(&identity, &mut effects);
        }
        let node = self.nodes.entry(uid.clone()).or_insert_with(|| Node {
            identity: identity.clone(),
            owners: Arc::from([]),
            dependents: None,
            state: State::default(),
        });
        if !node.state.observed {
            node.identity = identity;
        }
        let before = std::mem::replace(&mut node.state, now);
        let old = std::mem::replace(&mut node.owners, meta.owners.clone());
        if old != meta.owners {
            self.change_owners(uid, &old, &meta.owners, &mut effects);
        }
        self.begin_deletion(uid, before, now, &mut effects);
        effects
    }

    /// Compares an owner that a watch delivers for the first time with the coordinates in its dependents' references.
    fn check_contradicted(&self, observed: &Identity, effects: &mut Vec<Effect>) {
        let (_, differing) = self.partition(observed);
        for dependent in differing {
            if !observed.may_own_in(&dependent.identity.namespace) {
                effects.extend(wrong_namespace(dependent, &observed.uid));
            }
            effects.push(Effect::Check(dependent.identity.uid.clone()));
        }
    }

    fn change_owners(&mut self, uid: &Uid, old: &[OwnerRef], new: &[OwnerRef], effects: &mut Vec<Effect>) {
        let blocks = |owner: &OwnerRef| owner.block_owner_deletion == Some(true);
        // An object may have twenty thousand owners: neither list is searched for each entry of the other.
        let compared = if old.is_empty() { &[][..] } else { new };
        let current: HashMap<&Uid, &OwnerRef> = compared.iter().map(|owner| (&owner.uid, owner)).collect();
        for owner in old {
            let now = current.get(&owner.uid).copied();
            if blocks(owner) && !now.is_some_and(blocks) && self.nodes.contains_key(&owner.uid) {
                effects.push(Effect::Check(owner.uid.clone()));
            }
            if now.is_none() {
                self.unlink(uid, &owner.uid);
            }
        }
        let before: HashSet<&OwnerRef> = old.iter().collect();
        let changed: Vec<&OwnerRef> = new.iter().filter(|owner| !before.contains(owner)).collect();
        self.link(uid, &changed, effects);
    }

    /// Adds an object to its owners' dependents. Requests a check of each owner that the graph lacks, and a check of
    /// the object if another owner differs from the object's reference or is being deleted in the foreground. Upstream:
    /// pkg/controller/garbagecollector, addDependentToOwners.
    fn link(&mut self, uid: &Uid, owners: &[&OwnerRef], effects: &mut Vec<Effect>) {
        let Some(dependent) = self.nodes.get(uid).map(|node| node.identity.clone()) else { return };
        let mut needs_check = false;
        for owner in owners {
            let known = self.nodes.contains_key(&owner.uid);
            let node = self.nodes.entry(owner.uid.clone()).or_insert_with(|| Node {
                identity: Identity::of_owner(owner, &dependent.namespace),
                owners: Arc::from([]),
                dependents: None,
                state: State::default(),
            });
            node.dependents.get_or_insert_default().insert(uid.clone());
            if !known {
                effects.push(Effect::Check(owner.uid.clone()));
                continue;
            }
            if node.state.observed && !node.identity.may_own_in(&dependent.namespace) {
                let owner = Identity::of_owner(owner, &dependent.namespace);
                effects.push(Effect::WrongNamespace { dependent: dependent.clone(), owner });
            }
            needs_check |= node.state.foreground || !is_consistent(node, owner, &dependent.namespace);
        }
        if needs_check {
            effects.push(Effect::Check(uid.clone()));
        }
    }

    fn unlink(&mut self, dependent: &Uid, owner: &Uid) {
        let Some(node) = self.nodes.get_mut(owner) else { return };
        if let Some(dependents) = &mut node.dependents {
            dependents.remove(dependent);
            if dependents.is_empty() {
                node.dependents = None;
            }
        }
        if node.dependents.is_none() && !node.state.observed {
            self.nodes.remove(owner);
        }
    }

    fn begin_deletion(&self, uid: &Uid, before: State, now: State, effects: &mut Vec<Effect>) {
        if now.orphaning {
            if !before.orphaning {
                effects.push(Effect::Orphan(uid.clone()));
            }
        } else if now.foreground && !before.foreground {
            let node = self.nodes.get(uid).into_iter();
            effects.extend(node.flat_map(Node::dependents).chain([uid]).cloned().map(Effect::Check));
        }
    }

    /// Removes an object that was deleted.
    pub fn remove_deleted(&mut self, uid: &Uid) -> Vec<Effect> {
        self.owner_reads.forget(uid);
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        let mut effects = Vec::new();
        for owner in node.owners.iter() {
            self.unlink(uid, &owner.uid);
            if self.nodes.get(&owner.uid).is_some_and(|owner| owner.state.foreground) {
                effects.push(Effect::Check(owner.uid.clone()));
            }
        }
        if node.dependents.is_some() {
            self.absent.add(node.identity.clone());
        }
        effects.extend(node.dependents().cloned().map(Effect::Check));
        effects
    }

    /// Applies the result of a check: no object on the API server has these coordinates. Upstream:
    /// pkg/controller/garbagecollector, enqueueVirtualDeleteEvent.
    pub fn observe_absent(&mut self, identity: &Identity) -> Vec<Effect> {
        self.owner_reads.forget(&identity.uid);
        let Some(node) = self.nodes.get(&identity.uid) else { return Vec::new() };
        let observed = node.state.observed;
        let same = node.identity == *identity;
        let uids = |nodes: &[&Node]| nodes.iter().map(|node| node.identity.uid.clone()).collect::<Vec<_>>();
        let (matching, differing) = self.partition(identity);
        let is_kept = if observed { !same } else { !differing.is_empty() };
        if !is_kept {
            return self.remove_deleted(&identity.uid);
        }
        let next = (!observed && same).then(|| alternate_identity(&differing, identity)).flatten();
        let matching = uids(&matching);
        if !matching.is_empty() {
            self.absent.add(identity.clone());
        }
        let mut effects: Vec<Effect> = matching.into_iter().map(Effect::Check).collect();
        if let (Some(next), Some(node)) = (next, self.nodes.get_mut(&identity.uid)) {
            node.identity = next;
            effects.push(Effect::CheckLater(identity.uid.clone()));
        }
        effects
    }

    /// Removes the objects of a kind that is no longer watched. Those with dependents become virtual: it is no longer
    /// known whether they exist.
    pub fn forget_kind(&mut self, resource: &Resource) -> Vec<Effect> {
        let Some((api_version, kind)) = self.kinds.remove(resource) else { return Vec::new() };
        let of_kind = |node: &&Node| (&node.identity.api_version, &node.identity.kind) == (&api_version, &kind);
        let uids: Vec<Uid> = self.nodes.values().filter(of_kind).map(|node| node.identity.uid.clone()).collect();
        let mut effects = Vec::new();
        uids.iter().for_each(|uid| self.forget(uid, &mut effects));
        effects
    }

    /// Removes an object that the cache no longer contains although it was not deleted. If it has dependents, it
    /// becomes virtual, and is read from the API server until a watch delivers it.
    pub fn forget_object(&mut self, uid: &Uid) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.forget(uid, &mut effects);
        if self.nodes.contains_key(uid) {
            effects.push(Effect::CheckLater(uid.clone()));
        }
        effects
    }

    fn forget(&mut self, uid: &Uid, effects: &mut Vec<Effect>) {
        self.owner_reads.forget(uid);
        let Some(node) = self.nodes.get_mut(uid) else { return };
        node.state = State::default();
        let owners = std::mem::replace(&mut node.owners, Arc::from([]));
        if node.dependents.is_none() {
            self.nodes.remove(uid);
        }
        for owner in owners.iter() {
            self.unlink(uid, &owner.uid);
            if self.nodes.get(&owner.uid).is_some_and(|owner| owner.state.foreground) {
                effects.push(Effect::Check(owner.uid.clone()));
            }
        }
    }

    /// Returns the actions that the current graph requires. A new leader begins with them.
    pub fn unsettled(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (uid, node) in &self.nodes {
            if node.state.orphaning {
                effects.push(Effect::Orphan(uid.clone()));
            } else if !node.state.observed || node.state.foreground {
                effects.push(Effect::Check(uid.clone()));
            }
            let mut needs_check = false;
            for owner in node.owners.iter() {
                let Some(known) = self.nodes.get(&owner.uid) else {
                    needs_check = true;
                    continue;
                };
                needs_check |= known.state.foreground || !is_consistent(known, owner, &node.identity.namespace);
                if known.state.observed && !known.identity.may_own_in(&node.identity.namespace) {
                    effects.extend(wrong_namespace(node, &owner.uid));
                }
            }
            if needs_check {
                effects.push(Effect::Check(uid.clone()));
            }
        }
        effects
    }

    /// Returns one object; `None` if it is no longer in the graph.
    pub fn view(&self, uid: &Uid) -> Option<View> {
        let node = self.nodes.get(uid)?;
        let is_solid = |owner: &OwnerRef| {
            self.nodes.get(&owner.uid).is_some_and(|known| {
                known.state.observed && !known.state.foreground && is_consistent(known, owner, &node.identity.namespace)
            })
        };
        Some(View {
            identity: node.identity.clone(),
            state: node.state,
            owned: !node.owners.is_empty(),
            settled: node.owners.iter().all(is_solid),
        })
    }

    /// Returns the dependents that the deletion of an object has to wait for.
    pub fn blocking(&self, uid: &Uid) -> Vec<Blocking> {
        let blocks = |dependent: &&Node| {
            dependent.owners.iter().any(|owner| owner.uid == *uid && owner.block_owner_deletion == Some(true))
        };
        let blocking = self.dependents_of(uid).filter(blocks);
        let state = |node: &Node| Blocking { uid: node.identity.uid.clone(), deleting: node.state.deleting };
        blocking.map(state).collect()
    }

    /// Returns true if an object has dependents.
    pub fn has_dependents(&self, uid: &Uid) -> bool {
        self.nodes.get(uid).is_some_and(|node| node.dependents.is_some())
    }

    /// Returns true if a dependent of an object is itself deleted in the foreground: there may be a cycle.
    pub fn may_be_in_cycle(&self, uid: &Uid) -> bool {
        self.dependents_of(uid).any(|dependent| dependent.state.foreground)
    }

    /// Returns the dependents of an object.
    pub fn dependents(&self, uid: &Uid) -> Vec<Identity> {
        self.dependents_of(uid).map(|dependent| dependent.identity.clone()).collect()
    }

    fn dependents_of(&self, uid: &Uid) -> impl Iterator<Item = &Node> {
        let dependents = self.nodes.get(uid).into_iter().flat_map(Node::dependents);
        dependents.filter_map(|dependent| self.nodes.get(dependent))
    }

    /// Returns the dependents that refer to an owner by these coordinates, and the dependents that refer to it by other
    /// coordinates. A dependent with several references may be in both lists. Upstream:
    /// pkg/controller/garbagecollector, partitionDependents.
    fn partition(&self, owner: &Identity) -> (Vec<&Node>, Vec<&Node>) {
        let (mut matching, mut differing) = (Vec::new(), Vec::new());
        for dependent in self.dependents_of(&owner.uid) {
            let in_reach = owner.may_own_in(&dependent.identity.namespace);
            let mut references = dependent.owners.iter().filter(|reference| reference.uid == owner.uid);
            if in_reach && references.clone().any(|reference| owner.matches_reference(reference)) {
                matching.push(dependent);
            }
            if !in_reach || references.any(|reference| !owner.matches_reference(reference)) {
                differing.push(dependent);
            }
        }
        (matching, differing)
    }

    /// Returns the number of nodes, virtual ones included, and the number of virtual nodes.
    pub fn len(&self) -> (usize, usize) {
        (self.nodes.len(), self.nodes.values().filter(|node| !node.state.observed).count())
    }
}

/// Returns true if a reference from a namespace agrees with the known coordinates of the owner. The coordinates of a
/// virtual owner without namespace come from a cluster-scoped dependent, and may be wrong: the owner may be namespaced.
fn is_consistent(owner: &Node, reference: &OwnerRef, namespace: &str) -> bool {
    let in_reach = owner.identity.may_own_in(namespace);
    let named_elsewhere = !owner.state.observed && *owner.identity.namespace != *namespace;
    in_reach && owner.identity.matches_reference(reference) && !named_elsewhere
}

fn wrong_namespace(dependent: &Node, owner: &Uid) -> Option<Effect> {
    let reference = dependent.owners.iter().find(|reference| reference.uid == *owner)?;
    let owner = Identity::of_owner(reference, &dependent.identity.namespace);
    Some(Effect::WrongNamespace { dependent: dependent.identity.clone(), owner })
}

/// Returns other coordinates by which dependents refer to an owner: the one after `absent` in their order, or else the
/// first. Upstream: pkg/controller/garbagecollector, getAlternateOwnerIdentity.
fn alternate_identity(dependents: &[&Node], absent: &Identity) -> Option<Identity> {
    let candidates = dependents.iter().flat_map(|dependent| {
        let references = dependent.owners.iter().filter(|reference| reference.uid == absent.uid);
        references.map(|reference| {
            let mut candidate = Identity::of_owner(reference, &dependent.identity.namespace);
            if absent.namespace.is_empty()
                && (&candidate.api_version, &candidate.kind) == (&absent.api_version, &absent.kind)
            {
                candidate.namespace = absent.namespace.clone();
            }
            candidate
        })
    });
    let others: Vec<Identity> = candidates.filter(|candidate| candidate != absent).collect();
    let next = others.iter().filter(|candidate| *candidate > absent).min();
    next.or_else(|| others.iter().min()).cloned()
}
