//! Objects as events name them.

use kinds::Kind;
use runtime::events::ObjectReference;

/// A reference to an object, for an event about it.
pub fn about<K: Kind>(record: &K) -> ObjectReference {
    let meta = record.meta();
    ObjectReference {
        api_version: K::RESOURCE.api_version().into(),
        kind: K::RESOURCE.kind.into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.to_string().into(),
        resource_version: meta.version.to_string().into(),
    }
}
