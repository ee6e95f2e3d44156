//! Results of reading owners from the API server within the last second.
//!
//! Many dependents of one owner are checked together; without this cache each of them would read the owner again. A
//! result must not outlive a change of its owner: the change causes one check of each dependent. A dependent that this
//! check keeps because of an older result would never be checked again. Every change of an object in the graph
//! therefore discards results about it, and results of reads that are in progress.

use std::collections::HashMap;
use std::time::Duration;

use kinds::Uid;
use tokio::time::Instant;

use super::decide::OwnerState;
use super::identity::Identity;

/// Maximum age of a result. It limits the delay for owners that no watch delivers.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The number of changes before a read began.
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Read {
    identity: Identity,
    state: OwnerState,
    at: Instant,
}

/// Recent results of reading owners, by uid.
#[derive(Debug, Default)]
pub struct OwnerReads {
    reads: HashMap<Uid, Read>,
    changes: u64,
}

impl OwnerReads {
    /// Returns the ticket that [`OwnerReads::add`] needs. Take it before the owner is read.
    pub fn begin(&self) -> Ticket {
        Ticket(self.changes)
    }

    /// Returns the state of the owner with these coordinates, if it is known and recent.
    pub fn get(&self, owner: &Identity, now: Instant) -> Option<OwnerState> {
        let read = self.reads.get(&owner.uid).filter(|read| read.identity == *owner)?;
        (now.saturating_duration_since(read.at) < MAX_AGE).then_some(read.state)
    }

    /// Stores a result, unless any object changed since its read began.
    pub fn add(&mut self, ticket: Ticket, owner: Identity, state: OwnerState, now: Instant) {
        if ticket.0 != self.changes {
            return;
        }
        self.reads.retain(|_, read| now.saturating_duration_since(read.at) < MAX_AGE);
        self.reads.insert(owner.uid.clone(), Read { identity: owner, state, at: now });
    }

    /// Discards results about an object, and all results of reads in progress.
    pub fn forget(&mut self, uid: &Uid) {
        self.changes += 1;
        self.reads.remove(uid);
    }
}
