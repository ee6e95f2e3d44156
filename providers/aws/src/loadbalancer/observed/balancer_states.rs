//! The recorded states of all Services' load balancers, each with a lock, so that one call at a time works on a load
//! balancer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use providers::LoadBalancerId;
use tokio::sync::OwnedMutexGuard;

use crate::loadbalancer::observed::balancer_state::BalancerState;

type States = HashMap<LoadBalancerId, Arc<tokio::sync::Mutex<BalancerState>>>;

/// The states of all Services' load balancers.
#[derive(Debug, Default)]
pub(crate) struct BalancerStates(Mutex<States>);

/// The state of one Service's load balancer, for the only call that works on it.
pub(crate) type LockedState = OwnedMutexGuard<BalancerState>;

impl BalancerStates {
    fn all(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, id: &LoadBalancerId) -> Arc<tokio::sync::Mutex<BalancerState>> {
        self.all().entry(id.clone()).or_default().clone()
    }

    /// Waits until no other call works on a Service's load balancer, and returns its state.
    ///
    /// While a call waits, a deletion may remove the state. A later call would then lock a new state: both calls would
    /// run concurrently, and the records of the first one would be lost.
    pub(crate) async fn lock(&self, id: &LoadBalancerId) -> LockedState {
        loop {
            let state = self.get(id).lock_owned().await;
            if self.is_current(id, &state) {
                return state;
            }
        }
    }

    /// Returns the state of a Service's load balancer if no other call works on it.
    pub(crate) fn try_lock(&self, id: &LoadBalancerId) -> Option<LockedState> {
        self.get(id).try_lock_owned().ok().filter(|state| self.is_current(id, state))
    }

    fn is_current(&self, id: &LoadBalancerId, state: &LockedState) -> bool {
        self.all().get(id).is_some_and(|current| Arc::ptr_eq(current, OwnedMutexGuard::mutex(state)))
    }

    /// Removes the state of a Service whose load balancer is deleted.
    pub(crate) fn remove(&self, id: &LoadBalancerId, state: LockedState) {
        self.all().remove(id);
        drop(state);
    }

    /// Returns the Services that may have load balancers.
    pub(crate) fn ids(&self) -> Vec<LoadBalancerId> {
        self.all().keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadbalancer::samples;

    /// The outcome does not depend on the order of tasks: only the named future is polled.
    #[tokio::test]
    async fn call_that_waited_for_a_removed_state_excludes_later_calls() {
        let (states, id) = (BalancerStates::default(), samples::id());
        let deletion = states.lock(&id).await;
        let mut waiting = Box::pin(states.lock(&id));
        assert!(futures::poll!(&mut waiting).is_pending(), "a deletion works on it");
        states.remove(&id, deletion);
        let first = waiting.await;
        assert!(futures::poll!(Box::pin(states.lock(&id))).is_pending(), "two calls work on the same load balancer");
        assert!(states.try_lock(&id).is_none() && states.ids() == [id.clone()]);
        drop(first);
        assert!(states.try_lock(&id).is_some());
    }
}
