//! Counts and durations under upstream's names.
//!
//! Upstream: pkg/controller/volume/persistentvolume/metrics.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::persistent_volume::{MIGRATED_TO, PROVISIONED_BY, Phase as VolumePhase, ReclaimPolicy, Source};
use kinds::persistent_volume_claim::Phase as ClaimPhase;
use kinds::{PersistentVolume, PersistentVolumeClaim, StorageClass, Str, Uid};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{Count, Counts, FormerName, Histograms, Metrics, counted, gauges};
use runtime::store::Store;
use tokio::time::Instant;

use super::decide_volume::{Reclaim, decide_reclaim};
use super::names::{HOST_PATH, NFS};
use crate::storage::migration::driver_of_plugin;

/// Upper bounds of the buckets in seconds.
const BOUNDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
const NO_PLUGIN: &str = "N/A";

#[derive(Debug, Clone)]
struct FirstAttempt {
    /// Uid of the claim or volume: another object may have its name by now.
    uid: Uid,
    plugin: String,
    at: Instant,
}

/// The first attempts by the name of their object.
type Starts<K> = Mutex<HashMap<K, FirstAttempt>>;

/// Records the first attempt for an object. Returns its time.
fn start<K: Hash + Eq>(starts: &Starts<K>, key: K, uid: &Uid, plugin: impl FnOnce() -> String) -> Instant {
    let mut starts = lock(starts);
    if let Some(started) = starts.get(&key).filter(|started| started.uid == *uid) {
        return started.at;
    }
    let at = Instant::now();
    starts.insert(key, FirstAttempt { uid: uid.clone(), plugin: plugin(), at });
    at
}

/// Provisioning and deletion of volumes, from the first attempt to the end.
#[derive(Debug)]
pub struct Operations {
    durations: Histograms<2>,
    errors: Counts<2>,
    assigned_classes: Count,
    failed_classes: Count,
    provisions: Starts<ObjectKey>,
    deletions: Starts<Str>,
}

fn labels(plugin: &str, operation: &str) -> [(&'static str, String); 2] {
    [("plugin_name", plugin.to_owned()), ("operation_name", operation.to_owned())]
}

impl Operations {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        metrics.former_name(FormerName {
            name: "volume_operation_total_errors",
            replaced_by: "volume_operation_errors_total",
            deprecated_since: "1.36.0",
        });
        Self {
            durations: metrics.histograms(
                "volume_operation_total_seconds",
                "Storage operation end to end duration in seconds",
                BOUNDS.to_vec(),
            ),
            errors: metrics.counts("volume_operation_errors", "Total volume operation errors"),
            assigned_classes: metrics.count(
                "retroactive_storageclass",
                "Total number of retroactive StorageClass assignments to persistent volume claim",
            ),
            failed_classes: metrics.count(
                "retroactive_storageclass_errors",
                "Total number of failed retroactive StorageClass assignments to persistent volume claim",
            ),
            provisions: Mutex::default(),
            deletions: Mutex::default(),
        }
    }

    /// Records that a claim got the default class, or that the write failed.
    pub fn class_assigned(&self, is_success: bool) {
        self.assigned_classes.add();
        if !is_success {
            self.failed_classes.add();
        }
    }

    /// Records that a volume is requested for a claim; only the first call for a claim counts. Returns the time since
    /// that call.
    pub fn provision_started(&self, claim: &PersistentVolumeClaim, plugin: &str) -> Duration {
        start(&self.provisions, claim.meta.key(), &claim.meta.uid, || plugin.to_owned()).elapsed()
    }

    /// Records that a claim was bound to a volume that the search found.
    pub fn provision_succeeded(&self, claim: &ObjectKey) {
        if let Some(started) = lock(&self.provisions).remove(claim) {
            self.durations.observe(labels(&started.plugin, "provision"), started.at.elapsed().as_secs_f64());
        }
    }

    /// Records a failed attempt to provide a volume for a claim.
    pub fn provision_failed(&self, claim: &ObjectKey) {
        if let Some(started) = lock(&self.provisions).get(claim) {
            self.errors.add(labels(&started.plugin, "provision"));
        }
    }

    /// Removes a claim that was deleted.
    pub fn forget_provision(&self, claim: &ObjectKey) {
        lock(&self.provisions).remove(claim);
    }

    /// Records that a volume of this class is reclaimed. Only the first call for a volume counts, and only with the
    /// policy Delete and a plugin that is not migrated to CSI.
    pub fn reclaim_started(&self, volume: &PersistentVolume, class: Option<&StorageClass>) {
        let is_migrated = volume.annotation(MIGRATED_TO).is_some_and(|driver| !driver.is_empty());
        if volume.reclaim_policy == ReclaimPolicy::Delete && !is_migrated {
            start(&self.deletions, volume.meta.name.clone(), &volume.meta.uid, || deleting_plugin(volume, class));
        }
    }

    /// Records a failed attempt to delete a volume's storage.
    pub fn reclaim_failed(&self, volume: &Str) {
        if let Some(started) = lock(&self.deletions).get(volume) {
            self.errors.add(labels(&started.plugin, "delete"));
        }
    }

    /// Records that a volume was deleted.
    pub fn volume_deleted(&self, volume: &Str) {
        if let Some(started) = lock(&self.deletions).remove(volume) {
            self.durations.observe(labels(&started.plugin, "delete"), started.at.elapsed().as_secs_f64());
        }
    }
}

/// Returns the component that deletes a volume: a compiled-in plugin, or the provisioner of the volume's class; `N/A`
/// if there is neither. Except for host paths, the provisioner in the volume's annotation is not used, because some
/// provisioners have a different name on each node.
/// Upstream: pkg/controller/volume/persistentvolume, getProvisionerNameFromVolume.
fn deleting_plugin(volume: &PersistentVolume, class: Option<&StorageClass>) -> String {
    let provisioner = volume.annotation(PROVISIONED_BY).filter(|name| !name.is_empty());
    match (provisioner, decide_reclaim(volume), class) {
        (Some(HOST_PATH), ..) | (_, Reclaim::DeleteHostPath(_), _) => HOST_PATH.to_owned(),
        (_, Reclaim::Leave, Some(class)) => match driver_of_plugin(&class.provisioner) {
            "" => class.provisioner.to_string(),
            driver => driver.to_owned(),
        },
        _ => NO_PLUGIN.to_owned(),
    }
}

/// Numbers of volumes and claims, counted at each scrape of the metrics.
pub struct Totals {
    /// Volumes.
    pub volumes: Arc<Store<PersistentVolume>>,
    /// Claims.
    pub claims: Arc<Store<PersistentVolumeClaim>>,
}

impl fmt::Debug for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Totals")
    }
}

/// Returns the plugin of a volume as upstream 1.37.0 names it: only compiled-in plugins have a name.
fn source_plugin(volume: &PersistentVolume) -> &'static str {
    match volume.source {
        Source::HostPath { .. } => HOST_PATH,
        Source::Nfs { .. } => NFS,
        _ => NO_PLUGIN,
    }
}

impl Collector for Totals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let volumes = self.volumes.all();
        let by_plugin = volumes.iter().map(|volume| {
            [("plugin_name", source_plugin(volume).to_owned()), ("volume_mode", volume.volume_mode.name().to_owned())]
        });
        let help = "Gauge measuring total number of persistent volumes";
        gauges(&mut encoder, "pv_collector_total_pv_count", help, counted(by_plugin))?;
        for (name, is_bound) in [("bound", true), ("unbound", false)] {
            let of_phase = volumes.iter().filter(|volume| (volume.phase == VolumePhase::Bound) == is_bound);
            let by_class = of_phase.map(|volume| [("storage_class", volume.spec_class.to_string())]);
            let help = format!("Gauge measuring number of persistent volume currently {name}");
            gauges(&mut encoder, &format!("pv_collector_{name}_pv_count"), &help, counted(by_class))?;
        }
        drop(volumes);
        let claims = self.claims.all();
        for (name, is_bound) in [("bound", true), ("unbound", false)] {
            let of_phase = claims.iter().filter(|claim| (claim.phase == ClaimPhase::Bound) == is_bound);
            let by_class = of_phase.map(|claim| {
                [
                    ("namespace", claim.meta.namespace.to_string()),
                    ("storage_class", claim.class().to_owned()),
                    ("volume_attributes_class", claim.attributes_class.to_string()),
                ]
            });
            let help = format!("Gauge measuring number of persistent volume claim currently {name}");
            gauges(&mut encoder, &format!("pv_collector_{name}_pvc_count"), &help, counted(by_class))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use runtime::metrics::Restrictions;

    use super::*;
    use crate::storage::binder::tests::builders::class;
    use crate::storage::testing::{claim, recreated, volume};

    /// Returns the value of a metric with these labels, in any order.
    fn value(metrics: &Metrics, name: &str, labels: &[(&'static str, String); 2]) -> Option<f64> {
        let text = metrics.text();
        let has = |line: &str| labels.iter().all(|(key, value)| line.contains(&format!("{key}=\"{value}\"")));
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && has(line))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    #[tokio::test]
    async fn provisioning_and_deletion_are_counted_with_their_failures() {
        const DRIVER: &str = "disk.example.com";
        let metrics = Metrics::default();
        let operations = Operations::new(&metrics);
        let claim = claim("data");
        let mut volume = volume("pv");
        volume.reclaim_policy = ReclaimPolicy::Delete;
        volume.annotations = Arc::new([(PROVISIONED_BY.into(), "one-for-each-node".into())]);
        let class = class("fast", DRIVER, "Immediate", false, 1);
        let count = |name: &str, operation| value(&metrics, name, &labels(DRIVER, operation));

        operations.provision_failed(&claim.meta.key());
        assert_eq!(count("volume_operation_errors", "provision"), None, "it was not requested");
        operations.provision_started(&claim, DRIVER);
        operations.provision_failed(&claim.meta.key());
        operations.provision_started(&claim, "other.example.com");
        operations.provision_failed(&claim.meta.key());
        assert_eq!(count("volume_operation_errors_total", "provision"), Some(2.0));
        assert_eq!(count("volume_operation_total_seconds_count", "provision"), None);
        operations.provision_succeeded(&claim.meta.key());
        operations.provision_succeeded(&claim.meta.key());
        assert_eq!(count("volume_operation_total_seconds_count", "provision"), Some(1.0));

        operations.reclaim_started(&volume, Some(&class));
        operations.reclaim_failed(&volume.meta.name);
        assert_eq!(count("volume_operation_errors_total", "delete"), Some(1.0));
        assert_eq!(count("volume_operation_total_errors", "delete"), None, "hidden");
        metrics.restrict(Restrictions { shows_hidden: true, ..Restrictions::default() });
        assert_eq!(count("volume_operation_total_errors", "delete"), Some(1.0));
        operations.volume_deleted(&volume.meta.name);
        operations.volume_deleted(&volume.meta.name);
        assert_eq!(count("volume_operation_total_seconds_count", "delete"), Some(1.0));
    }

    #[test]
    fn deletion_is_counted_for_a_plugin_or_the_provisioner_of_the_class() {
        let csi = || Source::Csi { driver: "disk.example.com".into(), handle: "vol-1".into() };
        let path = || Source::HostPath { path: "/tmp/data".into() };
        let (fast, ebs) = (Some("disk.example.com"), Some("kubernetes.io/aws-ebs"));
        for (name, source, provisioner, of_class, expected) in [
            ("by its class", csi(), fast, fast, "disk.example.com"),
            ("by another one than its class", csi(), Some("local-volume-provisioner-node-1"), fast, "disk.example.com"),
            ("not provisioned", csi(), None, fast, "disk.example.com"),
            ("class of a migrated plugin", csi(), fast, ebs, "ebs.csi.aws.com"),
            ("class does not exist", csi(), fast, None, NO_PLUGIN),
            ("host path", path(), None, fast, HOST_PATH),
            ("by the host-path provisioner", csi(), Some(HOST_PATH), fast, HOST_PATH),
            ("by an unknown plugin", csi(), Some("kubernetes.io/rbd"), fast, NO_PLUGIN),
            ("without a deleter", Source::None, None, fast, NO_PLUGIN),
        ] {
            let mut volume = volume("pv");
            volume.source = source;
            volume.reclaim_policy = ReclaimPolicy::Delete;
            volume.annotations = provisioner.map(|value| (PROVISIONED_BY.into(), value.into())).into_iter().collect();
            let class = of_class.map(|provisioner| class("fast", provisioner, "Immediate", false, 1));
            assert_eq!(deleting_plugin(&volume, class.as_deref()), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn retained_and_migrated_volumes_are_not_counted_as_deleted() {
        let metrics = Metrics::default();
        let operations = Operations::new(&metrics);
        let (mut retained, mut migrated) = (volume("retained"), volume("migrated"));
        retained.reclaim_policy = ReclaimPolicy::Retain;
        migrated.reclaim_policy = ReclaimPolicy::Delete;
        migrated.annotations = Arc::new([(MIGRATED_TO.into(), "disk.example.com".into())]);
        for volume in [retained, migrated] {
            operations.reclaim_started(&volume, None);
            operations.volume_deleted(&volume.meta.name);
        }
        assert!(!metrics.text().contains("volume_operation_total_seconds_count"), "{}", metrics.text());
    }

    #[tokio::test(start_paused = true)]
    async fn time_since_the_first_request_of_a_volume_is_kept_until_it_succeeds() {
        let operations = Operations::new(&Metrics::default());
        let claim = claim("data");
        assert_eq!(operations.provision_started(&claim, "a"), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(operations.provision_started(&claim, "a"), Duration::from_secs(3));
        let mut other = claim.clone();
        recreated(&mut other.meta);
        assert_eq!(operations.provision_started(&other, "a"), Duration::ZERO, "another claim with the same name");
        tokio::time::advance(Duration::from_secs(3)).await;
        operations.provision_succeeded(&other.meta.key());
        assert_eq!(operations.provision_started(&other, "a"), Duration::ZERO);
    }
}
