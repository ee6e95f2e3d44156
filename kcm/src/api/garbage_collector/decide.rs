//! Policy: the action for an object, given the state of its owners.

use std::collections::HashSet;

use kinds::{Str, Uid};
use runtime::write::Propagation;

/// The finalizer of an object that waits for the deletion of its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an object that waits until its dependents are orphaned.
pub const ORPHAN: &str = "orphan";

/// The state of an owner on the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner exists, and its dependents stay.
    Solid,
    /// The owner does not exist.
    Dangling,
    /// The owner is being deleted and waits for the deletion of its dependents.
    Waiting,
}

/// The action for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The object is kept unchanged.
    Keep,
    /// The object stays; its references to these owners are removed.
    DropReferences(Vec<Uid>),
    /// The object is deleted after its own dependents. If there may be a cycle, it first stops blocking the deletion of
    /// its owners.
    DeleteForeground {
        /// Stop blocking the deletion of the owners.
        unblock: bool,
    },
    /// The object is deleted.
    Delete(Propagation),
}

/// Returns the action for an object, given the states of its owners. `in_cycle` is called only if no owner is solid,
/// one waits, and the object has dependents. Upstream: pkg/controller/garbagecollector, attemptToDeleteItem.
pub fn plan(
    owners: &[(Uid, OwnerState)],
    finalizers: &[Str],
    has_dependents: bool,
    in_cycle: impl FnOnce() -> bool,
) -> Plan {
    let any = |wanted: OwnerState| owners.iter().any(|(_, state)| *state == wanted);
    if owners.is_empty() {
        return Plan::Keep;
    }
    if any(OwnerState::Solid) {
        // References are compared by uid: a wrong reference is kept if a right one has the same uid.
        let solid = owners.iter().filter(|(_, state)| *state == OwnerState::Solid);
        let solid: HashSet<&Uid> = solid.map(|(uid, _)| uid).collect();
        let others: Vec<Uid> = owners.iter().map(|(uid, _)| uid).filter(|uid| !solid.contains(uid)).cloned().collect();
        return if others.is_empty() { Plan::Keep } else { Plan::DropReferences(others) };
    }
    if any(OwnerState::Waiting) && has_dependents {
        return Plan::DeleteForeground { unblock: in_cycle() };
    }
    let has = |finalizer: &str| finalizers.iter().any(|found| **found == *finalizer);
    Plan::Delete(if has(ORPHAN) {
        Propagation::Orphan
    } else if has(FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}
