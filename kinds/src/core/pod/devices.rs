//! The ResourceClaims that a pod uses and the PodGroup that it belongs to, by their names.

use crate::intern::{Interner, Str};
use crate::scheduling::claim_entry::{ClaimEntry, EntryFields, ResolvedClaim};
use crate::wire::schema::{pod_extended_resource_claim_status as extended, pod_scheduling_group, pod_spec, pod_status};
use crate::wire::{WireError, find, find_str};

/// The ResourceClaims that a pod uses, and the PodGroup through which it may use more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// `spec.resourceClaims`, with their entries in the status.
    pub entries: Box<[ClaimEntry]>,
    /// The claim that the scheduler created for extended resources.
    pub extended: Option<Str>,
    /// The PodGroup that the pod belongs to.
    pub group: Option<Str>,
}

/// A ResourceClaim that a pod uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsedClaim<'a> {
    /// Its name.
    pub name: &'a Str,
    /// It was created for this pod from a template: the pod must be its owner.
    pub is_generated: bool,
}

impl Devices {
    /// Returns true if the pod uses claims of its own, and not only through its PodGroup.
    pub fn has_claims(&self) -> bool {
        !self.entries.is_empty() || self.extended.is_some()
    }

    /// Returns the claims that the pod names, and those that have been created from its templates; not
    /// [`Devices::extended`].
    pub fn claims(&self) -> impl Iterator<Item = UsedClaim<'_>> {
        self.entries.iter().filter_map(|entry| match entry.resolve() {
            ResolvedClaim::Shared(name) => Some(UsedClaim { name, is_generated: false }),
            ResolvedClaim::Generated(name) => Some(UsedClaim { name, is_generated: true }),
            ResolvedClaim::NotNeeded | ResolvedClaim::NotCreated | ResolvedClaim::Unsupported => None,
        })
    }
}

/// Reads the claims that a pod uses and its PodGroup; `None` if it has neither.
pub(super) fn read(interner: &Interner, spec: &[u8], status: &[u8]) -> Result<Option<Box<Devices>>, WireError> {
    let listed = (spec, pod_spec::RESOURCE_CLAIMS);
    let entries = ClaimEntry::read(interner, listed, (status, pod_status::RESOURCE_CLAIM_STATUSES), EntryFields::POD)?;
    let name = |message: &[u8], number| {
        let name = find_str(message, number);
        (!name.is_empty()).then(|| interner.str(name))
    };
    let extended = name(find(status, pod_status::EXTENDED_RESOURCE_CLAIM_STATUS), extended::NAME);
    let group = name(find(spec, pod_spec::SCHEDULING_GROUP), pod_scheduling_group::POD_GROUP_NAME);
    let has_any = !entries.is_empty() || extended.is_some() || group.is_some();
    Ok(has_any.then(|| Box::new(Devices { entries, extended, group })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::{pod_resource_claim as claim, pod_resource_claim_status as entry_status};

    #[test]
    fn used_claims_are_named_or_created_from_templates() {
        let (mut spec, mut reported) = (Vec::new(), Vec::new());
        for (entry, number, name) in [
            ("a", claim::RESOURCE_CLAIM_NAME, "mine"),
            ("b", claim::RESOURCE_CLAIM_TEMPLATE_NAME, "template"),
            ("c", claim::RESOURCE_CLAIM_TEMPLATE_NAME, "not-created-yet"),
            ("d", claim::RESOURCE_CLAIM_TEMPLATE_NAME, "not-needed"),
        ] {
            spec.put_message(pod_spec::RESOURCE_CLAIMS, |message| {
                message.put_str(claim::NAME, entry);
                message.put_str(number, name);
            });
        }
        for (entry, name) in [("b", Some("made-b")), ("d", None)] {
            reported.put_message(pod_status::RESOURCE_CLAIM_STATUSES, |message| {
                message.put_str(entry_status::NAME, entry);
                if let Some(name) = name {
                    message.put_str(entry_status::RESOURCE_CLAIM_NAME, name);
                }
            });
        }
        let used = read(&Interner::default(), &spec, &reported).expect("well-formed").expect("some");
        let claims: Vec<_> = used.claims().map(|claim| (&**claim.name, claim.is_generated)).collect();
        assert_eq!(claims, [("mine", false), ("made-b", true)]);
        assert_eq!((&used.extended, &used.group), (&None, &None));
        assert_eq!(read(&Interner::default(), &[], &reported), Ok(None));
    }

    #[test]
    fn claim_for_extended_resources_is_read_without_any_entry() {
        let (mut spec, mut status) = (Vec::new(), Vec::new());
        spec.put_message(pod_spec::SCHEDULING_GROUP, |group| {
            group.put_str(pod_scheduling_group::POD_GROUP_NAME, "gang")
        });
        let grouped = read(&Interner::default(), &spec, &status).expect("well-formed").expect("a group");
        assert_eq!((grouped.entries.len(), grouped.group.as_deref()), (0, Some("gang")));
        status.put_message(pod_status::EXTENDED_RESOURCE_CLAIM_STATUS, |message| {
            message.put_str(extended::NAME, "web-extended-resources-x");
        });
        let used = read(&Interner::default(), &spec, &status).expect("well-formed").expect("some");
        assert_eq!(used.extended.as_deref(), Some("web-extended-resources-x"));
        assert_eq!(used.group.as_deref(), Some("gang"));
        assert!(used.entries.is_empty());
    }
}
