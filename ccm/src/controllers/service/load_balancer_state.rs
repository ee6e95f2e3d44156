//! The state of one Service's load balancer between reconciles: resources that may exist, the last action, and
//! failures.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kinds::Uid;
use kinds::meta::ObjectKey;
use kinds::service::Ingress;
use providers::{LoadBalancerId, LoadBalancerSpec, Targeting, Targets};
use runtime::lock::lock;
use tokio::time::Instant;

use crate::cloud::retry::LastReport;

/// The state of one Service's load balancer.
#[derive(Debug, Clone, Default)]
pub struct LoadBalancerState {
    /// The uid of the Service.
    pub uid: Uid,
    /// The load balancer that may exist; set before the first call that could create a part of it.
    pub load_balancer: Option<LoadBalancerId>,
    /// In this leadership term, the API server itself has confirmed the finalizer.
    pub is_finalizer_confirmed: bool,
    /// The kind of targets that the load balancer has; set before they are gathered, so that no change is missed.
    pub targeting: Option<Targeting>,
    /// The kind of targets has changed since the load balancer was last as requested: until it is again, it may have
    /// targets of both kinds, and changes of nodes and of endpoints requeue the Service.
    pub has_both_kinds: bool,
    /// The request is invalid, and the targets of the existing load balancer are updated nevertheless. The kind of
    /// targets is unknown, so changes of nodes and of endpoints requeue the Service. Set before the targets are
    /// gathered, too.
    pub follows: bool,
    /// The names of the other Services that this load balancer sends traffic to, as the provider returned them for the
    /// invalid request.
    pub observed_others: BTreeSet<String>,
    /// The other Services that the load balancer sends traffic to; set before they are read, so that no change is
    /// missed.
    pub others: BTreeSet<ObjectKey>,
    /// The load balancer as last ensured. Unset while a call runs, and after a failed call.
    pub ensured: Option<EnsuredLoadBalancer>,
    /// The last request; set before the first call for it.
    pub last_spec: Option<Arc<LoadBalancerSpec>>,
    /// The kind of targets of `last_spec`.
    pub last_targeting: Option<Targeting>,
    /// The targets of the last call. Unset if an update during a pause, or for an invalid request, failed. During a
    /// pause, only targets that differ from these are sent, and none if the cloud throttles.
    pub last_targets: Option<Targets>,
    /// The addresses for the status, once known.
    pub ingress: Option<Vec<Ingress>>,
    /// The provider's annotations for the Service, once known.
    pub annotations: Option<BTreeMap<String, String>>,
    /// Types of the pod conditions that report the load balancer's targets; `None`: the cloud has not returned them
    /// yet.
    pub gates: Option<BTreeSet<String>>,
    /// Failed attempts to set these conditions after the load balancer was deleted.
    pub failed_releases: u32,
    /// The operation that an event announced and that is not finished yet.
    pub announced: Option<Announced>,
    /// Consecutive failed calls.
    pub failures: u32,
    /// The pause after a failed call: the same request is not retried before it ends. Another request, and new targets
    /// of an existing load balancer, wait only if the cloud throttles.
    pub pause: Option<Pause>,
    /// The last event about a failed call or write.
    pub last_report: LastReport,
    /// The last event about a request that cannot be fulfilled; empty while the request is valid.
    pub last_rejection: LastReport,
    /// The provider's last warnings.
    pub warnings: Vec<String>,
}

/// A load balancer that is as requested.
#[derive(Debug, Clone, PartialEq)]
pub struct EnsuredLoadBalancer {
    /// The request.
    pub spec: Arc<LoadBalancerSpec>,
    /// Its targets.
    pub targets: Targets,
    /// Time of the next ensure, which reverts changes by other clients.
    pub due: Instant,
}

/// An operation announced by an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Announced {
    /// A load balancer is created or changed according to this request.
    Ensuring(Arc<LoadBalancerSpec>),
    /// The load balancer is deleted.
    Deleting,
    /// The same, but another controller makes the Service's load balancer, and the cloud has none of this one: no event
    /// is recorded.
    DeletingNothing,
}

/// The pause after a failure.
#[derive(Debug, Clone)]
pub struct Pause {
    /// The end of the pause; `None`: the pause ends when the request changes.
    pub until: Option<Instant>,
    /// The request that failed; `None`: a deletion.
    pub request: Option<Arc<LoadBalancerSpec>>,
    /// The cloud throttles: the pause applies to every request.
    pub throttled: bool,
}

impl LoadBalancerState {
    /// Resets the state if it belongs to an earlier Service with the same name.
    pub fn reset_for(&mut self, uid: &Uid) {
        if self.uid != *uid {
            *self = Self { uid: uid.clone(), ..Self::default() };
        }
    }

    /// Returns true if a deletion has begun.
    pub fn is_deleting(&self) -> bool {
        matches!(self.announced, Some(Announced::Deleting | Announced::DeletingNothing))
    }

    /// Clears the failures and the pause.
    pub fn clear_failures(&mut self) {
        self.failures = 0;
        self.pause = None;
        self.last_report = LastReport::default();
    }

    /// Returns the remaining pause for this request: `None` if calls are allowed, `Some(None)` if the pause ends only
    /// when the request changes.
    pub fn remaining_pause(&self, request: Option<&LoadBalancerSpec>, now: Instant) -> Option<Option<Duration>> {
        let pause = self.pause.as_ref().filter(|pause| pause.throttled || pause.request.as_deref() == request)?;
        match pause.until {
            None => Some(None),
            Some(until) => Some(Some(until.checked_duration_since(now).filter(|left| !left.is_zero())?)),
        }
    }

    /// Returns true if the failed call was throttled. Then the load balancer is neither changed nor deleted before the
    /// pause ends.
    pub fn is_throttled(&self) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.throttled)
    }

    /// Returns true if the load balancer has, or may have, targets of this kind.
    fn has(&self, targeting: Targeting) -> bool {
        self.follows || self.has_both_kinds || self.targeting == Some(targeting)
    }

    /// Returns true if the state need not be stored.
    fn is_empty(&self) -> bool {
        self.load_balancer.is_none()
            && self.targeting.is_none()
            && !self.follows
            && self.others.is_empty()
            && self.pause.is_none()
            && self.last_report.is_empty()
            && self.last_rejection.is_empty()
    }
}

/// The states of all Services' load balancers.
#[derive(Debug, Default)]
pub struct LoadBalancerStates(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    states: HashMap<ObjectKey, LoadBalancerState>,
    /// For each Service, the Services that have it among their `others`.
    referring: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl All {
    /// Replaces the other Services to which a Service's load balancer sends traffic.
    fn set_references(&mut self, key: &ObjectKey, others: &BTreeSet<ObjectKey>) {
        let before = self.states.get(key).map(|state| state.others.clone()).unwrap_or_default();
        for dropped in before.difference(others) {
            if let Some(referring) = self.referring.get_mut(dropped) {
                referring.remove(key);
            }
            if self.referring.get(dropped).is_some_and(BTreeSet::is_empty) {
                self.referring.remove(dropped);
            }
        }
        for other in others.difference(&before) {
            self.referring.entry(other.clone()).or_default().insert(key.clone());
        }
    }
}

impl LoadBalancerStates {
    fn lock(&self) -> MutexGuard<'_, All> {
        lock(&self.0)
    }

    /// Returns the state of a Service's load balancer.
    pub fn get(&self, key: &ObjectKey) -> LoadBalancerState {
        self.lock().states.get(key).cloned().unwrap_or_default()
    }

    /// Replaces the state of a Service's load balancer.
    pub fn put(&self, key: &ObjectKey, state: LoadBalancerState) {
        let mut all = self.lock();
        all.set_references(key, &state.others);
        if state.is_empty() {
            all.states.remove(key);
        } else {
            all.states.insert(key.clone(), state);
        }
    }

    /// Returns the Services whose load balancers have, or may have, this Service's endpoints as targets: itself, and
    /// those that refer to it.
    pub fn with_endpoints_of(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        let all = self.lock();
        let has_endpoints =
            |key: &&ObjectKey| all.states.get(*key).is_some_and(|state| state.has(Targeting::Endpoints));
        let referring = all.referring.get(key).into_iter().flatten().filter(|one| *one != key);
        std::iter::once(key).chain(referring).filter(has_endpoints).cloned().collect()
    }

    /// Returns the Services whose load balancers also send traffic to this Service, or would if it existed.
    pub fn referring(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        self.lock().referring.get(key).into_iter().flatten().cloned().collect()
    }

    /// Returns true if any load balancer sends traffic to another Service.
    pub fn has_references(&self) -> bool {
        !self.lock().referring.is_empty()
    }

    /// Returns the Services whose load balancers have, or may have, nodes as targets.
    pub fn with_nodes(&self) -> Vec<ObjectKey> {
        let all = self.lock();
        let with = all.states.iter().filter(|(_, state)| state.has(Targeting::Nodes));
        with.map(|(key, _)| key.clone()).collect()
    }

    /// Returns true if a load balancer with this id may exist.
    pub fn may_exist(&self, id: &LoadBalancerId) -> bool {
        let key = ObjectKey::new(id.namespace.as_str(), id.name.as_str());
        self.lock().states.get(&key).is_some_and(|state| state.load_balancer.as_ref() == Some(id))
    }

    /// Returns the number of Services with a state.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lock().states.len()
    }
}
