//! Maps changes to the pods that have to be reconciled.

use std::sync::Arc;

use kinds::meta::{Meta, ObjectKey};
use kinds::persistent_volume::ClaimRef;
use kinds::persistent_volume_claim::Phase;
use kinds::{CsiDriver, PersistentVolume, PersistentVolumeClaim, Pod};
use runtime::queue::Queue;
use runtime::store::Change;

use super::super::indexes::{pods_by_claim, using_claim};
use super::sync::SelinuxWarnings;

/// Subscribes to changes, and adds the affected pods to the queue.
pub fn subscribe(reconciler: &Arc<SelinuxWarnings>, queue: &Arc<Queue<ObjectKey>>) {
    let changed = queue.clone();
    reconciler.pods.subscribe(move |change| {
        if let Some(key) = of_pod(change) {
            changed.add(key);
        }
    });
    let (changed, pods) = (queue.clone(), reconciler.pods.clone());
    let users = move |namespace: &str, claim: &str| {
        for pod in pods.by_index(&pods_by_claim(), using_claim(namespace, claim)) {
            changed.add(pod.meta.key());
        }
    };
    let claim_users = users.clone();
    reconciler.claims.subscribe(move |change| {
        if let Some(claim) = of_claim(change) {
            claim_users(&claim.namespace, &claim.name);
        }
    });
    reconciler.volumes.subscribe(move |change| {
        if let Some(claim) = of_volume(change) {
            users(&claim.namespace, &claim.name);
        }
    });
    let (changed, used) = (queue.clone(), reconciler.used.clone());
    reconciler.drivers.subscribe(move |change| {
        if let Some(driver) = of_driver(change) {
            used.pods_of_driver(driver).into_iter().for_each(|pod| changed.add(pod));
        }
    });
}

/// Returns the key of a pod that has ended or whose mounts have changed their labels, or of a pod with mounts that is
/// new or was deleted. An ephemeral container can change the labels.
fn of_pod(change: &Change<'_, Pod>) -> Option<ObjectKey> {
    let mounts = |pod: &Pod| pod.volumes.as_ref().is_some_and(|volumes| volumes.selinux.is_some());
    let is_relevant = match (change.old, change.new) {
        (Some(old), Some(new)) if old.meta.uid == new.meta.uid => {
            let selinux = |pod: &Pod| pod.volumes.as_ref().and_then(|volumes| volumes.selinux.clone());
            old.is_terminal() != new.is_terminal() || selinux(old) != selinux(new)
        }
        (old, new) => [old, new].into_iter().flatten().any(|pod| mounts(pod)),
    };
    let pod = change.new.or(change.old)?;
    is_relevant.then(|| pod.meta.key())
}

/// Returns a claim that has become bound, or is bound to another volume now. Its status reports the binding some time
/// after its spec names the volume.
fn of_claim<'a>(change: &Change<'a, PersistentVolumeClaim>) -> Option<&'a Meta> {
    let bound = |claim: &'a Arc<PersistentVolumeClaim>| {
        (claim.phase == Phase::Bound).then_some((&claim.meta.uid, &claim.volume_name))
    };
    let claim = change.new?;
    let now = bound(claim)?;
    (change.old.and_then(bound) != Some(now)).then_some(&claim.meta)
}

/// Returns the claim to which a volume has been bound.
fn of_volume<'a>(change: &Change<'a, PersistentVolume>) -> Option<&'a ClaimRef> {
    let bound = |volume: &'a PersistentVolume| volume.claim.as_deref().filter(|claim| claim.uid.is_some());
    let claim = bound(change.new?)?;
    let before = change.old.and_then(|old| bound(old)).and_then(|claim| claim.uid.as_ref());
    (before != claim.uid.as_ref()).then_some(claim)
}

/// Returns the name of a driver whose support for mounting volumes with a label has changed.
fn of_driver<'a>(change: &Change<'a, CsiDriver>) -> Option<&'a str> {
    let supports = |driver: Option<&Arc<CsiDriver>>| driver.is_some_and(|driver| driver.selinux_mount);
    let driver = change.new.or(change.old)?;
    (supports(change.old) != supports(change.new)).then_some(&*driver.meta.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::{claim, recreated};

    #[test]
    fn pods_of_a_claim_are_reconciled_when_its_status_shows_that_it_is_bound() {
        let with = |volume: &str, phase| {
            let mut claim = claim("data");
            claim.volume_name = volume.into();
            claim.phase = phase;
            Arc::new(claim)
        };
        let (pending, named) = (with("", Phase::Pending), with("pv", Phase::Pending));
        let (bound, moved) = (with("pv", Phase::Bound), with("other", Phase::Bound));
        let mut another = (*bound).clone();
        recreated(&mut another.meta);
        let another = Arc::new(another);
        for (name, old, new, expected) in [
            ("created", None, Some(&pending), false),
            ("names its volume", Some(&pending), Some(&named), false),
            ("bound", Some(&named), Some(&bound), true),
            ("known as bound", None, Some(&bound), true),
            ("unchanged", Some(&bound), Some(&bound), false),
            ("bound to another volume", Some(&bound), Some(&moved), true),
            ("replaced", Some(&bound), Some(&another), true),
            ("deleted", Some(&bound), None, false),
        ] {
            assert_eq!(of_claim(&Change { old, new }).is_some(), expected, "{name}");
        }
    }
}
