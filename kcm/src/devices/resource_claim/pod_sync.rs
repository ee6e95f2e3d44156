//! One reconcile of a pod: its claims are created and named in its status, and reserved if it was bound without the
//! scheduler.

use std::sync::Arc;

use kinds::claim_edit::with_consumer;
use kinds::claim_entry::{ClaimEntry, ResolvedClaim};
use kinds::claim_state::Consumer;
use kinds::meta::ObjectKey;
use kinds::{DecodeError, Kind, Pod, PodGroup, ResourceClaim, Str};
use runtime::events::{EventType, about};
use runtime::worker::{Outcome, ReconcileError};
use runtime::write::WriteError;
use tracing::debug;

use super::decide;
use super::entry::{EntryError, Owner};
use super::keys::Key;
use super::reconciler::ResourceClaims;

/// The reason of the event about an entry without a claim.
pub const FAILED_CREATION: &str = "FailedResourceClaimCreation";

impl ResourceClaims {
    pub(super) async fn sync_pod(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let writes = &self.pod_writes;
        let queue_key = Key::Pod(key.clone());
        if !self.cache_has_claim_writes(writes, key, &queue_key)
            || !self.cache_has_writes(writes, &self.keys.pods, key, &queue_key)
        {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(pod) = self.keys.pods.get(key).filter(|pod| decide::needs_claims(pod)) else {
            writes.forget(key);
            self.pod_refusals.forget(key);
            return Ok(Outcome::Done);
        };
        let entries = pod.devices.as_ref().map(|devices| &*devices.entries).unwrap_or_default();
        let group = self.group(&pod)?;
        let refusals = &self.pod_refusals;
        let owner = Owner { meta: &pod.meta, resource: Pod::RESOURCE, entries, writes, refusals };
        if !self.cache_has_claims_of(&owner).await? {
            self.keys.queue.add(queue_key);
            return Ok(Outcome::Done);
        }
        let new = match self.ensure_pod_claims(&pod, &owner, group.as_deref()).await {
            Ok(new) => new,
            Err(stopped) => return stopped,
        };
        refusals.forget(key);
        if !new.is_empty() {
            let applied = self.apply_status(&owner, &new).await;
            let applied = applied
                .map_err(|error| ReconcileError::new(format!("update pod {key} ResourceClaimStatuses: {error}")))?;
            if let Some(version) = applied {
                writes.wrote(key, &self.keys.pods, version);
            }
            // The change of the status requeues the pod for its reservations.
            return Ok(Outcome::Done);
        }
        if pod.node.is_empty() {
            // The scheduler makes reservations.
            return Ok(Outcome::Done);
        }
        self.reserve_claims(&pod, entries, group.as_deref()).await
    }

    /// Creates the missing claims. Returns the entries whose claims the status does not name yet, with the claims'
    /// names. An error contains the result of the whole reconcile, which ends there.
    async fn ensure_pod_claims(
        &self,
        pod: &Pod,
        owner: &Owner<'_>,
        group: Option<&PodGroup>,
    ) -> Result<Vec<(Str, Str)>, Result<Outcome, ReconcileError>> {
        let gates = self.keys.gates;
        let mut new = Vec::new();
        for entry in owner.entries {
            let is_owned = |claim: &_| decide::check_pod_owner(pod, claim, gates);
            match self.ensure_claim(owner, group, entry, is_owned).await {
                Ok(name) => new.extend(name.map(|name| (entry.name.clone(), name))),
                Err(EntryError::Postponed(outcome)) => return Err(Ok(outcome)),
                Err(error) => {
                    let message = format!("PodResourceClaim {}: {error}", entry.name);
                    let full = format!("pod {}, {message}", pod.meta.key());
                    self.recorder.event(&about(pod), EventType::Warning, FAILED_CREATION, message);
                    return Err(Err(ReconcileError { message: full, terminal: error.is_terminal() }));
                }
            }
        }
        Ok(new)
    }

    /// Returns the PodGroup that the pod belongs to.
    fn group(&self, pod: &Pod) -> Result<Option<Arc<PodGroup>>, ReconcileError> {
        let Some(name) = decide::group_of(pod) else { return Ok(None) };
        let failure = |reason: String| format!("get PodGroup for Pod {}: {reason}", pod.meta.key());
        let Some(groups) = &self.keys.groups else {
            let reason = format!("Pod is a member of PodGroup {name} but GenericWorkload feature is disabled");
            return Err(ReconcileError { message: failure(reason), terminal: true });
        };
        let key = ObjectKey { namespace: pod.meta.namespace.clone(), name: name.clone() };
        let missing = || ReconcileError::new(failure(format!("podgroup.scheduling.k8s.io {name:?} not found")));
        groups.get(&key).map(Some).ok_or_else(missing)
    }

    async fn reserve_claims(
        &self,
        pod: &Pod,
        entries: &[ClaimEntry],
        group: Option<&PodGroup>,
    ) -> Result<Outcome, ReconcileError> {
        let mut outcome = Outcome::Done;
        for entry in entries {
            let (name, is_generated) = match entry.resolve() {
                ResolvedClaim::Shared(name) => (name, false),
                ResolvedClaim::Generated(name) => (name, true),
                ResolvedClaim::NotNeeded | ResolvedClaim::NotCreated | ResolvedClaim::Unsupported => continue,
            };
            let key = ObjectKey { namespace: pod.meta.namespace.clone(), name: name.clone() };
            // The claim does not exist: its creation requeues the pod.
            let Some(claim) = self.keys.claims.get(&key) else { continue };
            if is_generated {
                decide::check_pod_owner(pod, &claim.meta, self.keys.gates).map_err(ReconcileError::new)?;
            }
            let state = claim.state.as_ref();
            if !state.is_some_and(|state| decide::lacks_reservation(pod, state, self.keys.gates)) {
                continue;
            }
            let consumer = if decide::binds_to_group(entry, group).map_err(ReconcileError::new)? {
                if !self.keys.gates.group_claims {
                    debug!(pod = %pod.meta.key(), claim = %key, "not reserving the PodGroup's claim: feature disabled");
                    continue;
                }
                group.map(decide::group_consumer)
            } else {
                Some(decide::pod_consumer(pod))
            };
            let Some(consumer) = consumer else { continue };
            let reserved = self.reserve(pod, &claim, &consumer).await;
            let failed = |error| ReconcileError::new(format!("reserve claim {key}: {error}"));
            if !reserved.map_err(failed)? {
                outcome = Outcome::RequeueWithBackoff;
            }
        }
        Ok(outcome)
    }

    /// Reserves a claim if it is still allocated and not reserved. Returns `false` if it was changed or deleted between
    /// the read and the write.
    async fn reserve(&self, pod: &Pod, claim: &ResourceClaim, consumer: &Consumer) -> Result<bool, WriteError> {
        let key = claim.meta.key();
        let response = match self.writer.get(&ResourceClaim::RESOURCE, &key).await {
            Err(error) if error.is_not_found() => return Ok(true),
            response => response?,
        };
        let fresh: ResourceClaim = response.decode(self.keys.claims.decoding())?;
        let lacks = |state: &_| decide::lacks_reservation(pod, state, self.keys.gates);
        if fresh.meta.uid != claim.meta.uid || !fresh.state.as_deref().is_some_and(lacks) {
            return Ok(true);
        }
        let object = with_consumer(response.object()?, consumer).map_err(DecodeError::from)?;
        let Some(response) = self.replace(&key, Some("status"), &object).await? else { return Ok(false) };
        debug!(claim = %key, pod = %pod.meta.key(), resource = &*consumer.resource, "reserved claim");
        self.pod_writes.wrote(&pod.meta.key(), &self.keys.claims, response.meta()?.version);
        Ok(true)
    }
}
