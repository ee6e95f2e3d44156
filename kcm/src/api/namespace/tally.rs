//! Counts of the objects that remain in a namespace.
//!
//! A tenant can create any number of objects with finalizers. Therefore only counts are kept, and the identities of a
//! limited number of objects: upstream's conditions need no more.

use std::collections::BTreeMap;

use kinds::meta::Parts;
use kinds::namespace_deletion::pod_grace;
use kinds::schema::object_meta;
use kinds::wire::{Field, copy_fields, fields, find};
use kinds::{Interner, Meta, Resource, Str};

use super::decide::CleanupResult;

/// Maximum number of remaining objects whose deletions are awaited through the watch. More objects are only counted,
/// and checked again after upstream's delay.
const MAX_AWAITED: usize = 10_000;

/// Maximum length in bytes of a name and a namespace together, as the API server accepts them. An aggregated API may
/// send longer ones.
const MAX_NAME_BYTES: usize = 253 + 63;

/// The fields that identify an object.
const IDENTITY: [u32; 4] = [object_meta::NAME, object_meta::NAMESPACE, object_meta::UID, object_meta::RESOURCE_VERSION];

/// Maximum size of all distinct finalizers that are counted, in bytes. A condition with more would be too long for etcd.
const MAX_FINALIZER_BYTES: usize = 256 << 10;

/// Counts of a resource's remaining objects.
#[derive(Debug, Default)]
pub struct Tally {
    interner: Interner,
    objects: usize,
    finalizers: BTreeMap<Str, usize>,
    /// Size of the distinct finalizers.
    finalizer_bytes: usize,
    /// The longest grace period of the pods, in seconds.
    pub longest_grace: i64,
    /// The objects; `None` if their deletion cannot be awaited.
    awaited: Option<Vec<Meta>>,
}

impl Tally {
    /// Returns a tally without objects.
    pub fn new() -> Self {
        Self { awaited: Some(Vec::new()), ..Self::default() }
    }

    /// Returns the objects, if their deletion can be awaited.
    #[cfg(test)]
    pub fn awaited(&self) -> Option<&[Meta]> {
        self.awaited.as_deref()
    }

    /// Counts an object, by its ObjectMeta.
    pub fn add(&mut self, meta: &[u8]) {
        self.objects += 1;
        for field in fields(meta).map_while(Result::ok).filter(|field| field.number == object_meta::FINALIZERS) {
            self.add_finalizer(field.value.str());
        }
        let awaited = self.awaited.take().filter(|awaited| awaited.len() < MAX_AWAITED);
        self.awaited = awaited.zip(self.identity(meta)).map(|(mut awaited, identity)| {
            awaited.push(identity);
            awaited
        });
    }

    /// Counts a pod.
    pub fn add_pod(&mut self, pod: &[u8]) {
        self.longest_grace = self.longest_grace.max(pod_grace(pod));
        self.add(find(pod, Parts::METADATA));
    }

    fn add_finalizer(&mut self, finalizer: &str) {
        if let Some(count) = self.finalizers.get_mut(finalizer) {
            *count += 1;
        } else if self.finalizer_bytes + finalizer.len() <= MAX_FINALIZER_BYTES {
            self.finalizer_bytes += finalizer.len();
            self.finalizers.insert(finalizer.into(), 1);
        }
    }

    /// Returns only the fields that identify an object: they suffice to await its deletion.
    fn identity(&self, meta: &[u8]) -> Option<Meta> {
        let length = |field| find(meta, field).len();
        if length(object_meta::NAME) + length(object_meta::NAMESPACE) > MAX_NAME_BYTES {
            return None;
        }
        let mut identity = Vec::new();
        let is_part = |field: &Field<'_>| IDENTITY.contains(&field.number);
        copy_fields(meta, &mut identity, is_part).ok()?;
        Meta::decode(&self.interner, &identity, |_, _| {}).ok()
    }

    /// Returns the counted objects as the result of deleting all objects of the resource.
    pub fn finish(self, resource: &Resource, namespace: &str, estimate_seconds: i64) -> Remaining {
        let result = CleanupResult::of(resource, namespace, self.objects, self.finalizers, estimate_seconds);
        Remaining { result, objects: self.awaited }
    }
}

/// The remaining objects of a resource.
#[derive(Debug, Default)]
pub struct Remaining {
    pub result: CleanupResult,
    /// The objects; `None` if their deletion cannot be awaited.
    pub objects: Option<Vec<Meta>>,
}
