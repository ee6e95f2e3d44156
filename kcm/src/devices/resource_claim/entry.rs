//! One entry in the list of claims of a pod or PodGroup: finds its claim, or creates it from the template.

use kinds::claim_entry::{ClaimEntry, ClaimStatus, ResolvedClaim};
use kinds::meta::{ObjectKey, OwnerRef};
use kinds::{DecodeError, Kind, Meta, PodGroup, Resource, ResourceClaim, ResourceClaimTemplate, Str};
use runtime::consistency::Consistency;
use runtime::store::{by_controller, owned_by};
use runtime::worker::Outcome;
use runtime::write::{WriteError, Writer};
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use super::decide;
use super::names::name_prefix;
use super::reconciler::ResourceClaims;
use super::{metrics, takeover};
use crate::pods::refusals::{Attempt, Refusals};

/// Owner of the fields that this controller applies.
const FIELD_MANAGER: &str = "ResourceClaimController";

/// The reason why an entry has no claim. The texts are upstream's, apart from those of the last two.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The entry has neither a claim nor a template.
    #[error("checking for claim before creating it: {0}: none of the supported fields are set")]
    Unsupported(String),
    /// The claim in the status could not be read.
    #[error("checking claim existence: {0}")]
    Existence(WriteError),
    /// An entry of the PodGroup is unsupported.
    #[error("{0}")]
    Group(String),
    /// The entry belongs to the PodGroup, and the gate of PodGroup claims is off.
    #[error("claim {0} is a PodGroup claim but the DRAWorkloadResourceClaims feature is disabled")]
    GroupClaimsDisabled(Str),
    /// The template does not exist.
    #[error("resource claim template {0:?}: resourceclaimtemplate.resource.k8s.io {0:?} not found")]
    NoTemplate(Str),
    /// The template requests administrative access, and the gate DRAAdminAccess is off.
    #[error("admin access is requested, but the feature is disabled")]
    AdminAccessDisabled,
    /// The template lists alternatives, and the gate DRAPrioritizedList is off.
    #[error("template includes a prioritized list of subrequests, but the feature is disabled")]
    PrioritizedListDisabled,
    /// The claim could not be created. The space before the colon is upstream's: there it prints the name, which is
    /// still empty.
    #[error("create ResourceClaim : {0}")]
    Create(WriteError),
    /// The template is not well-formed.
    #[error(transparent)]
    Template(DecodeError),
    /// No claim was created for the entry, and the reconcile ends: the namespace is being deleted, or the same creation
    /// was just refused.
    #[error("not created yet")]
    Postponed(Outcome),
}

impl EntryError {
    /// Returns true if a retry cannot succeed before something else changes.
    pub fn is_terminal(&self) -> bool {
        // The pod is requeued when its PodGroup is replaced or gets other claims.
        matches!(self, Self::GroupClaimsDisabled(_))
    }
}

/// A pod or a PodGroup with claims.
pub struct Owner<'a> {
    /// Metadata of the pod or PodGroup.
    pub meta: &'a Meta,
    /// The resource: pods or podgroups.
    pub resource: Resource,
    /// The entries of its list of claims.
    pub entries: &'a [ClaimEntry],
    /// Writes by this process for the owner, which the cache may not contain yet.
    pub writes: &'a Consistency,
    /// Refused creations.
    pub refusals: &'a Refusals,
}

impl Owner<'_> {
    /// Returns the owner reference of its claims. The claims do not block the owner's deletion.
    pub fn reference(&self) -> OwnerRef {
        OwnerRef {
            api_version: self.resource.api_version().into(),
            kind: self.resource.kind.into(),
            name: self.meta.name.clone(),
            uid: self.meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// Returns the object to apply, so that the status names the claims in `new` (pairs of entry and claim) and the
    /// existing ones.
    pub fn status(&self, new: &[(Str, Str)]) -> Value {
        let known = self.entries.iter().filter_map(|entry| match &entry.status {
            ClaimStatus::Named(claim) => Some((entry.name.clone(), claim.clone())),
            ClaimStatus::Missing | ClaimStatus::NotNeeded => None,
        });
        let all: std::collections::BTreeMap<Str, Str> = known.chain(new.iter().cloned()).collect();
        let statuses: Vec<Value> =
            all.iter().map(|(entry, claim)| json!({"name": &**entry, "resourceClaimName": &**claim})).collect();
        json!({
            "apiVersion": self.resource.api_version(), "kind": self.resource.kind,
            "metadata": {
                "name": &*self.meta.name, "namespace": &*self.meta.namespace,
                // A precondition: another object with this name does not get these claims.
                "uid": self.meta.uid.to_string(),
            },
            "status": {"resourceClaimStatuses": statuses},
        })
    }
}

impl ResourceClaims {
    /// Returns true if the cache certainly contains all claims of the owner. Otherwise the cache is older than
    /// the claims on the API server, and the owner's key has to be reconciled again.
    pub(super) async fn cache_has_claims_of(&self, owner: &Owner<'_>) -> Result<bool, WriteError> {
        if !self.may_lack_claims(owner) {
            return Ok(true);
        }
        let key = owner.meta.key();
        let claims = &self.keys.claims;
        let version = if owner.writes.take_lost(&key) {
            let newest = takeover::newest_version(&owner.meta.namespace, &self.writer).await;
            newest.inspect_err(|_| owner.writes.lost(&key))?
        } else {
            self.takeover.required_version(&owner.meta.namespace, claims.progress(), &self.writer).await?
        };
        let is_known = claims.progress().version() >= version;
        if !is_known {
            owner.writes.wrote(&key, claims, version);
        }
        Ok(is_known)
    }

    /// Returns true if a claim may have to be created.
    fn may_lack_claims(&self, owner: &Owner<'_>) -> bool {
        let is_usable = |name: &Str| {
            let key = ObjectKey { namespace: owner.meta.namespace.clone(), name: name.clone() };
            self.keys.claims.get(&key).is_some_and(|claim| claim.meta.is_controlled_by(&owner.meta.uid))
        };
        owner.entries.iter().any(|entry| match entry.resolve() {
            ResolvedClaim::NotCreated => true,
            ResolvedClaim::Generated(name) => !is_usable(name),
            ResolvedClaim::Shared(_) | ResolvedClaim::NotNeeded | ResolvedClaim::Unsupported => false,
        })
    }

    /// Finds the claim of an entry, or creates it. Returns the claim's name if the owner's status does not contain it
    /// yet. `group` is the pod's PodGroup.
    pub(super) async fn ensure_claim(
        &self,
        owner: &Owner<'_>,
        group: Option<&PodGroup>,
        entry: &ClaimEntry,
        is_owned: impl Fn(&Meta) -> Result<(), String>,
    ) -> Result<Option<Str>, EntryError> {
        match entry.resolve() {
            ResolvedClaim::Unsupported => return Err(EntryError::Unsupported(describe(owner, entry))),
            // A claim that the user names is created by the user.
            ResolvedClaim::NotNeeded | ResolvedClaim::Shared(_) => return Ok(None),
            ResolvedClaim::NotCreated => {}
            ResolvedClaim::Generated(name) => {
                if self.is_usable(owner, name, is_owned).await.map_err(EntryError::Existence)? {
                    return Ok(None);
                }
            }
        }
        let Some(template) = &entry.template else { return Ok(None) };
        if decide::binds_to_group(entry, group).map_err(EntryError::Group)? {
            let Some(group) = group else { return Ok(None) };
            if !self.keys.gates.group_claims {
                return Err(EntryError::GroupClaimsDisabled(entry.name.clone()));
            }
            // Nothing to do until the PodGroup's claim exists: its creation requeues the pod.
            return Ok(self.created_earlier(&group.meta, entry));
        }
        if let Some(name) = self.created_earlier(owner.meta, entry) {
            return Ok(Some(name));
        }
        self.create_claim(owner, entry, template).await.map(Some)
    }

    fn created_earlier(&self, owner: &Meta, entry: &ClaimEntry) -> Option<Str> {
        let owned = self.keys.claims.by_index(&by_controller(), owned_by(&owner.namespace, &owner.uid));
        let found = decide::created_earlier(&owner.uid, &owner.namespace, &entry.name, owned)?;
        Some(found.meta.name.clone())
    }

    /// Returns true if the claim that the status names exists and belongs to the owner.
    async fn is_usable(
        &self,
        owner: &Owner<'_>,
        name: &Str,
        is_owned: impl Fn(&Meta) -> Result<(), String>,
    ) -> Result<bool, WriteError> {
        let key = ObjectKey { namespace: owner.meta.namespace.clone(), name: name.clone() };
        let meta = match self.keys.claims.get(&key) {
            Some(claim) => claim.meta.clone(),
            None => match self.writer.get(&ResourceClaim::RESOURCE, &key).await {
                Ok(response) => response.meta()?,
                Err(error) if error.is_not_found() || error.is_invalid_name() => return Ok(false),
                Err(error) => return Err(error),
            },
        };
        if let Err(reason) = is_owned(&meta) {
            warn!(owner = %owner.meta.key(), claim = %key, reason, "claim in the status belongs to another owner");
            return Ok(false);
        }
        Ok(true)
    }

    async fn create_claim(&self, owner: &Owner<'_>, entry: &ClaimEntry, template: &Str) -> Result<Str, EntryError> {
        let namespace = &owner.meta.namespace;
        let gates = self.keys.gates;
        let key = ObjectKey { namespace: namespace.clone(), name: template.clone() };
        let found = self.templates.get(&key).ok_or_else(|| EntryError::NoTemplate(template.clone()))?;
        check_template(&found, gates)?;
        let attempt = self.attempt(owner, &found)?;
        let reference = owner.reference();
        let prefix = name_prefix(&owner.meta.name, &entry.name);
        let claim = found.claim(namespace, &prefix, &entry.name, &reference);
        let claim = claim.map_err(|error| EntryError::Template(error.into()))?;
        let created = self.writer.create(&ResourceClaim::RESOURCE, namespace, &claim, false).await;
        let created = created.and_then(|response| Ok(response.meta()?));
        self.created.add(metrics::creation_labels(created.is_ok(), found.has_admin_access, &reference));
        match created {
            Ok(meta) => {
                info!(owner = %owner.meta.key(), claim = %meta.key(), "created ResourceClaim");
                owner.writes.wrote(&owner.meta.key(), &self.keys.claims, meta.version);
                Ok(meta.name)
            }
            Err(error) if error.is_namespace_terminating() => {
                self.gate.close(namespace);
                Err(EntryError::Postponed(Outcome::Done))
            }
            Err(error) => {
                if error.is_lost() {
                    owner.writes.lost(&owner.meta.key());
                }
                owner.refusals.failed(&owner.meta.key(), attempt, &error);
                Err(EntryError::Create(error))
            }
        }
    }

    /// Returns the attempt to create a claim of the owner from a template, unless it would be refused: in a namespace
    /// that is being deleted, or because the same attempt was just refused.
    fn attempt(&self, owner: &Owner<'_>, template: &ResourceClaimTemplate) -> Result<Attempt, EntryError> {
        if !self.gate.is_open(&owner.meta.namespace) {
            debug!(owner = %owner.meta.key(), "not creating a claim: the namespace is being deleted");
            return Err(EntryError::Postponed(Outcome::Done));
        }
        let owned = self.keys.claims.by_index(&by_controller(), owned_by(&owner.meta.namespace, &owner.meta.uid)).len();
        let attempt = Attempt::new(owner.meta, owner.entries.len(), owned).with_inputs(template.meta.version);
        match owner.refusals.waiting(&owner.meta.key(), &attempt) {
            Some(waiting) => {
                debug!(
                    reason = waiting.message, left = ?waiting.left,
                    "not creating a claim yet: the last attempt was refused"
                );
                Err(EntryError::Postponed(Outcome::RequeueAfter(waiting.left)))
            }
            None => Ok(attempt),
        }
    }

    /// Applies the names of new claims to the owner's status. Returns the version of the owner; `None` if it was
    /// deleted, also if another object has its name.
    pub(super) async fn apply_status(&self, owner: &Owner<'_>, new: &[(Str, Str)]) -> Result<Option<u64>, WriteError> {
        apply(&self.writer, owner, &owner.status(new)).await
    }
}

async fn apply(writer: &Writer, owner: &Owner<'_>, status: &Value) -> Result<Option<u64>, WriteError> {
    match writer.apply(&owner.resource, &owner.meta.key(), Some("status"), FIELD_MANAGER, status).await {
        Ok(response) => Ok(Some(response.meta()?.version)),
        Err(error) if error.is_object_deleted() => Ok(None),
        Err(error) => Err(error),
    }
}

fn check_template(template: &ResourceClaimTemplate, gates: decide::Gates) -> Result<(), EntryError> {
    if template.has_admin_access && !gates.admin_access {
        return Err(EntryError::AdminAccessDisabled);
    }
    if template.has_prioritized_list && !gates.prioritized_list {
        return Err(EntryError::PrioritizedListDisabled);
    }
    Ok(())
}

/// Names an entry as upstream does in its errors.
fn describe(owner: &Owner<'_>, entry: &ClaimEntry) -> String {
    let key = owner.meta.key();
    let name = &entry.name;
    if owner.resource.kind == PodGroup::RESOURCE.kind {
        format!("PodGroup {key}, spec.resourceClaim {name}")
    } else {
        format!("pod \"{key}\", spec.resourceClaim {name:?}")
    }
}
