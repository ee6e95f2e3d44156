//! Metadata that every record has: identity, version, labels, owners, finalizers, deletion.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::decode::DecodeError;
use crate::intern::{Interner, Labels, Str};
use crate::wire::schema::{object_meta, owner_reference};
use crate::wire::{Put, WireError, fields, map_entry, push};

pub use crate::value::time::Time;
pub use crate::wire::splice::without_managed_fields;

/// The raw parts of an object that most kinds have; empty where the object lacks one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts<'a> {
    /// `metadata`
    pub meta: &'a [u8],
    /// `spec`
    pub spec: &'a [u8],
    /// `status`
    pub status: &'a [u8],
}

impl<'a> Parts<'a> {
    /// The field number of the metadata, which is the same in every kind. A test compares the numbers in `schema` with
    /// upstream's.
    pub const METADATA: u32 = 1;
    /// The field number of the spec, in kinds that have one.
    pub const SPEC: u32 = 2;
    /// The field number of the status, in kinds that have one.
    pub const STATUS: u32 = 3;

    /// Finds the parts of an object's message.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn read(object: &'a [u8]) -> Result<Self, WireError> {
        let mut parts = Self::default();
        for field in fields(object) {
            let field = field?;
            match field.number {
                Self::METADATA => parts.meta = field.value.bytes(),
                Self::SPEC => parts.spec = field.value.bytes(),
                Self::STATUS => parts.status = field.value.bytes(),
                _ => {}
            }
        }
        Ok(parts)
    }
}

/// An object's uid. The API server creates UUIDs, which take 16 bytes here; anything else is stored as text.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Uid {
    /// The usual form, the highest byte first. As a `u128` it would align, and pad, each record to 16 bytes.
    Uuid([u8; 16]),
    /// Any other text.
    Text(Arc<str>),
}

impl Uid {
    /// Reads a uid.
    pub fn parse(text: &str) -> Self {
        match parse_uuid(text) {
            Some(value) => Self::Uuid(value.to_be_bytes()),
            None if text.is_empty() => Self::default(),
            None => Self::Text(text.into()),
        }
    }
}

/// Parses only the canonical spelling (lower case, four dashes), so that formatting returns the same text.
fn parse_uuid(text: &str) -> Option<u128> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 {
        return None;
    }
    bytes.iter().enumerate().try_fold(0u128, |value, (at, byte)| match (at, byte) {
        (8 | 13 | 18 | 23, b'-') => Some(value),
        (8 | 13 | 18 | 23, _) => None,
        (_, b'0'..=b'9') => Some(value << 4 | u128::from(byte - b'0')),
        (_, b'a'..=b'f') => Some(value << 4 | u128::from(byte - b'a' + 10)),
        _ => None,
    })
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(value) => {
                let hex = format!("{:032x}", u128::from_be_bytes(*value));
                write!(f, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self::Text(Arc::default())
    }
}

/// One entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerRef {
    /// API version of the owner.
    pub api_version: Str,
    /// Kind of the owner.
    pub kind: Str,
    /// Name of the owner, which is in the same namespace or cluster-scoped.
    pub name: Str,
    /// Uid of the owner.
    pub uid: Uid,
    /// `Some(true)` on the managing controller's reference.
    pub controller: Option<bool>,
    /// `Some(true)` if the owner's foreground deletion waits for this object.
    pub block_owner_deletion: Option<bool>,
}

impl OwnerRef {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let empty = interner.str("");
        let mut owner = Self {
            api_version: empty.clone(),
            kind: empty.clone(),
            name: empty,
            uid: Uid::default(),
            controller: None,
            block_owner_deletion: None,
        };
        for field in fields(message) {
            let field = field?;
            match field.number {
                owner_reference::API_VERSION => owner.api_version = interner.str(field.value.str()),
                owner_reference::KIND => owner.kind = interner.str(field.value.str()),
                owner_reference::NAME => owner.name = interner.str(field.value.str()),
                owner_reference::UID => owner.uid = Uid::parse(field.value.str()),
                owner_reference::CONTROLLER => owner.controller = Some(field.value.bool()),
                owner_reference::BLOCK_OWNER_DELETION => owner.block_owner_deletion = Some(field.value.bool()),
                _ => {}
            }
        }
        Ok(owner)
    }

    /// Appends the reference as field `number` of an ObjectMeta.
    pub fn put(&self, out: &mut Vec<u8>, number: u32) {
        out.put_message(number, |message| {
            message.put_str(owner_reference::KIND, &self.kind);
            message.put_str(owner_reference::NAME, &self.name);
            message.put_str(owner_reference::UID, &self.uid.to_string());
            message.put_str(owner_reference::API_VERSION, &self.api_version);
            if let Some(controller) = self.controller {
                message.put_bool(owner_reference::CONTROLLER, controller);
            }
            if let Some(block) = self.block_owner_deletion {
                message.put_bool(owner_reference::BLOCK_OWNER_DELETION, block);
            }
        });
    }
}

impl Interner {
    /// Returns the shared copy of a list of owners.
    pub fn owners(&self, owners: &[OwnerRef]) -> Arc<[OwnerRef]> {
        self.records(owners)
    }
}

/// A namespace and a name: the identity of an object within its kind, and the key of queues.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Namespace; empty for kinds without one.
    pub namespace: Str,
    /// Name.
    pub name: Str,
}

impl ObjectKey {
    /// Creates a key from two strings.
    pub fn new(namespace: impl Into<Str>, name: impl Into<Str>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() { f.write_str(&self.name) } else { write!(f, "{}/{}", self.namespace, self.name) }
    }
}

/// Object metadata without annotations, which some records store in fields of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Namespace; empty for kinds without one.
    pub namespace: Str,
    /// Name.
    pub name: Str,
    /// Uid.
    pub uid: Uid,
    /// Resource version, which is an ordered integer by the API's definition since Kubernetes 1.35.
    pub version: u64,
    /// Generation of the spec.
    pub generation: i64,
    /// Time of creation.
    pub created: Time,
    /// `deletionTimestamp`: the time at which the object is to be deleted; zero if deletion was not requested.
    pub deletion: Time,
    /// Labels, sorted by key.
    pub labels: Labels,
    /// Owner references.
    pub owners: Arc<[OwnerRef]>,
    /// Finalizers.
    pub finalizers: Arc<[Str]>,
}

impl Meta {
    /// Reads an `ObjectMeta`; each annotation is passed to `annotation` and not stored.
    ///
    /// # Errors
    /// When the message is not well-formed, the name is missing, or the version is not a number.
    pub fn decode(
        interner: &Interner,
        message: &[u8],
        mut annotation: impl FnMut(&str, &str),
    ) -> Result<Self, DecodeError> {
        let (mut name, mut namespace, mut uid, mut version) = ("", "", "", "");
        let mut generation = 0;
        let mut created = Time::default();
        let mut deletion = Time::default();
        let (mut labels, mut owners, mut finalizers) = (Vec::new(), Vec::new(), Vec::new());
        for field in fields(message) {
            let field = field?;
            match field.number {
                object_meta::NAME => name = field.value.str(),
                object_meta::NAMESPACE => namespace = field.value.str(),
                object_meta::UID => uid = field.value.str(),
                object_meta::RESOURCE_VERSION => version = field.value.str(),
                object_meta::GENERATION => generation = field.value.i64(),
                object_meta::CREATION_TIMESTAMP => created = Time::decode(field.value.bytes())?,
                object_meta::DELETION_TIMESTAMP => deletion = Time::decode(field.value.bytes())?,
                object_meta::LABELS => {
                    let (key, value) = map_entry(field.value.bytes())?;
                    labels.push((interner.str(key), interner.str(value)));
                }
                object_meta::ANNOTATIONS => {
                    let (key, value) = map_entry(field.value.bytes())?;
                    annotation(key, value);
                }
                object_meta::OWNER_REFERENCES => {
                    push(&mut owners, OwnerRef::decode(interner, field.value.bytes())?, message)?;
                }
                object_meta::FINALIZERS => finalizers.push(interner.str(field.value.str())),
                _ => {}
            }
        }
        if name.is_empty() {
            return Err(DecodeError::field("metadata.name", "is missing"));
        }
        Ok(Self {
            namespace: interner.str(namespace),
            name: Arc::from(name),
            uid: Uid::parse(uid),
            version: parse_version(version)?,
            generation,
            created,
            deletion,
            labels: interner.labels(labels),
            owners: interner.owners(&owners),
            finalizers: interner.list(&finalizers),
        })
    }

    /// Returns the memory that the metadata takes if it shares nothing with other objects, in bytes.
    pub fn bytes(&self) -> usize {
        // Besides its text, a string takes the counters of its allocation and its place in the interner.
        const STRING: usize = 40;
        let labels = self.labels.iter().map(|(key, value)| 2 * STRING + key.len() + value.len());
        let owners = self.owners.iter().map(|owner| size_of::<OwnerRef>() + STRING + owner.name.len());
        let finalizers = self.finalizers.iter().map(|finalizer| STRING + finalizer.len());
        size_of::<Self>()
            + self.name.len()
            + self.namespace.len()
            + labels.chain(owners).chain(finalizers).sum::<usize>()
    }

    /// Returns the object's key in queues and stores.
    pub fn key(&self) -> ObjectKey {
        ObjectKey { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// Returns the reference to the managing controller, if there is one.
    pub fn controller(&self) -> Option<&OwnerRef> {
        self.owners.iter().find(|owner| owner.controller == Some(true))
    }

    /// Returns true if the object is managed by the controller with this uid.
    pub fn is_controlled_by(&self, uid: &Uid) -> bool {
        self.controller().is_some_and(|owner| owner.uid == *uid)
    }

    /// Returns true once deletion was requested.
    pub fn is_deleting(&self) -> bool {
        !self.deletion.is_zero()
    }

    /// Returns true if the uid, the deletion, labels, owners or finalizers differ. Both must have the same name.
    pub fn differs(&self, other: &Self) -> bool {
        (&self.uid, self.deletion, &self.labels, &self.owners, &self.finalizers)
            != (&other.uid, other.deletion, &other.labels, &other.owners, &other.finalizers)
    }

    /// Compares by age, the oldest first, and by name within a second. Upstream: pkg/controller,
    /// ReplicaSetsByCreationTimestamp.
    pub fn by_creation(&self, other: &Self) -> Ordering {
        self.created.cmp(&other.created).then_with(|| self.name.cmp(&other.name))
    }
}

/// Parses a resource version: a number of at most 63 bits.
///
/// # Errors
/// When the text is not such a number.
pub fn parse_version(text: &str) -> Result<u64, DecodeError> {
    text.parse().ok().filter(|version| *version <= MAX_VERSION).ok_or_else(|| {
        DecodeError::field(
            "metadata.resourceVersion",
            format!("is {text:?}, which is not a number from 0 to {MAX_VERSION}"),
        )
    })
}

/// Maximum version: a revision of etcd is a signed 64-bit number. A hostile aggregated API may return any number. The
/// limit keeps the next version, for which controllers wait, from overflowing.
const MAX_VERSION: u64 = i64::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_more_than_63_bits_is_refused() {
        for (text, expected) in [
            ("0", Some(0)),
            ("9223372036854775807", Some(MAX_VERSION)),
            ("9223372036854775808", None),
            ("18446744073709551615", None),
            ("-1", None),
            ("", None),
        ] {
            assert_eq!(parse_version(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn object_with_very_many_empty_owners_is_refused() {
        let meta = |count: usize, owner: &[u8]| {
            let mut message = Vec::new();
            message.put_str(object_meta::NAME, "web");
            message.put_str(object_meta::RESOURCE_VERSION, "1");
            (0..count).for_each(|_| message.put_bytes(object_meta::OWNER_REFERENCES, owner));
            Meta::decode(&Interner::default(), &message, |_, _| {}).map(|meta| meta.owners.len())
        };
        assert!(meta(10_000, &[]).is_err());
        let mut smallest = Vec::new();
        for field in [owner_reference::KIND, owner_reference::NAME, owner_reference::UID, owner_reference::API_VERSION]
        {
            smallest.put_str(field, "");
        }
        assert_eq!(meta(10_000, &smallest).ok(), Some(10_000), "as an API server sends it");
    }

    #[test]
    fn uids_are_formatted_unchanged() {
        for (text, compact) in [
            ("6f1e6bd0-5d5c-4a35-9a57-0d1b9e6b3f10", true),
            ("6F1E6BD0-5d5c-4a35-9a57-0d1b9e6b3f10", false),
            ("6f1e6bd05d5c-4a35-9a57-0d1b9e6b3f1000", false),
            ("static", false),
            ("", false),
        ] {
            let uid = Uid::parse(text);
            assert_eq!(uid.to_string(), text);
            assert_eq!(matches!(uid, Uid::Uuid(_)), compact, "{text}");
        }
    }

    #[test]
    fn object_without_a_name_or_version_is_refused() {
        let interner = Interner::default();
        let error = Meta::decode(&interner, &[], |_, _| {}).expect_err("no name");
        assert_eq!(error.to_string(), "metadata.name is missing");
        let mut message = Vec::new();
        message.put_str(object_meta::NAME, "web");
        message.put_str(object_meta::RESOURCE_VERSION, "x1");
        let error = Meta::decode(&interner, &message, |_, _| {}).expect_err("bad version");
        assert_eq!(
            error.to_string(),
            "metadata.resourceVersion is \"x1\", which is not a number from 0 to 9223372036854775807"
        );
    }
}
