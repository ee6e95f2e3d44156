//! What to do about an object, from how its owners stand: all policy, no IO.

use kinds::{Str, Uid};
use runtime::write::Propagation;

use super::graph::{FOREGROUND, ORPHAN};

/// How an owner stands, as the server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It exists, and its dependents are to stay.
    Solid,
    /// It does not exist.
    Dangling,
    /// It is being deleted and waits for its dependents to go.
    Waiting,
}

/// What to do about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// It stays as it is.
    Keep,
    /// It stays, and its references to these owners go.
    DropReferences(Vec<Uid>),
    /// It goes after its own dependents; first it stops to block its owners if there may be a cycle.
    DeleteForeground {
        /// Stop to block the owners.
        unblock: bool,
    },
    /// It goes.
    Delete(Propagation),
}

/// Decides about an object with owners (pkg/controller/garbagecollector, attemptToDeleteItem). `in_cycle` is only
/// asked when it matters.
pub fn plan(
    owners: &[(Uid, Standing)],
    finalizers: &[Str],
    has_dependents: bool,
    in_cycle: impl FnOnce() -> bool,
) -> Plan {
    let any = |wanted: Standing| owners.iter().any(|(_, standing)| *standing == wanted);
    if owners.is_empty() {
        return Plan::Keep;
    }
    if any(Standing::Solid) {
        // References are compared by uid: a wrong one next to a right one of the same uid is kept.
        let is_solid = |uid: &Uid| owners.contains(&(uid.clone(), Standing::Solid));
        let others: Vec<Uid> = owners.iter().map(|(uid, _)| uid).filter(|uid| !is_solid(uid)).cloned().collect();
        return if others.is_empty() { Plan::Keep } else { Plan::DropReferences(others) };
    }
    if any(Standing::Waiting) && has_dependents {
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
