//! ResourceClaimTemplate: the template for the ResourceClaims of pods and PodGroups.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, OwnerRef};
use crate::resource::claim_state::{ENTRY_ANNOTATION, has_admin_access, has_prioritized_list};
use crate::wire::schema::{
    object_meta, resource_claim as claim, resource_claim_template as object, resource_claim_template_spec as spec,
};
use crate::wire::{Put, WireError, copy_fields, find, map_entry};

/// A ResourceClaimTemplate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceClaimTemplate {
    /// Metadata.
    pub meta: Meta,
    /// One of the requests is for administrative access.
    pub has_admin_access: bool,
    /// One of the requests lists alternatives.
    pub has_prioritized_list: bool,
    /// `ResourceClaimTemplateSpec` message.
    spec: Box<[u8]>,
}

impl ResourceClaimTemplate {
    /// Returns a claim to be created for an entry of a pod or PodGroup: annotations, labels and spec of the template,
    /// with a prefix to which the API server appends the rest of the name.
    ///
    /// # Errors
    /// When the template is not well-formed.
    pub fn claim(
        &self,
        namespace: &str,
        name_prefix: &str,
        entry: &str,
        owner: &OwnerRef,
    ) -> Result<Vec<u8>, WireError> {
        let mut meta = Vec::new();
        meta.put_str(object_meta::GENERATE_NAME, name_prefix);
        meta.put_str(object_meta::NAMESPACE, namespace);
        copy_fields(find(&self.spec, spec::METADATA), &mut meta, |field| match field.number {
            object_meta::LABELS => true,
            object_meta::ANNOTATIONS => !map_entry(field.value.bytes()).is_ok_and(|(key, _)| key == ENTRY_ANNOTATION),
            _ => false,
        })?;
        meta.put_entry(object_meta::ANNOTATIONS, ENTRY_ANNOTATION, entry);
        owner.put(&mut meta, object_meta::OWNER_REFERENCES);
        let mut object = Vec::new();
        object.put_bytes(claim::METADATA, &meta);
        object.put_bytes(claim::SPEC, find(&self.spec, spec::SPEC));
        Ok(object)
    }
}

impl Kind for ResourceClaimTemplate {
    const RESOURCE: Resource = Resource {
        group: "resource.k8s.io",
        version: "v1",
        kind: "ResourceClaimTemplate",
        plural: "resourceclaimtemplates",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let template = find(object, object::SPEC);
        let spec = find(template, spec::SPEC);
        Ok(Self {
            meta: Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?,
            has_admin_access: has_admin_access(spec)?,
            has_prioritized_list: has_prioritized_list(spec)?,
            spec: template.into(),
        })
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
    use crate::meta::Uid;
    use crate::resource::resource_claim::ResourceClaim;
    use crate::wire::schema::{device_claim, device_request, exact_device_request, resource_claim_spec};

    fn template(exactly: bool) -> ResourceClaimTemplate {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "gpu");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_entry(object_meta::ANNOTATIONS, "of-the-template", "1");
        });
        object.put_message(object::SPEC, |message| {
            message.put_message(spec::METADATA, |meta| {
                meta.put_entry(object_meta::LABELS, "app", "web");
                meta.put_entry(object_meta::ANNOTATIONS, "kept", "1");
                meta.put_entry(object_meta::ANNOTATIONS, ENTRY_ANNOTATION, "of-another-entry");
                meta.put_str(object_meta::FINALIZERS, "example.com/held");
                meta.put_str(object_meta::NAME, "ignored");
            });
            message.put_message(spec::SPEC, |spec| {
                spec.put_message(resource_claim_spec::DEVICES, |devices| {
                    devices.put_message(device_claim::REQUESTS, |request| {
                        let number = if exactly { device_request::EXACTLY } else { device_request::FIRST_AVAILABLE };
                        request.put_message(number, |one| one.put_bool(exact_device_request::ADMIN_ACCESS, true));
                    });
                });
                spec.put_str(99, "unknown");
            });
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        ResourceClaimTemplate::decode(&context, &object).expect("well-formed")
    }

    #[test]
    fn claim_has_labels_annotations_and_spec_of_its_template_and_the_entry_it_is_for() {
        let owner = OwnerRef {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: "web".into(),
            uid: Uid::parse("u"),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let mut object = template(true).claim("shop", "web-gpu-", "gpu", &owner).expect("well-formed");
        assert_eq!(find(find(&object, claim::SPEC), 99), b"unknown");
        assert_eq!(find(find(&object, claim::METADATA), object_meta::GENERATE_NAME), b"web-gpu-");
        let meta = [find(&object, claim::METADATA), &{
            let mut given = Vec::new();
            given.put_str(object_meta::NAME, "web-gpu-x");
            given.put_str(object_meta::RESOURCE_VERSION, "1");
            given
        }]
        .concat();
        object.put_bytes(claim::METADATA, &meta);
        let mut annotations = Vec::new();
        let decoded = Meta::decode(&crate::Interner::default(), &meta, |key, value| {
            annotations.push((key.to_owned(), value.to_owned()));
        })
        .expect("well-formed");
        assert_eq!(annotations, [("kept".to_owned(), "1".to_owned()), (ENTRY_ANNOTATION.to_owned(), "gpu".to_owned())]);
        assert_eq!((&*decoded.labels, decoded.finalizers.len()), (&[("app".into(), "web".into())][..], 0));
        assert_eq!(&*decoded.owners, [owner]);
        let context = Decode { interner: Arc::default(), sections: ResourceClaim::STATE };
        let claim = ResourceClaim::decode(&context, &object).expect("well-formed");
        let state = claim.state.expect("in its section");
        assert!(state.has_admin_access && state.entry.as_deref() == Some("gpu"));
    }

    #[test]
    fn admin_access_is_that_of_exact_requests_only() {
        let (exact, alternatives) = (template(true), template(false));
        assert!(exact.has_admin_access && !exact.has_prioritized_list);
        assert!(!alternatives.has_admin_access && alternatives.has_prioritized_list);
    }
}
