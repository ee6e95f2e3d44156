//! The identity of objects in the graph: all their coordinates, because some coordinates of a reference may be wrong.

use std::collections::{HashSet, VecDeque};
use std::fmt;

use kinds::meta::{ObjectKey, OwnerRef};
use kinds::{Str, Uid};

/// All coordinates of an object. Ordered by kind, version, namespace, name, uid: upstream tries differing coordinates
/// of one uid in this order. Upstream: pkg/controller/garbagecollector, referenceLessThan.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Kind.
    pub kind: Str,
    /// Group and version.
    pub api_version: Str,
    /// Namespace; empty if the object has none.
    pub namespace: Str,
    /// Name.
    pub name: Str,
    /// Uid.
    pub uid: Uid,
}

impl Identity {
    /// Returns the owner of a reference, assuming that it is in this namespace.
    pub fn of_owner(owner: &OwnerRef, namespace: &Str) -> Self {
        Self {
            kind: owner.kind.clone(),
            api_version: owner.api_version.clone(),
            namespace: namespace.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        }
    }

    /// Returns true if a reference has these coordinates. The namespace is not compared: references have none.
    pub fn matches_reference(&self, owner: &OwnerRef) -> bool {
        (&owner.uid, &owner.name, &owner.kind, &owner.api_version)
            == (&self.uid, &self.name, &self.kind, &self.api_version)
    }

    /// Returns true if an object of this namespace may have this owner: the owner is in the same namespace, or
    /// cluster-scoped.
    pub fn may_own_in(&self, namespace: &str) -> bool {
        self.namespace.is_empty() || *self.namespace == *namespace
    }

    /// Returns the namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// Formats the identity as upstream's events do.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, api_version, namespace, name, uid } = self;
        write!(f, "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}

/// The owners most recently found not to exist. A UID is never reused, so an absent owner stays absent. Discarding an
/// entry costs another read.
#[derive(Debug, Default)]
pub struct AbsentOwners {
    known: HashSet<Identity>,
    order: VecDeque<Identity>,
}

impl AbsentOwners {
    /// Maximum number of owners: enough for a large namespace that is deleted as a whole.
    const CAPACITY: usize = 4096;

    /// Records that no object has these coordinates.
    pub fn add(&mut self, identity: Identity) {
        if !self.known.insert(identity.clone()) {
            return;
        }
        self.order.push_back(identity);
        if self.order.len() > Self::CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Returns true if it is recorded that no object has these coordinates.
    pub fn contains(&self, identity: &Identity) -> bool {
        self.known.contains(identity)
    }
}
