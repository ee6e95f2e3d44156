//! StorageClass: provisioner, binding mode and policies of its volumes.

use std::sync::Arc;

use crate::core::persistent_volume::ReclaimPolicy;
use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::storage_class as object;
use crate::wire::{fields, find};

/// Annotations that mark the default class if their value is `true`.
const IS_DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// The time at which claims of the class are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingMode {
    /// The claim is bound as soon as there is a volume, even if no pod uses the claim.
    Immediate,
    /// The claim is bound once a pod that uses it is scheduled.
    WaitForFirstConsumer,
}

/// A StorageClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageClass {
    /// Metadata.
    pub meta: Meta,
    /// Name of the provisioner.
    pub provisioner: Str,
    /// Policy of the volumes that are provisioned; the API server's default is `Delete`.
    pub reclaim_policy: ReclaimPolicy,
    /// Mount options of the volumes that are provisioned.
    pub mount_options: Arc<[Str]>,
    /// The time at which claims are bound; `None` if the field is absent or unknown.
    pub binding_mode: Option<BindingMode>,
    /// Its volumes can be expanded.
    pub allows_expansion: bool,
    /// It is marked as the default class.
    pub is_default: bool,
}

impl Kind for StorageClass {
    const RESOURCE: Resource = Resource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "StorageClass",
        plural: "storageclasses",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let mut is_default = false;
        let meta = Meta::decode(interner, find(object, object::METADATA), |key, value| {
            is_default |= IS_DEFAULT.contains(&key) && value == "true";
        })?;
        let mut class = Self {
            meta,
            provisioner: interner.str(""),
            reclaim_policy: ReclaimPolicy::Delete,
            mount_options: interner.list(&[]),
            binding_mode: None,
            allows_expansion: false,
            is_default,
        };
        let mut options = Vec::new();
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::PROVISIONER => class.provisioner = interner.str(field.value.str()),
                object::RECLAIM_POLICY => class.reclaim_policy = ReclaimPolicy::parse(field.value.str()),
                object::MOUNT_OPTIONS => options.push(interner.str(field.value.str())),
                object::ALLOW_VOLUME_EXPANSION => class.allows_expansion = field.value.bool(),
                object::VOLUME_BINDING_MODE => {
                    class.binding_mode = match field.value.str() {
                        "Immediate" => Some(BindingMode::Immediate),
                        "WaitForFirstConsumer" => Some(BindingMode::WaitForFirstConsumer),
                        _ => None,
                    }
                }
                _ => {}
            }
        }
        class.mount_options = interner.list(&options);
        Ok(class)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Sections;
    use crate::wire::Put;
    use crate::wire::schema::object_meta;

    #[test]
    fn class_is_read_with_its_binding_mode_and_default_mark() {
        for (annotation, value, expected) in [
            (IS_DEFAULT[0], "true", true),
            (IS_DEFAULT[1], "true", true),
            (IS_DEFAULT[0], "True", false),
            ("other", "true", false),
        ] {
            let mut object = Vec::new();
            object.put_message(object::METADATA, |meta| {
                meta.put_str(object_meta::NAME, "gold");
                meta.put_str(object_meta::RESOURCE_VERSION, "1");
                meta.put_entry(object_meta::ANNOTATIONS, annotation, value);
            });
            object.put_str(object::PROVISIONER, "disk.example.com");
            object.put_str(object::RECLAIM_POLICY, "Retain");
            object.put_str(object::MOUNT_OPTIONS, "ro");
            object.put_str(object::VOLUME_BINDING_MODE, "WaitForFirstConsumer");
            let context = Decode { interner: Arc::default(), sections: Sections::default() };
            let class = StorageClass::decode(&context, &object).expect("well-formed");
            assert_eq!(class.is_default, expected, "{annotation}={value}");
            assert_eq!(
                (class.reclaim_policy, class.binding_mode),
                (ReclaimPolicy::Retain, Some(BindingMode::WaitForFirstConsumer))
            );
            assert_eq!((&*class.provisioner, &*class.mount_options[0]), ("disk.example.com", "ro"));
        }
    }
}
