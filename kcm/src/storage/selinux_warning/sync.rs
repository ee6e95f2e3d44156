//! One reconcile of a pod: resolve its volumes, compare with the other pods that use them, report.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::pod::{SeLinux, SeLinuxMount, Volumes};
use kinds::{CsiDriver, PersistentVolume, PersistentVolumeClaim, Pod, Str};
use runtime::events::{EventType, Recorder, about};
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tracing::debug;

use super::used_volumes::{Conflict, Request, UsedVolumes, Volume};
use crate::storage::bound_volume::bound_volume;
use crate::storage::inline_volume;
use crate::storage::volume_name::{self, Plugin};

/// The controller's state.
pub struct SelinuxWarnings {
    pub pods: Arc<Store<Pod>>,
    pub claims: Arc<Store<PersistentVolumeClaim>>,
    pub volumes: Arc<Store<PersistentVolume>>,
    pub drivers: Arc<Store<CsiDriver>>,
    pub used: Arc<UsedVolumes>,
    pub recorder: Recorder,
}

impl Reconcile for SelinuxWarnings {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key);
        async { Ok(Outcome::Done) }.boxed()
    }
}

/// Returns the label with which a pod mounts a volume; empty if there is none, `None` if there are several.
fn single_label(labels: &[Str]) -> Option<Str> {
    match labels {
        [] => Some("".into()),
        [label] => Some(label.clone()),
        _ => None,
    }
}

impl SelinuxWarnings {
    fn sync(&self, key: &ObjectKey) {
        let pod = self.pods.get(key).filter(|pod| !pod.is_terminal());
        let volumes = pod.as_deref().and_then(|pod| pod.volumes.as_deref());
        let (Some(pod), Some(volumes)) = (&pod, volumes) else {
            self.used.remove(key);
            return;
        };
        let mounted = volumes.selinux.iter().flat_map(|selinux| self.mounted(pod, volumes, selinux));
        let conflicts = self.used.put(key, mounted.collect());
        self.report(&conflicts);
    }

    /// Returns the volumes that containers mount, each with one label, and reports volumes with several labels. A
    /// volume whose claim is not bound yet is resolved when the claim becomes bound.
    fn mounted(&self, pod: &Pod, volumes: &Volumes, selinux: &SeLinux) -> Vec<Volume> {
        let (mut mounted, mut unbound) = (Vec::new(), HashSet::new());
        let mut add = |volume: &Str, name: Option<Str>| {
            let label = selinux.labels(volume).and_then(single_label);
            mounted.extend(label.and_then(|label| self.volume(name?, label, selinux.is_recursive)));
        };
        for used in &volumes.claims {
            match bound_volume((&self.claims, &self.volumes), pod, used) {
                Some(volume) => add(&used.volume, volume_name::of_volume(&volume)),
                None => {
                    unbound.insert(&used.volume);
                }
            }
        }
        inline_volume::names(pod).for_each(|(at, name)| add(&volumes.in_tree[at].name, Some(name)));
        let mixed = selinux.mounts.iter().filter(|mount| mount.labels.len() > 1 && !unbound.contains(&mount.volume));
        for SeLinuxMount { volume, .. } in mixed {
            let message = format!("Volume \"{volume}\" is mounted twice with different SELinux labels inside this pod");
            self.recorder.event(&about(pod), EventType::Warning, "MultipleSELinuxLabels", message);
        }
        mounted
    }

    /// Returns a volume with its unique name and the label of the containers that mount it; `None` if its plugin is
    /// unknown.
    fn volume(&self, name: Str, label: Str, is_recursive: bool) -> Option<Volume> {
        let driver = match Plugin::of(&name)? {
            Plugin::Csi { driver, .. } => Some(driver),
            Plugin::Kubelet(_) => None,
        };
        let supports_context = driver.is_none_or(|driver| {
            self.drivers.get(&ObjectKey::new("", driver)).is_some_and(|driver| driver.selinux_mount)
        });
        let driver = driver.unwrap_or_default().into();
        Some(Volume { name, driver, supports_context, request: Request { label, is_recursive } })
    }

    /// Records events about the conflicts for both pods, unless they were deleted.
    fn report(&self, conflicts: &[Conflict]) {
        for conflict in conflicts {
            let Some(pod) = self.pods.get(&conflict.pod) else { continue };
            debug!(pod = %conflict.pod, other = %conflict.other, property = conflict.property.name(), "conflicting use of a volume");
            self.recorder.event(&about(&*pod), EventType::Normal, conflict.property.reason(), conflict.message());
        }
    }
}

#[cfg(test)]
mod tests {
    use kinds::persistent_volume::{ClaimRef, Source};
    use kinds::persistent_volume_claim::Phase;
    use kinds::pod::{InTreeVolume, Phase as PodPhase};
    use kinds::{Decode, Kind, Sections};
    use runtime::testing::{KeptEvents, NoEvents, deliver, filled_store};

    use super::*;
    use crate::storage::testing::{claim, pod_with, volume};

    fn store<K: Kind>(records: Vec<K>) -> Arc<Store<K>> {
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        Arc::new(filled_store(decode, Vec::new(), records))
    }

    /// Returns a pod that mounts the volume of claim `data` with this level.
    fn user(name: &str, level: &str) -> Pod {
        let mut pod = pod_with(name, &["data"]);
        let mounts = [SeLinuxMount { volume: "data".into(), labels: [Str::from(format!(":::{level}"))].into() }];
        pod.volumes.as_mut().expect("it has volumes").selinux =
            Some(Box::new(SeLinux { is_recursive: false, mounts: mounts.into() }));
        pod
    }

    fn bound_claim() -> PersistentVolumeClaim {
        let mut claim = claim("data");
        claim.phase = Phase::Bound;
        claim.volume_name = "pv".into();
        claim
    }

    fn reconciler(pods: Vec<Pod>) -> SelinuxWarnings {
        let mut volume = volume("pv");
        // Volumes of this plugin can always be mounted with a label.
        volume.source = Source::Other {
            field: kinds::schema::persistent_volume_source::ISCSI,
            raw: b"\x0a\x06portal\x12\x03iqn"[..].into(),
        };
        let uid = Some(claim("data").meta.uid);
        volume.claim = Some(Box::new(ClaimRef { namespace: "default".into(), name: "data".into(), uid }));
        SelinuxWarnings {
            pods: store(pods),
            claims: store(Vec::new()),
            volumes: store(vec![volume]),
            drivers: store(Vec::new()),
            used: Arc::default(),
            recorder: Recorder::new("test", Arc::new(NoEvents)).0,
        }
    }

    /// Upstream's cases of TestSELinuxWarningController_Sync with phases of pods.
    #[tokio::test]
    async fn only_pods_that_have_not_finished_conflict() {
        for (name, phase, expected) in [
            ("pending", PodPhase::Pending, 2),
            ("running", PodPhase::Running, 2),
            ("succeeded", PodPhase::Succeeded, 0),
            ("failed", PodPhase::Failed, 0),
        ] {
            let mut other = user("other", "s0:c2");
            other.phase = phase;
            let reconciler = reconciler(vec![user("web", "s0:c1"), other.clone()]);
            deliver(&reconciler.claims, bound_claim());
            for key in [ObjectKey::new("default", "web"), other.meta.key()] {
                reconciler.sync(&key);
            }
            assert_eq!(reconciler.used.conflicts(10).len(), expected, "{name}");
        }
    }

    #[tokio::test]
    async fn finished_pod_no_longer_conflicts() {
        let reconciler = reconciler(vec![user("web", "s0:c1"), user("other", "s0:c2")]);
        deliver(&reconciler.claims, bound_claim());
        let keys = [ObjectKey::new("default", "web"), ObjectKey::new("default", "other")];
        keys.iter().for_each(|key| reconciler.sync(key));
        assert_eq!(reconciler.used.conflicts(10).len(), 2);
        let mut finished = user("other", "s0:c2");
        finished.phase = PodPhase::Succeeded;
        deliver(&reconciler.pods, finished);
        reconciler.sync(&keys[1]);
        assert_eq!(reconciler.used.conflicts(10).len(), 0);
    }

    /// The claim's change requeues its pods.
    #[tokio::test]
    async fn volume_of_a_missing_claim_counts_when_the_claim_is_bound() {
        let reconciler = reconciler(vec![user("web", "s0:c1"), user("other", "s0:c2")]);
        let keys = [ObjectKey::new("default", "web"), ObjectKey::new("default", "other")];
        keys.iter().for_each(|key| reconciler.sync(key));
        assert_eq!(reconciler.used.conflicts(10).len(), 0, "there is no claim");
        deliver(&reconciler.claims, claim("data"));
        keys.iter().for_each(|key| reconciler.sync(key));
        assert_eq!(reconciler.used.conflicts(10).len(), 0, "the claim is not bound");
        deliver(&reconciler.claims, bound_claim());
        keys.iter().for_each(|key| reconciler.sync(key));
        assert_eq!(reconciler.used.conflicts(10).len(), 2);
    }

    /// Upstream's cases of TestSELinuxWarningController_Sync with inline volumes.
    #[tokio::test]
    async fn volumes_that_pods_define_themselves_conflict_too() {
        let disk = || {
            let raw = b"\x0a\x06portal\x12\x03iqn"[..].into();
            InTreeVolume { name: "data".into(), field: kinds::schema::volume_source::ISCSI, raw }
        };
        let with_disk = |name: &str, level: &str| {
            let mut pod = user(name, level);
            let volumes = pod.volumes.as_mut().expect("it has volumes");
            (volumes.claims, volumes.in_tree) = (Box::default(), [disk()].into());
            pod
        };
        let reconciler =
            reconciler(vec![with_disk("web", "s0:c1"), user("other", "s0:c2"), with_disk("same", "s0:c1")]);
        deliver(&reconciler.claims, bound_claim());
        for name in ["web", "other", "same"] {
            reconciler.sync(&ObjectKey::new("default", name));
        }
        assert_eq!(reconciler.used.conflicts(10).len(), 4, "the volume of the claim is the same");
    }

    /// Returns the events about a pod that mounts the volume of a claim, and another one, with two labels.
    async fn events_about_two_labels(is_bound: bool) -> Vec<String> {
        let events = Arc::<KeptEvents>::default();
        let (recorder, sender) = Recorder::new("test", events.clone());
        let mut pod = user("web", "s0:c1");
        let labels = ["a", "b"].map(Str::from);
        let mixed = |volume: &str| SeLinuxMount { volume: volume.into(), labels: labels.clone().into() };
        pod.volumes.as_mut().expect("it has volumes").selinux =
            Some(Box::new(SeLinux { is_recursive: false, mounts: [mixed("data"), mixed("tmp")].into() }));
        let key = pod.meta.key();
        let reconciler = SelinuxWarnings { recorder, ..reconciler(vec![pod]) };
        deliver(&reconciler.claims, if is_bound { bound_claim() } else { claim("data") });
        reconciler.sync(&key);
        assert_eq!(reconciler.used.conflicts(10).len(), 0);
        reconciler.recorder.close();
        sender.await;
        events.bodies()
    }

    #[tokio::test]
    async fn any_volume_with_two_labels_in_a_pod_is_reported_unless_its_claim_is_not_bound() {
        for (is_bound, expected) in [(true, &["data", "tmp"][..]), (false, &["tmp"])] {
            let bodies = events_about_two_labels(is_bound).await;
            assert_eq!(bodies.len(), expected.len(), "{bodies:?}");
            for volume in expected {
                let text = format!(r#"Volume \"{volume}\" is mounted twice with different SELinux labels"#);
                assert!(bodies.iter().any(|body| body.contains(&text)), "{volume}: {bodies:?}");
            }
        }
    }
}
