//! Records of applied children: an object is sent again only after it, or its desired state, has changed.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use kinds::meta::ObjectKey;

use crate::lock::lock;

/// A kind, regardless of its version: group and plural name.
pub(super) type KindName = (&'static str, &'static str);

/// A child, by kind, namespace and name.
type Child = (KindName, ObjectKey);

struct Applied {
    /// The hash of the request.
    sent: u64,
    /// The version in the response.
    version: u64,
    /// The object in the response. It is kept whole because [`Context::apply`](super::Context::apply) returns it when
    /// it sends nothing, and the cache of children may contain only their metadata.
    object: Arc<dyn Any + Send + Sync>,
}

/// Last responses to applied children, by owner.
#[derive(Default)]
pub(super) struct AppliedChildren {
    owners: Mutex<HashMap<ObjectKey, HashMap<Child, Applied>>>,
}

impl AppliedChildren {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, HashMap<Child, Applied>>> {
        lock(&self.owners)
    }

    /// Returns the object if the same request was sent before and the cache contains the version of its response.
    pub(super) fn unchanged<D: Send + Sync + 'static>(
        &self,
        owner: &ObjectKey,
        child: &Child,
        sent: u64,
        cached_version: Option<u64>,
    ) -> Option<Arc<D>> {
        let owners = self.lock();
        let known = owners.get(owner)?.get(child)?;
        if known.sent != sent || cached_version != Some(known.version) {
            return None;
        }
        known.object.clone().downcast().ok()
    }

    /// Records the response to an applied child.
    pub(super) fn remember<D: Send + Sync + 'static>(
        &self,
        owner: &ObjectKey,
        child: Child,
        sent: u64,
        version: u64,
        object: Arc<D>,
    ) {
        self.lock().entry(owner.clone()).or_default().insert(child, Applied { sent, version, object });
    }

    /// Removes a child that is or was deleted.
    pub(super) fn forget_child(&self, owner: &ObjectKey, child: &Child) {
        if let Some(children) = self.lock().get_mut(owner) {
            children.remove(child);
        }
    }

    /// Removes an owner that was deleted.
    pub(super) fn forget(&self, owner: &ObjectKey) {
        self.lock().remove(owner);
    }
}
