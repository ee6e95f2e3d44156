//! Maps changed objects to the quotas that count them.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::resource_claim::DeviceClass;
use kinds::{PersistentVolumeClaim, Pod, ResourceQuota, Service};
use runtime::queue::Queue;
use runtime::store::{Change, Store, by_namespace, index_key};
use runtime::watch::{MetaChange, Registry};

use super::amounts::{Family, may_depend_on_classes};
use super::decide::{counted_objects, equal_quantities};
use super::recounts::{CountMode, Recounts};

/// Enqueues the quotas that a change affects. All changes except additions of counted objects may lower the usage.
pub fn subscribe(registry: &Registry, queue: &Arc<Queue<ObjectKey>>, recounts: &Arc<Recounts>) {
    let quotas = registry.store::<ResourceQuota>();
    let added = queue.clone();
    let every = registry.every_kind();
    let full = recounts.clone();
    quotas.subscribe(move |change| {
        // New kinds are requested before old ones are dropped, so that the count of a kind that stays is kept.
        counted_by(change.new).for_each(|(group, plural)| every.request_kind(group, plural));
        counted_by(change.old).for_each(|(group, plural)| every.release_kind(group, plural));
        if needs_full_count(change)
            && let Some(quota) = change.new.or(change.old)
        {
            full.request(&quota.meta.key());
            added.add(quota.meta.key());
        } else if let Some(key) = with_other_status(change) {
            added.add_coalesced(key);
        }
    });
    let waker = Waker { queue: queue.clone(), quotas, recounts: recounts.clone() };
    let of_any = waker.clone();
    registry.every_kind().subscribe(move |change| match change {
        MetaChange::Object { resource, old: Some(old), new: None } => {
            of_any.wake(&old.namespace, resource.group, resource.plural, CountMode::Full);
        }
        MetaChange::Object { resource, old: None, new: Some(new) } => {
            of_any.wake(&new.namespace, resource.group, resource.plural, CountMode::RaiseOnly);
        }
        _ => {}
    });
    let of_pods = waker.clone();
    registry.store::<Pod>().subscribe(move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && amounts_changed(old, new)
        {
            of_pods.wake(&new.meta.namespace, "", "pods", CountMode::Full);
        }
    });
    let of_services = waker.clone();
    registry.store::<Service>().subscribe(move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && (old.kind, &old.ports, &old.balancing) != (new.kind, &new.ports, &new.balancing)
        {
            of_services.wake(&new.meta.namespace, "", "services", CountMode::Full);
        }
    });
    let of_classes = waker.clone();
    registry.store::<DeviceClass>().subscribe(move |change| {
        if provides_other_resource(change) {
            of_classes.wake_dependents_of_classes();
        }
    });
    let of_claims = waker;
    registry.store::<PersistentVolumeClaim>().subscribe(move |change| {
        if let (Some(old), Some(new)) = (change.old, change.new)
            && old.storage != new.storage
        {
            of_claims.wake(&new.meta.namespace, "", "persistentvolumeclaims", CountMode::Full);
        }
    });
}

/// Enqueues the quotas that count an object.
#[derive(Clone)]
struct Waker {
    queue: Arc<Queue<ObjectKey>>,
    quotas: Arc<Store<ResourceQuota>>,
    recounts: Arc<Recounts>,
}

impl Waker {
    fn wake(&self, namespace: &str, group: &str, plural: &str, mode: CountMode) {
        for quota in self.quotas.by_index(&by_namespace(), index_key(namespace)) {
            if counts_kind(&quota, group, plural) {
                let key = quota.meta.key();
                if mode == CountMode::Full {
                    self.recounts.request(&key);
                }
                self.queue.add_coalesced(key);
            }
        }
    }

    /// Enqueues the quotas of all namespaces that limit devices by class or by extended resource.
    fn wake_dependents_of_classes(&self) {
        for quota in self.quotas.all() {
            if quota.hard.iter().any(|(name, _)| may_depend_on_classes(name)) {
                let key = quota.meta.key();
                self.recounts.request(&key);
                self.queue.add_coalesced(key);
            }
        }
    }
}

/// Returns true if a device class is new, was deleted, or provides another extended resource than before. Then claims
/// for its devices count toward other resources.
pub fn provides_other_resource(change: &Change<'_, DeviceClass>) -> bool {
    let resource = |class: &Arc<DeviceClass>| class.extended_resource.clone();
    change.old.map(resource) != change.new.map(resource)
}

/// Returns the kinds whose objects a quota counts.
fn counted_by(quota: Option<&Arc<ResourceQuota>>) -> impl Iterator<Item = (&str, &str)> {
    quota.into_iter().flat_map(|quota| quota.hard.iter().filter_map(|(name, _)| counted_objects(name)))
}

/// Returns true if a quota is new or was deleted, or if its limits or scopes changed. Changes of its status do not
/// matter.
pub fn needs_full_count(change: &Change<'_, ResourceQuota>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => {
            old.meta.uid != new.meta.uid || old.scopes != new.scopes || !equal_quantities(&old.hard, &new.hard)
        }
        _ => true,
    }
}

/// Returns the key of a quota whose status changed, so that the new status is compared with the objects in the cache.
/// The cache may receive admission's write after the deletion of the object that admission has counted, and any client
/// may have written the status.
pub fn with_other_status(change: &Change<'_, ResourceQuota>) -> Option<ObjectKey> {
    let (old, new) = (change.old?, change.new?);
    let is_same =
        equal_quantities(&old.status_used, &new.status_used) && equal_quantities(&old.status_hard, &new.status_hard);
    (!is_same).then(|| new.meta.key())
}

/// Returns true if a pod's amounts changed. Upstream: pkg/quota/v1/install, DefaultUpdateFilter.
pub fn amounts_changed(old: &Pod, new: &Pod) -> bool {
    old.usage != new.usage
        || old.is_terminal() != new.is_terminal()
        || old.meta.deletion != new.meta.deletion
        || old.meta.uid != new.meta.uid
}

/// Returns true if a quota limits a resource toward which objects of a kind may count. Each name with the prefix
/// `requests.` may depend on a device class.
pub fn counts_kind(quota: &ResourceQuota, group: &str, plural: &str) -> bool {
    let family = Family::ALL.iter().find(|(_, of, resource)| (*of, *resource) == (group, plural));
    quota.hard.iter().any(|(name, _)| {
        counted_objects(name) == Some((group, plural))
            || family.is_some_and(|(family, ..)| match family {
                Family::DeviceClaims => name.starts_with("requests.") || name.ends_with("/devices"),
                family => family.counts_for(name, &Default::default()),
            })
    })
}
