//! Namespaces in which nothing can be created: those that are being deleted.
//!
//! The API server refuses every creation there. Without this gate a controller would try to replace each pod that is
//! deleted with the namespace, and exhaust the rate limit for all other namespaces.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kinds::meta::ObjectKey;
use kinds::{Kind, Namespace, Str, Uid};
use runtime::children::deleted;
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Store, by_namespace, index_key};

/// The gate of one controller.
#[derive(Clone)]
pub struct CreationGate {
    namespaces: Arc<Store<Namespace>>,
    /// Namespaces in which the API server refused a creation because they are terminating, with the UID of the
    /// namespace in the cache at that time.
    refused: Arc<Mutex<HashMap<Str, Option<Uid>>>>,
}

impl CreationGate {
    /// Creates a gate that follows the namespaces of a cache.
    pub fn new(namespaces: Arc<Store<Namespace>>) -> Self {
        let gate = Self { namespaces: namespaces.clone(), refused: Arc::default() };
        let refused = gate.refused.clone();
        namespaces.subscribe(move |change| {
            if let Some(old) = deleted(change) {
                lock(&refused).remove(&old.meta.name);
            }
        });
        gate
    }

    /// Returns false if the namespace is being deleted according to the cache, or to an earlier refusal of the API
    /// server.
    ///
    /// A namespace that is not in the cache may be new: without an earlier refusal it counts as open.
    pub fn is_open(&self, namespace: &str) -> bool {
        let record = self.namespaces.get(&ObjectKey::new("", namespace));
        if record.as_ref().is_some_and(|record| record.meta.is_deleting()) {
            return false;
        }
        let mut refused = lock(&self.refused);
        let Some(known) = refused.get(namespace) else { return true };
        let is_same = *known == record.map(|record| record.meta.uid.clone());
        if !is_same {
            refused.remove(namespace);
        }
        !is_same
    }

    /// Records that the API server refused a creation because the namespace is terminating. The gate stays closed until
    /// the cache no longer contains the namespace, or contains another one with its name. If the cache does not contain
    /// the namespace at this time, the gate stays closed until it does.
    pub fn close(&self, namespace: &Str) {
        let uid = self.namespaces.get(&ObjectKey::new("", namespace.clone())).map(|record| record.meta.uid.clone());
        lock(&self.refused).insert(namespace.clone(), uid);
    }

    /// Requeues the objects of a namespace that is created again.
    ///
    /// Such objects have outlived the previous namespace because a user removed its finalizer by force. Nothing else
    /// would requeue them.
    pub fn wake_on_new_namespace<K: Kind>(&self, owners: &Arc<Store<K>>, queue: &Arc<Queue<ObjectKey>>) {
        let queue = queue.clone();
        self.on_new_namespace(owners, move |owner| queue.add_background(owner.meta().key()));
    }

    /// Calls `wake` with each object of a namespace that is created again.
    pub fn on_new_namespace<K: Kind>(&self, owners: &Arc<Store<K>>, wake: impl Fn(&Arc<K>) + Send + Sync + 'static) {
        let owners = owners.clone();
        self.namespaces.subscribe(move |change| {
            let is_new = change.old.is_none() || deleted(change).is_some();
            let Some(namespace) = change.new.filter(|_| is_new) else { return };
            for owner in owners.by_index(&by_namespace(), index_key(&*namespace.meta.name)) {
                wake(&owner);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use kinds::{Decode, Sections, Time};
    use runtime::testing::{filled_store, meta};

    use super::*;

    fn namespace(uid: &str, is_deleting: bool) -> Namespace {
        let deletion = Time(i64::from(is_deleting));
        Namespace { meta: kinds::Meta { uid: Uid::parse(uid), deletion, ..meta("", "shop", 1) }, active: !is_deleting }
    }

    fn gate(namespaces: Vec<Namespace>) -> CreationGate {
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        CreationGate::new(Arc::new(filled_store(decode, Vec::new(), namespaces)))
    }

    #[test]
    fn gate_is_closed_while_the_namespace_is_being_deleted() {
        assert!(gate(vec![namespace("a", false)]).is_open("shop"));
        assert!(!gate(vec![namespace("a", true)]).is_open("shop"));
        assert!(gate(Vec::new()).is_open("shop"), "not in the cache yet");
    }

    #[test]
    fn refusal_closes_the_gate_until_the_namespace_is_replaced() {
        let stale = gate(vec![namespace("a", false)]);
        stale.close(&"shop".into());
        assert!(!stale.is_open("shop"), "the cache does not contain the deletion yet");
        assert!(stale.is_open("other"));
        let successor = CreationGate { refused: stale.refused.clone(), ..gate(vec![namespace("b", false)]) };
        assert!(successor.is_open("shop"), "another UID");
        assert!(lock(&successor.refused).is_empty());
    }
}
