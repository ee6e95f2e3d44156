//! One reconcile of a PodGroup: its claims are created and named in its status.

use kinds::meta::ObjectKey;
use kinds::{Kind, Meta, PodGroup};
use runtime::events::{EventType, about};
use runtime::worker::{Outcome, ReconcileError};

use super::entry::{EntryError, Owner};
use super::keys::Key;
use super::pod_sync::FAILED_CREATION;
use super::reconciler::ResourceClaims;

impl ResourceClaims {
    pub(super) async fn sync_group(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(groups) = &self.keys.groups else { return Ok(Outcome::Done) };
        let writes = &self.group_writes;
        let queue_key = Key::Group(key.clone());
        if !self.cache_has_claim_writes(writes, key, &queue_key)
            || !self.cache_has_writes(writes, groups, key, &queue_key)
        {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(group) = groups.get(key).filter(|group| !group.meta.is_deleting()) else {
            writes.forget(key);
            self.group_refusals.forget(key);
            return Ok(Outcome::Done);
        };
        let refusals = &self.group_refusals;
        let owner = Owner { meta: &group.meta, resource: PodGroup::RESOURCE, entries: &group.claims, writes, refusals };
        if !self.cache_has_claims_of(&owner).await? {
            self.keys.queue.add(queue_key);
            return Ok(Outcome::Done);
        }
        let is_owned = |claim: &Meta| {
            if claim.is_controlled_by(&group.meta.uid) {
                return Ok(());
            }
            Err(format!("ResourceClaim {} was not created for PodGroup {key} (PodGroup is not owner)", claim.key()))
        };
        let mut new = Vec::new();
        for entry in &group.claims {
            match self.ensure_claim(&owner, None, entry, is_owned).await {
                Ok(name) => new.extend(name.map(|name| (entry.name.clone(), name))),
                Err(EntryError::Postponed(outcome)) => return Ok(outcome),
                Err(error) => {
                    let message = format!("PodGroupResourceClaim {}: {error}", entry.name);
                    let full = format!("PodGroup {key}, {message}");
                    self.recorder.event(&about(&*group), EventType::Warning, FAILED_CREATION, message);
                    return Err(ReconcileError { message: full, terminal: error.is_terminal() });
                }
            }
        }
        refusals.forget(key);
        if new.is_empty() {
            return Ok(Outcome::Done);
        }
        let applied = self.apply_status(&owner, &new).await;
        let failed = |error| ReconcileError::new(format!("update PodGroup {key} ResourceClaimStatuses: {error}"));
        if let Some(version) = applied.map_err(failed)? {
            writes.wrote(key, groups, version);
        }
        Ok(Outcome::Done)
    }
}
