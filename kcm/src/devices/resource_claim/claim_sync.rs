//! One reconcile of a claim: removes consumers that no longer need the claim and, with the last one, its allocation,
//! then its finalizer. Deletes an unused claim that was created for a pod that has finished or was replaced.

use std::collections::HashSet;

use kinds::claim_edit::released;
use kinds::claim_state::{ClaimState, Consumer, DELETE_PROTECTION};
use kinds::meta::ObjectKey;
use kinds::{DecodeError, Kind, Meta, Pod, PodGroup, Resource, ResourceClaim, Uid, metadata_edit};
use runtime::worker::{Outcome, ReconcileError};
use runtime::write::{ObjectResponse, WriteError};
use tracing::{debug, info};

use super::decide::{self, Release};
use super::keys::Key;
use super::reconciler::ResourceClaims;

/// A claim after the last read or write of this reconcile.
struct CurrentClaim {
    meta: Meta,
    /// Number of consumers that still need it.
    remaining: usize,
}

impl ResourceClaims {
    pub(super) async fn sync_claim(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.cache_has_claim_writes(&self.claim_writes, key, &Key::Claim(key.clone())) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(claim) = self.keys.claims.get(key) else {
            self.claim_writes.forget(key);
            return Ok(Outcome::Done);
        };
        let Some(state) = &claim.state else { return Ok(Outcome::Done) };
        let ended = self.ended_consumers(key, state).await?;
        let remaining = state.consumers.len() - count(state, &ended);
        let current = match decide::release(&claim.meta, state, remaining) {
            Release::Nothing => Some(CurrentClaim { meta: claim.meta.clone(), remaining }),
            Release::Consumers { .. } | Release::Protection { .. } => match self.read(&claim).await? {
                None => return Ok(Outcome::Done),
                Some((response, fresh)) => self.release(key, &response, fresh, &ended).await?,
            },
        };
        let Some(current) = current else { return Ok(Outcome::RequeueWithBackoff) };
        if current.remaining > 0 || current.meta.is_deleting() || !self.has_finished_owner(&current.meta).await? {
            return Ok(Outcome::Done);
        }
        self.delete(key, &current.meta).await
    }

    /// Returns the consumers that no longer need the claim. A consumer that is neither a pod nor a PodGroup is kept. A
    /// PodGroup is also kept if PodGroups may not have claims.
    async fn ended_consumers(&self, claim: &ObjectKey, state: &ClaimState) -> Result<HashSet<Consumer>, WriteError> {
        let mut ended = HashSet::new();
        for consumer in &state.consumers {
            let key = ObjectKey { namespace: claim.namespace.clone(), name: consumer.name.clone() };
            let has_ended = if consumer.is_pod() {
                self.has_pod_ended(&key, &consumer.uid).await?
            } else if consumer.is_pod_group() && self.keys.gates.group_claims {
                self.is_group_deleted(&key, &consumer.uid).await?
            } else {
                false
            };
            if has_ended {
                ended.insert(consumer.clone());
            }
        }
        Ok(ended)
    }

    /// Returns true if a pod is [done](decide::is_done), or does not exist.
    ///
    /// Differs from upstream: another pod with the same name in the cache does not prove that the cache is up to date.
    async fn has_pod_ended(&self, key: &ObjectKey, uid: &Uid) -> Result<bool, WriteError> {
        match self.keys.pods.get(key).filter(|pod| pod.meta.uid == *uid) {
            Some(pod) => Ok(decide::is_done(&pod)),
            None => self.is_missing(&Pod::RESOURCE, key, uid).await,
        }
    }

    async fn is_group_deleted(&self, key: &ObjectKey, uid: &Uid) -> Result<bool, WriteError> {
        let cached = self.keys.groups.as_ref().and_then(|groups| groups.get(key));
        if cached.is_some_and(|group| group.meta.uid == *uid) {
            return Ok(false);
        }
        self.is_missing(&PodGroup::RESOURCE, key, uid).await
    }

    /// Returns true if an object that is not in the cache does not exist on the API server either. If its deletion is
    /// not recorded, the cache may be older than the reservation: then the API server is read.
    async fn is_missing(&self, resource: &Resource, key: &ObjectKey, uid: &Uid) -> Result<bool, WriteError> {
        if self.keys.deleted.contains(uid) {
            return Ok(true);
        }
        match self.writer.get(resource, key).await {
            Ok(response) => Ok(response.meta()?.uid != *uid),
            // No object can have such a name.
            Err(error) if error.is_not_found() || error.is_invalid_name() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads the claim from the API server; `None` if it no longer exists, even if another one has its name.
    async fn read(&self, claim: &ResourceClaim) -> Result<Option<(ObjectResponse, ResourceClaim)>, WriteError> {
        let response = match self.writer.get(&ResourceClaim::RESOURCE, &claim.meta.key()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            response => response?,
        };
        let fresh: ResourceClaim = response.decode(self.keys.claims.decoding())?;
        Ok((fresh.meta.uid == claim.meta.uid).then_some((response, fresh)))
    }

    /// Decides again on the claim that the API server returned, and releases it. Returns `None` if it was changed or
    /// deleted in the meantime.
    async fn release(
        &self,
        key: &ObjectKey,
        response: &ObjectResponse,
        fresh: ResourceClaim,
        ended: &HashSet<Consumer>,
    ) -> Result<Option<CurrentClaim>, WriteError> {
        let state = fresh.state.as_deref().cloned().unwrap_or_default();
        let remaining = state.consumers.len() - count(&state, ended);
        let (writes_status, deallocates) = match decide::release(&fresh.meta, &state, remaining) {
            Release::Nothing => return Ok(Some(CurrentClaim { meta: fresh.meta, remaining })),
            Release::Consumers { deallocates } => (true, deallocates),
            Release::Protection { deallocates } => (deallocates, deallocates),
        };
        let written = if writes_status {
            let keeps = |consumer: &Consumer| !ended.contains(consumer);
            let object = released(response.object()?, keeps, deallocates).map_err(DecodeError::from)?;
            let Some(written) = self.replace(key, Some("status"), &object).await? else { return Ok(None) };
            info!(claim = %key, remaining, deallocated = deallocates, "released ResourceClaim");
            Some(written)
        } else {
            None
        };
        let last = written.as_ref().unwrap_or(response);
        let claim: ResourceClaim = last.decode(self.keys.claims.decoding())?;
        self.claim_writes.wrote(key, &self.keys.claims, claim.meta.version);
        let is_allocated = claim.state.as_ref().is_some_and(|state| state.is_allocated);
        if is_allocated || !decide::is_protected(&claim.meta) {
            return Ok(Some(CurrentClaim { meta: claim.meta, remaining }));
        }
        self.remove_finalizer(key, last, remaining).await
    }

    async fn remove_finalizer(
        &self,
        key: &ObjectKey,
        response: &ObjectResponse,
        remaining: usize,
    ) -> Result<Option<CurrentClaim>, WriteError> {
        let object = metadata_edit::without_finalizers(response.object()?, &[DELETE_PROTECTION]);
        let Some(written) = self.replace(key, None, &object.map_err(DecodeError::from)?).await? else {
            return Ok(None);
        };
        debug!(claim = %key, "removed the finalizer of the ResourceClaim");
        let meta = written.meta()?;
        self.claim_writes.wrote(key, &self.keys.claims, meta.version);
        Ok(Some(CurrentClaim { meta, remaining }))
    }

    /// Returns true if the claim was created for a pod that has finished or was replaced. A claim of a pod that the
    /// cache does not have is left to the garbage collector.
    async fn has_finished_owner(&self, claim: &Meta) -> Result<bool, WriteError> {
        let Some(owner) = decide::owning_pod(claim) else { return Ok(false) };
        let key = ObjectKey { namespace: claim.namespace.clone(), name: owner.name.clone() };
        match self.keys.pods.get(&key) {
            None => Ok(false),
            Some(pod) if pod.meta.uid == owner.uid => Ok(decide::is_done(&pod)),
            Some(_) => self.is_missing(&Pod::RESOURCE, &key, &owner.uid).await,
        }
    }

    /// Deletes the claim unless it changed since the decision: the scheduler may just have reserved it.
    async fn delete(&self, key: &ObjectKey, claim: &Meta) -> Result<Outcome, ReconcileError> {
        match self.writer.delete_unchanged(&ResourceClaim::RESOURCE, key, claim).await {
            Ok(()) => {
                info!(claim = %key, "deleted unused ResourceClaim: its pod has finished or was replaced");
                Ok(Outcome::Done)
            }
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) => Err(ReconcileError::new(format!("delete unused generated claim {key}: {error}"))),
        }
    }
}

/// Returns the number of a claim's consumers that have ended.
fn count(state: &ClaimState, ended: &HashSet<Consumer>) -> usize {
    state.consumers.iter().filter(|consumer| ended.contains(*consumer)).count()
}
