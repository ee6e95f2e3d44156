//! Maps changes of child objects to the keys of their owners.

use std::sync::Arc;

use kinds::Kind;
use kinds::meta::{Meta, ObjectKey};
use kinds::selector::Selector;

use crate::queue::Queue;
use crate::store::{Change, Store, by_namespace, index_key};

/// The urgency of an owner's reconcile after a change of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Children may have to be created or deleted.
    Now,
    /// Only counts may have changed: the change may be coalesced with others.
    Soon,
}

/// Queues an owner's key.
pub fn enqueue(queue: &Queue<ObjectKey>, key: ObjectKey, urgency: Urgency) {
    match urgency {
        Urgency::Now => queue.add(key),
        Urgency::Soon => queue.add_coalesced(key),
    }
}

/// Returns the key of a child's controller, if the controller is of kind `K`. Only the name of the kind is compared,
/// not its group.
pub fn owner_of<K: Kind>(child: &Meta) -> Option<ObjectKey> {
    let controller = child.controller().filter(|controller| &*controller.kind == K::RESOURCE.kind)?;
    Some(ObjectKey { namespace: child.namespace.clone(), name: controller.name.clone() })
}

/// Returns the keys of the owners of kind `K` that a child has or had, without duplicates.
pub fn owners_of<K: Kind, C: Kind>(change: &Change<'_, C>) -> Vec<ObjectKey> {
    let metas = [change.old, change.new].into_iter().flatten().map(|child| child.meta());
    let mut keys: Vec<ObjectKey> = metas.filter_map(owner_of::<K>).collect();
    keys.dedup();
    keys
}

/// Returns the old object if it was deleted, or replaced by one with the same name and another UID.
pub fn deleted<'a, K: Kind>(change: &Change<'a, K>) -> Option<&'a Arc<K>> {
    change.old.filter(|old| change.new.is_none_or(|new| new.meta().uid != old.meta().uid))
}

/// Returns the child if it has no controller, is not being deleted, and may have become adoptable by this change.
pub fn adoptable<'a, C: Kind>(change: &Change<'a, C>) -> Option<&'a Meta> {
    let new = change.new?.meta();
    let is_relevant =
        change.old.map(|old| old.meta()).is_none_or(|old| old.labels != new.labels || old.controller().is_some());
    (is_relevant && new.controller().is_none() && !new.is_deleting()).then_some(new)
}

/// Returns true if a selector selects a child. An empty selector selects nothing here, unlike in a list
/// request. Upstream: client-go, listers.
pub fn selects(selector: &Selector, child: &Meta) -> bool {
    !selector.is_everything() && selector.matches(&child.labels)
}

/// Calls `wake` for each owner in the child's namespace for which `may_adopt` holds.
pub fn wake_adopters<K: Kind>(
    owners: &Store<K>,
    child: &Meta,
    may_adopt: impl Fn(&K) -> bool,
    mut wake: impl FnMut(ObjectKey),
) {
    let candidates = owners.by_index(&by_namespace(), index_key(&*child.namespace));
    candidates.iter().filter(|owner| may_adopt(owner)).for_each(|owner| wake(owner.meta().key()));
}
