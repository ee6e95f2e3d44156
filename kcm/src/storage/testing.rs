//! Objects for the tests of the storage controllers.

use std::sync::Arc;

use kinds::meta::OwnerRef;
use kinds::pod::{ClaimVolume, Phase, Volumes};
use kinds::schema::{object_meta, persistent_volume, persistent_volume_claim, pod};
use kinds::wire::Put;
use kinds::{Decode, Kind, Meta, PersistentVolume, PersistentVolumeClaim, Pod, Sections, Time, Uid};

fn read<K: Kind>(metadata: u32, namespace: &str, name: &str) -> K {
    let mut object = Vec::new();
    object.put_message(metadata, |meta| {
        meta.put_str(object_meta::NAMESPACE, namespace);
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::UID, &format!("{name}-uid"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    K::decode(&Decode { interner: Arc::default(), sections: Sections::default() }, &object).expect("well-formed")
}

/// Returns a claim in namespace `default` without spec and status.
pub fn claim(name: &str) -> PersistentVolumeClaim {
    read(persistent_volume_claim::METADATA, "default", name)
}

/// Returns a volume without spec and status.
pub fn volume(name: &str) -> PersistentVolume {
    read(persistent_volume::METADATA, "", name)
}

/// Returns a running pod on a node in namespace `default`, with volumes of these claims.
pub fn pod_with(name: &str, claims: &[&str]) -> Pod {
    let mut pod: Pod = read(pod::METADATA, "default", name);
    pod.node = "node".into();
    pod.phase = Phase::Running;
    let volume = |claim: &&str| ClaimVolume { volume: "data".into(), claim: (*claim).into(), is_ephemeral: false };
    if !claims.is_empty() {
        let mut claims: Vec<ClaimVolume> = claims.iter().map(volume).collect();
        claims.sort_by(|one, other| one.claim.cmp(&other.claim));
        pod.volumes = Some(Box::new(Volumes {
            claims: claims.into(),
            in_tree: Box::default(),
            csi_drivers: Arc::default(),
            is_running: true,
            has_no_grace: false,
            selinux: None,
        }));
    }
    pod
}

/// Returns a running pod on a node with a generic ephemeral volume `data`.
pub fn pod_with_ephemeral(name: &str) -> Pod {
    let mut pod = pod_with(name, &[&format!("{name}-data")]);
    pod.volumes.as_mut().expect("it has one").claims[0].is_ephemeral = true;
    pod
}

/// Makes a pod the controller of an object.
pub fn own(meta: &mut Meta, pod: &Pod) {
    meta.owners = Arc::new([OwnerRef {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.meta.name.clone(),
        uid: pod.meta.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
}

/// Marks an object as being deleted, with these finalizers.
pub fn deleting(meta: &mut Meta, finalizers: &[&str]) {
    meta.deletion = Time(1);
    meta.finalizers = finalizers.iter().map(|name| (*name).into()).collect();
}

/// Gives an object another uid, as if the object had been deleted and created again.
pub fn recreated(meta: &mut Meta) {
    meta.uid = Uid::parse("another");
}
