//! Records for typed objects: one with the whole object, one with metadata only.

use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time as ApiTime};
use kinds::meta::{ObjectKey, parse_version};
use kinds::wire::find;
use kinds::{Decode, DecodeError, Form, Interner, Kind, Meta, OwnerRef, Resource, Str, Time, Uid};

use super::object::Object;
use crate::store::{Change, Index, Progress, Store, index_key};
use crate::watch::json;

/// A whole object, watched as JSON.
#[derive(Debug)]
pub struct Typed<K> {
    meta: Meta,
    /// The object, without `managedFields`.
    pub object: Arc<K>,
}

impl<K: Object> Kind for Typed<K> {
    const RESOURCE: Resource = K::RESOURCE;
    const FORM: Form = Form::Json;

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut object: K = json::typed_object(object)?;
        object.meta_mut().managed_fields = None;
        Ok(Self { meta: meta(&context.interner, object.meta())?, object: Arc::new(object) })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// The metadata of a child, watched as protobuf.
#[derive(Debug)]
pub struct Owned<D>(Meta, PhantomData<fn() -> D>);

impl<D: Object> Kind for Owned<D> {
    const RESOURCE: Resource = D::RESOURCE;
    const FORM: Form = Form::Metadata;

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self(Meta::decode(&context.interner, find(object, 1), |_, _| {})?, PhantomData))
    }

    fn meta(&self) -> &Meta {
        &self.0
    }
}

/// Converts the metadata of a typed object to the metadata of a record.
pub(super) fn meta(interner: &Interner, meta: &ObjectMeta) -> Result<Meta, DecodeError> {
    let text = |text: &Option<String>| interner.str(text.as_deref().unwrap_or_default());
    let time = |time: &Option<ApiTime>| Time(time.as_ref().map_or(0, |time| time.0.as_second()));
    let name = meta.name.as_deref().filter(|name| !name.is_empty());
    let owners: Vec<OwnerRef> =
        meta.owner_references.iter().flatten().map(|owner| reference(interner, owner)).collect();
    let labels = meta.labels.iter().flatten().map(|(key, value)| (interner.str(key), interner.str(value))).collect();
    let finalizers: Vec<Str> = meta.finalizers.iter().flatten().map(|name| interner.str(name)).collect();
    Ok(Meta {
        namespace: text(&meta.namespace),
        name: name.ok_or_else(|| DecodeError::field("metadata.name", "is missing"))?.into(),
        uid: Uid::parse(meta.uid.as_deref().unwrap_or_default()),
        version: parse_version(meta.resource_version.as_deref().unwrap_or_default())?,
        generation: meta.generation.unwrap_or(0),
        created: time(&meta.creation_timestamp),
        deletion: time(&meta.deletion_timestamp),
        labels: interner.labels(labels),
        owners: interner.owners(&owners),
        finalizers: interner.list(&finalizers),
    })
}

fn reference(interner: &Interner, owner: &OwnerReference) -> OwnerRef {
    OwnerRef {
        api_version: interner.str(&owner.api_version),
        kind: interner.str(&owner.kind),
        name: interner.str(&owner.name),
        uid: Uid::parse(&owner.uid),
        controller: owner.controller,
        block_owner_deletion: owner.block_owner_deletion,
    }
}

/// Returns an index of children by the uid of their controller, in all namespaces: an owner without a namespace may
/// have children in each.
pub(super) const fn by_controller<K: Kind>() -> Index<K> {
    Index {
        name: "controller",
        keys: |record, emit| {
            if let Some(controller) = record.meta().controller() {
                emit(index_key(&controller.uid));
            }
        },
    }
}

/// A subscriber that is called with the metadata before and after a change.
pub(super) type OnChange = Box<dyn Fn(Option<&Meta>, Option<&Meta>) + Send + Sync>;

/// A store of children with any type of records; only their metadata is read.
pub(super) trait Children: Send + Sync {
    fn progress(&self) -> &Progress;
    fn meta(&self, key: &ObjectKey) -> Option<Meta>;
    fn controlled_by(&self, owner: &Meta) -> Vec<Meta>;
    fn on_change(&self, notify: OnChange);
}

impl<K: Kind> Children for Store<K> {
    fn progress(&self) -> &Progress {
        Store::progress(self)
    }

    fn meta(&self, key: &ObjectKey) -> Option<Meta> {
        self.get(key).map(|record| record.meta().clone())
    }

    fn controlled_by(&self, owner: &Meta) -> Vec<Meta> {
        let referring = self.by_index(&by_controller(), index_key(&owner.uid));
        let may_own = |child: &&Meta| owner.namespace.is_empty() || child.namespace == owner.namespace;
        referring.iter().map(|record| record.meta()).filter(may_own).cloned().collect()
    }

    fn on_change(&self, notify: OnChange) {
        self.subscribe(move |change: &Change<'_, K>| {
            notify(change.old.map(|record| record.meta()), change.new.map(|record| record.meta()));
        });
    }
}
