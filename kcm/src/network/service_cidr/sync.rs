//! Reconciles one range of Service addresses: adds the finalizer and the Ready condition, or removes the finalizer once
//! nothing needs the range.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{IpAddress, Kind, ServiceCidr};
use runtime::consistency::Consistency;
use runtime::events::{EventType, ObjectReference, Recorder};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{ObjectResponse, WriteError, Writer};
use serde_json::{Value, json};
use tracing::info;

use super::NAME;
use super::decide::{self, FINALIZER, READY, Readiness, TERMINATING};
use crate::context::Clock;

/// The controller's state: the ranges from which Services get addresses.
pub struct Ranges {
    pub ranges: Arc<Store<ServiceCidr>>,
    pub addresses: Arc<Store<IpAddress>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Consistency,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    /// For each range, the address that prevented its deletion at the last sync. While this address needs the range, no
    /// other is checked.
    pub blocking_address: Mutex<HashMap<ObjectKey, ObjectKey>>,
}

impl Reconcile for Ranges {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Ranges {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let range = match self.consistency.read(key, &self.ranges, self.queue.waker(key)) {
            Cached::Current(range) => range,
            Cached::Absent => {
                self.set_blocking_address(key, None);
                return Ok(Outcome::Done);
            }
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        if range.meta.is_deleting() { self.release(key, &range).await } else { self.hold(key, &range).await }
    }

    async fn hold(&self, key: &ObjectKey, range: &ServiceCidr) -> Result<Outcome, ReconcileError> {
        if !decide::has_finalizer(&range.meta) {
            self.patch(key, range, json!({"finalizers": [FINALIZER]})).await?;
        }
        self.write_condition(key, range, READY).await.inspect_err(|_| {
            let about = ObjectReference {
                api_version: "networking.k8s.io/v1".into(),
                kind: ServiceCidr::RESOURCE.kind.into(),
                name: range.meta.name.clone(),
                uid: range.meta.uid.to_string().into(),
                ..ObjectReference::default()
            };
            let message = "The ServiceCIDR Status can not be set to Ready=True".to_owned();
            self.recorder.event(&about, EventType::Warning, "KubernetesServiceCIDRError", message);
        })?;
        Ok(Outcome::Done)
    }

    async fn release(&self, key: &ObjectKey, range: &ServiceCidr) -> Result<Outcome, ReconcileError> {
        let unreadable = self.ranges.undecodable() + self.addresses.undecodable();
        if unreadable > 0 {
            let problem = format!("keeping the finalizer while {unreadable} objects cannot be decoded (see the log)");
            return Err(ReconcileError::new(problem));
        }
        let blocking_address = self.find_orphaned_address(key, range);
        self.set_blocking_address(key, blocking_address.clone());
        if let Some(address) = blocking_address {
            info!(range = &*key.name, address = &*address.name, "keeping the finalizer: a Service needs this range");
            // The condition is written even if only another client's finalizer keeps the range.
            self.write_condition(key, range, TERMINATING).await?;
            return Ok(Outcome::Done);
        }
        if !decide::has_finalizer(&range.meta) {
            return Ok(Outcome::Done);
        }
        let left = decide::grace_left(&range.meta, (self.clock)());
        if !left.is_zero() {
            return Ok(Outcome::RequeueAfter(left));
        }
        self.patch(key, range, json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]})).await?;
        Ok(Outcome::Done)
    }

    /// Returns the address of a Service that no other range contains. Upstream: pkg/controller/servicecidrs,
    /// canDeleteCIDR.
    fn find_orphaned_address(&self, key: &ObjectKey, range: &ServiceCidr) -> Option<ObjectKey> {
        let ranges = self.ranges.all();
        if decide::has_parents(range, &ranges) {
            return None;
        }
        let needs = |address: &Arc<IpAddress>| {
            decide::service_address(address).is_some_and(|address| decide::needs(address, range, &ranges))
        };
        let before = lock(&self.blocking_address).get(key).cloned();
        let found = before.and_then(|before| self.addresses.get(&before)).filter(needs);
        found.or_else(|| self.addresses.all().into_iter().find(needs)).map(|address| address.meta.key())
    }

    fn set_blocking_address(&self, key: &ObjectKey, address: Option<ObjectKey>) {
        let mut blocking_address = lock(&self.blocking_address);
        match address {
            Some(address) => drop(blocking_address.insert(key.clone(), address)),
            None => drop(blocking_address.remove(key)),
        }
    }

    async fn write_condition(
        &self,
        key: &ObjectKey,
        range: &ServiceCidr,
        readiness: Readiness,
    ) -> Result<(), WriteError> {
        if readiness.is_reported_by(range) {
            return Ok(());
        }
        let object = readiness.application(&range.meta, (self.clock)());
        let response = self.writer.apply(&ServiceCidr::RESOURCE, key, Some("status"), NAME, &object).await;
        self.wrote(key, response)
    }

    /// Patches the metadata of this range only: another range may have its name in the meantime.
    async fn patch(&self, key: &ObjectKey, range: &ServiceCidr, mut metadata: Value) -> Result<(), WriteError> {
        metadata["uid"] = range.meta.uid.to_string().into();
        let response = self.writer.patch(&ServiceCidr::RESOURCE, key, &json!({ "metadata": metadata })).await;
        self.wrote(key, response)
    }

    /// Returns the result of a write. A range that no longer exists is not a failure.
    fn wrote(&self, key: &ObjectKey, response: Result<ObjectResponse, WriteError>) -> Result<(), WriteError> {
        match response {
            Ok(response) => {
                self.consistency.wrote(key, &self.ranges, response.meta()?.version);
                Ok(())
            }
            Err(error) if error.is_object_deleted() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use kinds::schema::{ip_address, object_meta, service_cidr, service_cidr_spec};
    use kinds::wire::Put;
    use kinds::{Decode, Sections, Time, envelope};
    use runtime::queue::QueueOptions;
    use runtime::testing::{NoEvents, filled_store, writer};

    use super::*;

    fn decoding() -> Decode {
        Decode { interner: Arc::default(), sections: Sections::default() }
    }

    /// Reconciles a range that is being deleted. Returns the outcome and the requests.
    async fn release(finalizer: &str, addresses: &[&str]) -> (Outcome, Vec<String>) {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let sent = requests.clone();
        let mut object = Vec::new();
        object.put_message(service_cidr::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "range");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_str(object_meta::FINALIZERS, finalizer);
            Time(1000).put(meta, object_meta::DELETION_TIMESTAMP);
        });
        object.put_message(service_cidr::SPEC, |spec| spec.put_str(service_cidr_spec::CIDRS, "10.0.0.0/24"));
        let range = ServiceCidr::decode(&decoding(), &object).expect("well-formed");
        let address = |name: &&str| {
            let mut object = Vec::new();
            object.put_message(ip_address::METADATA, |meta| {
                meta.put_str(object_meta::NAME, name);
                meta.put_str(object_meta::RESOURCE_VERSION, "1");
                meta.put_entry(object_meta::LABELS, "ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
            });
            IpAddress::decode(&decoding(), &object).expect("well-formed")
        };
        let writer = writer(move |method, path| {
            let path = path.split('?').next().unwrap_or_default();
            lock(&sent).push(format!("{method} {}", path.rsplit("servicecidrs/").next().unwrap_or_default()));
            (200, envelope::wrap(&ServiceCidr::RESOURCE, &object))
        });
        let ranges = Ranges {
            ranges: Arc::new(filled_store(decoding(), vec![], [range])),
            addresses: Arc::new(filled_store(decoding(), vec![], addresses.iter().map(address))),
            writer: writer.await,
            recorder: Recorder::new(NAME, Arc::new(NoEvents)).0,
            consistency: Consistency::default(),
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(|| Timestamp::from_second(1004).expect("a time")),
            blocking_address: Mutex::default(),
        };
        let outcome = ranges.reconcile(&ObjectKey::new("", "range")).await.expect("no error");
        let requests = lock(&requests).clone();
        (outcome, requests)
    }

    #[tokio::test]
    async fn needed_range_is_reported_as_terminating_when_another_finalizer_keeps_it() {
        for finalizer in [FINALIZER, "another/finalizer"] {
            let (outcome, requests) = release(finalizer, &["10.0.0.1"]).await;
            assert!(matches!(outcome, Outcome::Done), "{finalizer}");
            assert_eq!(requests, ["PATCH range/status"], "{finalizer}");
        }
    }

    #[tokio::test]
    async fn unneeded_range_is_only_written_to_remove_the_controllers_finalizer() {
        let (outcome, requests) = release("another/finalizer", &["10.0.1.1"]).await;
        assert!(matches!(outcome, Outcome::Done) && requests.is_empty(), "{requests:?}");
        let (outcome, requests) = release(FINALIZER, &["10.0.1.1"]).await;
        assert!(matches!(outcome, Outcome::RequeueAfter(left) if left == Duration::from_secs(6)), "{outcome:?}");
        assert!(requests.is_empty(), "{requests:?}");
    }
}
