//! Maps changes to the claims and volumes that have to be reconciled.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, Str};
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::matcher::Matcher;
use super::recycler_pod::volume_of;
use super::volume_index::claim_key;
use crate::storage::indexes::{claims_by_volume, naming_volume};

/// Returns the key of a volume.
pub fn volume_key(name: impl Into<Str>) -> ObjectKey {
    ObjectKey::new("", name)
}

/// Caches whose changes are mapped, and queues for the keys.
pub struct Wiring<'a> {
    /// Claims.
    pub claims: &'a Arc<Store<PersistentVolumeClaim>>,
    /// Volumes.
    pub volumes: &'a Arc<Store<PersistentVolume>>,
    /// Storage classes.
    pub classes: &'a Arc<Store<StorageClass>>,
    /// Pods.
    pub pods: &'a Arc<Store<Pod>>,
    /// Queue of claims.
    pub claim_queue: &'a Arc<Queue<ObjectKey>>,
    /// Queue of volumes.
    pub volume_queue: &'a Arc<Queue<ObjectKey>>,
    /// Index of volumes and waiting claims.
    pub matcher: &'a Arc<Matcher>,
}

/// Subscribes to changes, and adds the claims and volumes that they affect to the queues.
pub fn subscribe(wiring: &Wiring<'_>) {
    subscribe_volumes(wiring);
    subscribe_claims(wiring);
    let (claim_queue, matcher) = (wiring.claim_queue.clone(), wiring.matcher.clone());
    wiring.classes.subscribe(move |change| {
        for class in classes_to_requeue(change) {
            matcher.waiting_in(class).into_iter().for_each(|key| claim_queue.add(key));
        }
    });
    let volume_queue = wiring.volume_queue.clone();
    wiring.pods.subscribe(move |change| {
        let pod = change.new.or(change.old);
        if let Some(volume) = pod.and_then(|pod| volume_of(&pod.meta.name)) {
            volume_queue.add(volume_key(volume));
        }
    });
}

fn subscribe_volumes(wiring: &Wiring<'_>) {
    let (claims, matcher) = (wiring.claims.clone(), wiring.matcher.clone());
    let (claim_queue, volume_queue) = (wiring.claim_queue.clone(), wiring.volume_queue.clone());
    wiring.volumes.subscribe(move |change| {
        if let Some(waiting) = matcher.apply(change) {
            claim_queue.add(waiting);
        }
        let Some(volume) = change.new.or(change.old) else { return };
        volume_queue.add(volume.meta.key());
        if affects_naming_claims(change) {
            let naming = claims.by_index(&claims_by_volume(), naming_volume(&volume.meta.name));
            naming.iter().for_each(|claim| claim_queue.add(claim.meta.key()));
        }
        if let Some(key) = claim_key(volume)
            && claims.get(&key).is_some_and(|claim| claim.volume_name.is_empty())
        {
            claim_queue.add(key);
        }
    });
}

fn subscribe_claims(wiring: &Wiring<'_>) {
    let matcher = wiring.matcher.clone();
    let (claim_queue, volume_queue) = (wiring.claim_queue.clone(), wiring.volume_queue.clone());
    wiring.claims.subscribe(move |change| {
        let Some(claim) = change.new.or(change.old) else { return };
        let key = claim.meta.key();
        if change.new.is_none() {
            matcher.stop_waiting(&key);
        }
        if affects_volumes(change) {
            let named = change.old.map(|old| old.volume_name.clone()).filter(|name| !name.is_empty());
            let volumes = named.into_iter().chain(matcher.reserved_for(&key));
            volumes.for_each(|name| volume_queue.add(volume_key(name)));
        }
        claim_queue.add(key);
    });
}

/// Returns true if the claims that name a volume have to be reconciled.
fn affects_naming_claims(change: &Change<'_, PersistentVolume>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => {
            old.claim != new.claim
                || old.meta.uid != new.meta.uid
                || old.access_modes != new.access_modes
                || old.phase != new.phase
        }
        _ => true,
    }
}

/// Returns true if the volumes that a claim names, or that refer to the claim, have to be reconciled, because they may
/// have become free. The claim was deleted, was replaced by another one with its name, or names another volume.
fn affects_volumes(change: &Change<'_, PersistentVolumeClaim>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => old.meta.uid != new.meta.uid || old.volume_name != new.volume_name,
        (Some(_), None) => true,
        (None, _) => false,
    }
}

/// Returns the classes whose waiting claims have to be reconciled; the empty name stands for claims without a class.
fn classes_to_requeue<'a>(change: &Change<'a, StorageClass>) -> Vec<&'a str> {
    let Some(new) = change.new else { return Vec::new() };
    let mut classes = Vec::new();
    if change.old.is_none_or(|old| (old.binding_mode, &old.provisioner) != (new.binding_mode, &new.provisioner)) {
        classes.push(&*new.meta.name);
    }
    if new.is_default && change.old.is_none_or(|old| !old.is_default) {
        classes.push("");
    }
    classes
}
