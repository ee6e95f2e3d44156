//! PersistentVolume: its size, class and modes, the claim that it is reserved for, and its phase.

mod edit;
mod source;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Labels, Str, label};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts, Uid};
use crate::value::access_modes::{AccessModes, VolumeMode};
use crate::value::resource_list::{Amount, named_text};
use crate::wire::schema::{object_reference, persistent_volume_spec as spec, persistent_volume_status as status};
use crate::wire::whole::WholeObject;
use crate::wire::{WireError, fields};

pub use edit::{with_claim, with_phase, without_claim, without_claim_uid};
pub use source::Source;

/// Annotation of a volume or claim: its reference to the claim or volume was set by the binder or the scheduler, not by
/// the user. Therefore the binder may remove the reference.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation with the provisioner that created a volume.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation with the CSI driver to which a volume or claim was migrated from an in-tree plugin.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// Annotation with the capacity before a resize that waits for the node.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// Annotation with the storage class; even an empty annotation takes precedence over the field.
pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Annotation with the resource group of an Azure file share.
pub const AZURE_FILE_RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";

/// The annotations that a record keeps.
const ANNOTATIONS: [&str; 6] = [
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    MIGRATED_TO,
    PRE_RESIZE_CAPACITY,
    BETA_STORAGE_CLASS,
    AZURE_FILE_RESOURCE_GROUP,
];

/// The handling of a volume whose claim was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ReclaimPolicy {
    /// The volume is kept, with its data; the API server's default for PersistentVolumes.
    #[default]
    Retain,
    /// The volume is deleted with its storage.
    Delete,
    /// The volume's content is deleted, and it becomes available again.
    Recycle,
    /// An unknown policy.
    Unknown,
}

impl ReclaimPolicy {
    pub(crate) fn parse(text: &str) -> Self {
        match text {
            "Retain" | "" => Self::Retain,
            "Delete" => Self::Delete,
            "Recycle" => Self::Recycle,
            _ => Self::Unknown,
        }
    }
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Phase {
    /// New, or the phase is empty or unknown.
    #[default]
    Pending,
    /// The volume can be bound.
    Available,
    /// The volume is bound to a claim.
    Bound,
    /// The volume's claim was deleted.
    Released,
    /// The volume could not be reclaimed.
    Failed,
}

impl Phase {
    fn parse(text: &str) -> Self {
        match text {
            "Available" => Self::Available,
            "Bound" => Self::Bound,
            "Released" => Self::Released,
            "Failed" => Self::Failed,
            _ => Self::Pending,
        }
    }

    /// Returns its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Available => "Available",
            Self::Bound => "Bound",
            Self::Released => "Released",
            Self::Failed => "Failed",
        }
    }
}

/// The claim that a volume is bound to or reserved for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRef {
    /// Namespace of the claim.
    pub namespace: Str,
    /// Name of the claim.
    pub name: Str,
    /// Uid of the claim; `None` if the volume is reserved by name only.
    pub uid: Option<Uid>,
}

impl ClaimRef {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let (mut namespace, mut name, mut uid) = ("", "", "");
        for field in fields(message) {
            let field = field?;
            match field.number {
                object_reference::NAMESPACE => namespace = field.value.str(),
                object_reference::NAME => name = field.value.str(),
                object_reference::UID => uid = field.value.str(),
                _ => {}
            }
        }
        let uid = (!uid.is_empty()).then(|| Uid::parse(uid));
        Ok(Self { namespace: interner.str(namespace), name: interner.str(name), uid })
    }

    /// Returns true if the reference is to this claim: the same namespace and name, and the same uid or none.
    pub fn refers_to(&self, claim: &Meta) -> bool {
        self.namespace == claim.namespace
            && self.name == claim.name
            && self.uid.as_ref().is_none_or(|uid| *uid == claim.uid)
    }
}

/// Properties that are mostly equal for the volumes of a storage class. Records with equal properties share one copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CommonProperties {
    /// Annotations that controllers of volumes read; see [`PersistentVolume::annotation`].
    pub annotations: Labels,
    /// `spec.capacity` of storage as written; empty if absent. The API allows no other resource.
    pub capacity: Str,
    /// `spec.accessModes` as written.
    pub access_modes: Arc<[Str]>,
    /// The handling of the volume when its claim is deleted.
    pub reclaim_policy: ReclaimPolicy,
    /// `spec.storageClassName`; see [`PersistentVolume::class`].
    pub spec_class: Str,
    /// `spec.volumeMode`: containers get the volume as a file system or as a block device.
    pub volume_mode: VolumeMode,
    /// `spec.volumeAttributesClassName`; empty if absent.
    pub attributes_class: Str,
}

/// A PersistentVolume. It dereferences to the properties that it shares with other volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolume {
    /// Metadata.
    pub meta: Meta,
    /// Properties that other volumes of the storage class mostly share.
    common: Arc<CommonProperties>,
    /// The claim that it is bound to or reserved for.
    pub claim: Option<Box<ClaimRef>>,
    /// `spec.persistentVolumeSource`: the volume in the storage system.
    pub source: Source,
    /// `status.phase`
    pub phase: Phase,
    /// The whole object while the phase is Pending, unless it is very large; only with section
    /// [`PersistentVolume::WHOLE_WHILE_PENDING`].
    pub whole: Option<Box<WholeObject>>,
}

impl Deref for PersistentVolume {
    type Target = CommonProperties;

    fn deref(&self) -> &CommonProperties {
        &self.common
    }
}

impl DerefMut for PersistentVolume {
    fn deref_mut(&mut self) -> &mut CommonProperties {
        Arc::make_mut(&mut self.common)
    }
}

impl PersistentVolume {
    /// Section: the whole object of a volume whose phase is Pending, because a controller will soon write the next one.
    pub const WHOLE_WHILE_PENDING: Sections = Sections(1);

    /// Returns the value of one of the annotations that the record keeps.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        label(&self.annotations, key)
    }

    /// Returns the name of the storage class, from the annotation or the field; empty without one.
    pub fn class(&self) -> &str {
        self.annotation(BETA_STORAGE_CLASS).unwrap_or(&self.spec_class)
    }

    /// Returns the capacity of storage; `None` if it is absent or not a valid quantity.
    pub fn storage(&self) -> Option<Amount> {
        Amount::parse(&self.capacity)
    }

    /// Returns the access modes as a set.
    pub fn modes(&self) -> AccessModes {
        AccessModes::of(&*self.access_modes)
    }

    /// Returns true if the volume is bound to this claim, or reserved for it.
    pub fn refers_to(&self, claim: &Meta) -> bool {
        self.claim.as_ref().is_some_and(|reference| reference.refers_to(claim))
    }

    /// Reads the fields that are not in [`CommonProperties`].
    fn read_spec(&mut self, interner: &Interner, spec: &[u8]) -> Result<(), WireError> {
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::SOURCE => self.source = Source::read(interner, field.value.bytes())?,
                spec::CLAIM_REF => self.claim = Some(Box::new(ClaimRef::decode(interner, field.value.bytes())?)),
                _ => {}
            }
        }
        Ok(())
    }
}

impl CommonProperties {
    fn read(interner: &Interner, annotations: Labels, spec: &[u8]) -> Result<Self, WireError> {
        let empty = interner.str("");
        let mut common = Self {
            annotations,
            capacity: empty.clone(),
            access_modes: interner.list(&[]),
            reclaim_policy: ReclaimPolicy::default(),
            spec_class: empty.clone(),
            volume_mode: VolumeMode::default(),
            attributes_class: empty,
        };
        let mut modes = Vec::new();
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::CAPACITY => {
                    if let ("storage", text) = named_text(field.value.bytes())? {
                        common.capacity = interner.str(text);
                    }
                }
                spec::ACCESS_MODES => modes.push(interner.str(field.value.str())),
                spec::RECLAIM_POLICY => common.reclaim_policy = ReclaimPolicy::parse(field.value.str()),
                spec::STORAGE_CLASS_NAME => common.spec_class = interner.str(field.value.str()),
                spec::VOLUME_MODE => common.volume_mode = VolumeMode::parse(field.value.str()),
                spec::VOLUME_ATTRIBUTES_CLASS_NAME => common.attributes_class = interner.str(field.value.str()),
                _ => {}
            }
        }
        common.access_modes = interner.list(&modes);
        Ok(common)
    }
}

impl Kind for PersistentVolume {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "PersistentVolume", plural: "persistentvolumes", namespaced: false };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let interner = &context.interner;
        let mut annotations = Vec::new();
        let mut meta = Meta::decode(interner, meta, |key, value| {
            if ANNOTATIONS.contains(&key) {
                annotations.push((interner.str(key), interner.str(value)));
            }
        })?;
        // The name is interned, because `volume_name` of the claim is equal.
        meta.name = interner.str(&meta.name);
        let common = CommonProperties::read(interner, interner.labels(annotations), spec)?;
        let common = interner.record(&common);
        let mut volume = Self { meta, common, claim: None, source: Source::None, phase: Phase::default(), whole: None };
        volume.read_spec(interner, spec)?;
        for field in fields(status) {
            let field = field?;
            if field.number == status::PHASE {
                volume.phase = Phase::parse(field.value.str());
            }
        }
        if volume.phase == Phase::Pending && context.sections.contains(Self::WHOLE_WHILE_PENDING) {
            volume.whole = WholeObject::read(object)?;
        }
        Ok(volume)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::{object_meta, persistent_volume as object, quantity};

    #[test]
    fn volume_is_read_with_its_claim_and_class() {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "pv-1");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_entry(object_meta::ANNOTATIONS, BOUND_BY_CONTROLLER, "yes");
            meta.put_entry(object_meta::ANNOTATIONS, BETA_STORAGE_CLASS, "");
            meta.put_entry(object_meta::ANNOTATIONS, "other", "1");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_message(spec::CAPACITY, |entry| {
                entry.put_str(1, "storage");
                entry.put_message(2, |message| message.put_str(quantity::STRING, "10Gi"));
            });
            spec.put_str(spec::ACCESS_MODES, "ReadOnlyMany");
            spec.put_str(spec::ACCESS_MODES, "ReadWriteOnce");
            spec.put_message(spec::CLAIM_REF, |out| {
                out.put_str(object_reference::NAMESPACE, "shop");
                out.put_str(object_reference::NAME, "data");
                out.put_str(object_reference::UID, "u-1");
            });
            spec.put_str(spec::RECLAIM_POLICY, "Delete");
            spec.put_str(spec::STORAGE_CLASS_NAME, "gold");
            spec.put_str(spec::VOLUME_MODE, "Block");
        });
        object.put_message(object::STATUS, |status| status.put_str(status::PHASE, "Bound"));
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let volume = PersistentVolume::decode(&context, &object).expect("well-formed");
        assert_eq!((volume.class(), &*volume.spec_class, volume.annotations.len()), ("", "gold", 2));
        assert_eq!(volume.storage(), Amount::parse("10240Mi"));
        assert_eq!(volume.modes().to_string(), "RWO,ROX");
        assert_eq!(
            (volume.volume_mode, volume.reclaim_policy, volume.phase),
            (VolumeMode::Block, ReclaimPolicy::Delete, Phase::Bound)
        );
        let claim = volume.claim.as_deref().expect("it has one");
        assert_eq!((&*claim.namespace, &*claim.name, claim.uid.clone()), ("shop", "data", Some(Uid::parse("u-1"))));
    }

    #[test]
    fn reference_refers_to_a_claim_when_name_and_uid_match_or_the_uid_is_unset() {
        let mut message = Vec::new();
        message.put_str(object_meta::NAME, "data");
        message.put_str(object_meta::NAMESPACE, "shop");
        message.put_str(object_meta::UID, "u-1");
        message.put_str(object_meta::RESOURCE_VERSION, "1");
        let claim = Meta::decode(&Interner::default(), &message, |_, _| {}).expect("well-formed");
        for (namespace, name, uid, expected) in [
            ("shop", "data", Some("u-1"), true),
            ("shop", "data", None, true),
            ("shop", "data", Some("u-2"), false),
            ("shop", "logs", None, false),
            ("other", "data", Some("u-1"), false),
        ] {
            let reference = ClaimRef { namespace: namespace.into(), name: name.into(), uid: uid.map(Uid::parse) };
            assert_eq!(reference.refers_to(&claim), expected, "{reference:?}");
        }
    }
}
