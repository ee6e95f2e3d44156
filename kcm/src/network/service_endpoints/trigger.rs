//! The time of the change that the next write of a Service's endpoints publishes.
//!
//! Clients use it to measure the delay of network programming. Upstream: k8s.io/endpointslice/util, TriggerTimeTracker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::{Pod, Service, Time};
use runtime::lock::lock;
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

    /// Removes a deleted Service.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, ServiceTimes>> {
        lock(&self.known)
    }
}

/// Formats a time for the annotation.
pub fn text(time: Time) -> Option<String> {
    Timestamp::from_second(time.0).ok().map(|time| time.to_string())
}

#[cfg(test)]
mod tests {
    use kinds::schema::object_meta;
    use kinds::wire::Put;
    use kinds::{Decode, Kind, Sections};

    use super::*;

    fn named<K: Kind>(name: &str, created: i64) -> K {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::UID, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            Time(created).put(meta, object_meta::CREATION_TIMESTAMP);
        });
        K::decode(&Decode { interner: Arc::default(), sections: Sections::default() }, &object).expect("well-formed")
    }

    /// Returns a pod that has been ready, or not ready, since this time.
    fn pod(name: &str, since: i64) -> Arc<Pod> {
        let mut pod: Pod = named(name, 1);
        pod.ready_since = Time(since);
        Arc::new(pod)
    }

    #[test]
    fn first_change_since_the_last_write_is_published() {
        let times = TriggerTimes::default();
        let key = ObjectKey::new("ns", "web");
        let service = named::<Service>("web", 10);
        let observe = |pods: &[Arc<Pod>]| times.observe(&key, &service, pods).map(|time| time.0);
        assert_eq!(observe(&[pod("a", 20)]), Some(10), "a new Service is the change");
        times.settled(&key);
        assert_eq!(observe(&[pod("a", 20)]), None, "nothing has changed");
        assert_eq!(observe(&[pod("a", 20), pod("b", 40)]), Some(40), "a new pod");
        assert_eq!(observe(&[pod("a", 30), pod("b", 40)]), Some(30), "an earlier change, not written yet");
        assert_eq!(observe(&[pod("a", 30), pod("b", 50)]), Some(30), "a later change, not written yet");
        times.settled(&key);
        assert_eq!(observe(&[pod("a", 30)]), None, "a deleted pod has no time of its change");
        assert_eq!(observe(&[pod("a", 30), pod("new", 0)]), None, "a pod without readiness");
        assert_eq!(observe(&[pod("a", 29)]), None, "a time before the last known one");
        let replaced = named::<Service>("web", 60);
        assert_eq!(times.observe(&key, &replaced, &[]), Some(Time(60)), "another Service with the same name");
        times.forget(&key);
        assert_eq!(observe(&[pod("a", 70)]), Some(10));
        assert_eq!(text(Time(0)).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(text(Time(i64::MAX)), None);
    }
}
