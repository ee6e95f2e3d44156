//! ServiceAccount: the secrets that it lists.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{object_reference, service_account as object};
use crate::wire::{WireError, fields, find, splice};

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Metadata.
    pub meta: Meta,
    /// Names of the secrets that it lists, sorted.
    pub secrets: Arc<[Str]>,
    /// The object as the server sent it; only with section [`ServiceAccount::WHOLE`].
    raw: Option<Box<[u8]>>,
}

impl ServiceAccount {
    /// Section: the raw object for a PUT. For single objects that are about to be written.
    pub const WHOLE: Sections = Sections(1);

    /// Returns the object for a PUT that no longer lists a secret. `None` without [`ServiceAccount::WHOLE`].
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn without_secret(&self, secret: &str) -> Option<Result<Vec<u8>, WireError>> {
        let keep = |field: &crate::wire::Field<'_>| {
            field.number != object::SECRETS || find(field.value.bytes(), object_reference::NAME) != secret.as_bytes()
        };
        self.raw.as_ref().map(|raw| splice::edited(raw, &[], keep, |_| {}))
    }
}

impl Kind for ServiceAccount {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "ServiceAccount", plural: "serviceaccounts", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut meta = &[][..];
        let mut secrets = Vec::new();
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::METADATA => meta = field.value.bytes(),
                object::SECRETS => {
                    let name = find(field.value.bytes(), object_reference::NAME);
                    secrets.push(context.interner.str(std::str::from_utf8(name).unwrap_or_default()));
                }
                _ => {}
            }
        }
        secrets.sort_unstable();
        Ok(Self {
            meta: Meta::decode(&context.interner, meta, |_, _| {})?,
            secrets: context.interner.list(&secrets),
            raw: context.sections.contains(Self::WHOLE).then(|| object.into()),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
