//! Upstream's test cases as tables, and random histories with lagging watches.

mod decide;
mod graph;
mod histories;
mod owners;

use std::sync::Arc;

use kinds::meta::{Meta, OwnerRef, Time};
use kinds::{Resource, Str, Uid};

pub const A: Resource = Resource { group: "", version: "v1", kind: "A", plural: "as", namespaced: true };
pub const B: Resource = Resource { group: "example.com", version: "v1", kind: "B", plural: "bs", namespaced: true };
/// A cluster-scoped kind.
pub const C: Resource = Resource { group: "", version: "v1", kind: "C", plural: "cs", namespaced: false };

pub fn uid(number: u128) -> Uid {
    Uid::Uuid(number.to_be_bytes())
}

/// Returns an object named after its uid.
pub fn object(number: u128, namespace: &str, owners: Vec<OwnerRef>) -> Meta {
    Meta {
        namespace: namespace.into(),
        name: format!("o{number}").into(),
        uid: uid(number),
        version: 1,
        generation: 0,
        created: Time(1),
        deletion: Time(0),
        labels: Arc::from([]),
        owners: owners.into(),
        finalizers: Arc::from([]),
    }
}

/// Returns the object, being deleted with these finalizers.
pub fn deleting(mut meta: Meta, finalizers: &[&str]) -> Meta {
    meta.deletion = Time(2);
    meta.finalizers = finalizers.iter().map(|finalizer| Str::from(*finalizer)).collect();
    meta
}

/// Returns a reference to an object that is named after its uid.
pub fn owner(resource: &Resource, number: u128) -> OwnerRef {
    OwnerRef {
        api_version: resource.api_version().into(),
        kind: resource.kind.into(),
        name: format!("o{number}").into(),
        uid: uid(number),
        controller: None,
        block_owner_deletion: None,
    }
}

/// Returns the reference of [`owner`], but with `blockOwnerDeletion` set.
pub fn blocking(resource: &Resource, number: u128) -> OwnerRef {
    OwnerRef { block_owner_deletion: Some(true), ..owner(resource, number) }
}
