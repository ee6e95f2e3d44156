//! Attachable volumes of in-tree plugins that pods define themselves, without a claim.
//!
//! Volumes of migrated plugins are translated into volumes of the CSI driver. Their VolumeAttachment contains the
//! spec of a PersistentVolume instead of the name of one. Upstream: k8s.io/csi-translation-lib, plugins,
//! TranslateInTreeInlineVolumeToCSI; pkg/volume/csi, csiAttacher.Attach.

use kinds::pod::InTreeVolume;
use kinds::schema::{
    aws_elastic_block_store as ebs, azure_disk, azure_file_volume_source as azure_file, cinder_volume_source as cinder,
    gce_persistent_disk as gce, portworx_volume as portworx, volume_source as source, vsphere_volume as vsphere,
};
use kinds::wire::fields;
use kinds::{Pod, Str};
use runtime::store::{Index, index_key};
use serde_json::{Map, Value, json};

use super::migration::driver_of_plugin;
use super::translation::{self, TranslationError, text};
use super::volume_name::{of_csi, of_fc, of_iscsi};

const ONE_NODE: &str = "ReadWriteOnce";
const READERS: &str = "ReadOnlyMany";

/// An attachable volume that a pod defines itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InlineVolume {
    /// Its unique name.
    pub name: Str,
    /// Its name in events.
    pub label: String,
    /// The volume may be attached to one node only.
    pub is_exclusive: bool,
    /// The spec of a PersistentVolume of its CSI driver; `None` if the kubelet attaches the volume itself.
    pub spec: Option<Value>,
}

/// A volume of a CSI driver.
struct TranslatedVolume {
    driver: &'static str,
    handle: String,
    /// Its name in events; `None` if the name consists of driver and handle.
    label: Option<String>,
    mode: &'static str,
    is_read_only: bool,
    file_system: String,
    attributes: Map<String, Value>,
    secret: Option<(String, String)>,
}

impl TranslatedVolume {
    fn of(plugin: &str, handle: String) -> Self {
        Self {
            driver: driver_of_plugin(plugin),
            handle,
            label: None,
            mode: ONE_NODE,
            is_read_only: false,
            file_system: String::new(),
            attributes: Map::new(),
            secret: None,
        }
    }

    fn into_volume(self) -> InlineVolume {
        let mut csi = json!({
            "driver": self.driver, "volumeHandle": self.handle, "readOnly": self.is_read_only,
            "fsType": self.file_system, "volumeAttributes": self.attributes,
        });
        if let Some((namespace, name)) = &self.secret {
            csi["nodeStageSecretRef"] = json!({"namespace": namespace, "name": name});
        }
        InlineVolume {
            name: of_csi(self.driver, &self.handle),
            label: self.label.unwrap_or_else(|| format!("{}-{}", self.driver, self.handle)),
            is_exclusive: self.mode == ONE_NODE,
            spec: Some(json!({"csi": csi, "accessModes": [self.mode], "volumeMode": "Filesystem"})),
        }
    }
}

fn flag(message: &[u8], number: u32) -> bool {
    fields(message).flatten().any(|field| field.number == number && field.value.bool())
}

fn number(message: &[u8], number: u32) -> i32 {
    fields(message).flatten().find(|field| field.number == number).map_or(0, |field| field.value.i32())
}

/// Returns the plugin of a volume's source, if the plugin is migrated to CSI.
fn migrated_plugin(field: u32) -> Option<&'static str> {
    Some(match field {
        source::AWS_ELASTIC_BLOCK_STORE => "kubernetes.io/aws-ebs",
        source::GCE_PERSISTENT_DISK => "kubernetes.io/gce-pd",
        source::AZURE_DISK => "kubernetes.io/azure-disk",
        source::AZURE_FILE => "kubernetes.io/azure-file",
        source::CINDER => "kubernetes.io/cinder",
        source::VSPHERE_VOLUME => "kubernetes.io/vsphere-volume",
        source::PORTWORX_VOLUME => "kubernetes.io/portworx-volume",
        _ => return None,
    })
}

/// Returns the handle of a volume of a migrated plugin.
fn handle(namespace: &str, volume: &InTreeVolume) -> Result<String, TranslationError> {
    let raw = &volume.raw;
    Ok(match volume.field {
        source::AWS_ELASTIC_BLOCK_STORE => translation::ebs(text(raw, ebs::VOLUME_ID))?,
        source::GCE_PERSISTENT_DISK => translation::gce_without_zone(text(raw, gce::PD_NAME)),
        source::AZURE_DISK => translation::azure_disk(raw)?,
        source::AZURE_FILE => {
            let account = translation::storage_account(text(raw, azure_file::SECRET_NAME));
            format!("#{account}#{}#{}#{namespace}", text(raw, azure_file::SHARE_NAME), volume.name)
        }
        source::CINDER => text(raw, cinder::VOLUME_ID).to_owned(),
        source::VSPHERE_VOLUME => text(raw, vsphere::VOLUME_PATH).to_owned(),
        source::PORTWORX_VOLUME => text(raw, portworx::VOLUME_ID).to_owned(),
        _ => String::new(),
    })
}

/// Returns the unique name of a volume; `None` if its plugin attaches nothing, or its source is invalid.
fn name_of(namespace: &str, volume: &InTreeVolume) -> Option<Str> {
    match volume.field {
        source::FC => of_fc(&volume.raw),
        source::ISCSI => of_iscsi(&volume.raw),
        field => Some(of_csi(driver_of_plugin(migrated_plugin(field)?), &handle(namespace, volume).ok()?)),
    }
}

/// Returns the volume as it is attached; `None` if its plugin attaches nothing, or its source is invalid.
pub fn resolve(namespace: &str, volume: &InTreeVolume) -> Option<InlineVolume> {
    let raw = &volume.raw;
    let of_kubelet = |name: Option<Str>| {
        Some(InlineVolume { name: name?, label: volume.name.to_string(), is_exclusive: false, spec: None })
    };
    match volume.field {
        source::FC => of_kubelet(of_fc(raw)),
        source::ISCSI => of_kubelet(of_iscsi(raw)),
        _ => translate(namespace, volume).map(TranslatedVolume::into_volume),
    }
}

fn translate(namespace: &str, volume: &InTreeVolume) -> Option<TranslatedVolume> {
    let raw = &volume.raw;
    let translated = TranslatedVolume::of(migrated_plugin(volume.field)?, handle(namespace, volume).ok()?);
    Some(match volume.field {
        source::AWS_ELASTIC_BLOCK_STORE => of_ebs(translated, raw),
        source::GCE_PERSISTENT_DISK => of_gce(translated, raw),
        source::AZURE_DISK => of_azure_disk(translated, raw),
        source::AZURE_FILE => of_azure_file(translated, namespace, raw),
        source::CINDER => TranslatedVolume {
            is_read_only: flag(raw, cinder::READ_ONLY),
            file_system: text(raw, cinder::FS_TYPE).to_owned(),
            ..translated
        },
        source::VSPHERE_VOLUME => of_vsphere(translated, raw),
        _ => TranslatedVolume {
            mode: if flag(raw, portworx::READ_ONLY) { READERS } else { ONE_NODE },
            file_system: text(raw, portworx::FS_TYPE).to_owned(),
            ..translated
        },
    })
}

fn of_ebs(mut translated: TranslatedVolume, raw: &[u8]) -> TranslatedVolume {
    translated.is_read_only = flag(raw, ebs::READ_ONLY);
    translated.file_system = text(raw, ebs::FS_TYPE).to_owned();
    translated.attributes.insert("partition".into(), number(raw, ebs::PARTITION).to_string().into());
    translated
}

fn of_gce(mut translated: TranslatedVolume, raw: &[u8]) -> TranslatedVolume {
    let is_read_only = flag(raw, gce::READ_ONLY);
    translated.label = Some(format!("{}-{}", translated.driver, text(raw, gce::PD_NAME)));
    translated.mode = if is_read_only { READERS } else { ONE_NODE };
    translated.is_read_only = is_read_only;
    translated.file_system = text(raw, gce::FS_TYPE).to_owned();
    let partition = match number(raw, gce::PARTITION) {
        0 => String::new(),
        partition => partition.to_string(),
    };
    translated.attributes.insert("partition".into(), partition.into());
    translated
}

fn of_azure_disk(mut translated: TranslatedVolume, raw: &[u8]) -> TranslatedVolume {
    translated.label = Some(translated.handle.clone());
    translated.is_read_only = flag(raw, azure_disk::READ_ONLY);
    translated.attributes.insert("kind".into(), "Managed".into());
    for (key, number) in [("cachingmode", azure_disk::CACHING_MODE), ("fstype", azure_disk::FS_TYPE)] {
        let value = text(raw, number);
        if !value.is_empty() {
            translated.attributes.insert(key.into(), value.into());
        }
    }
    translated.file_system = text(raw, azure_disk::FS_TYPE).to_owned();
    translated
}

fn of_azure_file(mut translated: TranslatedVolume, namespace: &str, raw: &[u8]) -> TranslatedVolume {
    translated.label = Some(translated.handle.clone());
    translated.mode = "ReadWriteMany";
    translated.is_read_only = flag(raw, azure_file::READ_ONLY);
    translated.attributes.insert("sharename".into(), text(raw, azure_file::SHARE_NAME).into());
    translated.secret = Some((namespace.to_owned(), text(raw, azure_file::SECRET_NAME).to_owned()));
    translated
}

/// Translates a vSphere volume. Differs from upstream, which panics if the volume has a storage policy.
fn of_vsphere(mut translated: TranslatedVolume, raw: &[u8]) -> TranslatedVolume {
    translated.file_system = text(raw, vsphere::FS_TYPE).to_owned();
    let policy = text(raw, vsphere::STORAGE_POLICY_NAME);
    if !policy.is_empty() {
        translated.attributes.insert("storagepolicyname".into(), policy.into());
    }
    translated
}

/// Returns the unique names of the attachable volumes that a pod defines itself, each with its position in
/// [`Volumes::in_tree`](kinds::pod::Volumes::in_tree). Cheaper than [`resolve`]: a pod may define thousands of
/// volumes.
pub fn names(pod: &Pod) -> impl Iterator<Item = (usize, Str)> {
    let volumes = pod.volumes.iter().flat_map(|volumes| &volumes.in_tree).enumerate();
    volumes.filter_map(|(at, volume)| Some((at, name_of(&pod.meta.namespace, volume)?)))
}

/// Returns the index of pods by the unique names of the volumes that they define themselves. Needs [`Pod::VOLUMES`];
/// look up by [`defining`].
pub const fn pods_by_inline_volume() -> Index<Pod> {
    Index { name: "inline-volume", keys: |pod, emit| names(pod).for_each(|(_, name)| emit(defining(&name))) }
}

/// Returns the key of all pods that define a volume, by its unique name.
pub fn defining(name: &str) -> u64 {
    index_key(("inline-volume", name))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kinds::schema::{object_meta, persistent_volume, persistent_volume_spec};
    use kinds::wire::Put;
    use kinds::{Decode, Kind, PersistentVolume, Sections};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::volume_name::{Plugin, is_exclusive, of_volume};
    use super::*;

    /// Generates texts similar to the ids of volumes, and arbitrary texts.
    fn id() -> impl Strategy<Value = String> {
        prop_oneof![
            "(aws://)?[a-z/]{0,6}(vol-)?[0-9a-f/]{0,6}",
            "[a-z#_/.:]{0,20}",
            any::<String>(),
            "[a-z]{0,3}".prop_map(|text| text.repeat(5_000)),
        ]
    }

    proptest! {
        #[test]
        fn any_volume_of_a_pod_or_a_cluster_is_named_or_refused(
            field in 1..40_u32,
            texts in vec((1..12_u32, id()), 0..6),
            numbers in vec((1..12_u32, any::<i64>()), 0..3),
            bytes in vec(any::<u8>(), 0..24),
            zones in "[a-z_]{0,12}",
        ) {
            let mut raw = Vec::new();
            texts.iter().for_each(|(number, text)| raw.put_str(*number, text));
            numbers.iter().for_each(|(number, value)| raw.put_int(*number, *value));
            for raw in [raw, bytes] {
                let inline = InTreeVolume { name: "data".into(), field, raw: raw.clone().into() };
                prop_assert_eq!(name_of("ns", &inline), resolve("ns", &inline).map(|found| found.name));
                if let Some(found) = resolve("ns", &inline) {
                    prop_assert!(found.name.starts_with("kubernetes.io/"), "{}", found.name);
                    prop_assert_eq!(Plugin::of(&found.name).is_some_and(|plugin| matches!(plugin, Plugin::Csi { .. })), {
                        // [`Plugin::of`] accepts no CSI volume without a handle.
                        found.spec.as_ref().is_some_and(|spec| spec["csi"]["volumeHandle"] != "")
                    });
                }
                let mut object = Vec::new();
                object.put_message(persistent_volume::METADATA, |meta| {
                    meta.put_str(object_meta::NAME, "volume");
                    meta.put_entry(object_meta::LABELS, "topology.kubernetes.io/zone", &zones);
                });
                object.put_message(persistent_volume::SPEC, |spec| {
                    spec.put_message(persistent_volume_spec::SOURCE, |source| source.put_bytes(field, &raw));
                });
                let decode = Decode { interner: Arc::default(), sections: Sections(u32::MAX) };
                if let Ok(volume) = PersistentVolume::decode(&decode, &object) {
                    let name = of_volume(&volume);
                    prop_assert_eq!(&name, &of_volume(&volume));
                    let _ = (is_exclusive(&volume), translation::handle_of(&volume));
                }
            }
        }
    }

    fn volume(field: u32, texts: &[(u32, &str)], numbers: &[(u32, i64)]) -> InTreeVolume {
        let mut raw = Vec::new();
        texts.iter().for_each(|(number, text)| raw.put_str(*number, text));
        numbers.iter().for_each(|(number, value)| raw.put_int(*number, *value));
        InTreeVolume { name: "data".into(), field, raw: raw.into() }
    }

    #[test]
    fn volume_of_a_migrated_plugin_becomes_one_of_its_driver() {
        for (name, field, texts, numbers, expected) in [
            (
                "EBS",
                source::AWS_ELASTIC_BLOCK_STORE,
                &[(1, "aws://a/vol-1"), (2, "ext4")][..],
                &[(4, 1)][..],
                json!({
                    "driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "readOnly": true, "fsType": "ext4",
                    "volumeAttributes": {"partition": "0"},
                }),
            ),
            (
                "GCE",
                source::GCE_PERSISTENT_DISK,
                &[(1, "disk")],
                &[(3, 2)],
                json!({
                    "driver": "pd.csi.storage.gke.io", "readOnly": false, "fsType": "",
                    "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk",
                    "volumeAttributes": {"partition": "2"},
                }),
            ),
            (
                "Azure disk",
                source::AZURE_DISK,
                &[(2, "uri"), (3, "None"), (4, "xfs"), (6, "Managed")],
                &[],
                json!({
                    "driver": "disk.csi.azure.com", "volumeHandle": "uri", "readOnly": false, "fsType": "xfs",
                    "volumeAttributes": {"kind": "Managed", "cachingmode": "None", "fstype": "xfs"},
                }),
            ),
            (
                "Azure file",
                source::AZURE_FILE,
                &[(1, "secret"), (2, "share")],
                &[],
                json!({
                    "driver": "file.csi.azure.com", "volumeHandle": "#secret#share#data#shop", "readOnly": false,
                    "fsType": "", "volumeAttributes": {"sharename": "share"},
                    "nodeStageSecretRef": {"namespace": "shop", "name": "secret"},
                }),
            ),
            (
                "Cinder",
                source::CINDER,
                &[(1, "id"), (2, "ext4")],
                &[(3, 1)],
                json!({
                    "driver": "cinder.csi.openstack.org", "volumeHandle": "id", "readOnly": true, "fsType": "ext4",
                    "volumeAttributes": {},
                }),
            ),
            (
                "vSphere",
                source::VSPHERE_VOLUME,
                &[(1, "[ds] path"), (3, "gold")],
                &[],
                json!({
                    "driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] path", "readOnly": false, "fsType": "",
                    "volumeAttributes": {"storagepolicyname": "gold"},
                }),
            ),
            (
                "Portworx",
                source::PORTWORX_VOLUME,
                &[(1, "id")],
                &[],
                json!({
                    "driver": "pxd.portworx.com", "volumeHandle": "id", "readOnly": false, "fsType": "",
                    "volumeAttributes": {},
                }),
            ),
        ] {
            let found = resolve("shop", &volume(field, texts, numbers)).expect("it is attached");
            let spec = found.spec.expect("a driver attaches it");
            assert_eq!((&spec["csi"], &spec["volumeMode"]), (&expected, &json!("Filesystem")), "{name}");
            let unique = format!(
                "kubernetes.io/csi/{}^{}",
                expected["driver"].as_str().unwrap_or_default(),
                expected["volumeHandle"].as_str().unwrap_or_default()
            );
            assert_eq!(*found.name, *unique, "{name}");
        }
    }

    #[test]
    fn access_mode_decides_on_the_number_of_nodes() {
        for (name, field, texts, numbers, mode) in [
            ("EBS", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "vol-1")][..], &[(4, 1)][..], ONE_NODE),
            ("GCE", source::GCE_PERSISTENT_DISK, &[(1, "disk")], &[], ONE_NODE),
            ("GCE for readers", source::GCE_PERSISTENT_DISK, &[(1, "disk")], &[(4, 1)], READERS),
            ("Portworx for readers", source::PORTWORX_VOLUME, &[(1, "id")], &[(3, 1)], READERS),
            ("Azure file", source::AZURE_FILE, &[(1, "secret"), (2, "share")], &[], "ReadWriteMany"),
        ] {
            let found = resolve("shop", &volume(field, texts, numbers)).expect("it is attached");
            assert_eq!(found.spec.expect("a driver attaches it")["accessModes"], json!([mode]), "{name}");
            assert_eq!(found.is_exclusive, mode == ONE_NODE, "{name}");
        }
    }

    #[test]
    fn kubelet_attaches_the_volumes_of_its_own_plugins() {
        for (name, field, texts, numbers, expected) in [
            (
                "iSCSI",
                source::ISCSI,
                &[(1, "portal"), (2, "iqn")][..],
                &[(3, 7)][..],
                Some("kubernetes.io/iscsi/portal:iqn:7"),
            ),
            ("Fibre Channel", source::FC, &[(1, "wwn")], &[(2, 0)], Some("kubernetes.io/fc/[wwn]:0")),
            ("invalid", source::FC, &[], &[], None),
            ("empty directory", source::EMPTY_DIR, &[], &[], None),
            ("EBS that is invalid", source::AWS_ELASTIC_BLOCK_STORE, &[(1, "aws://a/b/vol-1")], &[], None),
            ("Azure disk that is dedicated", source::AZURE_DISK, &[(2, "uri"), (6, "Dedicated")], &[], None),
        ] {
            let found = resolve("shop", &volume(field, texts, numbers));
            assert_eq!(found.as_ref().map(|found| &*found.name), expected, "{name}");
            assert!(found.is_none_or(|found| found.spec.is_none() && !found.is_exclusive && found.label == "data"));
        }
    }
}
