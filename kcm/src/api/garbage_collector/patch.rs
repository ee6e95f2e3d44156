//! The bodies of the collector's patches.

use std::collections::HashSet;

use kinds::meta::{Meta, OwnerRef};
use kinds::{Str, Uid};
use serde_json::{Value, json};

/// Returns the patch that removes references to owners, for kinds with strategic merge patches. The UID is a
/// precondition.
pub fn strategic_drop_references(dependent: &Uid, owners: &[Uid]) -> Value {
    let deletions: Vec<Value> =
        owners.iter().map(|uid| json!({ "$patch": "delete", "uid": uid.to_string() })).collect();
    json!({ "metadata": { "uid": dependent.to_string(), "ownerReferences": deletions } })
}

/// Returns the patch of [`strategic_drop_references`] for all other kinds: the whole list without these owners. The
/// resourceVersion is a precondition.
pub fn merge_drop_references(meta: &Meta, owners: &[Uid]) -> Value {
    let removed: HashSet<&Uid> = owners.iter().collect();
    owner_list(meta, meta.owners.iter().filter(|owner| !removed.contains(&owner.uid)).map(reference))
}

/// Returns the patch that sets `blockOwnerDeletion` to false in all references where it is true, for kinds with
/// strategic merge patches.
pub fn strategic_unblock(meta: &Meta) -> Value {
    let blocking = meta.owners.iter().filter(|owner| owner.block_owner_deletion == Some(true));
    let changed: Vec<Value> = blocking.map(not_blocking).collect();
    json!({ "metadata": { "uid": meta.uid.to_string(), "ownerReferences": changed } })
}

/// Returns the patch of [`strategic_unblock`] for all other kinds. The resourceVersion is a precondition.
pub fn merge_unblock(meta: &Meta) -> Value {
    owner_list(meta, meta.owners.iter().map(not_blocking))
}

/// Returns the patch that removes a finalizer from this version of the object; `None` if the object does not have it.
pub fn without_finalizer(meta: &Meta, finalizer: &str) -> Option<Value> {
    let kept: Vec<&Str> = meta.finalizers.iter().filter(|found| ***found != *finalizer).collect();
    if kept.len() == meta.finalizers.len() {
        return None;
    }
    let kept = if kept.is_empty() { Value::Null } else { kept.iter().map(|kept| Value::from(&***kept)).collect() };
    Some(json!({ "metadata": { "resourceVersion": meta.version.to_string(), "finalizers": kept } }))
}

fn owner_list(meta: &Meta, owners: impl Iterator<Item = Value>) -> Value {
    let owners: Vec<Value> = owners.collect();
    let owners = if owners.is_empty() { Value::Null } else { Value::Array(owners) };
    json!({ "metadata": { "resourceVersion": meta.version.to_string(), "ownerReferences": owners } })
}

fn reference(owner: &OwnerRef) -> Value {
    let mut reference = json!({
        "apiVersion": &*owner.api_version, "kind": &*owner.kind, "name": &*owner.name, "uid": owner.uid.to_string(),
    });
    if let Some(controller) = owner.controller {
        reference["controller"] = controller.into();
    }
    if let Some(block) = owner.block_owner_deletion {
        reference["blockOwnerDeletion"] = block.into();
    }
    reference
}

fn not_blocking(owner: &OwnerRef) -> Value {
    let mut reference = reference(owner);
    reference["blockOwnerDeletion"] = false.into();
    reference
}
