//! ClusterTrustBundle: root certificates, of one signer or of none, that count as readable by all authenticated users.

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{cluster_trust_bundle as object, cluster_trust_bundle_spec as spec};
use crate::wire::{Put, WireError, fields, find, splice};

/// A ClusterTrustBundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterTrustBundle {
    /// Metadata.
    pub meta: Meta,
    /// The signer that it belongs to; empty for none.
    pub signer: Str,
    /// The certificates as PEM.
    pub bundle: Box<str>,
    raw: Box<[u8]>,
}

impl ClusterTrustBundle {
    /// Returns the object for a POST.
    pub fn new_object(name: &str, signer: &str, bundle: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| meta.put_str(crate::wire::schema::object_meta::NAME, name));
        object.put_message(object::SPEC, |spec| {
            spec.put_str(spec::SIGNER_NAME, signer);
            spec.put_str(spec::TRUST_BUNDLE, bundle);
        });
        object
    }

    /// Returns the object for a PUT with other certificates.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn update(&self, bundle: &str) -> Result<Vec<u8>, WireError> {
        let mut spec = Vec::new();
        crate::wire::copy_fields(find(&self.raw, object::SPEC), &mut spec, |field| field.number != spec::TRUST_BUNDLE)?;
        spec.put_str(spec::TRUST_BUNDLE, bundle);
        splice::edited(&self.raw, &[], |field| field.number != object::SPEC, |out| out.put_bytes(object::SPEC, &spec))
    }
}

impl Kind for ClusterTrustBundle {
    const RESOURCE: Resource = Resource {
        group: "certificates.k8s.io",
        version: "v1",
        kind: "ClusterTrustBundle",
        plural: "clustertrustbundles",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let (mut signer, mut bundle) = ("", "");
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            match field.number {
                spec::SIGNER_NAME => signer = field.value.str(),
                spec::TRUST_BUNDLE => bundle = field.value.str(),
                _ => {}
            }
        }
        Ok(Self {
            meta: Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?,
            signer: context.interner.str(signer),
            bundle: bundle.into(),
            raw: splice::trimmed(object)?.into(),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
