//! Which quotas a change concerns.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use runtime::queue::Queue;
use runtime::store::{Change, Store, by_namespace, index_key};
use runtime::watch::{MetaChange, Registry};

use super::amounts::Family;
use super::decide::{counted_objects, same};

/// Turns changes into keys on the queue.
pub fn subscribe(registry: &Registry, queue: &Arc<Queue<ObjectKey>>) {
    let quotas = registry.store::<ResourceQuota>();
    let (added, every) = (queue.clone(), registry.every_kind());
    quotas.subscribe(move |change| {
        // First what is new, so that what stays is not given up in between.
        counted_by(change.new).for_each(|(group, plural)| every.want(group, plural));
        counted_by(change.old).for_each(|(group, plural)| every.unwant(group, plural));
        if let Some(quota) = change.new.filter(|_| asks_anew(change)) {
            added.add(quota.meta.key());
        }
    });
    let (wakes, known) = (queue.clone(), quotas.clone());
    registry.every_kind().subscribe(move |change| {
        if let MetaChange::Object { resource, old: Some(old), new: None } = change {
            wake(&wakes, &known, &old.namespace, resource.group, resource.plural);
        }
    });
    let (wakes, known) = (queue.clone(), quotas.clone());
    registry.store::<Pod>().subscribe(move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && counts_for_else(old, new)
        {
            wake(&wakes, &known, &new.meta.namespace, "", "pods");
        }
    });
    let (wakes, known) = (queue.clone(), quotas.clone());
    registry.store::<Service>().subscribe(move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && (old.kind, &old.ports, &old.balancing) != (new.kind, &new.ports, &new.balancing)
        {
            wake(&wakes, &known, &new.meta.namespace, "", "services");
        }
    });
    let (wakes, known) = (queue.clone(), quotas);
    registry.store::<PersistentVolumeClaim>().subscribe(move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && old.storage != new.storage
        {
            wake(&wakes, &known, &new.meta.namespace, "", "persistentvolumeclaims");
        }
    });
}

/// The kinds whose objects a quota counts.
fn counted_by(quota: Option<&Arc<ResourceQuota>>) -> impl Iterator<Item = (&str, &str)> {
    quota.into_iter().flat_map(|quota| quota.hard.iter().filter_map(|(name, _)| counted_objects(name)))
}

/// A quota that is new, or limits something else than before; not one whose use was written.
pub fn asks_anew(change: &Change<'_, ResourceQuota>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => {
            old.meta.uid != new.meta.uid || old.scopes != new.scopes || !same(&old.hard, &new.hard)
        }
        (None, Some(_)) => true,
        _ => false,
    }
}

/// What a pod counts for, or whether it does (pkg/quota/v1/install, DefaultUpdateFilter).
pub fn counts_for_else(old: &Pod, new: &Pod) -> bool {
    old.usage != new.usage
        || old.is_terminal() != new.is_terminal()
        || old.meta.deletion != new.meta.deletion
        || old.meta.uid != new.meta.uid
}

fn wake(queue: &Queue<ObjectKey>, quotas: &Store<ResourceQuota>, namespace: &str, group: &str, plural: &str) {
    for quota in quotas.by_index(&by_namespace(), index_key(namespace)) {
        if concerns(&quota, group, plural) {
            queue.add_coalesced(quota.meta.key());
        }
    }
}

/// Whether a quota limits something that objects of a kind count for. Names that depend on device classes count as if
/// there were the class.
pub fn concerns(quota: &ResourceQuota, group: &str, plural: &str) -> bool {
    let family = Family::ALL.iter().find(|(_, of, resource)| (*of, *resource) == (group, plural));
    quota.hard.iter().any(|(name, _)| {
        counted_objects(name) == Some((group, plural))
            || family.is_some_and(|(family, ..)| match family {
                Family::DeviceClaims => name.starts_with("requests.") || name.ends_with("/devices"),
                family => family.knows(name, &Default::default()),
            })
    })
}
