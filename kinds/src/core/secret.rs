//! Secret: tokens of service accounts and of joining nodes. The data of other secrets is dropped, unless the whole
//! object is requested (see [`Secret::WHOLE`]).

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroize;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Uid};
use crate::wire::schema::secret as object;
use crate::wire::splice::{self, data_entry, put_data};
use crate::wire::{WireError, fields};

/// Type of secrets with a service account's token.
pub const ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";
/// Type of secrets with a token for nodes that join.
pub const BOOTSTRAP_TOKEN: &str = "bootstrap.kubernetes.io/token";
/// Annotation with the name of a token's service account.
pub const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
/// Annotation with the uid of a token's service account.
pub const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// Bytes that are never printed, and are overwritten when they are dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Box<[u8]>);

impl SecretBytes {
    /// Copies the bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The contents of a secret that controllers need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Any other type of secret; its data is kept only with section [`Secret::WHOLE`].
    Other,
    /// A service account's token.
    AccountToken(Box<AccountToken>),
    /// A token for nodes that join.
    BootstrapToken(Box<BootstrapToken>),
}

/// A Secret with a service account's token, without the token itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountToken {
    /// Name of the service account; empty without the annotation.
    pub account: Str,
    /// Uid of the service account, if the annotation contains one.
    pub account_uid: Option<Uid>,
    /// `ca.crt`
    pub ca: Arc<[u8]>,
    /// True when `namespace` is not empty.
    pub has_namespace: bool,
    /// True when `token` is not empty.
    pub has_token: bool,
}

/// A token for nodes that join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapToken {
    /// `token-id`
    pub id: Box<str>,
    /// `token-secret`
    pub secret: SecretBytes,
    /// `expiration`; empty if absent.
    pub expiration: Box<str>,
    /// True when `usage-bootstrap-signing` is `true`.
    pub signs: bool,
}

/// A secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// Metadata.
    pub meta: Meta,
    /// The part of its data that controllers need, by type.
    pub content: Content,
    /// The object as the server sent it; only with section [`Secret::WHOLE`].
    raw: Option<SecretBytes>,
}

impl Secret {
    /// Section: the raw object for a PUT. For single objects that are about to be written.
    pub const WHOLE: Sections = Sections(1);

    /// Returns the content, if it is a service account's token.
    pub fn account_token(&self) -> Option<&AccountToken> {
        match &self.content {
            Content::AccountToken(token) => Some(token),
            _ => None,
        }
    }

    /// Returns the content, if it is a bootstrap token.
    pub fn bootstrap_token(&self) -> Option<&BootstrapToken> {
        match &self.content {
            Content::BootstrapToken(token) => Some(token),
            _ => None,
        }
    }

    /// Returns all entries of its data; none without [`Secret::WHOLE`].
    pub fn entries(&self) -> impl Iterator<Item = Result<(&str, &[u8]), WireError>> {
        self.raw.iter().flat_map(|raw| data(raw.expose()))
    }

    /// Returns the object for a PUT with these annotations and these entries of its data set; all others are kept.
    /// `None` without [`Secret::WHOLE`].
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn update(&self, annotations: &[(&str, &str)], data: &[(&str, &[u8])]) -> Option<Result<Vec<u8>, WireError>> {
        let keep = |field: &crate::wire::Field<'_>| {
            field.number != object::DATA
                || !data_entry(field.value.bytes()).is_ok_and(|(key, _)| data.iter().any(|(set, _)| *set == key))
        };
        let put = |out: &mut Vec<u8>| data.iter().for_each(|(key, value)| put_data(out, object::DATA, key, value));
        self.raw.as_ref().map(|raw| splice::edited(raw.expose(), annotations, keep, put))
    }
}

impl Kind for Secret {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "Secret", plural: "secrets", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut meta = &[][..];
        let mut kind = "";
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::METADATA => meta = field.value.bytes(),
                object::TYPE => kind = field.value.str(),
                _ => {}
            }
        }
        let mut account = context.interner.str("");
        let mut uid = None;
        let meta = Meta::decode(&context.interner, meta, |key, value| match key {
            ACCOUNT_NAME => account = context.interner.str(value),
            ACCOUNT_UID if !value.is_empty() => uid = Some(Uid::parse(value)),
            _ => {}
        })?;
        let content = match kind {
            ACCOUNT_TOKEN => Content::AccountToken(Box::new(AccountToken::decode(context, object, account, uid)?)),
            BOOTSTRAP_TOKEN => Content::BootstrapToken(Box::new(BootstrapToken::decode(object)?)),
            _ => Content::Other,
        };
        Ok(Self { meta, content, raw: context.sections.contains(Self::WHOLE).then(|| SecretBytes::new(object)) })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

fn data(object: &[u8]) -> impl Iterator<Item = Result<(&str, &[u8]), WireError>> {
    fields(object).filter_map(|field| match field {
        Ok(field) => (field.number == object::DATA).then(|| data_entry(field.value.bytes())),
        Err(error) => Some(Err(error)),
    })
}

impl AccountToken {
    fn decode(context: &Decode, object: &[u8], account: Str, account_uid: Option<Uid>) -> Result<Self, WireError> {
        let mut token =
            Self { account, account_uid, ca: context.interner.blob(&[]), has_namespace: false, has_token: false };
        for entry in data(object) {
            match entry? {
                ("ca.crt", value) => token.ca = context.interner.blob(value),
                ("namespace", value) => token.has_namespace = !value.is_empty(),
                ("token", value) => token.has_token = !value.is_empty(),
                _ => {}
            }
        }
        Ok(token)
    }
}

impl BootstrapToken {
    fn decode(object: &[u8]) -> Result<Self, WireError> {
        let text = |value| Box::from(String::from_utf8_lossy(value));
        let mut token =
            Self { id: Box::default(), secret: SecretBytes::new(&[]), expiration: Box::default(), signs: false };
        for entry in data(object) {
            match entry? {
                ("token-id", value) => token.id = text(value),
                ("token-secret", value) => token.secret = SecretBytes::new(value),
                ("expiration", value) => token.expiration = text(value),
                ("usage-bootstrap-signing", value) => token.signs = value == b"true",
                _ => {}
            }
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::object_meta;

    fn secret(kind: &str, data: &[(&str, &str)]) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "s");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_entry(object_meta::ANNOTATIONS, ACCOUNT_NAME, "robot");
        });
        data.iter().for_each(|(key, value)| put_data(&mut object, object::DATA, key, value.as_bytes()));
        object.put_str(object::TYPE, kind);
        object
    }

    fn decode(object: &[u8]) -> Secret {
        let context = Decode { interner: Arc::default(), sections: Secret::WHOLE };
        Secret::decode(&context, object).expect("a secret")
    }

    #[test]
    fn entries_are_those_of_a_whole_secret_of_any_type() {
        let object = secret("Opaque", &[("token", "one"), ("user", "")]);
        let decoded = decode(&object);
        let entries: Vec<_> = decoded.entries().collect::<Result<_, _>>().expect("well-formed");
        assert_eq!(entries, [("token", &b"one"[..]), ("user", b"")]);
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        assert_eq!(Secret::decode(&context, &object).expect("a secret").entries().count(), 0);
    }

    #[test]
    fn only_token_secrets_are_decoded() {
        let token = decode(&secret(ACCOUNT_TOKEN, &[("ca.crt", "CA"), ("token", "t"), ("namespace", "")]));
        let token = token.account_token().expect("an account's token");
        assert_eq!((&*token.account, &token.account_uid, &*token.ca), ("robot", &None, &b"CA"[..]));
        assert!(token.has_token && !token.has_namespace);

        let data = [("token-id", "abcdef"), ("token-secret", "s3cr3t"), ("usage-bootstrap-signing", "true")];
        let token = decode(&secret(BOOTSTRAP_TOKEN, &data));
        let token = token.bootstrap_token().expect("a bootstrap token");
        assert_eq!((&*token.id, token.secret.expose(), token.signs), ("abcdef", &b"s3cr3t"[..], true));
        assert!(!format!("{token:?}").contains("s3cr3t"));

        assert_eq!(decode(&secret("Opaque", &data)).content, Content::Other);
    }

    #[test]
    fn update_sets_entries_and_keeps_the_rest() {
        let old = decode(&secret(ACCOUNT_TOKEN, &[("ca.crt", "old"), ("extra", "kept")]));
        let new = old.update(&[(ACCOUNT_UID, "u")], &[("ca.crt", b"new"), ("token", b"t")]);
        let new = new.expect("it was read whole").expect("well-formed");
        let entries: Vec<_> = data(&new).map(|entry| entry.expect("well-formed")).collect();
        assert_eq!(entries, [("extra", &b"kept"[..]), ("ca.crt", b"new"), ("token", b"t")]);
        let token = decode(&new);
        assert_eq!(token.account_token().expect("still a token").account_uid, Some(Uid::parse("u")));
    }
}
