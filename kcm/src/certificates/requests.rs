//! Queue and write of the controllers that reconcile CertificateSigningRequests.

use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{CertificateSigningRequest, Kind};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, ReconcileError};
use runtime::write::Writer;

/// Delay of the first retry. Upstream: pkg/controller/certificates, NewCertificateController.
const BASE_DELAY: Duration = Duration::from_millis(200);

/// The cached requests, and the client with which one controller writes them.
pub struct Requests {
    store: Arc<Store<CertificateSigningRequest>>,
    queue: Arc<Queue<ObjectKey>>,
    consistency: Consistency,
    /// The controller's client.
    pub writer: Writer,
}

impl Requests {
    /// Subscribes a new queue to all changes of requests except deletions. The controller writes as `service_account`.
    pub fn subscribe(manager: &Manager, service_account: &'static str) -> Self {
        let queue = Queue::new(QueueOptions { base_delay: BASE_DELAY, ..QueueOptions::named("certificate") });
        let store = manager.registry().store::<CertificateSigningRequest>();
        let changed = queue.clone();
        store.subscribe(move |change| {
            if let Some(request) = change.new {
                changed.add(request.meta.key());
            }
        });
        Self { store, queue, consistency: Consistency::default(), writer: manager.writer(service_account) }
    }

    /// Returns the queue of requests.
    pub fn queue(&self) -> Arc<Queue<ObjectKey>> {
        self.queue.clone()
    }

    /// Reads a request, once the cache contains the controller's last write to it.
    pub fn read(&self, key: &ObjectKey) -> Cached<CertificateSigningRequest> {
        self.consistency.read(key, &self.store, self.queue.waker(key))
    }

    /// Replaces a subresource of a request by `object`, which contains the version that it is based on.
    ///
    /// # Errors
    /// When the write fails for another reason than a change or deletion of the request.
    pub async fn replace(&self, key: &ObjectKey, subresource: &str, object: &[u8]) -> Result<Outcome, ReconcileError> {
        match self.writer.replace(&CertificateSigningRequest::RESOURCE, key, Some(subresource), object).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(key, &self.store, meta.version);
                }
                Ok(Outcome::Done)
            }
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) => Err(error.into()),
        }
    }
}
