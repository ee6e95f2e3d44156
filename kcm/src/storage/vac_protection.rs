//! volumeattributesclass-protection-controller: keeps a VolumeAttributesClass that is being deleted while a volume or a
//! claim refers to it.
//!
//! Upstream: pkg/controller/volume/vacprotection.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Kind, PersistentVolume, PersistentVolumeClaim, Sections, Str, VolumeAttributesClass};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Store};
use runtime::watch::Builder;
use runtime::worker::{ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};

use super::indexes::{claims_by_attributes_class, of_attributes_class, volumes_by_attributes_class};
use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::protection::{Protection, Users, decode_once};

const FINALIZER: &str = "kubernetes.io/vac-protection";
const QUEUE: &str = "vacprotection";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "volumeattributesclass-protection-controller",
    service_account: "volumeattributesclass-protection-controller",
    requires: &[VolumeAttributesClass::RESOURCE],
    watches,
    writes: &[Write { verb: Verb::Update, group: "storage.k8s.io", resource: "volumeattributesclasses" }],
    queues: &[QueueKeys::of(QUEUE, "VolumeAttributesClass")],
    finalizers: &[Finalizer { name: FINALIZER, removed: "once no volume and no claim refers to the class" }],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<VolumeAttributesClass>(Sections::default(), &[]);
    builder.need::<PersistentVolume>(Sections::default(), &[volumes_by_attributes_class()]);
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[claims_by_attributes_class()]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named(QUEUE));
    let registry = manager.registry();
    let objects = registry.store::<VolumeAttributesClass>();
    let (volumes, claims) = (registry.store::<PersistentVolume>(), registry.store::<PersistentVolumeClaim>());
    let changed = queue.clone();
    volumes.subscribe(move |change| {
        dropped_classes(change, classes_of_volume).into_iter().for_each(|name| changed.add(ObjectKey::new("", name)));
    });
    let changed = queue.clone();
    claims.subscribe(move |change| {
        dropped_classes(change, classes_of_claim).into_iter().for_each(|name| changed.add(ObjectKey::new("", name)));
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let users = References { volumes, claims, writer: writer.clone() };
    let consistency = Default::default();
    let protection =
        Protection { finalizer: FINALIZER, adds_finalizer: true, objects, users, writer, consistency, queue };
    protection.start(manager, WorkOptions { name: DESCRIPTOR.name, workers: 1 });
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<Str> {
    Some(volume.attributes_class.clone()).filter(|name| !name.is_empty()).into_iter().collect()
}

fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<Str> {
    claim.attributes_classes().cloned().collect()
}

/// Returns the classes that an object referred to before the change and no longer refers to.
fn dropped_classes<K>(change: &Change<'_, K>, classes: fn(&K) -> Vec<Str>) -> Vec<Str> {
    let now = change.new.map(|new| classes(new)).unwrap_or_default();
    let mut before = change.old.map(|old| classes(old)).unwrap_or_default();
    before.retain(|name| !now.contains(name));
    before
}

/// Volumes and claims that refer to a class.
struct References {
    volumes: Arc<Store<PersistentVolume>>,
    claims: Arc<Store<PersistentVolumeClaim>>,
    writer: Writer,
}

impl Users<VolumeAttributesClass> for References {
    fn are_cached(&self, class: &VolumeAttributesClass) -> bool {
        let key = of_attributes_class(&class.meta.name);
        self.volumes.count(&volumes_by_attributes_class(), key) > 0
            || self.claims.count(&claims_by_attributes_class(), key) > 0
    }

    /// Reads all volumes and claims. The caches may lag, and classes are rarely deleted.
    fn are_on_server<'a>(&'a self, class: &'a VolumeAttributesClass) -> BoxFuture<'a, Result<bool, ReconcileError>> {
        let class = &*class.meta.name;
        async move {
            Ok(self.is_used_by_any(class, classes_of_volume).await?
                || self.is_used_by_any(class, classes_of_claim).await?)
        }
        .boxed()
    }
}

impl References {
    async fn is_used_by_any<K: Kind>(&self, class: &str, classes: fn(&K) -> Vec<Str>) -> Result<bool, WriteError> {
        let decode = decode_once(Sections::default());
        let mut found = Ok(false);
        self.writer
            .list_each(&K::RESOURCE, "", |object| match (&found, K::decode(&decode, object)) {
                (Ok(false), Ok(object)) => found = Ok(classes(&object).iter().any(|name| **name == *class)),
                // An object that cannot be decoded may refer to the class.
                (Ok(_), Err(error)) => found = Err(error),
                _ => {}
            })
            .await?;
        Ok(found?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::{claim, volume};

    fn claim_of(spec: &str, current: &str, target: &str) -> Arc<PersistentVolumeClaim> {
        let mut claim = claim("data");
        claim.attributes_class = spec.into();
        claim.current_attributes_class = current.into();
        claim.target_attributes_class = target.into();
        Arc::new(claim)
    }

    fn volume_of(class: &str) -> Arc<PersistentVolume> {
        let mut volume = volume("pv");
        volume.attributes_class = class.into();
        Arc::new(volume)
    }

    #[test]
    fn class_is_reconciled_when_the_last_reference_of_a_claim_is_removed() {
        for (name, old, new, expected) in [
            ("created", None, Some(claim_of("gold", "", "")), &[][..]),
            ("deleted", Some(claim_of("gold", "silver", "")), None, &["gold", "silver"]),
            ("switched", Some(claim_of("gold", "", "")), Some(claim_of("silver", "", "")), &["gold"]),
            ("still current", Some(claim_of("gold", "gold", "")), Some(claim_of("silver", "gold", "")), &[]),
            ("still target", Some(claim_of("gold", "", "gold")), Some(claim_of("silver", "", "gold")), &[]),
            ("modified", Some(claim_of("silver", "gold", "silver")), Some(claim_of("silver", "silver", "")), &["gold"]),
        ] {
            let found = dropped_classes(&Change { old: old.as_ref(), new: new.as_ref() }, classes_of_claim);
            assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), expected, "{name}");
        }
    }

    #[test]
    fn class_is_reconciled_when_a_volume_no_longer_refers_to_it() {
        for (name, old, new, expected) in [
            ("created", None, Some(volume_of("gold")), &[][..]),
            ("deleted", Some(volume_of("gold")), None, &["gold"]),
            ("switched", Some(volume_of("gold")), Some(volume_of("silver")), &["gold"]),
            ("unchanged", Some(volume_of("gold")), Some(volume_of("gold")), &[]),
            ("never had one", Some(volume_of("")), None, &[]),
        ] {
            let found = dropped_classes(&Change { old: old.as_ref(), new: new.as_ref() }, classes_of_volume);
            assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), expected, "{name}");
        }
    }
}
