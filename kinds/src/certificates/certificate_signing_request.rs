//! CertificateSigningRequest: the request, its user, and its conditions.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::value::time::Time;
use crate::wire::schema::{
    certificate_signing_request as object, certificate_signing_request_condition as condition,
    certificate_signing_request_spec as spec, certificate_signing_request_status as status,
};
use crate::wire::{Put, WireError, copy_fields, fields, find, splice};

/// A request for a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSigningRequest {
    /// Metadata.
    pub meta: Meta,
    /// The signer's name.
    pub signer: Str,
    /// The requesting user.
    pub username: Str,
    /// Requested usages of the certificate.
    pub usages: Arc<[Str]>,
    /// Requested validity in seconds, if given.
    pub expiration_seconds: Option<i32>,
    /// `conditions`, in their order in the object.
    pub conditions: Vec<Condition>,
    /// The certificate as PEM; empty before there is one.
    pub certificate: Box<[u8]>,
    raw: Box<[u8]>,
}

/// A condition of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// `Approved`, `Denied`, `Failed`, or something else.
    pub kind: Str,
    /// Its status is `True`, which is also the meaning of a missing status.
    pub is_true: bool,
    /// Time of the last update; zero if unknown.
    pub updated: Time,
}

impl CertificateSigningRequest {
    /// Returns the request itself, as PEM.
    pub fn request(&self) -> &[u8] {
        find(self.spec(), spec::REQUEST)
    }

    /// Returns the raw spec.
    pub fn spec(&self) -> &[u8] {
        find(&self.raw, object::SPEC)
    }

    /// Returns true if a condition of this type exists, regardless of its status.
    pub fn has_condition(&self, kind: &str) -> bool {
        self.conditions.iter().any(|condition| &*condition.kind == kind)
    }

    /// Returns the object for a PUT with an additional condition, whose status is `True`.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn with_condition(&self, kind: &str, reason: &str, message: &str, now: Time) -> Result<Vec<u8>, WireError> {
        self.with_status(None, |status| {
            status.put_message(status::CONDITIONS, |condition| {
                condition.put_str(condition::TYPE, kind);
                condition.put_str(condition::REASON, reason);
                condition.put_str(condition::MESSAGE, message);
                if !now.is_zero() {
                    now.put(condition, condition::LAST_UPDATE_TIME);
                }
                condition.put_str(condition::STATUS, "True");
            });
        })
    }

    /// Returns the object for a PUT with a certificate as PEM.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn with_certificate(&self, pem: &str) -> Result<Vec<u8>, WireError> {
        self.with_status(Some(status::CERTIFICATE), |status| status.put_str(status::CERTIFICATE, pem))
    }

    fn with_status(&self, replaced: Option<u32>, put: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>, WireError> {
        let mut status = Vec::new();
        copy_fields(find(&self.raw, object::STATUS), &mut status, |field| Some(field.number) != replaced)?;
        put(&mut status);
        let keep = |field: &crate::wire::Field<'_>| field.number != object::STATUS;
        splice::edited(&self.raw, &[], keep, |out| out.put_bytes(object::STATUS, &status))
    }
}

impl Kind for CertificateSigningRequest {
    const RESOURCE: Resource = Resource {
        group: "certificates.k8s.io",
        version: "v1",
        kind: "CertificateSigningRequest",
        plural: "certificatesigningrequests",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let mut signer = "";
        let mut username = "";
        let mut usages = Vec::new();
        let mut expiration_seconds = None;
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            match field.number {
                spec::SIGNER_NAME => signer = field.value.str(),
                spec::USERNAME => username = field.value.str(),
                spec::USAGES => usages.push(interner.str(field.value.str())),
                spec::EXPIRATION_SECONDS => expiration_seconds = Some(field.value.i32()),
                _ => {}
            }
        }
        let mut conditions = Vec::new();
        for field in fields(find(object, object::STATUS)) {
            let field = field?;
            if field.number == status::CONDITIONS {
                conditions.push(Condition::decode(context, field.value.bytes())?);
            }
        }
        Ok(Self {
            meta: Meta::decode(interner, find(object, object::METADATA), |_, _| {})?,
            signer: interner.str(signer),
            username: interner.str(username),
            usages: interner.list(&usages),
            expiration_seconds,
            conditions,
            certificate: find(find(object, object::STATUS), status::CERTIFICATE).into(),
            raw: splice::trimmed(object)?.into(),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl Condition {
    fn decode(context: &Decode, message: &[u8]) -> Result<Self, WireError> {
        let mut kind = "";
        let mut status = "";
        let mut updated = Time::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                condition::TYPE => kind = field.value.str(),
                condition::STATUS => status = field.value.str(),
                condition::LAST_UPDATE_TIME => updated = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(Self { kind: context.interner.str(kind), is_true: matches!(status, "True" | ""), updated })
    }
}
