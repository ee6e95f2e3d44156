//! Claims, volumes and classes as the API server returns them.

use std::sync::Arc;

use kinds::schema::{
    csi_persistent_volume_source, host_path_volume_source, nfs_volume_source, object_meta, object_reference,
    persistent_volume as v, persistent_volume_claim as c, persistent_volume_claim_spec as cs,
    persistent_volume_claim_status as ct, persistent_volume_source, persistent_volume_spec as vs,
    persistent_volume_status as vt, quantity, storage_class, volume_resources,
};
use kinds::wire::Put;
use kinds::{Decode, Kind, PersistentVolume, PersistentVolumeClaim, Sections, StorageClass, Time};

/// Decodes a record.
pub fn read<K: Kind>(object: &[u8]) -> Arc<K> {
    let context = Decode { interner: Arc::default(), sections: Sections::default() };
    Arc::new(K::decode(&context, object).expect("well-formed"))
}

fn put_quantity(out: &mut Vec<u8>, number: u32, amount: &str) {
    out.put_message(number, |entry| {
        entry.put_str(1, "storage");
        entry.put_message(2, |message| message.put_str(quantity::STRING, amount));
    });
}

/// Metadata of any of the kinds.
#[derive(Debug, Clone, Default)]
pub struct Head {
    pub namespace: &'static str,
    pub name: String,
    pub uid: String,
    pub version: u64,
    pub annotations: Vec<(&'static str, &'static str)>,
    pub labels: Vec<(&'static str, &'static str)>,
    pub finalizers: Vec<&'static str>,
    pub is_deleting: bool,
    pub created: i64,
}

impl Head {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, &self.name);
            if !self.namespace.is_empty() {
                meta.put_str(object_meta::NAMESPACE, self.namespace);
            }
            meta.put_str(object_meta::UID, &self.uid);
            meta.put_str(object_meta::RESOURCE_VERSION, &self.version.max(1).to_string());
            Time(self.created).put(meta, object_meta::CREATION_TIMESTAMP);
            if self.is_deleting {
                Time(1000).put(meta, object_meta::DELETION_TIMESTAMP);
            }
            self.labels.iter().for_each(|(key, value)| meta.put_entry(object_meta::LABELS, key, value));
            self.annotations.iter().for_each(|(key, value)| meta.put_entry(object_meta::ANNOTATIONS, key, value));
            self.finalizers.iter().for_each(|name| meta.put_str(object_meta::FINALIZERS, name));
        });
    }
}

/// The storage behind a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    HostPath(&'static str),
    Nfs,
    Csi,
    Other,
}

/// A volume.
#[derive(Debug, Clone)]
pub struct VolumeSpec {
    pub head: Head,
    pub capacity: &'static str,
    pub modes: &'static [&'static str],
    pub class: &'static str,
    pub attributes_class: &'static str,
    pub is_block: bool,
    pub claim: Option<(&'static str, &'static str)>,
    pub claim_namespace: &'static str,
    pub policy: &'static str,
    pub backend: Backend,
    pub phase: &'static str,
}

/// Returns a volume as upstream's tests make it: RWO and ROX, 1Gi, policy Retain.
pub fn volume(name: &str) -> VolumeSpec {
    VolumeSpec {
        head: Head { name: name.to_owned(), uid: format!("uid-{name}"), ..Head::default() },
        capacity: "1Gi",
        modes: &["ReadWriteOnce", "ReadOnlyMany"],
        class: "",
        attributes_class: "",
        is_block: false,
        claim: None,
        claim_namespace: "shop",
        policy: "Retain",
        backend: Backend::Other,
        phase: "Available",
    }
}

impl VolumeSpec {
    /// Lets the volume refer to a claim; with an empty uid, by name only.
    pub fn of(mut self, name: &'static str, uid: &'static str) -> Self {
        self.claim = Some((name, uid));
        self
    }

    pub fn annotated(mut self, key: &'static str, value: &'static str) -> Self {
        self.head.annotations.push((key, value));
        self
    }

    pub fn phase(mut self, phase: &'static str) -> Self {
        self.phase = phase;
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn object(&self) -> Vec<u8> {
        let mut object = Vec::new();
        self.head.put(&mut object);
        object.put_message(v::SPEC, |spec| {
            if !self.capacity.is_empty() {
                put_quantity(spec, vs::CAPACITY, self.capacity);
            }
            self.modes.iter().for_each(|mode| spec.put_str(vs::ACCESS_MODES, mode));
            spec.put_message(vs::SOURCE, |source| match self.backend {
                Backend::HostPath(path) => source.put_message(persistent_volume_source::HOST_PATH, |out| {
                    out.put_str(host_path_volume_source::PATH, path);
                }),
                Backend::Nfs => source.put_message(persistent_volume_source::NFS, |out| {
                    out.put_str(nfs_volume_source::SERVER, "nas");
                }),
                Backend::Csi => source.put_message(persistent_volume_source::CSI, |out| {
                    out.put_str(csi_persistent_volume_source::DRIVER, "csi.example.com");
                }),
                Backend::Other => source.put_message(persistent_volume_source::GCE_PERSISTENT_DISK, |_| {}),
            });
            if let Some((name, uid)) = self.claim {
                spec.put_message(vs::CLAIM_REF, |out| {
                    out.put_str(object_reference::NAMESPACE, self.claim_namespace);
                    out.put_str(object_reference::NAME, name);
                    if !uid.is_empty() {
                        out.put_str(object_reference::UID, uid);
                    }
                });
            }
            spec.put_str(vs::RECLAIM_POLICY, self.policy);
            spec.put_str(vs::STORAGE_CLASS_NAME, self.class);
            spec.put_str(vs::VOLUME_MODE, if self.is_block { "Block" } else { "Filesystem" });
            if !self.attributes_class.is_empty() {
                spec.put_str(vs::VOLUME_ATTRIBUTES_CLASS_NAME, self.attributes_class);
            }
        });
        object.put_message(v::STATUS, |status| status.put_str(vt::PHASE, self.phase));
        object
    }

    pub fn record(&self) -> Arc<PersistentVolume> {
        read(&self.object())
    }
}

/// A claim.
#[derive(Debug, Clone)]
pub struct ClaimSpec {
    pub head: Head,
    pub request: &'static str,
    pub modes: &'static [&'static str],
    pub class: Option<&'static str>,
    pub attributes_class: &'static str,
    pub is_block: bool,
    pub volume: &'static str,
    pub selector: Option<(&'static str, &'static str)>,
    pub phase: &'static str,
    pub capacity: &'static str,
}

/// Returns a claim as upstream's tests make it: RWO and ROX, 1Gi, no class.
pub fn claim(name: &str) -> ClaimSpec {
    ClaimSpec {
        head: Head { namespace: "shop", name: name.to_owned(), uid: format!("uid-{name}"), ..Head::default() },
        request: "1Gi",
        modes: &["ReadWriteOnce", "ReadOnlyMany"],
        class: None,
        attributes_class: "",
        is_block: false,
        volume: "",
        selector: None,
        phase: "Pending",
        capacity: "",
    }
}

impl ClaimSpec {
    pub fn names(mut self, volume: &'static str) -> Self {
        self.volume = volume;
        self
    }

    pub fn annotated(mut self, key: &'static str, value: &'static str) -> Self {
        self.head.annotations.push((key, value));
        self
    }

    pub fn class(mut self, class: &'static str) -> Self {
        self.class = Some(class);
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn object(&self) -> Vec<u8> {
        let mut object = Vec::new();
        self.head.put(&mut object);
        object.put_message(c::SPEC, |spec| {
            self.modes.iter().for_each(|mode| spec.put_str(cs::ACCESS_MODES, mode));
            spec.put_message(cs::RESOURCES, |out| put_quantity(out, volume_resources::REQUESTS, self.request));
            if !self.volume.is_empty() {
                spec.put_str(cs::VOLUME_NAME, self.volume);
            }
            if let Some((key, value)) = self.selector {
                spec.put_message(cs::SELECTOR, |out| {
                    out.put_entry(kinds::schema::label_selector::MATCH_LABELS, key, value)
                });
            }
            if let Some(class) = self.class {
                spec.put_str(cs::STORAGE_CLASS_NAME, class);
            }
            spec.put_str(cs::VOLUME_MODE, if self.is_block { "Block" } else { "Filesystem" });
            if !self.attributes_class.is_empty() {
                spec.put_str(cs::VOLUME_ATTRIBUTES_CLASS_NAME, self.attributes_class);
            }
        });
        object.put_message(c::STATUS, |status| {
            status.put_str(ct::PHASE, self.phase);
            if !self.capacity.is_empty() {
                put_quantity(status, ct::CAPACITY, self.capacity);
            }
        });
        object
    }

    pub fn record(&self) -> Arc<PersistentVolumeClaim> {
        read(&self.object())
    }
}

/// Returns a storage class. `created` is its creation time in Unix seconds.
pub fn class(name: &str, provisioner: &str, mode: &str, is_default: bool, created: i64) -> Arc<StorageClass> {
    let annotations = if is_default { vec![("storageclass.kubernetes.io/is-default-class", "true")] } else { vec![] };
    let head = Head { name: name.to_owned(), uid: format!("uid-{name}"), annotations, created, ..Head::default() };
    let mut object = Vec::new();
    head.put(&mut object);
    object.put_str(storage_class::PROVISIONER, provisioner);
    if !mode.is_empty() {
        object.put_str(storage_class::VOLUME_BINDING_MODE, mode);
    }
    read(&object)
}
