//! One reconcile of a driver whose slices have changed: the requests that wait for it are reconciled.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::ResourcePoolStatusRequest;
use kinds::meta::ObjectKey;
use runtime::queue::Queue;
use runtime::store::{Store, index_key};
use runtime::worker::{Outcome, Reconcile, ReconcileError};

use super::PENDING;

/// Reconciles drivers. A change of a slice adds one key to the queue of drivers, however many requests wait.
pub struct Drivers {
    /// All requests.
    pub requests: Arc<Store<ResourcePoolStatusRequest>>,
    /// The queue of requests.
    pub queue: Arc<Queue<ObjectKey>>,
}

impl Reconcile for Drivers {
    /// The name in the key is that of a driver.
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        for request in self.requests.by_index(&PENDING, index_key(&*key.name)) {
            self.queue.add(request.meta.key());
        }
        async { Ok(Outcome::Done) }.boxed()
    }
}
