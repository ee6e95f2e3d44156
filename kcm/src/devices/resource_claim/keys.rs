//! Maps changes of objects to the keys of pods, PodGroups and claims.

use std::fmt;
use std::sync::Arc;

use kinds::claim_entry::ResolvedClaim;
use kinds::meta::ObjectKey;
use kinds::{Pod, PodGroup, ResourceClaim, ResourceClaimTemplate, Str};
use runtime::queue::{Queue, QueueKey};
use runtime::store::{Change, Store};

use super::decide::{self, Gates, Lookups};
use super::deleted::DeletedUids;
use super::indexes::{
    groups_by_claim, groups_by_template, in_group, naming_claim, naming_template, pods_by_claim, pods_by_group,
    pods_by_template,
};

/// A key of the queue: an object, and what is reconciled for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// Claims of a pod are created and reserved.
    Pod(ObjectKey),
    /// Claims of a PodGroup are created.
    Group(ObjectKey),
    /// A claim is released.
    Claim(ObjectKey),
}

impl QueueKey for Key {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(key) | Self::Group(key) | Self::Claim(key) => &key.namespace,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod:{key}"),
            Self::Group(key) => write!(f, "podgroup:{key}"),
            Self::Claim(key) => write!(f, "claim:{key}"),
        }
    }
}

/// The caches, and the queue of the keys that changes affect.
pub struct Keys {
    pub pods: Arc<Store<Pod>>,
    pub claims: Arc<Store<ResourceClaim>>,
    /// `None` without the gate of PodGroups.
    pub groups: Option<Arc<Store<PodGroup>>>,
    pub gates: Gates,
    pub queue: Arc<Queue<Key>>,
    pub deleted: Arc<DeletedUids>,
}

/// Enqueues the pods, PodGroups and claims that changes affect.
pub fn subscribe(keys: &Arc<Keys>, templates: &Store<ResourceClaimTemplate>) {
    let changed = keys.clone();
    keys.pods.subscribe(move |change| changed.pod_changed(change));
    let changed = keys.clone();
    keys.claims.subscribe(move |change| changed.claim_changed(change));
    let changed = keys.clone();
    templates.subscribe(move |change| changed.template_changed(change));
    if let Some(groups) = &keys.groups {
        let changed = keys.clone();
        groups.subscribe(move |change| changed.group_changed(change));
    }
}

impl Keys {
    /// Returns the PodGroups, if they may have claims.
    fn groups_with_claims(&self) -> Option<&Arc<Store<PodGroup>>> {
        self.groups.as_ref().filter(|_| self.gates.group_claims)
    }

    /// Calls a decision with lookups in the caches of a namespace.
    fn with_lookups<T>(&self, namespace: &Str, decide: impl FnOnce(&Lookups<'_>) -> T) -> T {
        let key = |name: &Str| ObjectKey { namespace: namespace.clone(), name: name.clone() };
        decide(&Lookups {
            claim: &|name| self.claims.get(&key(name)),
            group: &|name| self.groups.as_ref()?.get(&key(name)),
        })
    }

    pub(super) fn pod_changed(&self, change: &Change<'_, Pod>) {
        if let Some(old) = change.old.filter(|old| was_deleted(&old.meta.uid, change.new.map(|new| &new.meta.uid))) {
            self.pod_deleted(old);
        }
        if let Some(new) = change.new {
            self.pod_updated(new);
        }
    }

    fn pod_deleted(&self, pod: &Pod) {
        if pod.devices.is_some() {
            self.deleted.add(&pod.meta.uid);
            self.add_claims_of(pod);
        }
    }

    pub(super) fn pod_updated(&self, pod: &Pod) {
        if pod.devices.is_none() {
            return;
        }
        if decide::is_done(pod) {
            self.add_claims_of(pod);
        }
        if self.with_lookups(&pod.meta.namespace, |lookups| decide::has_work(pod, lookups, self.gates)) {
            self.queue.add(Key::Pod(pod.meta.key()));
        }
    }

    /// Adds the claims of a pod that no longer needs them, including those for extended resources.
    fn add_claims_of(&self, pod: &Pod) {
        let Some(devices) = &pod.devices else { return };
        let names = devices.claims().map(|claim| claim.name).chain(&devices.extended);
        names.for_each(|name| self.add_claim(&pod.meta.namespace, name));
    }

    fn add_claim(&self, namespace: &Str, name: &Str) {
        self.queue.add(Key::Claim(ObjectKey { namespace: namespace.clone(), name: name.clone() }));
    }

    pub(super) fn claim_changed(&self, change: &Change<'_, ResourceClaim>) {
        let Some(claim) = change.new.or(change.old) else { return };
        let meta = &claim.meta;
        if change.new.is_some() {
            self.queue.add(Key::Claim(meta.key()));
        }
        let users = naming_claim(&meta.namespace, &meta.name);
        self.pods.by_index(&pods_by_claim(), users).iter().for_each(|pod| self.pod_updated(pod));
        if let Some(groups) = self.groups_with_claims() {
            groups.by_index(&groups_by_claim(), users).iter().for_each(|group| self.group_updated(group));
        }
    }

    pub(super) fn template_changed(&self, change: &Change<'_, ResourceClaimTemplate>) {
        let Some(template) = change.new else { return };
        let users = naming_template(&template.meta.namespace, &template.meta.name);
        self.pods.by_index(&pods_by_template(), users).iter().for_each(|pod| self.pod_updated(pod));
        if let Some(groups) = self.groups_with_claims() {
            groups.by_index(&groups_by_template(), users).iter().for_each(|group| self.group_updated(group));
        }
    }

    pub(super) fn group_changed(&self, change: &Change<'_, PodGroup>) {
        if !self.gates.group_claims {
            self.group_without_claims_changed(change);
            return;
        }
        if let Some(old) = change.old.filter(|old| was_deleted(&old.meta.uid, change.new.map(|new| &new.meta.uid))) {
            self.group_deleted(old);
        }
        if let Some(new) = change.new {
            self.group_updated(new);
        }
    }

    /// Requeues the pods of a PodGroup that is new or has other claims. While the gate of PodGroup claims is off, no
    /// claim is created for a pod's entry that is also in its PodGroup. A new PodGroup with the same name may lack the
    /// entry.
    fn group_without_claims_changed(&self, change: &Change<'_, PodGroup>) {
        let Some(new) = change.new else { return };
        if change.old.is_none_or(|old| old.meta.uid != new.meta.uid || old.claims != new.claims) {
            self.members_updated(&new.meta.namespace, &new.meta.name);
        }
    }

    fn group_deleted(&self, group: &PodGroup) {
        if group.claims.is_empty() {
            return;
        }
        self.deleted.add(&group.meta.uid);
        for entry in &group.claims {
            if let ResolvedClaim::Shared(name) | ResolvedClaim::Generated(name) = entry.resolve() {
                self.add_claim(&group.meta.namespace, name);
            }
        }
        self.members_updated(&group.meta.namespace, &group.meta.name);
    }

    fn group_updated(&self, group: &PodGroup) {
        if group.claims.is_empty() {
            return;
        }
        if self.with_lookups(&group.meta.namespace, |lookups| decide::group_has_work(group, lookups)) {
            self.queue.add(Key::Group(group.meta.key()));
        }
        self.members_updated(&group.meta.namespace, &group.meta.name);
    }

    fn members_updated(&self, namespace: &str, group: &str) {
        self.pods.by_index(&pods_by_group(), in_group(namespace, group)).iter().for_each(|pod| self.pod_updated(pod));
    }
}

/// Returns true if the object with the UID `old` no longer exists.
fn was_deleted<U: PartialEq>(old: &U, new: Option<&U>) -> bool {
    new.is_none_or(|new| new != old)
}
