//! One reconcile of a ResourcePoolStatusRequest: write its status, or delete it after it has expired.

use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::resource_claim::ResourceClaim;
use kinds::{DeviceTaintRule, Kind, ResourcePoolStatusRequest, ResourceSlice, Time};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::{Store, index_key};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tracing::{debug, info};

use super::decide::{PoolsStatus, pools_status, time_left};
use super::metrics::Metrics;
use super::{BY_ALLOCATED_DRIVER, BY_DRIVER, allocated_from};
use crate::context::Clock;

/// The controller's state.
pub struct Requests {
    /// All ResourcePoolStatusRequests.
    pub requests: Arc<Store<ResourcePoolStatusRequest>>,
    /// All ResourceSlices.
    pub slices: Arc<Store<ResourceSlice>>,
    /// All ResourceClaims.
    pub claims: Arc<Store<ResourceClaim>>,
    /// All DeviceTaintRules; `None` if the feature gate for rules is off.
    pub rules: Option<Arc<Store<DeviceTaintRule>>>,
    /// Sends the writes.
    pub writer: Writer,
    /// Writes by this process that the cache does not contain yet.
    pub consistency: Consistency,
    /// Keys of requests to reconcile.
    pub queue: Arc<Queue<ObjectKey>>,
    /// The current time.
    pub clock: Clock,
    /// Counts and durations of status writes.
    pub metrics: Arc<Metrics>,
}

impl Reconcile for Requests {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Requests {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let start = Instant::now();
        let (queue, requeued) = (self.queue.clone(), key.clone());
        if !self.consistency.caught_up(key, &self.requests, move || queue.add(requeued)) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(request) = self.requests.get(key) else {
            self.consistency.forget(key);
            return Ok(Outcome::Done);
        };
        let left = time_left(&request, (self.clock)());
        if left.is_zero() {
            info!(request = %key, "deleting expired ResourcePoolStatusRequest");
            let deleted = self.writer.delete(&ResourcePoolStatusRequest::RESOURCE, key, &request.meta.uid).await;
            return match deleted {
                Err(error) if !error.is_object_deleted() => Err(error.into()),
                _ => Ok(Outcome::Done),
            };
        }
        if request.completed.is_none() && !request.meta.is_deleting() {
            match self.status(&request)? {
                Some(status) => self.write(&request, &status, start).await?,
                None => debug!(request = %key, "waiting for slices: a pool is incomplete"),
            }
        }
        Ok(Outcome::RequeueAfter(left))
    }

    fn status(&self, request: &ResourcePoolStatusRequest) -> Result<Option<PoolsStatus>, ReconcileError> {
        let slices = self.slices.by_index(&BY_DRIVER, index_key(("driver", &*request.driver)));
        let claims = self.claims.by_index(&BY_ALLOCATED_DRIVER, allocated_from(&request.driver));
        let rules = self.rules.as_ref().map(|rules| rules.all()).unwrap_or_default();
        let (slices, claims) = (slices.iter().map(AsRef::as_ref), claims.iter().map(AsRef::as_ref));
        pools_status(request, slices, claims, &rules).map_err(|error| ReconcileError::new(error.to_string()))
    }

    async fn write(
        &self,
        request: &ResourcePoolStatusRequest,
        status: &PoolsStatus,
        start: Instant,
    ) -> Result<(), ReconcileError> {
        let resource = &ResourcePoolStatusRequest::RESOURCE;
        let key = request.meta.key();
        let now = Time((self.clock)().as_second());
        let object = request.with_pools(&status.pools, status.count, &status.message, now);
        let object = object.map_err(|error| ReconcileError::new(error.to_string()))?;
        let written = self.writer.replace(resource, &key, Some("status"), &object).await;
        self.metrics.processed(&request.driver, written.is_ok(), start.elapsed().as_secs_f64());
        match written {
            Ok(response) => {
                let version = response.meta().map_err(|error| ReconcileError::new(error.to_string()))?.version;
                self.consistency.wrote(&key, &self.requests, version);
                Ok(())
            }
            Err(error) if error.is_object_deleted() => Ok(()),
            Err(error) => {
                let message = format!("failed to update status for request {key}: {error}");
                Err(ReconcileError { message, ..error.into() })
            }
        }
    }
}
