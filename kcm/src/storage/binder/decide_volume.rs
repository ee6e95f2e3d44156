//! The next step for a volume.
//!
//! Upstream: pkg/controller/volume/persistentvolume, syncVolume and reclaimVolume.

use kinds::persistent_volume::{MIGRATED_TO, PROVISIONED_BY, Phase, ReclaimPolicy, Source};
use kinds::{PersistentVolume, PersistentVolumeClaim, Uid};

use super::decide_claim::Notice;
use super::names::{HOST_PATH, IN_TREE, NFS};

/// The next step for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeStep {
    /// Set the phase, unless it is already right.
    SetPhase(Phase),
    /// The volume's claim does not name the volume yet: reconcile the claim.
    ReconcileClaim,
    /// The volume's claim names no volume, and has another volume mode: events about the volume and the claim.
    Mismatch(Notice, Notice),
    /// The volume's claim no longer exists; or it has another volume, and this one was provisioned and has the reclaim
    /// policy Delete: set the phase Released, then reclaim the volume.
    Reclaim,
    /// The volume's claim has another volume, and this one is not to be deleted: make it available again.
    Unbind,
}

/// Returns the uid of the claim that a volume is bound to; `None` if it is free or reserved by name.
pub fn claim_uid(volume: &PersistentVolume) -> Option<&Uid> {
    volume.claim.as_ref().and_then(|claim| claim.uid.as_ref())
}

/// Returns true if the volume's claim has to be read from the API server, because the cache may be behind. For a
/// volume in phase Released or Failed the cache suffices: [`is_released`] is checked with an uncached claim before
/// data is deleted.
pub fn needs_uncached_claim(volume: &PersistentVolume, cached: Option<&PersistentVolumeClaim>) -> bool {
    let Some(uid) = claim_uid(volume) else { return false };
    !is_reclaimable(volume.phase) && cached.is_none_or(|claim| claim.meta.uid != *uid)
}

/// Returns true if a volume in this phase was already released.
pub fn is_reclaimable(phase: Phase) -> bool {
    matches!(phase, Phase::Released | Phase::Failed)
}

/// Decides the next step for a volume. `claim` is the claim that the volume refers to.
pub fn next_step(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> VolumeStep {
    let Some(uid) = claim_uid(volume) else {
        return VolumeStep::SetPhase(Phase::Available);
    };
    let Some(claim) = claim.filter(|claim| claim.meta.uid == *uid) else { return VolumeStep::Reclaim };
    if claim.volume_name.is_empty() {
        if claim.volume_mode == volume.volume_mode {
            return VolumeStep::ReconcileClaim;
        }
        let (name, other) = (&*volume.meta.name, &*claim.meta.name);
        let why = "due to incompatible volumeMode.";
        let on_volume = format!("Cannot bind PersistentVolume to requested PersistentVolumeClaim {other:?} {why}");
        let on_claim = format!("Cannot bind PersistentVolume {name:?} to requested PersistentVolumeClaim {why}");
        let notice = |message| Notice::warning("VolumeMismatch", message);
        return VolumeStep::Mismatch(notice(on_volume), notice(on_claim));
    }
    if claim.volume_name == volume.meta.name {
        return VolumeStep::SetPhase(Phase::Bound);
    }
    if volume.annotation(PROVISIONED_BY).is_some() && volume.reclaim_policy == ReclaimPolicy::Delete {
        return VolumeStep::Reclaim;
    }
    VolumeStep::Unbind
}

/// Returns true if a volume may be wiped or deleted: it has the uid of a claim that no longer exists or has another
/// volume. `claim` must have been read from the API server.
pub fn is_released(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    let Some(uid) = claim_uid(volume) else { return false };
    match claim.filter(|claim| claim.meta.uid == *uid) {
        None => true,
        Some(claim) => !claim.volume_name.is_empty() && claim.volume_name != volume.meta.name,
    }
}

/// The action for a released volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reclaim {
    /// No action: the volume is retained, or an external provisioner deletes it.
    Leave,
    /// Delete the directory of a host-path volume, then the volume.
    DeleteHostPath(String),
    /// Delete the volume's data, then make it available again.
    Recycle(RecyclePlugin),
    /// No plugin can delete the volume's data. The failure is reported when no pod uses the volume any longer.
    NotRecyclable,
    /// The volume cannot be reclaimed: phase Failed, and this event.
    Fail(Notice),
}

/// A plugin that can wipe volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecyclePlugin {
    /// A directory of a node.
    HostPath,
    /// A directory of an NFS server.
    Nfs,
}

/// Returns the plugin that can wipe a volume.
pub fn recycle_plugin(volume: &PersistentVolume) -> Option<RecyclePlugin> {
    match &volume.source {
        Source::HostPath { .. } => Some(RecyclePlugin::HostPath),
        Source::Nfs { .. } => Some(RecyclePlugin::Nfs),
        Source::Csi { .. } | Source::Other { .. } | Source::None => None,
    }
}

/// Decides how to reclaim a released volume.
pub fn decide_reclaim(volume: &PersistentVolume) -> Reclaim {
    if volume.annotation(MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
        return Reclaim::Leave;
    }
    match volume.reclaim_policy {
        ReclaimPolicy::Retain => Reclaim::Leave,
        ReclaimPolicy::Unknown => Reclaim::Fail(Notice::warning(
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        )),
        ReclaimPolicy::Recycle => recycle_plugin(volume).map_or(Reclaim::NotRecyclable, Reclaim::Recycle),
        ReclaimPolicy::Delete => decide_delete(volume),
    }
}

fn decide_delete(volume: &PersistentVolume) -> Reclaim {
    let name = &*volume.meta.name;
    let fail = |why: String| Reclaim::Fail(Notice::warning("VolumeFailedDelete", why));
    let fail_lookup = |why| fail(format!("error getting deleter volume plugin for volume {name:?}: {why}"));
    let provisioner = volume.annotation(PROVISIONED_BY).filter(|provisioner| !provisioner.is_empty());
    match (provisioner, &volume.source) {
        (Some(HOST_PATH) | None, Source::HostPath { path }) if !is_owned_by_driver(volume, provisioner) => {
            Reclaim::DeleteHostPath(path.to_string())
        }
        (Some(HOST_PATH), _) => {
            fail(format!("failed to create deleter for volume {name:?}: spec.PersistentVolumeSource.HostPath is nil"))
        }
        (Some(NFS), _) => fail(NOT_DELETABLE.to_owned()),
        (Some(provisioner), _) if provisioner.starts_with(IN_TREE) => fail(format!("{NO_PLUGIN} name: {provisioner}")),
        (None, Source::Nfs { .. }) if !is_owned_by_driver(volume, provisioner) => fail_lookup(NOT_DELETABLE),
        (None, Source::Other { .. } | Source::None) if !is_owned_by_driver(volume, provisioner) => {
            fail_lookup(NO_PLUGIN)
        }
        _ => Reclaim::Leave,
    }
}

const NO_PLUGIN: &str = "no volume plugin matched";
const NOT_DELETABLE: &str = "no deletable volume plugin matched";

/// Returns true if a CSI driver owns the volume: it has no provisioner and has the annotation of a migration, even an
/// empty one.
fn is_owned_by_driver(volume: &PersistentVolume, provisioner: Option<&str>) -> bool {
    provisioner.is_none() && volume.annotation(MIGRATED_TO).is_some()
}
