//! PersistentVolumeClaim: its request, the volume that it is bound to, and its use of quota.

mod edit;
mod ephemeral;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::core::persistent_volume::{BETA_STORAGE_CLASS, BOUND_BY_CONTROLLER, MIGRATED_TO};
use crate::core::persistent_volume_claim_usage::ClaimUsage;
use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Labels, Str, label};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, OwnerRef, Parts};
use crate::value::access_modes::{AccessModes, VolumeMode};
use crate::value::resource_list::{Amount, named_text};
use crate::value::selector::Selector;
use crate::wire::schema::{
    modify_volume_status, object_meta, persistent_volume_claim as object,
    persistent_volume_claim_condition as condition, persistent_volume_claim_spec as spec,
    persistent_volume_claim_status as status, volume_resources,
};
use crate::wire::splice::without_managed_fields;
use crate::wire::whole::WholeObject;
use crate::wire::{Put, WireError, copy_fields, fields, find};

pub use edit::{StatusEdit, with_class, with_condition, with_status, with_volume_name};
pub use ephemeral::{for_ephemeral_volume, volume_names};

/// Annotation of a claim whose binding was completed at least once. Its value does not matter.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation with the node that the scheduler chose for the first consumer.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation with the provisioner that must create a volume for the claim.
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// Former name of [`STORAGE_PROVISIONER`].
pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Annotation with the CSI driver or plugin that is to resize the claim's volume.
pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// The condition that is true while no pod uses the claim.
pub const UNUSED: &str = "Unused";

/// The annotations that a record keeps.
const ANNOTATIONS: [&str; 8] = [
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    BETA_STORAGE_PROVISIONER,
    STORAGE_RESIZER,
    BETA_STORAGE_CLASS,
    MIGRATED_TO,
];

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Phase {
    /// Not bound, or the phase is empty or unknown.
    #[default]
    Pending,
    /// Bound to a volume.
    Bound,
    /// Its volume no longer exists or is bound to another claim.
    Lost,
}

impl Phase {
    /// Returns its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Bound => "Bound",
            Self::Lost => "Lost",
        }
    }
}

/// Properties that are mostly equal for claims from the same template. Records with equal properties share one copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CommonProperties {
    /// Annotations that controllers of volumes read; see [`PersistentVolumeClaim::annotation`].
    pub annotations: Labels,
    /// `spec.accessModes` as written.
    pub access_modes: Arc<[Str]>,
    /// `spec.resources.requests` of storage as written; empty if absent.
    pub request: Str,
    /// `spec.storageClassName`, which may be empty; `None` if absent. See [`PersistentVolumeClaim::class`].
    pub spec_class: Option<Str>,
    /// `spec.volumeMode`: its volume is a file system or a block device for containers.
    pub volume_mode: VolumeMode,
    /// `spec.dataSource` is set.
    pub has_data_source: bool,
    /// `spec.volumeAttributesClassName`; empty if absent.
    pub attributes_class: Str,
    /// `status.accessModes` as written.
    pub status_modes: Arc<[Str]>,
    /// `status.capacity` of storage as written; empty if absent.
    pub capacity: Str,
    /// `status.currentVolumeAttributesClassName`; empty if absent.
    pub current_attributes_class: Str,
    /// `status.modifyVolumeStatus.targetVolumeAttributesClassName`; empty if absent.
    pub target_attributes_class: Str,
}

/// A PersistentVolumeClaim. It dereferences to the properties that it shares with other claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolumeClaim {
    /// Metadata.
    pub meta: Meta,
    /// The fields of this claim that other claims mostly have, too.
    common: Arc<CommonProperties>,
    /// `spec.volumeName`; empty if absent.
    pub volume_name: Str,
    /// Labels that its volume must have; `None` without a selector.
    pub selector: Option<Box<Selector>>,
    /// `status.phase`
    pub phase: Phase,
    /// The status of the condition [`UNUSED`]; `None` if the condition is absent.
    pub unused: Option<bool>,
    /// Its use of quota; only with section [`PersistentVolumeClaim::STORAGE`].
    pub storage: Option<Box<ClaimUsage>>,
    /// The whole object while the claim is pending, unless it is very large; only with section
    /// [`PersistentVolumeClaim::WHOLE_WHILE_PENDING`].
    pub whole: Option<Box<WholeObject>>,
}

impl Deref for PersistentVolumeClaim {
    type Target = CommonProperties;

    fn deref(&self) -> &CommonProperties {
        &self.common
    }
}

impl DerefMut for PersistentVolumeClaim {
    fn deref_mut(&mut self) -> &mut CommonProperties {
        Arc::make_mut(&mut self.common)
    }
}

impl PersistentVolumeClaim {
    /// Section: its use of quota.
    pub const STORAGE: Sections = Sections(1);
    /// Section: the whole object of a pending claim, because controllers will soon write it several times.
    pub const WHOLE_WHILE_PENDING: Sections = Sections(1 << 1);

    /// Returns the value of one of the annotations that the record keeps.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        label(&self.annotations, key)
    }

    /// Returns the name of the storage class, from the annotation or the field; empty without one.
    pub fn class(&self) -> &str {
        self.annotation(BETA_STORAGE_CLASS).or(self.spec_class.as_deref()).unwrap_or_default()
    }

    /// Returns true if the claim names a class, even an empty one: it does not get the default class.
    pub fn names_class(&self) -> bool {
        self.spec_class.is_some() || self.annotation(BETA_STORAGE_CLASS).is_some()
    }

    /// Returns the requested storage; `None` if it is absent or not a valid quantity.
    pub fn requested(&self) -> Option<Amount> {
        Amount::parse(&self.request)
    }

    /// Returns the storage capacity of its volume, as its status reports it; `None` if it is absent or not a valid
    /// quantity.
    pub fn storage_capacity(&self) -> Option<Amount> {
        Amount::parse(&self.capacity)
    }

    /// Returns the requested access modes as a set.
    pub fn modes(&self) -> AccessModes {
        AccessModes::of(&*self.access_modes)
    }

    /// Returns the VolumeAttributesClasses that the claim has, requests or is being changed to, without duplicates.
    pub fn attributes_classes(&self) -> impl Iterator<Item = &Str> {
        let all = [&self.attributes_class, &self.current_attributes_class, &self.target_attributes_class];
        all.into_iter()
            .enumerate()
            .filter(move |(at, name)| !name.is_empty() && !all[..*at].contains(name))
            .map(|(_, name)| name)
    }

    /// Returns a whole object (the content of the envelope) with these owners instead of its own, for a PUT.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn with_owners(object: &[u8], owners: &[OwnerRef]) -> Result<Vec<u8>, WireError> {
        let mut owned = Vec::with_capacity(object.len() + 128);
        for field in fields(object) {
            let field = field?;
            if field.number != object::METADATA {
                owned.extend_from_slice(field.raw);
                continue;
            }
            let (mut trimmed, mut meta) = (Vec::new(), Vec::new());
            without_managed_fields(field.value.bytes(), &mut trimmed)?;
            copy_fields(&trimmed, &mut meta, |field| field.number != object_meta::OWNER_REFERENCES)?;
            owners.iter().for_each(|owner| owner.put(&mut meta, object_meta::OWNER_REFERENCES));
            owned.put_bytes(object::METADATA, &meta);
        }
        Ok(owned)
    }

    /// Reads the fields that are not in [`CommonProperties`].
    fn read_parts(&mut self, interner: &Interner, spec: &[u8], status: &[u8]) -> Result<(), WireError> {
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::VOLUME_NAME => self.volume_name = interner.str(field.value.str()),
                spec::SELECTOR => self.selector = Some(Box::new(Selector::decode(interner, field.value.bytes())?)),
                _ => {}
            }
        }
        for field in fields(status) {
            let field = field?;
            match field.number {
                status::PHASE => {
                    self.phase = match field.value.str() {
                        "Bound" => Phase::Bound,
                        "Lost" => Phase::Lost,
                        _ => Phase::Pending,
                    }
                }
                status::CONDITIONS => {
                    let message = field.value.bytes();
                    if find(message, condition::TYPE) == UNUSED.as_bytes() {
                        self.unused = Some(find(message, condition::STATUS) == b"True");
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl CommonProperties {
    fn new(interner: &Interner, annotations: Labels) -> Self {
        let empty = interner.str("");
        Self {
            annotations,
            access_modes: interner.list(&[]),
            request: empty.clone(),
            spec_class: None,
            volume_mode: VolumeMode::default(),
            has_data_source: false,
            attributes_class: empty.clone(),
            status_modes: interner.list(&[]),
            capacity: empty.clone(),
            current_attributes_class: empty.clone(),
            target_attributes_class: empty,
        }
    }

    fn read_spec(&mut self, interner: &Interner, spec: &[u8]) -> Result<(), WireError> {
        let mut modes = Vec::new();
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::ACCESS_MODES => modes.push(interner.str(field.value.str())),
                spec::RESOURCES => {
                    for request in fields(field.value.bytes()) {
                        let request = request?;
                        if request.number == volume_resources::REQUESTS {
                            read_storage(interner, request.value.bytes(), &mut self.request)?;
                        }
                    }
                }
                spec::STORAGE_CLASS_NAME => self.spec_class = Some(interner.str(field.value.str())),
                spec::VOLUME_MODE => self.volume_mode = VolumeMode::parse(field.value.str()),
                spec::DATA_SOURCE => self.has_data_source = true,
                spec::VOLUME_ATTRIBUTES_CLASS_NAME => self.attributes_class = interner.str(field.value.str()),
                _ => {}
            }
        }
        self.access_modes = interner.list(&modes);
        Ok(())
    }

    fn read_status(&mut self, interner: &Interner, status: &[u8]) -> Result<(), WireError> {
        let mut modes = Vec::new();
        for field in fields(status) {
            let field = field?;
            match field.number {
                status::ACCESS_MODES => modes.push(interner.str(field.value.str())),
                status::CAPACITY => read_storage(interner, field.value.bytes(), &mut self.capacity)?,
                status::CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME => {
                    self.current_attributes_class = interner.str(field.value.str());
                }
                status::MODIFY_VOLUME_STATUS => {
                    let target = find(field.value.bytes(), modify_volume_status::TARGET_VOLUME_ATTRIBUTES_CLASS_NAME);
                    self.target_attributes_class = interner.str(std::str::from_utf8(target).unwrap_or_default());
                }
                _ => {}
            }
        }
        self.status_modes = interner.list(&modes);
        Ok(())
    }
}

/// Reads an entry of a resource list into `amount` if its resource is `storage`.
fn read_storage(interner: &Interner, entry: &[u8], amount: &mut Str) -> Result<(), WireError> {
    if let ("storage", text) = named_text(entry)? {
        *amount = interner.str(text);
    }
    Ok(())
}

impl Kind for PersistentVolumeClaim {
    const RESOURCE: Resource = Resource {
        group: "",
        version: "v1",
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let counted = context.sections.contains(Self::STORAGE);
        let storage = counted.then(|| ClaimUsage::read(&context.interner, object).map(Box::new)).transpose()?;
        let Parts { meta, spec, status } = Parts::read(object)?;
        let interner = &context.interner;
        let mut annotations = Vec::new();
        let mut meta = Meta::decode(interner, meta, |key, value| {
            if ANNOTATIONS.contains(&key) {
                annotations.push((interner.str(key), interner.str(value)));
            }
        })?;
        // The name is interned, because the records of its volume and of its pods contain it, too.
        meta.name = interner.str(&meta.name);
        let mut common = CommonProperties::new(interner, interner.labels(annotations));
        common.read_spec(interner, spec)?;
        common.read_status(interner, status)?;
        let mut claim = Self {
            meta,
            common: interner.record(&common),
            volume_name: interner.str(""),
            selector: None,
            phase: Phase::default(),
            unused: None,
            storage,
            whole: None,
        };
        claim.read_parts(interner, spec, status)?;
        if claim.phase == Phase::Pending && context.sections.contains(Self::WHOLE_WHILE_PENDING) {
            claim.whole = WholeObject::read(object)?;
        }
        Ok(claim)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::Sections;
    use crate::intern::Interner;
    use crate::meta::Uid;

    #[test]
    fn owner_update_changes_only_the_owners() {
        let owner = |uid: &str| OwnerRef {
            api_version: "apps/v1".into(),
            kind: "StatefulSet".into(),
            name: "web".into(),
            uid: Uid::parse(uid),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "data-web-0");
            meta.put_str(object_meta::RESOURCE_VERSION, "3");
            meta.put_str(object_meta::MANAGED_FIELDS, "large");
            owner("old").put(meta, object_meta::OWNER_REFERENCES);
        });
        object.put_message(object::SPEC, |spec| spec.put_str(99, "unknown"));
        let owned = PersistentVolumeClaim::with_owners(&object, &[owner("new")]).expect("well-formed");
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        let read = PersistentVolumeClaim::decode(&context, &owned).expect("well-formed");
        assert_eq!((&*read.meta.name, read.meta.version, &*read.meta.owners), ("data-web-0", 3, &[owner("new")][..]));
        assert_eq!(find(find(&owned, object::SPEC), 99), b"unknown");
        assert_eq!(find(find(&owned, object::METADATA), object_meta::MANAGED_FIELDS), b"");
    }

    #[test]
    fn request_capacity_and_classes_of_a_claim_are_decoded() {
        let quantity = |out: &mut Vec<u8>, number: u32, amount: &str| {
            out.put_message(number, |entry| {
                entry.put_str(1, "storage");
                entry.put_message(2, |message| message.put_str(crate::wire::schema::quantity::STRING, amount));
            });
        };
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "data");
            meta.put_str(object_meta::RESOURCE_VERSION, "3");
            meta.put_entry(object_meta::ANNOTATIONS, SELECTED_NODE, "node-1");
            meta.put_entry(object_meta::ANNOTATIONS, "other", "1");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_str(spec::ACCESS_MODES, "ReadWriteOnce");
            spec.put_message(spec::RESOURCES, |resources| quantity(resources, volume_resources::REQUESTS, "2Gi"));
            spec.put_str(spec::VOLUME_NAME, "pv-1");
            spec.put_str(spec::STORAGE_CLASS_NAME, "");
            spec.put_str(spec::VOLUME_ATTRIBUTES_CLASS_NAME, "fast");
        });
        object.put_message(object::STATUS, |status| {
            status.put_str(status::PHASE, "Bound");
            status.put_str(status::ACCESS_MODES, "ReadWriteOnce");
            quantity(status, status::CAPACITY, "1Gi");
            status.put_message(status::CONDITIONS, |out| {
                out.put_str(condition::TYPE, UNUSED);
                out.put_str(condition::STATUS, "False");
            });
            status.put_str(status::CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME, "slow");
            status.put_message(status::MODIFY_VOLUME_STATUS, |out| {
                out.put_str(modify_volume_status::TARGET_VOLUME_ATTRIBUTES_CLASS_NAME, "fast");
            });
        });
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        let claim = PersistentVolumeClaim::decode(&context, &object).expect("well-formed");
        assert_eq!((claim.class(), claim.names_class(), &*claim.volume_name), ("", true, "pv-1"));
        assert_eq!((claim.annotation(SELECTED_NODE), claim.annotations.len()), (Some("node-1"), 1));
        assert_eq!((claim.phase, claim.unused, claim.modes().to_string().as_str()), (Phase::Bound, Some(false), "RWO"));
        assert!(claim.requested() > claim.storage_capacity());
        assert_eq!(claim.attributes_classes().map(|name| &**name).collect::<Vec<_>>(), ["fast", "slow"]);
    }
}
