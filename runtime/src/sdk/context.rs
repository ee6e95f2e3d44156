//! The context of a reconcile: apply children, write the status, record events, read watched objects.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use kinds::meta::{Meta, ObjectKey, parse_version};
use kinds::{DecodeError, Kind, OwnerRef, Resource};
use serde::Serialize;
use serde_json::{Value, json};

use super::applied::{AppliedChildren, KindName};
use super::error::Error;
use super::object::Object;
use super::record::{Children, Typed};
use crate::consistency::Consistency;
use crate::events::{EventType, ObjectReference, Recorder};
use crate::lock::lock;
use crate::store::Store;
use crate::write::{WriteError, Writer};

/// Returns the name of a kind, regardless of its version.
pub(super) fn kind_name(resource: &Resource) -> KindName {
    (resource.group, resource.plural)
}

/// State that all reconciles of a controller share.
pub(super) struct Shared<K: Object> {
    pub(super) name: &'static str,
    pub(super) store: Arc<Store<Typed<K>>>,
    pub(super) children: HashMap<KindName, (Resource, Arc<dyn Children>)>,
    /// Stores of whole objects, as `Arc<Store<Typed<W>>>` under the type of `W`.
    pub(super) watched: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    pub(super) writer: Writer,
    pub(super) recorder: Recorder,
    pub(super) consistency: Consistency,
    pub(super) applied: Arc<AppliedChildren>,
    /// Hashes the requests of applied children.
    pub(super) hasher: RandomState,
}

/// The object to reconcile, and the operations on it.
pub struct Context<K: Object> {
    /// The object as last received by the watch.
    pub object: Arc<K>,
    pub(super) record: Arc<Typed<K>>,
    pub(super) shared: Arc<Shared<K>>,
    /// The status on the API server, shared by all clones.
    status: Arc<Mutex<StoredStatus>>,
}

/// The last status of the object that this reconcile read or wrote.
enum StoredStatus {
    /// The status in the cache.
    Cached,
    /// The status that this reconcile has written.
    Written(Value),
    /// The result of the last write is unknown.
    Unknown,
}

impl<K: Object> Clone for Context<K> {
    fn clone(&self) -> Self {
        let (record, shared) = (self.record.clone(), self.shared.clone());
        Self { object: self.object.clone(), record, shared, status: self.status.clone() }
    }
}

impl<K: Object> Context<K> {
    pub(super) fn new(record: Arc<Typed<K>>, shared: Arc<Shared<K>>) -> Self {
        let status = Arc::new(Mutex::new(StoredStatus::Cached));
        Self { object: record.object.clone(), record, shared, status }
    }

    /// Returns the object's metadata, reduced to the fields that controllers read.
    pub fn meta(&self) -> &Meta {
        self.record.meta()
    }

    /// Returns the object's name.
    pub fn name(&self) -> &str {
        &self.meta().name
    }

    /// Returns the object's namespace; empty if it has none.
    pub fn namespace(&self) -> &str {
        &self.meta().namespace
    }

    /// Returns the object's key.
    pub fn key(&self) -> ObjectKey {
        self.meta().key()
    }

    /// Creates or updates a child by server-side apply: fields that are set here are set on the server, fields that
    /// were set before and are missing now are removed, all others belong to other managers. The child gets the object
    /// as its controller, and the object's namespace unless it has one. Nothing is sent if the same was applied before
    /// and the child has not changed since.
    ///
    /// Returns the whole child as stored by the server.
    ///
    /// # Errors
    /// When the child has no name, belongs to another controller or cannot be owned, its kind was not declared by
    /// [`For::owns`](super::For::owns), or the request fails.
    pub async fn apply<D: Object>(&self, child: &D) -> Result<Arc<D>, Error> {
        let resource = D::RESOURCE;
        let (_, store) = self.shared.children.get(&kind_name(&resource)).ok_or(Error::NotOwned(resource.kind))?;
        let (key, object) = as_child(child, self.meta(), &self.record.controller_ref())?;
        let what = || format!("{} {key}", resource.kind);
        let cached = store.meta(&key);
        if let Some(owner) = cached.as_ref().and_then(Meta::controller).filter(|owner| owner.uid != self.meta().uid) {
            return Err(Error::Taken {
                child: what(),
                owner: format!("{} {} ({})", owner.kind, owner.name, owner.uid),
            });
        }
        let (owner, id) = (self.key(), (kind_name(&resource), key.clone()));
        let sent = self.shared.hasher.hash_one(object.to_string());
        if let Some(known) = self.shared.applied.unchanged(&owner, &id, sent, cached.map(|meta| meta.version)) {
            return Ok(known);
        }
        let failed = |error: WriteError| Error::Write { action: format!("apply {}", what()), error: Box::new(error) };
        let response =
            self.shared.writer.apply_whole(&resource, &key, self.shared.name, &object).await.map_err(failed)?;
        let unreadable = |problem: String| failed(WriteError::Unreadable(DecodeError::field("body", problem)));
        let mut applied: D = serde_json::from_slice(&response).map_err(|error| unreadable(error.to_string()))?;
        applied.meta_mut().managed_fields = None;
        let version = applied.meta().resource_version.as_deref().unwrap_or_default();
        let version = parse_version(version).map_err(|error| unreadable(error.to_string()))?;
        self.shared.consistency.wrote_at(&owner, &resource, store.progress(), version);
        let applied = Arc::new(applied);
        self.shared.applied.remember(&owner, id, sent, version, applied.clone());
        Ok(applied)
    }

    /// Returns the metadata of the object's children of a kind, including those that are being deleted.
    ///
    /// # Panics
    /// When the kind was not declared by [`For::owns`](super::For::owns).
    pub fn children<D: Object>(&self) -> Vec<Meta> {
        let children = self.shared.children.get(&kind_name(&D::RESOURCE));
        let (_, store) = children.unwrap_or_else(|| panic!("{}", Error::NotOwned(D::RESOURCE.kind)));
        store.controlled_by(self.meta())
    }

    /// Deletes a child, unless it no longer exists or was replaced by another object with its name.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn delete<D: Object>(&self, child: &Meta) -> Result<(), Error> {
        let resource = D::RESOURCE;
        self.shared.applied.forget_child(&self.key(), &(kind_name(&resource), child.key()));
        match self.shared.writer.delete(&resource, &child.key(), &child.uid).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(Error::Write {
                action: format!("delete {} {}", resource.kind, child.key()),
                error: Box::new(error),
            }),
            _ => Ok(()),
        }
    }

    /// Writes the object's status if it differs from the one that this reconcile wrote last, or, before the first
    /// write, from the cached one. Returns true if the status was written.
    ///
    /// # Errors
    /// When the status cannot be serialized, or the request fails. It is not an error if the object no longer exists.
    pub async fn set_status<S: Serialize>(&self, status: &S) -> Result<bool, Error> {
        let resource = K::RESOURCE;
        let what = || format!("{} {}", resource.kind, self.key());
        let read = |problem: serde_json::Error| Error::Malformed { what: what(), problem: problem.to_string() };
        let status = serde_json::to_value(status).map_err(read)?;
        let is_stored = match &*lock(&self.status) {
            StoredStatus::Cached => serde_json::to_value(&*self.object).map_err(read)?["status"] == status,
            StoredStatus::Written(written) => *written == status,
            StoredStatus::Unknown => false,
        };
        if is_stored {
            return Ok(false);
        }
        let meta = self.meta();
        let mut wanted = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": {"name": *meta.name, "uid": meta.uid.to_string()},
            "status": status,
        });
        if resource.namespaced {
            wanted["metadata"]["namespace"] = (*meta.namespace).into();
        }
        *lock(&self.status) = StoredStatus::Unknown;
        match self.shared.writer.apply(&resource, &self.key(), Some("status"), self.shared.name, &wanted).await {
            Ok(response) => {
                *lock(&self.status) = StoredStatus::Written(wanted["status"].take());
                if let Ok(response) = response.meta() {
                    self.shared.consistency.wrote(&self.key(), &self.shared.store, response.version);
                }
                Ok(true)
            }
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => {
                Err(Error::Write { action: format!("write the status of {}", what()), error: Box::new(error) })
            }
        }
    }

    /// Records an Event about the object. Call it when something happens, not in every reconcile.
    pub fn event(&self, kind: EventType, reason: &'static str, message: impl Into<String>) {
        let (resource, meta) = (K::RESOURCE, self.meta());
        let about = ObjectReference {
            api_version: resource.api_version().into(),
            kind: resource.kind.into(),
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.to_string().into(),
            resource_version: meta.version.to_string().into(),
        };
        self.shared.recorder.event(&about, kind, reason, message.into());
    }

    /// Returns an object of a watched kind; `None` if none has this name.
    ///
    /// # Panics
    /// When the kind was not declared by [`For::watches`](super::For::watches).
    pub fn look_up<W: Object>(&self, key: &ObjectKey) -> Option<Arc<W>> {
        let store = self.shared.watched.get(&TypeId::of::<W>());
        let store = store.and_then(|store| store.downcast_ref::<Arc<Store<Typed<W>>>>());
        let store = store.unwrap_or_else(|| {
            let kind = W::RESOURCE.kind;
            panic!("{kind} is not watched: declare it by .watches::<{kind}>(...)")
        });
        store.get(key).map(|record| record.object.clone())
    }
}

/// Returns a child's key, and the object to apply for it.
pub(super) fn as_child<D: Object>(child: &D, owner: &Meta, reference: &OwnerRef) -> Result<(ObjectKey, Value), Error> {
    let resource = D::RESOURCE;
    let malformed = |problem: &str| Error::Malformed { what: resource.kind.to_owned(), problem: problem.to_owned() };
    let meta = child.meta();
    let name = meta.name.as_deref().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| malformed("metadata.name is missing: children are applied by name"))?;
    let namespace = match meta.namespace.as_deref() {
        _ if !resource.namespaced => "",
        Some(namespace) => namespace,
        None => &owner.namespace,
    };
    if resource.namespaced && namespace.is_empty() {
        return Err(malformed("metadata.namespace is missing, and its owner has none"));
    }
    if !owner.namespace.is_empty() && *owner.namespace != *namespace {
        return Err(malformed("an object in a namespace cannot own one outside of it"));
    }
    let mut object = serde_json::to_value(child).map_err(|error| malformed(&error.to_string()))?;
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.into();
    if resource.namespaced {
        object["metadata"]["namespace"] = namespace.into();
    }
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": *reference.api_version, "kind": *reference.kind, "name": *reference.name,
        "uid": reference.uid.to_string(), "controller": true, "blockOwnerDeletion": true,
    }]);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    Ok((ObjectKey::new(namespace, name), object))
}
