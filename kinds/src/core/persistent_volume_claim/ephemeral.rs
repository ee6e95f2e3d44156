//! The claim of a pod's generic ephemeral volume.

use crate::meta::OwnerRef;
use crate::wire::schema::{
    claim_template as template, ephemeral_volume_source as ephemeral, object_meta, persistent_volume_claim as object,
    pod, pod_spec, volume, volume_source,
};
use crate::wire::{Put, WireError, copy_fields, fields, find, find_str};

/// Returns the claim to create for the generic ephemeral volume with this name: the labels, annotations and spec of its
/// template, owned by the pod. `pod` is a whole Pod message. `None` if the pod has no such volume.
///
/// # Errors
/// When `pod` is not well-formed.
pub fn for_ephemeral_volume(
    pod: &[u8],
    volume_name: &str,
    claim_name: &str,
    owner: &OwnerRef,
) -> Result<Option<Vec<u8>>, WireError> {
    let spec = find(pod, pod::SPEC);
    for field in fields(spec) {
        let field = field?;
        let message = field.value.bytes();
        if field.number != pod_spec::VOLUMES || find(message, volume::NAME) != volume_name.as_bytes() {
            continue;
        }
        let source = find(find(message, volume::VOLUME_SOURCE), volume_source::EPHEMERAL);
        let claim_template = find(source, ephemeral::VOLUME_CLAIM_TEMPLATE);
        if claim_template.is_empty() {
            return Ok(None);
        }
        let namespace = find(find(pod, pod::METADATA), object_meta::NAMESPACE);
        let mut meta = Vec::new();
        meta.put_str(object_meta::NAME, claim_name);
        meta.put_bytes(object_meta::NAMESPACE, namespace);
        copy_fields(find(claim_template, template::METADATA), &mut meta, |field| {
            matches!(field.number, object_meta::LABELS | object_meta::ANNOTATIONS)
        })?;
        owner.put(&mut meta, object_meta::OWNER_REFERENCES);
        let mut claim = Vec::new();
        claim.put_bytes(object::METADATA, &meta);
        claim.put_bytes(object::SPEC, find(claim_template, template::SPEC));
        return Ok(Some(claim));
    }
    Ok(None)
}

/// Returns the names of a pod's volumes in the order of its spec. `pod` is a whole Pod message.
///
/// # Errors
/// When `pod` is not well-formed.
pub fn volume_names(pod: &[u8]) -> Result<Vec<&str>, WireError> {
    let mut names = Vec::new();
    for field in fields(find(pod, pod::SPEC)) {
        let field = field?;
        if field.number == pod_spec::VOLUMES {
            names.push(find_str(field.value.bytes(), volume::NAME));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::persistent_volume_claim::PersistentVolumeClaim;
    use crate::decode::{Decode, Sections};
    use crate::kind::Kind;
    use crate::meta::Uid;
    use crate::wire::schema::persistent_volume_claim_spec as spec;

    #[test]
    fn claim_has_labels_annotations_and_spec_of_its_template() {
        let mut object = Vec::new();
        object.put_message(pod::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "web");
            meta.put_str(object_meta::NAMESPACE, "shop");
        });
        object.put_message(pod::SPEC, |spec| {
            spec.put_message(pod_spec::VOLUMES, |out| out.put_str(volume::NAME, "tmp"));
            spec.put_message(pod_spec::VOLUMES, |out| {
                out.put_str(volume::NAME, "scratch");
                out.put_message(volume::VOLUME_SOURCE, |source| {
                    source.put_message(volume_source::EPHEMERAL, |source| {
                        source.put_message(ephemeral::VOLUME_CLAIM_TEMPLATE, |out| {
                            out.put_message(template::METADATA, |meta| {
                                meta.put_entry(object_meta::LABELS, "app", "web");
                                meta.put_str(object_meta::FINALIZERS, "not copied");
                            });
                            out.put_message(template::SPEC, |spec| spec.put_str(spec::STORAGE_CLASS_NAME, "gold"));
                        });
                    });
                });
            });
        });
        let owner = OwnerRef {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: "web".into(),
            uid: Uid::parse("u-1"),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let make = |volume| for_ephemeral_volume(&object, volume, "web-scratch", &owner).expect("well-formed");
        let mut created = make("scratch").expect("it is ephemeral");
        let meta = find(&created, object::METADATA).to_vec();
        created.put_message(object::METADATA, |out| {
            out.extend(meta);
            out.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let claim = PersistentVolumeClaim::decode(&context, &created).expect("well-formed");
        assert_eq!((claim.meta.key().to_string().as_str(), claim.class()), ("shop/web-scratch", "gold"));
        assert_eq!(
            (claim.meta.labels.len(), claim.meta.finalizers.len(), &*claim.meta.owners),
            (1, 0, &[owner.clone()][..])
        );
        assert_eq!((make("tmp"), make("absent")), (None, None));
        assert_eq!(volume_names(&object).expect("well-formed"), ["tmp", "scratch"]);
    }
}
