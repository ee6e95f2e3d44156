//! The lifecycle of a ResourceClaim: its origin, its allocation, and the consumers that it is reserved for.

use crate::intern::{Interner, Str};
use crate::meta::Uid;
use crate::wire::schema::{
    claim_consumer, device_claim, device_request, exact_device_request, resource_claim_spec,
    resource_claim_status as status,
};
use crate::wire::{Put, WireError, fields, find};

/// Annotation on a claim that was created from a template: name of the entry of the pod or PodGroup that it is for.
pub const ENTRY_ANNOTATION: &str = "resource.kubernetes.io/pod-claim-name";
/// Finalizer of an allocated claim.
pub const DELETE_PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// The state that decides when a claim is reserved, deallocated or deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClaimState {
    /// It has an allocation.
    pub is_allocated: bool,
    /// One of its requests is for administrative access.
    pub has_admin_access: bool,
    /// The entry that it was created for; `None` for a claim that was not created from a template.
    pub entry: Option<Str>,
    /// The consumers that it is reserved for.
    pub consumers: Box<[Consumer]>,
}

/// A consumer that a claim is reserved for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Consumer {
    /// API group; empty for the core group.
    pub group: Str,
    /// Plural name of its kind.
    pub resource: Str,
    /// Its name.
    pub name: Str,
    /// Its uid.
    pub uid: Uid,
}

impl Consumer {
    /// Reads a `ResourceClaimConsumerReference` message.
    pub(crate) fn read(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let (mut group, mut resource, mut name, mut uid) = ("", "", "", "");
        for field in fields(message) {
            let field = field?;
            match field.number {
                claim_consumer::API_GROUP => group = field.value.str(),
                claim_consumer::RESOURCE => resource = field.value.str(),
                claim_consumer::NAME => name = field.value.str(),
                claim_consumer::UID => uid = field.value.str(),
                _ => {}
            }
        }
        let [group, resource, name] = [group, resource, name].map(|text| interner.str(text));
        Ok(Self { group, resource, name, uid: Uid::parse(uid) })
    }

    /// Appends the consumer as a field of a message.
    pub(crate) fn put(&self, out: &mut Vec<u8>, number: u32) {
        out.put_message(number, |message| {
            message.put_str(claim_consumer::API_GROUP, &self.group);
            message.put_str(claim_consumer::RESOURCE, &self.resource);
            message.put_str(claim_consumer::NAME, &self.name);
            message.put_str(claim_consumer::UID, &self.uid.to_string());
        });
    }

    /// Returns true if the consumer is a pod.
    pub fn is_pod(&self) -> bool {
        self.group.is_empty() && &*self.resource == "pods"
    }

    /// Returns true if the consumer is a PodGroup.
    pub fn is_pod_group(&self) -> bool {
        &*self.group == "scheduling.k8s.io" && &*self.resource == "podgroups"
    }
}

impl ClaimState {
    pub(crate) fn read(interner: &Interner, entry: Option<Str>, spec: &[u8], status: &[u8]) -> Result<Self, WireError> {
        let mut is_allocated = false;
        let mut consumers = Vec::new();
        for field in fields(status) {
            let field = field?;
            match field.number {
                status::ALLOCATION => is_allocated = true,
                status::RESERVED_FOR => consumers.push(Consumer::read(interner, field.value.bytes())?),
                _ => {}
            }
        }
        let has_admin_access = has_admin_access(spec)?;
        Ok(Self { is_allocated, has_admin_access, entry, consumers: consumers.into() })
    }
}

/// Returns true if a `ResourceClaimSpec` requests administrative access. A request with alternatives cannot request it.
pub(crate) fn has_admin_access(spec: &[u8]) -> Result<bool, WireError> {
    let mut found = false;
    for_each_request_field(spec, |field, message| {
        found |= field == device_request::EXACTLY
            && fields(message)
                .flatten()
                .any(|field| field.number == exact_device_request::ADMIN_ACCESS && field.value.bool());
    })?;
    Ok(found)
}

/// Returns true if a request of a `ResourceClaimSpec` lists alternatives.
pub(crate) fn has_prioritized_list(spec: &[u8]) -> Result<bool, WireError> {
    let mut found = false;
    for_each_request_field(spec, |field, _| found |= field == device_request::FIRST_AVAILABLE)?;
    Ok(found)
}

/// Visits each field of each device request of a `ResourceClaimSpec`.
fn for_each_request_field(spec: &[u8], mut visit: impl FnMut(u32, &[u8])) -> Result<(), WireError> {
    for request in fields(find(spec, resource_claim_spec::DEVICES)) {
        let request = request?;
        if request.number != device_claim::REQUESTS {
            continue;
        }
        for field in fields(request.value.bytes()) {
            let field = field?;
            visit(field.number, field.value.bytes());
        }
    }
    Ok(())
}
