//! Policy: the owners of claims, the pods and PodGroups that need claims, and the release of claims.

use std::sync::Arc;

use kinds::claim_entry::{ClaimEntry, ResolvedClaim};
use kinds::claim_state::{ClaimState, Consumer, DELETE_PROTECTION};
use kinds::meta::OwnerRef;
use kinds::{Kind, Meta, Pod, PodGroup, ResourceClaim, Str, Uid};

/// The feature gates that change what this controller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// Templates may request administrative access (DRAAdminAccess).
    pub admin_access: bool,
    /// Templates may list alternatives (DRAPrioritizedList).
    pub prioritized_list: bool,
    /// Pods may belong to PodGroups (GenericWorkload).
    pub groups: bool,
    /// PodGroups may have claims (DRAWorkloadResourceClaims).
    pub group_claims: bool,
}

/// Returns true if no container of the pod runs, or ever will.
pub fn is_done(pod: &Pod) -> bool {
    pod.is_terminal() || pod.meta.is_deleting() && pod.node.is_empty()
}

/// Returns true if claims may have to be created or reserved for the pod.
///
/// Differs from upstream: a finished pod gets no claims. Its own claim was deleted because it has finished.
pub fn needs_claims(pod: &Pod) -> bool {
    pod.devices.as_ref().is_some_and(|devices| devices.has_claims()) && !pod.meta.is_deleting() && !pod.is_terminal()
}

/// Returns the first controller reference of an object to a pod.
pub fn owning_pod(meta: &Meta) -> Option<&OwnerRef> {
    let is_pod = |owner: &&OwnerRef| &*owner.api_version == "v1" && &*owner.kind == Pod::RESOURCE.kind;
    meta.owners.iter().filter(|owner| owner.controller == Some(true)).find(is_pod)
}

/// Returns true if an owner is a PodGroup, in any version of its API group.
fn is_pod_group(owner: &OwnerRef) -> bool {
    &*owner.kind == PodGroup::RESOURCE.kind && owner.api_version.starts_with("scheduling.k8s.io/")
}

/// Checks that a claim was created for the pod or, if PodGroups may have claims, for its PodGroup. A pod contains
/// only the name of its PodGroup.
///
/// Upstream: k8s.io/dynamic-resource-allocation/resourceclaim, IsForPod.
///
/// # Errors
/// The reason, with upstream's text.
pub fn check_pod_owner(pod: &Pod, claim: &Meta, gates: Gates) -> Result<(), String> {
    if claim.is_controlled_by(&pod.meta.uid) {
        return Ok(());
    }
    let prefix = format!("ResourceClaim {} was not created for Pod {}", claim.key(), pod.meta.key());
    match group_of(pod).filter(|_| gates.group_claims) {
        Some(group) if claim.controller().is_some_and(|owner| is_pod_group(owner) && owner.name == *group) => Ok(()),
        Some(group) => Err(format!("{prefix} (neither Pod nor PodGroup {group} is the owner)")),
        None => Err(format!("{prefix} (Pod is not owner)")),
    }
}

/// Returns the name of the PodGroup that a pod with claims belongs to.
pub fn group_of(pod: &Pod) -> Option<&Str> {
    pod.devices.as_ref()?.group.as_ref()
}

/// Returns true if an entry of a pod refers to a claim of its PodGroup: the PodGroup has the same entry.
///
/// Upstream: k8s.io/dynamic-resource-allocation/resourceclaim, BindTo.
///
/// # Errors
/// When an entry of the PodGroup has neither a claim nor a template.
pub fn binds_to_group(entry: &ClaimEntry, group: Option<&PodGroup>) -> Result<bool, String> {
    let Some(group) = group else { return Ok(false) };
    for shared in &group.claims {
        if shared.resolve() == ResolvedClaim::Unsupported {
            let key = group.meta.key();
            let name = &shared.name;
            return Err(format!("PodGroup {key} claim {name}: none of the supported fields are set"));
        }
        if (&shared.name, &shared.claim, &shared.template) == (&entry.name, &entry.claim, &entry.template) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns true if a claim is allocated and not reserved for the pod, nor for its PodGroup.
pub fn lacks_reservation(pod: &Pod, state: &ClaimState, gates: Gates) -> bool {
    let is_reserved = |consumer: &Consumer| {
        let is_group = || gates.group_claims && consumer.is_pod_group() && group_of(pod) == Some(&consumer.name);
        consumer.uid == pod.meta.uid || is_group()
    };
    state.is_allocated && !state.consumers.iter().any(is_reserved)
}

/// Returns the consumer for a pod.
pub fn pod_consumer(pod: &Pod) -> Consumer {
    consumer(Pod::RESOURCE.group, Pod::RESOURCE.plural, &pod.meta)
}

/// Returns the consumer for a PodGroup.
pub fn group_consumer(group: &PodGroup) -> Consumer {
    consumer(PodGroup::RESOURCE.group, PodGroup::RESOURCE.plural, &group.meta)
}

fn consumer(group: &str, resource: &str, meta: &Meta) -> Consumer {
    Consumer { group: group.into(), resource: resource.into(), name: meta.name.clone(), uid: meta.uid.clone() }
}

/// The look-ups in the caches that a decision needs.
pub struct Lookups<'a> {
    /// Finds a claim of the namespace.
    pub claim: &'a dyn Fn(&Str) -> Option<Arc<ResourceClaim>>,
    /// Finds a PodGroup of the namespace.
    pub group: &'a dyn Fn(&Str) -> Option<Arc<PodGroup>>,
}

/// Returns true if a new or changed pod has to be reconciled. Upstream: pkg/controller/resourceclaim, podNeedsWork.
pub fn has_work(pod: &Pod, cached: &Lookups<'_>, gates: Gates) -> bool {
    let entries = pod.devices.iter().filter(|_| needs_claims(pod)).flat_map(|devices| &devices.entries);
    entries.into_iter().any(|entry| match entry.resolve() {
        ResolvedClaim::NotNeeded => false,
        ResolvedClaim::NotCreated | ResolvedClaim::Unsupported => true,
        // A shared claim that does not exist has to be created by a user.
        ResolvedClaim::Shared(name) => (cached.claim)(name).is_some_and(|claim| has_to_be_reserved(pod, &claim, gates)),
        ResolvedClaim::Generated(name) => match (cached.claim)(name) {
            Some(claim) => check_pod_owner(pod, &claim.meta, gates).is_ok() && has_to_be_reserved(pod, &claim, gates),
            None => has_to_be_created(pod, entry, cached, gates),
        },
    })
}

fn has_to_be_reserved(pod: &Pod, claim: &ResourceClaim, gates: Gates) -> bool {
    // Before the pod is bound, the scheduler makes reservations.
    !pod.node.is_empty() && claim.state.as_ref().is_some_and(|state| lacks_reservation(pod, state, gates))
}

/// Returns true if the claim of an entry has to be created for the pod. A claim that the pod's PodGroup shares is not
/// created for the pod. Returns true without the PodGroup, so that the reconcile reports that it is missing, and false
/// if an entry of the PodGroup is unsupported.
fn has_to_be_created(pod: &Pod, entry: &ClaimEntry, cached: &Lookups<'_>, gates: Gates) -> bool {
    let Some(name) = group_of(pod) else { return true };
    match (cached.group)(name).filter(|_| gates.groups) {
        Some(group) => binds_to_group(entry, Some(&group)) == Ok(false),
        None => true,
    }
}

/// Returns true if a new or changed PodGroup has to be reconciled. Upstream: pkg/controller/resourceclaim,
/// podGroupNeedsWork.
pub fn group_has_work(group: &PodGroup, cached: &Lookups<'_>) -> bool {
    let mut entries = group.claims.iter().filter(|_| !group.meta.is_deleting());
    entries.any(|entry| match entry.resolve() {
        ResolvedClaim::NotNeeded | ResolvedClaim::Shared(_) => false,
        ResolvedClaim::NotCreated | ResolvedClaim::Unsupported => true,
        ResolvedClaim::Generated(name) => (cached.claim)(name).is_none(),
    })
}

/// Returns the existing claim for an entry of an owner: the oldest claim that the owner controls and that is annotated
/// with the entry.
pub fn created_earlier(
    owner: &Uid,
    namespace: &str,
    entry: &str,
    owned: Vec<Arc<ResourceClaim>>,
) -> Option<Arc<ResourceClaim>> {
    let is_created_claim = |claim: &Arc<ResourceClaim>| {
        let of = claim.state.as_ref().and_then(|state| state.entry.as_deref());
        claim.meta.is_controlled_by(owner) && *claim.meta.namespace == *namespace && of == Some(entry)
    };
    owned.into_iter().filter(is_created_claim).min_by(|a, b| a.meta.by_creation(&b.meta))
}

/// The write that releases a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// No write: the claim is in use, was not reserved yet, or has nothing to release.
    Nothing,
    /// Write the status without the consumers that have ended. If none remains and the claim has the finalizer, also
    /// without the allocation; then the finalizer can be removed.
    Consumers {
        /// The allocation is cleared.
        deallocates: bool,
    },
    /// Remove the finalizer: the claim is being deleted, and nothing uses it.
    Protection {
        /// The allocation is cleared first.
        deallocates: bool,
    },
}

/// Decides on the release of a claim; `remaining` of its consumers still need it.
///
/// A claim that has an allocation and no consumer yet keeps its allocation, unless it is being deleted: a driver may
/// allocate a claim before it is reserved.
pub fn release(claim: &Meta, state: &ClaimState, remaining: usize) -> Release {
    let is_protected = is_protected(claim);
    if remaining < state.consumers.len() {
        Release::Consumers { deallocates: remaining == 0 && is_protected }
    } else if is_protected && claim.is_deleting() && remaining == 0 {
        Release::Protection { deallocates: state.is_allocated }
    } else {
        Release::Nothing
    }
}

/// Returns true if a claim has the finalizer of allocated claims.
pub fn is_protected(claim: &Meta) -> bool {
    claim.finalizers.iter().any(|finalizer| &**finalizer == DELETE_PROTECTION)
}
