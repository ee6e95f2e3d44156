//! Decisions on volumes, in upstream's cases (those with a number) and others. Upstream:
//! pkg/controller/volume/persistentvolume, binder, delete and recycle tests.

use super::builders::{Backend, ClaimSpec, VolumeSpec, claim, volume};
use crate::storage::binder::decide_volume::{
    Reclaim, RecyclePlugin, VolumeStep, decide_reclaim, is_released, needs_uncached_claim, next_step,
};

const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";

fn step(volume: &VolumeSpec, claim: Option<&ClaimSpec>) -> String {
    match next_step(&volume.record(), claim.map(ClaimSpec::record).as_deref()) {
        VolumeStep::SetPhase(phase) => phase.name().to_owned(),
        VolumeStep::ReconcileClaim => "claim".to_owned(),
        VolumeStep::Mismatch(..) => "mismatch".to_owned(),
        VolumeStep::Reclaim => "reclaim".to_owned(),
        VolumeStep::Unbind => "unbind".to_owned(),
    }
}

#[test]
fn next_step_of_a_volume_follows_from_its_claim() {
    let of = || volume("a").of("data", "uid-data");
    let other_uid = || claim("data").with(|claim| claim.head.uid = "other".to_owned());
    let deleted_policy = |volume: VolumeSpec| volume.with(|volume| volume.policy = "Delete");
    let provisioned = || deleted_policy(of().annotated(PROVISIONED_BY, "csi.example.com"));
    for (case, volume, claim, expected) in [
        ("4-1 free", volume("a").phase("Pending"), None, "Available"),
        ("4-2 reserved by name", volume("a").of("data", ""), Some(claim("data")), "Available"),
        ("4-3 claim is missing", of(), None, "reclaim"),
        ("4-4 claim has another uid", of(), Some(other_uid()), "reclaim"),
        ("4-5 claim names no volume", of(), Some(claim("data")), "claim"),
        ("4-6 claim names it", of(), Some(claim("data").names("a")), "Bound"),
        ("failed, and named again", of().phase("Failed"), Some(claim("data").names("a")), "Bound"),
        ("4-7 claim names another", of(), Some(claim("data").names("b")), "unbind"),
        ("8-11 provisioned, claim names another", provisioned(), Some(claim("data").names("b")), "reclaim"),
        ("static with Delete, claim names another", deleted_policy(of()), Some(claim("data").names("b")), "unbind"),
        ("14-13 volume modes differ", of(), Some(claim("data").with(|claim| claim.is_block = true)), "mismatch"),
    ] {
        assert_eq!(step(&volume, claim.as_ref()), expected, "{case}");
    }
}

#[test]
fn mismatch_is_recorded_on_volume_and_claim() {
    let block = claim("data").with(|claim| claim.is_block = true).record();
    let VolumeStep::Mismatch(on_volume, on_claim) =
        next_step(&volume("a").of("data", "uid-data").record(), Some(&block))
    else {
        panic!("the modes differ");
    };
    let expected =
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"data\" due to incompatible volumeMode.";
    assert_eq!(on_volume.message, expected);
    let expected =
        "Cannot bind PersistentVolume \"a\" to requested PersistentVolumeClaim due to incompatible volumeMode.";
    assert_eq!(on_claim.message, expected);
}

#[test]
fn api_server_is_read_before_a_volume_is_released() {
    let of = || volume("a").of("data", "uid-data");
    let other = claim("data").with(|claim| claim.head.uid = "other".to_owned()).record();
    let own = claim("data").record();
    for (case, volume, cached, expected) in [
        ("claim is missing", of(), None, true),
        ("claim has another uid", of(), Some(&other), true),
        ("claim is there", of(), Some(&own), false),
        ("released before", of().phase("Released"), None, false),
        ("failed before", of().phase("Failed"), Some(&other), false),
        ("no claim", volume("a"), None, false),
        ("reserved by name", volume("a").of("data", ""), None, false),
    ] {
        assert_eq!(needs_uncached_claim(&volume.record(), cached.map(|claim| &**claim)), expected, "{case}");
    }
}

#[test]
fn only_a_volume_without_its_claim_may_be_wiped() {
    let of = || volume("a").of("data", "uid-data").phase("Released");
    let other = claim("data").with(|claim| claim.head.uid = "other".to_owned());
    for (case, volume, claim, expected) in [
        ("claim no longer exists", of(), None, true),
        ("6-9 claim has another uid", of(), Some(other), true),
        ("8-7 claim is back", of(), Some(claim("data")), false),
        ("claim names it", of(), Some(claim("data").names("a")), false),
        ("claim names another", of(), Some(claim("data").names("b")), true),
        ("6-7 free", volume("a"), None, false),
        ("6-8 reserved by name", volume("a").of("data", ""), None, false),
    ] {
        let claim = claim.as_ref().map(ClaimSpec::record);
        assert_eq!(is_released(&volume.record(), claim.as_deref()), expected, "{case}");
    }
}

const NO_DIRECTORY: &str =
    "VolumeFailedDelete failed to create deleter for volume \"a\": spec.PersistentVolumeSource.HostPath is nil";

#[test]
fn reclaim_follows_policy_provisioner_and_backend() {
    let of = |policy: &'static str, backend| {
        volume("a").of("data", "uid-data").phase("Released").with(|volume| {
            volume.policy = policy;
            volume.backend = backend;
        })
    };
    let by = |provisioner: &'static str, backend| of("Delete", backend).annotated(PROVISIONED_BY, provisioner);
    const DIRECTORY: Backend = Backend::HostPath("/tmp/a");
    const LOOKUP: &str = "error getting deleter volume plugin for volume \"a\": no volume plugin matched";
    const NOT_DELETABLE: &str =
        "error getting deleter volume plugin for volume \"a\": no deletable volume plugin matched";
    for (case, volume, expected) in [
        ("Retain", of("Retain", DIRECTORY), "leave"),
        (
            "5-3 Retain, provisioned",
            of("Retain", DIRECTORY).annotated(PROVISIONED_BY, "kubernetes.io/host-path"),
            "leave",
        ),
        (
            "6-10 unknown policy",
            of("Shred", DIRECTORY),
            "VolumeUnknownReclaimPolicy Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
        ("Recycle, directory", of("Recycle", DIRECTORY), "recycle HostPath"),
        ("Recycle, NFS", of("Recycle", Backend::Nfs), "recycle Nfs"),
        ("6-3 Recycle, CSI", of("Recycle", Backend::Csi), "not recyclable"),
        ("8-1 Delete, directory", of("Delete", DIRECTORY), "delete /tmp/a"),
        ("8-1 Delete, directory, provisioned", by("kubernetes.io/host-path", DIRECTORY), "delete /tmp/a"),
        ("8-10-1 Delete, external", by("csi.example.com", Backend::Csi), "leave"),
        ("Delete, directory of an external provisioner", by("rancher.io/local-path", DIRECTORY), "leave"),
        ("8-10-2 Delete, static CSI", of("Delete", Backend::Csi), "leave"),
        (
            "8-10-3 Delete, migrated",
            by("kubernetes.io/gce-pd", Backend::Other).annotated(MIGRATED_TO, "pd.csi.storage.gke.io"),
            "leave",
        ),
        ("4-10 Delete, static disk", of("Delete", Backend::Other), &format!("VolumeFailedDelete {LOOKUP}")),
        ("Delete, NFS", of("Delete", Backend::Nfs), &format!("VolumeFailedDelete {NOT_DELETABLE}")),
        (
            "Delete, removed plugin",
            by("kubernetes.io/rbd", Backend::Other),
            "VolumeFailedDelete no volume plugin matched name: kubernetes.io/rbd",
        ),
        ("Delete, no directory", by("kubernetes.io/host-path", Backend::Csi), NO_DIRECTORY),
        ("Delete, empty annotation", by("", Backend::Other), &format!("VolumeFailedDelete {LOOKUP}")),
    ] {
        let action = match decide_reclaim(&volume.record()) {
            Reclaim::Leave => "leave".to_owned(),
            Reclaim::DeleteHostPath(path) => format!("delete {path}"),
            Reclaim::Recycle(RecyclePlugin::HostPath) => "recycle HostPath".to_owned(),
            Reclaim::Recycle(RecyclePlugin::Nfs) => "recycle Nfs".to_owned(),
            Reclaim::NotRecyclable => "not recyclable".to_owned(),
            Reclaim::Fail(notice) => format!("{} {}", notice.reason, notice.message),
        };
        assert_eq!(action, expected, "{case}");
    }
}

#[test]
fn volume_keeps_the_reservation_of_an_administrator() {
    let chosen = volume("a").of("data", "uid-data").annotated(BOUND_BY_CONTROLLER, "yes");
    let reserved = volume("a").of("data", "uid-data");
    for (case, volume, has_claim) in [("4-7 chosen by a controller", chosen, false), ("4-8 reserved", reserved, true)] {
        let object = volume.object();
        let unbound = crate::storage::binder::references::unbound(&object, &volume.record()).expect("well-formed");
        let unbound = super::builders::read::<kinds::PersistentVolume>(&unbound);
        assert_eq!(unbound.claim.is_some(), has_claim, "{case}");
        assert!(unbound.claim.as_ref().is_none_or(|claim| claim.uid.is_none()), "{case}");
        assert_eq!(unbound.annotation(BOUND_BY_CONTROLLER), None, "{case}");
    }
}
