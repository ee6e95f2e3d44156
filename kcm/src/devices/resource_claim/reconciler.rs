//! The controller's state, and the reconcile of each kind of key.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Kind, ResourceClaim, ResourceClaimTemplate};
use runtime::consistency::Consistency;
use runtime::events::Recorder;
use runtime::metrics::Counts;
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{ObjectResponse, WriteError, Writer};

use super::keys::{Key, Keys};
use super::takeover::Takeover;
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::Refusals;

/// The controller.
pub struct ResourceClaims {
    pub keys: Arc<Keys>,
    pub templates: Arc<Store<ResourceClaimTemplate>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub takeover: Takeover,
    /// Writes by this process for pods.
    pub pod_writes: Consistency,
    /// Writes by this process for PodGroups.
    pub group_writes: Consistency,
    /// Writes of claims by this process.
    pub claim_writes: Consistency,
    /// Namespaces that are being deleted, in which nothing can be created.
    pub gate: CreationGate,
    /// Refused creations of claims for pods.
    pub pod_refusals: Refusals,
    /// Refused creations of claims for PodGroups.
    pub group_refusals: Refusals,
    pub created: Counts<4>,
}

impl Reconcile for ResourceClaims {
    type Key = Key;

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        match key {
            Key::Pod(key) => self.sync_pod(key).boxed(),
            Key::Group(key) => self.sync_group(key).boxed(),
            Key::Claim(key) => self.sync_claim(key).boxed(),
        }
    }
}

impl ResourceClaims {
    /// Returns true if the cache contains the claims that were written for a key. Otherwise the key is requeued when
    /// the cache contains them.
    pub(super) fn cache_has_claim_writes(&self, writes: &Consistency, object: &ObjectKey, key: &Key) -> bool {
        writes.caught_up(object, &self.keys.claims, self.keys.queue.waker(key))
    }

    /// Returns true if the cache contains the writes to objects of `store` for a key.
    pub(super) fn cache_has_writes<K: Kind>(
        &self,
        writes: &Consistency,
        store: &Arc<Store<K>>,
        object: &ObjectKey,
        key: &Key,
    ) -> bool {
        writes.caught_up(object, store, self.keys.queue.waker(key))
    }

    /// Replaces a claim, or its status. Returns `None` if the claim was changed or deleted since it was read.
    pub(super) async fn replace(
        &self,
        claim: &ObjectKey,
        subresource: Option<&str>,
        object: &[u8],
    ) -> Result<Option<ObjectResponse>, WriteError> {
        match self.writer.replace(&ResourceClaim::RESOURCE, claim, subresource, object).await {
            Ok(response) => Ok(Some(response)),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}
