//! One reconcile of mirrored slices: gather, decide, write, record events.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kinds::meta::ObjectKey;
use kinds::metadata_edit::{Annotations, NewMetadata};
use kinds::{Endpoints, Kind, Service};
use runtime::events::{EventType, Recorder, about};
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tokio::time::Instant;

use super::decide::{self, decide};
use super::keys::may_be_mirrored;
use super::metrics::Counts;
use crate::network::service_endpoints::slice_writes::{SliceMetadata, SliceWrites, WriteFailure, prefix};

/// The controller's state.
pub struct Mirror {
    pub endpoints: Arc<Store<Endpoints>>,
    pub services: Arc<Store<Service>>,
    pub writes: SliceWrites,
    pub recorder: Recorder,
    /// Maximum number of mirrored addresses of a subset.
    pub max_endpoints: usize,
    /// The metrics.
    pub counts: Arc<Counts>,
}

impl Reconcile for Mirror {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            let begun = Instant::now();
            let outcome = self.sync(key).await;
            self.counts.took(begun.elapsed());
            outcome
        }
        .boxed()
    }
}

impl Mirror {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.writes.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        if self.writes.consistency.take_lost(key) && !self.writes.compare_with_server(key).await? {
            return Ok(Outcome::WaitingForCache);
        }
        let (endpoints, service) = (self.endpoints.get(key), self.services.get(key));
        let mirrored = endpoints.clone().filter(|endpoints| may_be_mirrored(endpoints));
        let Some(endpoints) = mirrored.filter(|_| service.as_ref().is_some_and(|service| service.selector.is_empty()))
        else {
            return self.delete_all(key, endpoints.is_none() || service.is_none()).await;
        };
        let mut decision = decide(&endpoints, &self.writes.existing(key), self.max_endpoints);
        if endpoints.meta.is_deleting() {
            decision.plan.create.clear();
        }
        if decision.is_too_large {
            let message = "Subsets overlap in too many addresses and ports to be mirrored to EndpointSlices".to_owned();
            self.recorder.event(&about(&*endpoints), EventType::Warning, "TooManyAddressesToMirror", message);
            return Ok(Outcome::Done);
        }
        let attempt = self.writes.attempt(key, &endpoints.meta, &decision.plan);
        let refused = self.writes.refused_before(key, &decision.plan, &attempt);
        if refused.is_some() {
            decision.plan.keep_updates();
        } else {
            self.counts.decided(&decision);
            self.record_events(&endpoints, &decision);
        }
        let labels = decide::labels(&endpoints);
        let annotations = decide::annotations(&endpoints);
        let owner = endpoints.controller_ref();
        let metadata =
            NewMetadata { labels: &labels, annotations: Annotations::Exactly(&annotations), owner: Some(&owner) };
        let metadata = SliceMetadata { prefix: &prefix(&key.name), new: metadata, updated: metadata };
        let (counts, written) = self.writes.write(key, &metadata, &decision.plan, attempt).await;
        self.counts.wrote([counts.created, counts.updated, counts.deleted]);
        match written {
            Ok(()) => Ok(refused.map_or(Outcome::Done, Outcome::RequeueAfter)),
            Err(WriteFailure { error, .. }) if error.is_conflict() || error.is_not_found() => {
                Ok(Outcome::RequeueWithBackoff)
            }
            Err(failed) => Err(failure(key, failed)),
        }
    }

    /// Deletes the slices of Endpoints that must not be mirrored. If the Endpoints or the Service are `missing`,
    /// nothing is deleted while an object of the namespace cannot be decoded: it may be the missing one.
    async fn delete_all(&self, key: &ObjectKey, missing: bool) -> Result<Outcome, ReconcileError> {
        self.writes.refusals.forget(key);
        let slices = self.writes.existing(key);
        if slices.is_empty() {
            return Ok(Outcome::Done);
        }
        let unreadable = self.endpoints.undecodable_in(&key.namespace) + self.services.undecodable_in(&key.namespace);
        if missing && unreadable > 0 {
            return Err(ReconcileError::new(
                "Endpoints or Services of the namespace cannot be decoded (see the log): nothing is deleted",
            ));
        }
        let deletions = join_all(slices.iter().map(|slice| self.writes.delete(key, slice))).await;
        self.counts.wrote([0, 0, deletions.iter().filter(|deletion| deletion.is_ok()).count()]);
        deletions.into_iter().collect::<Result<(), WriteFailure>>().map_err(|failed| failure(key, failed))?;
        Ok(Outcome::Done)
    }

    fn record_events(&self, endpoints: &Endpoints, decision: &decide::Decision) {
        let warn = |reason, message| self.recorder.event(&about(endpoints), EventType::Warning, reason, message);
        let (invalid, skipped) = (decision.invalid, decision.skipped);
        if invalid > 0 {
            let message = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
            warn("InvalidIPAddress", message);
        }
        if skipped > invalid {
            let message = format!(
                "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped",
                self.max_endpoints
            );
            warn("TooManyAddressesToMirror", message);
        }
    }
}

fn failure(key: &ObjectKey, failed: WriteFailure) -> ReconcileError {
    let text = format!("failed to {} for Endpoints {key}: {}", failed.what, failed.error);
    ReconcileError { message: text, ..failed.error.into() }
}
