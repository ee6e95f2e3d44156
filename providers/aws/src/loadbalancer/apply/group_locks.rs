//! The locks of groups of Services that share a load balancer, and the resources that this process has created for each
//! group.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use providers::LoadBalancerId;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::loadbalancer::observed::balancer_state::VISIBLE;
use crate::loadbalancer::observed::misses::Misses;

/// Resources of a group that this process has created, and that may not be listed yet; and the group's Services.
#[derive(Debug, Default)]
pub(super) struct Created {
    /// Uids of Services that may have listeners on the group's load balancer that reads do not return yet, with the
    /// time of the last change.
    pub(super) users: BTreeMap<String, Instant>,
    /// The time at which a Service last left the group: older listings may contain its target groups.
    pub(super) last_left: Option<Instant>,
    /// Number of consecutive reads without any listener.
    unused_reads: Misses,
    /// Number of listings that lacked the load balancer that this process has created.
    unlisted: Misses,
    /// The time at which this process created the load balancer.
    pub(super) balancer: Option<Instant>,
    /// The security group, with the time at which this process created it.
    pub(super) security_group: Option<(String, Instant)>,
}

impl Created {
    /// Returns true if another Service may have a listener that reads do not return yet.
    pub(super) fn is_used_by_another(&self, id: &LoadBalancerId, now: Instant) -> bool {
        self.users.iter().any(|(uid, at)| *uid != id.uid && now < *at + VISIBLE)
    }

    /// Counts a read without any listener. Returns true if an earlier process may have created a listener that reads do
    /// not return yet: only a few reads returned no listener, and it is before `all_visible`, the time from which reads
    /// return everything that earlier processes have created.
    pub(super) fn may_have_invisible_listener(&mut self, now: Instant, all_visible: Instant) -> bool {
        now < all_visible && self.unused_reads.may_appear()
    }

    /// Counts a listing without the load balancer. Returns true if this process has just created the load balancer, so
    /// that it may not be visible yet.
    pub(super) fn may_have_invisible_balancer(&mut self, now: Instant) -> bool {
        self.balancer.is_some_and(|created| now < created + VISIBLE) && self.unlisted.may_appear()
    }

    /// Records that a read has returned listeners.
    pub(super) fn note_listeners(&mut self) {
        self.unused_reads = Misses::default();
    }

    /// Records that a Service's listeners may have been created.
    pub(super) fn add_user(&mut self, id: &LoadBalancerId, now: Instant) {
        self.users.retain(|_, at| now < *at + VISIBLE);
        self.users.insert(id.uid.clone(), now);
    }

    /// Records that a Service has no listeners.
    pub(super) fn remove_user(&mut self, id: &LoadBalancerId) {
        self.users.remove(&id.uid);
    }
}

/// The locks of all groups, by the name of the load balancer.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<HashMap<String, Arc<tokio::sync::Mutex<Created>>>>);

impl Groups {
    /// Waits until no other call works on the group.
    pub(super) async fn lock(&self, balancer: &str) -> OwnedMutexGuard<Created> {
        let lock = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(balancer.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }
}
