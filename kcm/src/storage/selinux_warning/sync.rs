//! One reconcile of a pod: resolve its volumes, compare with the other pods that use them, report.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::Phase;
use kinds::pod::{ClaimVolume, SeLinux};
use kinds::{CsiDriver, PersistentVolume, PersistentVolumeClaim, Pod, Str};
use runtime::events::{EventType, Recorder, about};
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tracing::debug;

use super::used_volumes::{Conflict, Policy, Use, UsedVolumes};
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

/// Decides how a volume is used that a pod mounts with these labels; `None` if the labels differ within the pod.
///
/// Upstream: pkg/volume/util, GetMountSELinuxLabel; pkg/controller/volume/selinuxwarning, syncVolume.
fn usage(labels: &[Str], is_recursive: bool, supports_context: bool) -> Option<Use> {
    let label = match labels {
        [] => "".into(),
        [label] => label.clone(),
        _ => return None,
    };
    if is_recursive || !supports_context || label.is_empty() {
        return Some(Use { label: "".into(), policy: Policy::Recursive });
    }
    Some(Use { label, policy: Policy::MountOption })
}

impl SelinuxWarnings {
    fn sync(&self, key: &ObjectKey) {
        let pod = self.pods.get(key).filter(|pod| !pod.is_terminal());
        let volumes = pod.as_deref().and_then(|pod| pod.volumes.as_deref());
        let (Some(pod), Some(volumes)) = (&pod, volumes) else {
            self.used.remove(key);
            return;
        };
        let mut uses = Vec::new();
        if let Some(selinux) = &volumes.selinux {
            for claim in &volumes.claims {
                uses.extend(self.resolve(pod, selinux, claim));
            }
        }
        let conflicts = self.used.put(key, uses);
        self.report(&conflicts);
    }

    /// Returns the unique name of a mounted volume, its driver, and how it is used. A claim that is not bound yet is
    /// resolved once it is.
    fn resolve(&self, pod: &Pod, selinux: &SeLinux, claim: &ClaimVolume) -> Option<(Str, Str, Use)> {
        let labels = selinux.labels(&claim.volume)?;
        let volume = self.volume(pod, claim)?;
        let name = volume_name::of_volume(&volume)?;
        let driver = match Plugin::of(&name)? {
            Plugin::Csi { driver, .. } => Some(driver),
            Plugin::Kubelet(_) => None,
        };
        let supports_context = driver.is_none_or(|driver| {
            self.drivers.get(&ObjectKey::new("", driver)).is_some_and(|driver| driver.selinux_mount)
        });
        let Some(mine) = usage(labels, selinux.is_recursive, supports_context) else {
            let message =
                format!("Volume \"{}\" is mounted twice with different SELinux labels inside this pod", claim.volume);
            self.recorder.event(&about(pod), EventType::Warning, "MultipleSELinuxLabels", message);
            return None;
        };
        let driver = driver.unwrap_or_default().into();
        Some((name, driver, mine))
    }

    /// Returns the volume that a claim of a pod is bound to.
    fn volume(&self, pod: &Pod, claim: &ClaimVolume) -> Option<Arc<PersistentVolume>> {
        let key = ObjectKey::new(pod.meta.namespace.clone(), claim.claim.clone());
        let found = self.claims.get(&key).filter(|found| found.phase == Phase::Bound)?;
        if claim.is_ephemeral && !found.meta.is_controlled_by(&pod.meta.uid) {
            return None;
        }
        let volume = self.volumes.get(&ObjectKey::new("", found.volume_name.clone()))?;
        let is_bound = volume.claim.as_ref().is_some_and(|claim| claim.uid.as_ref() == Some(&found.meta.uid));
        is_bound.then_some(volume)
    }

    /// Reports conflicts to both pods. Those behind a pod that no longer exists have gone with it.
    fn report(&self, conflicts: &[Conflict]) {
        for conflict in conflicts {
            let Some(pod) = self.pods.get(&conflict.pod) else { return };
            debug!(pod = %conflict.pod, other = %conflict.other, property = conflict.property.name(), "conflicting use of a volume");
            self.recorder.event(&about(&*pod), EventType::Normal, conflict.property.reason(), conflict.message());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_counts_only_if_the_volume_is_mounted_with_it() {
        let recursive = Some(Use { label: "".into(), policy: Policy::Recursive });
        let mounted = Some(Use { label: ":::s0:c1".into(), policy: Policy::MountOption });
        for (name, labels, is_recursive, supports_context, expected) in [
            ("one label", &[":::s0:c1"][..], false, true, &mounted),
            ("opted out", &[":::s0:c1"], true, true, &recursive),
            ("the driver cannot", &[":::s0:c1"], false, false, &recursive),
            ("no options", &[], false, true, &recursive),
            ("an empty label", &[""], false, true, &recursive),
            ("two labels", &[":::s0:c1", ":::s0:c2"], false, true, &None),
            ("a label and an empty one", &["", ":::s0:c2"], true, false, &None),
        ] {
            let labels: Vec<Str> = labels.iter().map(|label| (*label).into()).collect();
            assert_eq!(usage(&labels, is_recursive, supports_context), *expected, "{name}");
        }
    }
}
