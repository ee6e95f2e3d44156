//! podcertificaterequest-cleaner-controller: deletes PodCertificateRequests 15 minutes after their creation, regardless
//! of their state.
//!
//! A kubelet that still needs its certificate creates a new request. Upstream: pkg/controller/certificates/cleaner,
//! PCRCleanerController.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kinds::meta::{Meta, ObjectKey};
use kinds::{Kind, PodCertificateRequest, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Store;
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;

use crate::context::{Clock, Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "podcertificaterequest-cleaner-controller",
    service_account: "podcertificaterequestcleaner",
    requires: &[PodCertificateRequest::RESOURCE],
    watches,
    writes: &[Write { verb: Verb::Delete, group: "certificates.k8s.io", resource: "podcertificaterequests" }],
    queues: &[QueueKeys::of("podcertificaterequest_cleaner", "PodCertificateRequest")],
    start,
    ..Descriptor::NONE
};

/// Seconds for which a request is kept.
const KEPT_SECONDS: i64 = 15 * 60;

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<PodCertificateRequest>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("podcertificaterequest_cleaner"));
    let requests = manager.registry().store::<PodCertificateRequest>();
    let created = queue.clone();
    requests.subscribe(move |change| {
        let same = change.old.zip(change.new).is_some_and(|(old, new)| old.meta.uid == new.meta.uid);
        if let Some(request) = change.new.filter(|_| !same) {
            created.add(request.meta.key());
        }
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let cleaner = Arc::new(Cleaner { requests, writer, clock: context.clock.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, cleaner);
}

/// Returns the time for which a request is still kept; zero if it is due for deletion.
fn remaining(request: &Meta, now: Timestamp) -> Duration {
    let left = request.created.0.saturating_add(KEPT_SECONDS).saturating_sub(now.as_second());
    Duration::from_secs(u64::try_from(left).unwrap_or(0))
}

struct Cleaner {
    requests: Arc<Store<PodCertificateRequest>>,
    writer: Writer,
    clock: Clock,
}

impl Reconcile for Cleaner {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Cleaner {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(request) = self.requests.get(key).filter(|request| !request.meta.is_deleting()) else {
            return Ok(Outcome::Done);
        };
        let left = remaining(&request.meta, (self.clock)());
        if !left.is_zero() {
            return Ok(Outcome::RequeueAfter(left));
        }
        match self.writer.delete(&PodCertificateRequest::RESOURCE, key, &request.meta.uid).await {
            // A new request of the same name has its own deadline: its creation adds the key again.
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            _ => Ok(Outcome::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kinds::schema::{object_meta, pod_certificate_request};
    use kinds::wire::Put;
    use kinds::{Decode, Time};

    #[test]
    fn request_is_kept_for_15_minutes() {
        let mut object = Vec::new();
        object.put_message(pod_certificate_request::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "a");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            Time(1000).put(meta, object_meta::CREATION_TIMESTAMP);
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let request = PodCertificateRequest::decode(&context, &object).expect("well-formed");
        for (now, left) in [(0, 1900), (1000, 900), (1899, 1), (1900, 0), (9999, 0)] {
            let now = Timestamp::from_second(now).expect("a time");
            assert_eq!(remaining(&request.meta, now), Duration::from_secs(left), "{now}");
        }
    }
}
