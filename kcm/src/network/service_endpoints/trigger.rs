//! The time of the change that the next write of a Service's endpoints publishes.
//!
//! Clients use it to measure the delay of network programming. Upstream: k8s.io/endpointslice/util, TriggerTimeTracker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::{Pod, Service, Time};
use runtime::store::index_key;

/// The state of all Services.
#[derive(Debug, Default)]
pub struct TriggerTimes {
    known: Mutex<HashMap<ObjectKey, ServiceTimes>>,
}

#[derive(Debug, Default)]
struct ServiceTimes {
    service: Time,
    /// Last change of readiness, by the hash of the pod's uid.
    pods: HashMap<u64, Time>,
    /// The time of the first change that is not written yet.
    unwritten: Option<Time>,
}

impl TriggerTimes {
    /// Applies the current Service and its pods. Returns the time for the next write. Unwritten changes accumulate
    /// until [`TriggerTimes::settled`].
    pub fn observe(&self, key: &ObjectKey, service: &Service, pods: &[Arc<Pod>]) -> Option<Time> {
        let mut all = self.lock();
        let is_new = !all.contains_key(key);
        let known = all.entry(key.clone()).or_default();
        let mut first_change = known.unwritten;
        let mut changed = |time: Time| first_change = Some(first_change.map_or(time, |first| first.min(time)));
        let mut now = HashMap::with_capacity(pods.len());
        for pod in pods.iter().filter(|pod| !pod.ready_since.is_zero()) {
            let id = index_key(&pod.meta.uid);
            if known.pods.get(&id).is_none_or(|before| *before < pod.ready_since) {
                changed(pod.ready_since);
            }
            now.insert(id, pod.ready_since);
        }
        if known.service < service.meta.created {
            changed(service.meta.created);
        }
        known.pods = now;
        known.service = service.meta.created;
        known.unwritten = if is_new { Some(service.meta.created) } else { first_change };
        known.unwritten
    }

    /// Records that the endpoints contain all changes so far.
    pub fn settled(&self, key: &ObjectKey) {
        if let Some(known) = self.lock().get_mut(key) {
            known.unwritten = None;
        }
    }

    /// Forgets a deleted Service.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, ServiceTimes>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Formats a time for the annotation.
pub fn text(time: Time) -> Option<String> {
    Timestamp::from_second(time.0).ok().map(|time| time.to_string())
}
