//! Controller references: the decision to keep, adopt or release a child. Upstream: pkg/controller,
//! ControllerRefManager.

use std::sync::Arc;

use kinds::Kind;
use kinds::meta::{Meta, ObjectKey, OwnerRef};
use serde_json::{Value, json};

use crate::write::{WriteError, Writer};

/// The decision about one child. A child *matches* if the selector of the owner selects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The child has the owner's reference and matches.
    Ours,
    /// The child belongs to another owner, has no controller and does not match, or may not be changed: the owner or
    /// the child to adopt is being deleted, or the child to adopt is in another namespace.
    Ignore,
    /// The child has the owner's reference and no longer matches.
    Release,
    /// The child has no controller and matches.
    Adopt,
}

/// Decides about one child. `matches`: the selector of `owner` selects it.
pub fn claim(owner: &Meta, child: &Meta, matches: bool) -> Claim {
    match child.controller() {
        Some(controller) if controller.uid != owner.uid => Claim::Ignore,
        Some(_) if matches => Claim::Ours,
        Some(_) if owner.is_deleting() => Claim::Ignore,
        Some(_) => Claim::Release,
        None if !matches || owner.is_deleting() || child.is_deleting() || owner.namespace != child.namespace => {
            Claim::Ignore
        }
        None => Claim::Adopt,
    }
}

/// Returns the patch that makes `owner` the controller of a child; it fails if the child was replaced by another
/// object.
pub fn adoption(owner: &OwnerRef, child: &Meta) -> Value {
    json!({"metadata": {
        "uid": child.uid.to_string(),
        "ownerReferences": [{
            "apiVersion": *owner.api_version, "kind": *owner.kind, "name": *owner.name, "uid": owner.uid.to_string(),
            "controller": true, "blockOwnerDeletion": true,
        }],
    }})
}

/// Returns the patch that removes an owner's reference from a child; it fails if the child was replaced by another
/// object.
pub fn release(owner: &Meta, child: &Meta) -> Value {
    json!({"metadata": {
        "uid": child.uid.to_string(),
        "ownerReferences": [{"$patch": "delete", "uid": owner.uid.to_string()}],
    }})
}

/// An owner and the means to claim its children.
pub struct Owner<'a> {
    /// The owner's metadata.
    pub meta: &'a Meta,
    /// The reference that children get.
    pub reference: OwnerRef,
    /// The identity of the writes.
    pub writer: &'a Writer,
}

/// The children of an owner after claiming, and the errors.
#[derive(Debug)]
pub struct Claimed<C> {
    /// All children, including the adopted ones.
    pub children: Vec<Arc<C>>,
    /// Versions at which children were changed.
    pub written: Vec<u64>,
    /// Failed adoptions and releases.
    pub errors: Vec<String>,
}

impl Owner<'_> {
    /// Adopts and releases children according to `matches`. Before the first adoption, an uncached read checks that the
    /// owner `K` still has the same uid and is not being deleted.
    pub async fn claim<K: Kind, C: Kind>(&self, children: Vec<Arc<C>>, matches: impl Fn(&C) -> bool) -> Claimed<C> {
        let mut claimed =
            Claimed { children: Vec::with_capacity(children.len()), written: Vec::new(), errors: Vec::new() };
        let mut may_adopt: Option<Result<(), String>> = None;
        for child in children {
            let meta = child.meta();
            match claim(self.meta, meta, matches(&child)) {
                Claim::Ours => claimed.children.push(child),
                Claim::Ignore => {}
                Claim::Release => match self.patch::<C>(meta, &release(self.meta, meta)).await {
                    Ok(version) => claimed.written.extend(version),
                    // Invalid: the reference was already removed, or the child was replaced by another object.
                    Err(error) if error.is_not_found() || error.is_invalid() => {}
                    Err(error) => claimed.errors.push(error.to_string()),
                },
                Claim::Adopt => {
                    if may_adopt.is_none() {
                        may_adopt = Some(self.recheck_owner::<K>().await);
                    }
                    if let Some(Err(why)) = &may_adopt {
                        let (kind, key, uid) = (C::RESOURCE.kind, meta.key(), &meta.uid);
                        claimed.errors.push(format!("can't adopt {kind} {key} ({uid}): {why}"));
                        continue;
                    }
                    match self.patch::<C>(meta, &adoption(&self.reference, meta)).await {
                        Ok(version) => {
                            claimed.written.extend(version);
                            claimed.children.push(child);
                        }
                        Err(error) if error.is_not_found() => {}
                        Err(error) => claimed.errors.push(error.to_string()),
                    }
                }
            }
        }
        claimed
    }

    async fn patch<C: Kind>(&self, child: &Meta, patch: &Value) -> Result<Option<u64>, WriteError> {
        let response = self.writer.patch(&C::RESOURCE, &child.key(), patch).await?;
        Ok(response.meta().ok().map(|meta| meta.version))
    }

    async fn recheck_owner<K: Kind>(&self) -> Result<(), String> {
        let (kind, key) = (K::RESOURCE.kind, self.meta.key());
        let fresh = self.writer.get(&K::RESOURCE, &key).await.map_err(|error| error.to_string())?;
        let fresh = fresh.meta().map_err(|error| error.to_string())?;
        check_owner_unchanged(kind, &key, self.meta, &fresh)
    }
}

fn check_owner_unchanged(kind: &str, key: &ObjectKey, known: &Meta, fresh: &Meta) -> Result<(), String> {
    if fresh.uid != known.uid {
        return Err(format!("original {kind} {key} is gone: got uid {}, wanted {}", fresh.uid, known.uid));
    }
    if fresh.is_deleting() {
        let at = jiff::Timestamp::from_second(fresh.deletion.0).unwrap_or_default();
        return Err(format!("{key} has just been deleted at {at}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kinds::{Interner, Time, Uid};

    use super::*;

    fn meta(uid: &str, deleting: bool, owner: Option<(&str, bool)>) -> Meta {
        let interner = Interner::default();
        let owners: Vec<OwnerRef> = owner
            .map(|(uid, controller)| OwnerRef {
                api_version: "apps/v1".into(),
                kind: "ReplicaSet".into(),
                name: "owner".into(),
                uid: Uid::parse(uid),
                controller: Some(controller),
                block_owner_deletion: None,
            })
            .into_iter()
            .collect();
        Meta {
            namespace: "ns".into(),
            name: "name".into(),
            uid: Uid::parse(uid),
            version: 1,
            generation: 0,
            created: Time(1),
            deletion: Time(i64::from(deleting)),
            labels: interner.labels(Vec::new()),
            owners: interner.owners(&owners),
            finalizers: interner.list(&[]),
        }
    }

    #[test]
    fn claim_decides_as_upstream() {
        let (alive, deleting) = (meta("us", false, None), meta("us", true, None));
        let (ours, theirs) = (Some(("us", true)), Some(("them", true)));
        for (owner, child_owner, child_deleting, matches, expected) in [
            (&alive, theirs, false, true, Claim::Ignore),
            (&alive, ours, false, true, Claim::Ours),
            (&alive, ours, true, true, Claim::Ours),
            (&deleting, ours, false, true, Claim::Ours),
            (&alive, ours, false, false, Claim::Release),
            (&deleting, ours, false, false, Claim::Ignore),
            (&alive, None, false, true, Claim::Adopt),
            (&alive, None, false, false, Claim::Ignore),
            (&alive, None, true, true, Claim::Ignore),
            (&deleting, None, false, true, Claim::Ignore),
            (&alive, Some(("us", false)), false, true, Claim::Adopt),
        ] {
            let child = meta("child", child_deleting, child_owner);
            assert_eq!(claim(owner, &child, matches), expected, "{child_owner:?} {child_deleting} {matches}");
        }
        let mut elsewhere = meta("child", false, None);
        elsewhere.namespace = "other".into();
        assert_eq!(claim(&alive, &elsewhere, true), Claim::Ignore);
    }

    #[test]
    fn replaced_or_deleted_owner_adopts_nothing() {
        let known = meta("us", false, None);
        assert_eq!(check_owner_unchanged("ReplicaSet", &known.key(), &known, &known), Ok(()));
        for fresh in [meta("other", false, None), meta("us", true, None)] {
            assert!(check_owner_unchanged("ReplicaSet", &known.key(), &known, &fresh).is_err());
        }
    }
}
