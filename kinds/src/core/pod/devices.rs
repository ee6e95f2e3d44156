//! The ResourceClaims that a pod uses, by name.

use crate::intern::{Interner, Str};
use crate::wire::schema::{pod_resource_claim as claim, pod_resource_claim_status as status, pod_spec, pod_status};
use crate::wire::{WireError, fields};

/// The ResourceClaims that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// Claims that the pod names, and claims that were already created from its templates.
    pub claims: Box<[UsedClaim]>,
}

/// A ResourceClaim that a pod uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedClaim {
    /// Its name.
    pub name: Str,
    /// It was made for this pod from a template, so that the pod has to be its owner.
    pub is_made: bool,
}

/// Reads the claims that a pod uses (k8s.io/dynamic-resource-allocation/resourceclaim, Name); `None` without any.
pub(super) fn read(interner: &Interner, spec: &[u8], pod_status: &[u8]) -> Result<Option<Box<Devices>>, WireError> {
    let mut used = Vec::new();
    for field in fields(spec) {
        let field = field?;
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
    Ok((!used.is_empty()).then(|| Box::new(Devices { claims: used.into() })))
}

/// Returns the claim that was made for an entry of the pod's list.
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
    fn used_claims_are_named_or_created_from_templates() {
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
}
