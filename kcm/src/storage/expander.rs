//! persistentvolume-expander-controller: hands over the expansion of volumes to external resizers.
//!
//! A CSI resizer has its own watch of claims. This controller records an event: the claim waits for an external
//! resizer. If the volume's in-tree plugin is migrated to a CSI driver, the controller also writes the driver's name to
//! an annotation of the claim. Upstream: pkg/controller/volume/expand.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::persistent_volume::PRE_RESIZE_CAPACITY;
use kinds::persistent_volume_claim::{Phase, STORAGE_RESIZER};
use kinds::resource_list::Amount;
use kinds::{Kind, PersistentVolume, PersistentVolumeClaim, Sections};
use runtime::events::{EventType, Recorder, about};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Store};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use serde_json::json;
use tracing::{debug, info};

use super::migration::{self, MigratedPlugin};
use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};

/// Name of the queue and of the event source.
const VOLUME_EXPAND: &str = "volume_expand";
const EXTERNAL_EXPANDING: &str = "ExternalExpanding";
const WORKERS: usize = 10;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-expander-controller",
    service_account: "expand-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "persistentvolumeclaims/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of(VOLUME_EXPAND, "PersistentVolumeClaim")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[]);
    builder.need::<PersistentVolume>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named(VOLUME_EXPAND));
    let claims = manager.registry().store::<PersistentVolumeClaim>();
    let volumes = manager.registry().store::<PersistentVolume>();
    let changed = queue.clone();
    claims.subscribe(move |change| {
        if let Some(key) = key(change) {
            changed.add(key);
        }
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let recorder = manager.recorder(VOLUME_EXPAND, DESCRIPTOR.service_account);
    let reconciler = Arc::new(Expander { claims, volumes, writer, recorder });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
}

// Keys

/// Returns the key of a bound claim that is new, or whose request or capacity has increased.
fn key(change: &Change<'_, PersistentVolumeClaim>) -> Option<ObjectKey> {
    let claim = change.new.filter(|claim| claim.phase == Phase::Bound)?;
    let has_grown = change.old.is_none_or(|old| {
        claim.meta.uid != old.meta.uid || requested(claim) > requested(old) || capacity(claim) > capacity(old)
    });
    has_grown.then(|| claim.meta.key())
}

fn requested(claim: &PersistentVolumeClaim) -> Amount {
    claim.requested().unwrap_or(Amount::ZERO)
}

fn capacity(claim: &PersistentVolumeClaim) -> Amount {
    claim.storage_capacity().unwrap_or(Amount::ZERO)
}

// Decisions

/// The component that expands the volume of a claim.
#[derive(Debug, PartialEq, Eq)]
enum Expansion {
    /// Nothing has to be expanded.
    NotNeeded,
    /// The CSI driver to which the in-tree plugin is migrated.
    ByMigratedDriver(MigratedPlugin),
    /// A controller outside of this process.
    External,
}

/// Decides which component expands the volume that the claim is bound to.
fn decide(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Expansion {
    let is_too_small = requested(claim) > capacity(claim);
    if !is_too_small && volume.annotation(PRE_RESIZE_CAPACITY).is_none() {
        return Expansion::NotNeeded;
    }
    migration::of_source(&volume.source).map_or(Expansion::External, Expansion::ByMigratedDriver)
}

/// Returns true if a volume is bound to a claim with the namespace and uid of `claim`. As in upstream, the claim's name
/// is not compared.
fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.claim.as_ref().is_some_and(|reference| {
        reference.namespace == claim.meta.namespace && reference.uid.as_ref() == Some(&claim.meta.uid)
    })
}

// Sync

struct Expander {
    claims: Arc<Store<PersistentVolumeClaim>>,
    volumes: Arc<Store<PersistentVolume>>,
    writer: Writer,
    recorder: Recorder,
}

impl Reconcile for Expander {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Expander {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(claim) = self.claims.get(key).filter(|claim| claim.phase == Phase::Bound) else {
            return Ok(Outcome::Done);
        };
        let volume = self.volume(&claim).await?;
        if !is_bound_to(&volume, &claim) {
            let message = format!("persistent Volume is not bound to PVC being updated : {key}");
            return Err(ReconcileError::new(message));
        }
        match decide(&claim, &volume) {
            Expansion::NotNeeded => {}
            Expansion::ByMigratedDriver(migrated) => self.hand_over(&claim, migrated).await?,
            Expansion::External => {
                info!(claim = %key, "waiting for an external controller to expand the volume");
                let message = "waiting for an external controller to expand this PVC".to_owned();
                self.recorder.event(&about(&*claim), EventType::Normal, EXTERNAL_EXPANDING, message);
            }
        }
        Ok(Outcome::Done)
    }

    /// Returns the claim's volume from the cache. A volume that is missing in the cache, or does not belong to the
    /// claim, is read from the API server: the cache of volumes may be older than that of claims.
    async fn volume(&self, claim: &PersistentVolumeClaim) -> Result<Arc<PersistentVolume>, ReconcileError> {
        let key = ObjectKey::new("", claim.volume_name.clone());
        if let Some(volume) = self.volumes.get(&key).filter(|volume| is_bound_to(volume, claim)) {
            return Ok(volume);
        }
        let failed = |error: &dyn std::fmt::Display| {
            ReconcileError::new(format!("failed to get PV \"{}\": {error}", claim.volume_name))
        };
        // A GET without a name would be a list.
        if claim.volume_name.is_empty() {
            return Err(failed(&"resource name may not be empty"));
        }
        let response = self.writer.get(&PersistentVolume::RESOURCE, &key).await.map_err(|error| failed(&error))?;
        response.decode(self.volumes.decoding()).map(Arc::new).map_err(|error| failed(&error))
    }

    /// Writes the name of the driver that has to expand the volume to an annotation of the claim.
    async fn hand_over(&self, claim: &PersistentVolumeClaim, migrated: MigratedPlugin) -> Result<(), ReconcileError> {
        let key = claim.meta.key();
        let MigratedPlugin { plugin, driver, .. } = migrated;
        let message = format!("CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc");
        self.recorder.event(&about(claim), EventType::Normal, EXTERNAL_EXPANDING, message);
        if claim.annotation(STORAGE_RESIZER) == Some(driver) {
            return Ok(());
        }
        debug!(claim = %key, driver, "writing the name of the CSI driver that expands the volume to the claim");
        let patch = json!({"metadata": {
            "uid": claim.meta.uid.to_string(),
            "resourceVersion": claim.meta.version.to_string(),
            "annotations": {STORAGE_RESIZER: driver},
        }});
        let response = self.writer.patch_status(&PersistentVolumeClaim::RESOURCE, &key, &patch).await;
        match response {
            Err(error) if !error.is_object_deleted() => {
                let name = &claim.meta.name;
                let message = format!(
                    "error setting resizer annotation to pvc {key}, with error patchPVCStatus failed to patch PVC \
                     \"{name}\": {error}"
                );
                self.recorder.event(&about(claim), EventType::Warning, EXTERNAL_EXPANDING, message.clone());
                Err(ReconcileError::new(message))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use kinds::persistent_volume::{ClaimRef, Source};
    use kinds::schema::persistent_volume_source as s;
    use kinds::{Decode, Uid};
    use runtime::testing::{NoEvents, counting_writer, filled_store};

    use super::*;
    use crate::storage::testing::{claim, recreated, volume};

    fn bound(request: &str, capacity: &str) -> PersistentVolumeClaim {
        let mut claim = claim("data");
        claim.phase = Phase::Bound;
        claim.volume_name = "pv".into();
        claim.request = request.into();
        claim.capacity = capacity.into();
        claim
    }

    fn volume_of(source: Source, annotated: bool) -> PersistentVolume {
        let mut volume = volume("pv");
        volume.source = source;
        if annotated {
            volume.annotations = Arc::new([(PRE_RESIZE_CAPACITY.into(), "1Gi".into())]);
        }
        volume
    }

    #[test]
    fn volume_that_is_too_small_or_waits_for_its_node_is_left_to_external_resizers() {
        let ebs = || Source::Other { field: s::AWS_ELASTIC_BLOCK_STORE, raw: Box::default() };
        let csi = || Source::Csi { driver: "disk.example.com".into(), handle: "vol-1".into() };
        let by_ebs =
            || Expansion::ByMigratedDriver(migration::of_plugin("kubernetes.io/aws-ebs").expect("it was migrated"));
        for (name, request, capacity, source, annotated, expected) in [
            ("large enough", "1Gi", "1Gi", csi(), false, Expansion::NotNeeded),
            ("larger than requested", "1Gi", "2Gi", csi(), false, Expansion::NotNeeded),
            ("other spelling", "1024Mi", "1Gi", csi(), false, Expansion::NotNeeded),
            ("CSI volume too small", "2Gi", "1Gi", csi(), false, Expansion::External),
            ("CSI volume waits for its node", "1Gi", "1Gi", csi(), true, Expansion::External),
            ("EBS volume too small", "2Gi", "1Gi", ebs(), false, by_ebs()),
            ("EBS volume waits for its node", "1Gi", "1Gi", ebs(), true, by_ebs()),
            ("host path", "2Gi", "1Gi", Source::HostPath { path: "/tmp".into() }, false, Expansion::External),
            ("no capacity yet", "1Gi", "", csi(), false, Expansion::External),
        ] {
            assert_eq!(decide(&bound(request, capacity), &volume_of(source, annotated)), expected, "{name}");
        }
    }

    #[test]
    fn bound_claims_are_reconciled_when_they_grow() {
        let small = Arc::new(bound("1Gi", "1Gi"));
        let (larger, expanded) = (Arc::new(bound("2Gi", "1Gi")), Arc::new(bound("1Gi", "2Gi")));
        let pending = Arc::new(claim("data"));
        let mut another = bound("1Gi", "1Gi");
        recreated(&mut another.meta);
        let another = Arc::new(another);
        for (name, old, new, expected) in [
            ("created", None, Some(&small), true),
            ("unchanged", Some(&small), Some(&small), false),
            ("requests more", Some(&small), Some(&larger), true),
            ("requests less", Some(&larger), Some(&small), false),
            ("has more capacity", Some(&small), Some(&expanded), true),
            ("becomes bound", Some(&pending), Some(&small), true),
            ("pending", None, Some(&pending), false),
            ("replaced", Some(&small), Some(&another), true),
            ("deleted", Some(&small), None, false),
        ] {
            assert_eq!(key(&Change { old, new }).is_some(), expected, "{name}");
        }
    }

    /// Upstream's first case of TestSyncHandler.
    #[tokio::test]
    async fn claim_without_a_volume_is_retried_and_leads_to_no_request() {
        let mut unbound = bound("2Gi", "1Gi");
        unbound.volume_name = "".into();
        let key = unbound.meta.key();
        let decode = || Decode { interner: Arc::default(), sections: Sections::default() };
        let (writer, sent) = counting_writer(500, "").await;
        let expander = Expander {
            claims: Arc::new(filled_store(decode(), Vec::new(), [unbound])),
            volumes: Arc::new(filled_store(decode(), Vec::new(), [])),
            writer,
            recorder: Recorder::new("test", Arc::new(NoEvents)).0,
        };
        let error = expander.reconcile(&key).await.expect_err("it has no volume");
        assert_eq!(error.message, "failed to get PV \"\": resource name may not be empty");
        assert_eq!((error.terminal, sent.load(Ordering::Relaxed)), (false, 0));
    }

    #[test]
    fn volume_is_bound_to_a_claim_of_its_namespace_and_uid() {
        let claim = bound("1Gi", "1Gi");
        for (name, reference, expected) in [
            ("free", None, false),
            ("bound", Some(("default", Some("data-uid"))), true),
            ("reserved by name", Some(("default", None)), false),
            ("of another namespace", Some(("other", Some("data-uid"))), false),
            ("of another claim", Some(("default", Some("another"))), false),
        ] {
            let mut volume = volume("pv");
            volume.claim = reference.map(|(namespace, uid)| {
                Box::new(ClaimRef { namespace: namespace.into(), name: "data".into(), uid: uid.map(Uid::parse) })
            });
            assert_eq!(is_bound_to(&volume, &claim), expected, "{name}");
        }
    }
}
