//! What was applied and is still so: an object is not sent again before it, or what is wanted, has changed.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kinds::Str;
use kinds::meta::ObjectKey;

/// A kind, whatever its version.
pub(super) type Place = (&'static str, &'static str);

/// A child, by kind and name.
type Child = (Place, Str);

struct Applied {
    /// Hash of what was sent.
    sent: u64,
    /// The version that came back.
    version: u64,
    /// The object that came back.
    object: Arc<dyn Any + Send + Sync>,
}

/// Last answers to what was applied, by owner.
#[derive(Default)]
pub(super) struct Answers {
    owners: Mutex<HashMap<ObjectKey, HashMap<Child, Applied>>>,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, HashMap<Child, Applied>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object, if the same was sent before and the store shows the very version that came back.
    pub(super) fn still<D: Send + Sync + 'static>(
        &self,
        owner: &ObjectKey,
        child: &(Place, Str),
        sent: u64,
        shown: Option<u64>,
    ) -> Option<Arc<D>> {
        let owners = self.lock();
        let known = owners.get(owner)?.get(child)?;
        if known.sent != sent || shown != Some(known.version) {
            return None;
        }
        known.object.clone().downcast().ok()
    }

    /// Remembers an answer.
    pub(super) fn remember<D: Send + Sync + 'static>(
        &self,
        owner: &ObjectKey,
        child: (Place, Str),
        sent: u64,
        version: u64,
        object: Arc<D>,
    ) {
        self.lock().entry(owner.clone()).or_default().insert(child, Applied { sent, version, object });
    }

    /// Forgets a child that is gone.
    pub(super) fn forget_child(&self, owner: &ObjectKey, child: &(Place, Str)) {
        if let Some(children) = self.lock().get_mut(owner) {
            children.remove(child);
        }
    }

    /// Forgets an owner that is gone.
    pub(super) fn forget(&self, owner: &ObjectKey) {
        self.lock().remove(owner);
    }
}
