//! The ResourceClaims that a pod uses and the PodGroup that it belongs to, by their names.

use crate::intern::{Interner, Str};
use crate::wire::schema::{
    pod_resource_claim as claim, pod_resource_claim_status as status, pod_scheduling_group, pod_spec, pod_status,
};
use crate::wire::{WireError, fields, find};

/// The ResourceClaims that a pod uses, and the PodGroup through which it may use more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// Those that it names, and those that were made from its templates so far.
    pub claims: Box<[UsedClaim]>,
    /// `spec.schedulingGroup.podGroupName`, if it belongs to a PodGroup.
    pub group: Option<Str>,
}

/// A ResourceClaim that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedClaim {
    /// Its name.
    pub name: Str,
    /// It was made for this pod from a template, so that the pod has to be its owner.
    pub is_made: bool,
}

/// Reads the claims that a pod uses (k8s.io/dynamic-resource-allocation/resourceclaim, Name) and its PodGroup; `None`
/// without any of both.
pub(super) fn read(interner: &Interner, spec: &[u8], pod_status: &[u8]) -> Result<Option<Box<Devices>>, WireError> {
    let (mut used, mut group) = (Vec::new(), None);
    for field in fields(spec) {
        let field = field?;
        if field.number == pod_spec::SCHEDULING_GROUP {
            group = read_group(interner, field.value.bytes());
        }
        if field.number != pod_spec::RESOURCE_CLAIMS {
            continue;
        }
        let (mut entry, mut named, mut from_template) = ("", None, false);
        for field in fields(field.value.bytes()) {
            let field = field?;
            match field.number {
                claim::NAME => entry = field.value.str(),
                claim::RESOURCE_CLAIM_NAME => named = Some(field.value.str()),
                claim::RESOURCE_CLAIM_TEMPLATE_NAME => from_template = true,
                _ => {}
            }
        }
        let found = match named {
            Some(name) => Some((name, false)),
            None if from_template => made(pod_status, entry)?.map(|name| (name, true)),
            None => None,
        };
        used.extend(found.map(|(name, is_made)| UsedClaim { name: interner.str(name), is_made }));
    }
    let has_any = !used.is_empty() || group.is_some();
    Ok(has_any.then(|| Box::new(Devices { claims: used.into(), group })))
}

fn read_group(interner: &Interner, scheduling_group: &[u8]) -> Option<Str> {
    let name = str::from_utf8(find(scheduling_group, pod_scheduling_group::POD_GROUP_NAME)).unwrap_or_default();
    (!name.is_empty()).then(|| interner.str(name))
}

/// The claim that was made for an entry of the pod's list.
fn made<'a>(pod_status: &'a [u8], entry: &str) -> Result<Option<&'a str>, WireError> {
    for field in fields(pod_status) {
        let field = field?;
        if field.number != pod_status::RESOURCE_CLAIM_STATUSES {
            continue;
        }
        let (mut of, mut name) = ("", None);
        for field in fields(field.value.bytes()) {
            let field = field?;
            match field.number {
                status::NAME => of = field.value.str(),
                status::RESOURCE_CLAIM_NAME => name = Some(field.value.str()),
                _ => {}
            }
        }
        if of == entry {
            return Ok(name);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    #[test]
    fn named_claims_and_those_made_from_templates_are_used() {
        let (mut spec, mut reported) = (Vec::new(), Vec::new());
        for (entry, number, name) in [
            ("a", claim::RESOURCE_CLAIM_NAME, "mine"),
            ("b", claim::RESOURCE_CLAIM_TEMPLATE_NAME, "template"),
            ("c", claim::RESOURCE_CLAIM_TEMPLATE_NAME, "not-made-yet"),
            ("d", claim::RESOURCE_CLAIM_TEMPLATE_NAME, "not-needed"),
        ] {
            spec.put_message(pod_spec::RESOURCE_CLAIMS, |message| {
                message.put_str(claim::NAME, entry);
                message.put_str(number, name);
            });
        }
        for (entry, name) in [("b", Some("made-b")), ("d", None)] {
            reported.put_message(pod_status::RESOURCE_CLAIM_STATUSES, |message| {
                message.put_str(status::NAME, entry);
                if let Some(name) = name {
                    message.put_str(status::RESOURCE_CLAIM_NAME, name);
                }
            });
        }
        let used = read(&Interner::default(), &spec, &reported).expect("well-formed").expect("some");
        let used: Vec<_> = used.claims.iter().map(|claim| (&*claim.name, claim.is_made)).collect();
        assert_eq!(used, [("mine", false), ("made-b", true)]);
        assert_eq!(read(&Interner::default(), &[], &reported), Ok(None));
    }

    #[test]
    fn pod_group_is_read_when_it_is_named() {
        for (name, expected) in [(None, None), (Some(""), None), (Some("g"), Some("g"))] {
            let mut spec = Vec::new();
            spec.put_message(pod_spec::SCHEDULING_GROUP, |group| {
                name.iter().for_each(|name| group.put_str(pod_scheduling_group::POD_GROUP_NAME, name));
            });
            let devices = read(&Interner::default(), &spec, &[]).expect("well-formed");
            let group = devices.as_ref().and_then(|devices| devices.group.as_deref());
            assert_eq!(group, expected, "{name:?}");
            assert_eq!(devices.is_some(), expected.is_some(), "{name:?}");
        }
    }
}
