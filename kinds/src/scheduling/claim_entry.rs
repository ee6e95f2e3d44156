//! The ResourceClaims that a pod or a PodGroup lists: by name, or to be created from a template.

use std::collections::{HashMap, VecDeque};

use crate::intern::{Interner, Str};
use crate::wire::schema::{
    pod_group_resource_claim as group, pod_group_resource_claim_status as group_status, pod_resource_claim as pod,
    pod_resource_claim_status as pod_status,
};
use crate::wire::{WireError, fields};

/// An entry of `spec.resourceClaims`, with its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimEntry {
    /// Name of the entry.
    pub name: Str,
    /// `resourceClaimName`, if it is set.
    pub claim: Option<Str>,
    /// `resourceClaimTemplateName`, if it is set.
    pub template: Option<Str>,
    /// Its entry of `status.resourceClaimStatuses`.
    pub status: ClaimStatus,
}

/// The status of an entry, from `status.resourceClaimStatuses`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimStatus {
    /// The status has no such entry: if the spec names a template, no claim was created from it yet.
    Missing,
    /// The status has an entry without a claim's name: no claim is needed.
    NotNeeded,
    /// The name of the claim that was created.
    Named(Str),
}

/// The claim that an entry refers to. Upstream: k8s.io/dynamic-resource-allocation/resourceclaim, Name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolvedClaim<'a> {
    /// The claim with this name, regardless of its owner.
    Shared(&'a Str),
    /// The claim with this name, which was created for the entry: the pod or PodGroup must own it.
    Generated(&'a Str),
    /// No claim is needed.
    NotNeeded,
    /// The claim has not been created yet.
    NotCreated,
    /// The entry names neither a claim nor a template: it uses a field of a newer API version.
    Unsupported,
}

impl ResolvedClaim<'_> {
    /// Returns the claim's name, if it has one.
    pub fn name(&self) -> Option<&Str> {
        match self {
            Self::Shared(name) | Self::Generated(name) => Some(name),
            Self::NotNeeded | Self::NotCreated | Self::Unsupported => None,
        }
    }
}

/// Field numbers of an entry's message: name of the entry, of the claim, of the template.
#[derive(Debug, Clone, Copy)]
pub struct EntryFields(u32, u32, u32);

impl EntryFields {
    /// Field numbers of a `PodResourceClaim`.
    pub const POD: Self = Self(pod::NAME, pod::RESOURCE_CLAIM_NAME, pod::RESOURCE_CLAIM_TEMPLATE_NAME);
    /// Field numbers of a `PodGroupResourceClaim`.
    pub const POD_GROUP: Self = Self(group::NAME, group::RESOURCE_CLAIM_NAME, group::RESOURCE_CLAIM_TEMPLATE_NAME);
}

impl ClaimEntry {
    /// Reads the entries in the field `listed` of a spec, each with its status from the field `reported` of a status.
    ///
    /// # Errors
    /// When a message is not well-formed.
    pub fn read(
        interner: &Interner,
        (spec, listed): (&[u8], u32),
        (status, reported): (&[u8], u32),
        numbers: EntryFields,
    ) -> Result<Box<[Self]>, WireError> {
        let mut entries = Vec::new();
        for field in fields(spec) {
            let field = field?;
            if field.number == listed {
                entries.push(Self::read_entry(interner, field.value.bytes(), numbers)?);
            }
        }
        if entries.is_empty() {
            return Ok(Box::default());
        }
        // Linear in the size of the object, whose author chooses the number of entries.
        let mut statuses: HashMap<&str, VecDeque<ClaimStatus>> = HashMap::new();
        for field in fields(status) {
            let field = field?;
            if field.number == reported {
                let (name, status) = read_status(interner, field.value.bytes())?;
                statuses.entry(name).or_default().push_back(status);
            }
        }
        for entry in &mut entries {
            // Of several entries with one name the first gets the first status, as in upstream's search.
            if let Some(status) = statuses.get_mut(&*entry.name).and_then(VecDeque::pop_front) {
                entry.status = status;
            }
        }
        Ok(entries.into())
    }

    fn read_entry(
        interner: &Interner,
        message: &[u8],
        EntryFields(name, claim, template): EntryFields,
    ) -> Result<Self, WireError> {
        let mut entry = Self { name: interner.str(""), claim: None, template: None, status: ClaimStatus::Missing };
        for field in fields(message) {
            let field = field?;
            let text = || interner.str(field.value.str());
            match field.number {
                number if number == name => entry.name = text(),
                number if number == claim => entry.claim = Some(text()),
                number if number == template => entry.template = Some(text()),
                _ => {}
            }
        }
        Ok(entry)
    }

    /// Returns the claim that the entry refers to.
    pub fn resolve(&self) -> ResolvedClaim<'_> {
        match (&self.claim, &self.template, &self.status) {
            (Some(name), _, _) => ResolvedClaim::Shared(name),
            (None, None, _) => ResolvedClaim::Unsupported,
            (None, Some(_), ClaimStatus::Named(name)) => ResolvedClaim::Generated(name),
            (None, Some(_), ClaimStatus::NotNeeded) => ResolvedClaim::NotNeeded,
            (None, Some(_), ClaimStatus::Missing) => ResolvedClaim::NotCreated,
        }
    }
}

fn read_status<'a>(interner: &Interner, message: &'a [u8]) -> Result<(&'a str, ClaimStatus), WireError> {
    const _: () = assert!(pod_status::NAME == group_status::NAME);
    const _: () = assert!(pod_status::RESOURCE_CLAIM_NAME == group_status::RESOURCE_CLAIM_NAME);
    let mut entry = "";
    let mut status = ClaimStatus::NotNeeded;
    for field in fields(message) {
        let field = field?;
        match field.number {
            pod_status::NAME => entry = field.value.str(),
            pod_status::RESOURCE_CLAIM_NAME => status = ClaimStatus::Named(interner.str(field.value.str())),
            _ => {}
        }
    }
    Ok((entry, status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    const LISTED: u32 = 39;
    const REPORTED: u32 = 15;

    #[test]
    fn cost_is_linear_in_the_number_of_entries() {
        let (mut spec, mut status) = (Vec::new(), Vec::new());
        for number in 0..20_000 {
            let name = format!("entry-{number}");
            spec.put_message(LISTED, |message| message.put_str(pod::NAME, &name));
            status.put_message(REPORTED, |message| message.put_str(pod_status::NAME, &name));
        }
        let started = std::time::Instant::now();
        let entries =
            ClaimEntry::read(&Interner::default(), (&spec, LISTED), (&status, REPORTED), EntryFields::POD).expect("ok");
        assert!(entries.iter().all(|entry| entry.status == ClaimStatus::NotNeeded));
        // A comparison of all pairs would take half a minute in a debug build.
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "took {:?}", started.elapsed());
    }

    #[test]
    fn entry_resolves_to_the_named_claim_or_to_the_one_in_the_status() {
        let (mut spec, mut status) = (Vec::new(), Vec::new());
        for (entry, number, name) in [
            ("a", pod::RESOURCE_CLAIM_NAME, "mine"),
            ("b", pod::RESOURCE_CLAIM_TEMPLATE_NAME, "template"),
            ("c", pod::RESOURCE_CLAIM_TEMPLATE_NAME, "template"),
            ("d", pod::RESOURCE_CLAIM_TEMPLATE_NAME, "template"),
            ("e", 99, "new"),
        ] {
            spec.put_message(LISTED, |message| {
                message.put_str(pod::NAME, entry);
                message.put_str(number, name);
            });
        }
        for (entry, name) in [("b", Some("made-b")), ("d", None), ("unknown", Some("x"))] {
            status.put_message(REPORTED, |message| {
                message.put_str(pod_status::NAME, entry);
                if let Some(name) = name {
                    message.put_str(pod_status::RESOURCE_CLAIM_NAME, name);
                }
            });
        }
        let entries =
            ClaimEntry::read(&Interner::default(), (&spec, LISTED), (&status, REPORTED), EntryFields::POD).expect("ok");
        let resolved: Vec<_> = entries.iter().map(ClaimEntry::resolve).collect();
        assert_eq!(
            resolved,
            [
                ResolvedClaim::Shared(&"mine".into()),
                ResolvedClaim::Generated(&"made-b".into()),
                ResolvedClaim::NotCreated,
                ResolvedClaim::NotNeeded,
                ResolvedClaim::Unsupported,
            ]
        );
    }
}
