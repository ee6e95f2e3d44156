//! What the API server returned for owners within the last second.
//!
//! Many dependents of one owner are checked together; without this memory each of them would read the owner again.
//! A result must not outlive a change of its owner: the checks that a deletion leads to are the only ones, so that a
//! dependent that is kept because of an older result would never be checked again. Every change of an object in the
//! graph therefore discards what was read of it, and what is being read while it changes.

use std::collections::HashMap;
use std::time::Duration;

use kinds::Uid;
use tokio::time::Instant;

use super::decide::Standing;
use super::identity::Identity;

/// Longest use of a result. Bounds what an owner can do that no watch shows.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The number of changes before a read began.
#[derive(Debug, Clone, Copy)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Read {
    identity: Identity,
    standing: Standing,
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

    /// Returns how the owner with these coordinates stood, if that is known and recent.
    pub fn get(&self, owner: &Identity, now: Instant) -> Option<Standing> {
        let read = self.reads.get(&owner.uid).filter(|read| read.identity == *owner)?;
        (now.saturating_duration_since(read.at) < MAX_AGE).then_some(read.standing)
    }

    /// Remembers a result, unless any object changed since its read began.
    pub fn add(&mut self, ticket: Ticket, owner: Identity, standing: Standing, now: Instant) {
        if ticket.0 != self.changes {
            return;
        }
        self.reads.retain(|_, read| now.saturating_duration_since(read.at) < MAX_AGE);
        self.reads.insert(owner.uid.clone(), Read { identity: owner, standing, at: now });
    }

    /// Discards what was read of an object, and what is being read of any.
    pub fn forget(&mut self, uid: &Uid) {
        self.changes += 1;
        self.reads.remove(uid);
    }
}
