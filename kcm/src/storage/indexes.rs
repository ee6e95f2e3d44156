//! Indexes of pods, claims and volumes that several controllers share.

use kinds::{PersistentVolume, PersistentVolumeClaim, Pod};
use runtime::store::{Index, index_key};

/// Returns the index of pods by the claims behind their volumes, including generic ephemeral volumes. Needs
/// [`Pod::VOLUMES`]; look up by [`using_claim`].
pub const fn pods_by_claim() -> Index<Pod> {
    Index {
        name: "persistent-volume-claim",
        keys: |pod, emit| {
            let claims = pod.volumes.iter().flat_map(|volumes| &volumes.claims);
            claims.for_each(|volume| emit(using_claim(&pod.meta.namespace, &volume.claim)));
        },
    }
}

/// Returns the key of all pods that use a claim. A pod with a generic ephemeral volume is among them whether or not it
/// controls the claim.
pub fn using_claim(namespace: &str, claim: &str) -> u64 {
    index_key(("claim", namespace, claim))
}

/// Returns the index of claims by the volume that they name. Look up by [`naming_volume`].
pub const fn claims_by_volume() -> Index<PersistentVolumeClaim> {
    Index {
        name: "volume",
        keys: |claim, emit| {
            if !claim.volume_name.is_empty() {
                emit(naming_volume(&claim.volume_name));
            }
        },
    }
}

/// Returns the key of all claims that name a volume.
pub fn naming_volume(volume: &str) -> u64 {
    index_key(("volume", volume))
}

/// Returns the index of claims by their VolumeAttributesClasses: requested, current and target. Look up by
/// [`of_attributes_class`].
pub const fn claims_by_attributes_class() -> Index<PersistentVolumeClaim> {
    Index {
        name: "attributes-class",
        keys: |claim, emit| claim.attributes_classes().for_each(|name| emit(of_attributes_class(name))),
    }
}

/// Returns the index of volumes by their VolumeAttributesClass. Look up by [`of_attributes_class`].
pub const fn volumes_by_attributes_class() -> Index<PersistentVolume> {
    Index {
        name: "attributes-class",
        keys: |volume, emit| {
            if !volume.attributes_class.is_empty() {
                emit(of_attributes_class(&volume.attributes_class));
            }
        },
    }
}

/// Returns the key of all claims or volumes that refer to a VolumeAttributesClass.
pub fn of_attributes_class(name: &str) -> u64 {
    index_key(("attributes-class", name))
}
