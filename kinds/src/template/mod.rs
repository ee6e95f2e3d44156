//! Pod templates, stored as raw protobuf: compared in their encoded form and spliced into new pods. Only labels are
//! decoded.

pub mod pod_edit;
pub mod pod_schema;
pub mod raw_object;

use std::sync::Arc;

use crate::decode::Decode;
use crate::intern::{Labels, Str};
use crate::meta::{ObjectKey, OwnerRef};
use crate::template::pod_schema::{Message, POD_SPEC};
use crate::value::quantity;
use crate::wire::schema::{object_meta, pod, pod_template_spec, quantity as quantity_message};
use crate::wire::{self, Field, Put, Value, WireError, fields, find, find_str, map_entry};

/// The label that distinguishes the pods of a Deployment's ReplicaSets.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// A pod template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Labels of the created pods.
    pub labels: Labels,
    /// Raw `metadata`.
    pub meta: Arc<[u8]>,
    /// Raw `spec`; shared by all workloads that have the same.
    pub spec: Arc<[u8]>,
}

impl Template {
    /// Reads a `PodTemplateSpec` message.
    ///
    /// # Errors
    /// When its metadata is not well-formed.
    pub fn decode(context: &Decode, message: &[u8]) -> Result<Self, WireError> {
        let meta = find(message, pod_template_spec::METADATA);
        let mut labels = Vec::new();
        for field in fields(meta) {
            let field = field?;
            if field.number == object_meta::LABELS {
                let (key, value) = map_entry(field.value.bytes())?;
                labels.push((context.interner.str(key), context.interner.str(value)));
            }
        }
        Ok(Self {
            labels: context.interner.labels(labels),
            meta: context.interner.blob(meta),
            spec: context.interner.blob(find(message, pod_template_spec::SPEC)),
        })
    }

    /// Returns the template as a `PodTemplateSpec` message.
    pub fn encode(&self) -> Vec<u8> {
        let mut message = Vec::with_capacity(self.meta.len() + self.spec.len() + 16);
        message.put_bytes(pod_template_spec::METADATA, &self.meta);
        message.put_bytes(pod_template_spec::SPEC, &self.spec);
        message
    }

    /// Returns the same template with another value for one label, or without the label.
    pub fn with_label(&self, key: &str, value: Option<&str>) -> Self {
        let mut meta = Vec::with_capacity(self.meta.len() + 64);
        // The message was decoded before, so it is well-formed.
        let copied = wire::copy_fields(&self.meta, &mut meta, |field| !is_label(field, key));
        debug_assert!(copied.is_ok());
        let mut labels: Vec<(Str, Str)> = self.labels.iter().filter(|(name, _)| **name != *key).cloned().collect();
        if let Some(value) = value {
            meta.put_entry(object_meta::LABELS, key, value);
            labels.push((key.into(), value.into()));
            labels.sort_unstable();
        }
        Self { labels: labels.into(), meta: meta.into(), spec: self.spec.clone() }
    }

    /// Returns a `Pod` message from this template: labels, annotations and finalizers of the template, a generated
    /// name, one owner, and the unchanged spec. Upstream: pkg/controller, GetPodFromTemplate.
    pub fn pod(&self, owner: &ObjectKey, controller: &OwnerRef) -> Vec<u8> {
        let mut message = Vec::with_capacity(self.meta.len() + self.spec.len() + 256);
        message.put_message(pod::METADATA, |meta| {
            meta.put_str(object_meta::GENERATE_NAME, &pods_prefix(&owner.name));
            meta.put_str(object_meta::NAMESPACE, &owner.namespace);
            let copied = wire::copy_fields(&self.meta, meta, |field| {
                matches!(field.number, object_meta::LABELS | object_meta::ANNOTATIONS | object_meta::FINALIZERS)
            });
            debug_assert!(copied.is_ok());
            controller.put(meta, object_meta::OWNER_REFERENCES);
        });
        message.put_bytes(pod::SPEC, &self.spec);
        message
    }

    /// Returns true if both templates create the same pods, regardless of their hash label. Fields are compared byte by
    /// byte, except for quantities, which are compared by value. Upstream: pkg/controller/deployment/util,
    /// EqualIgnoreHash.
    pub fn equal_ignoring_hash(&self, other: &Self) -> bool {
        let spec = || {
            Arc::ptr_eq(&self.spec, &other.spec) || are_equal(&self.spec, &other.spec, &POD_SPEC, ZeroFields::Differs)
        };
        is_meta_equal(&self.meta, &other.meta) && spec()
    }

    /// Returns true if the templates differ at most in fields that are zero in one and absent in the other: then they
    /// may be equal although [`Template::equal_ignoring_hash`] returns false. A newer API server stores a new field as
    /// zero where an older one omitted it; for an optional field, however, zero and absent differ. To be certain, read
    /// both objects from the API server, which then encodes them in the same way.
    pub fn may_equal_ignoring_hash(&self, other: &Self) -> bool {
        is_meta_equal(&self.meta, &other.meta) && are_equal(&self.spec, &other.spec, &POD_SPEC, ZeroFields::IsAbsent)
    }

    /// Returns a short hash of the template, in the alphabet of generated names. `collisions` changes it if the name
    /// was taken. Upstream: apimachinery/pkg/util/rand, SafeEncodeString.
    pub fn hash(&self, collisions: Option<i32>) -> String {
        let mut hash = FNV_OFFSET;
        for part in [&self.meta, &self.spec] {
            hash = part.iter().fold(hash, |hash, byte| fnv1a(hash, *byte));
        }
        if let Some(collisions) = collisions {
            hash = collisions.to_le_bytes().iter().fold(hash, |hash, byte| fnv1a(hash, *byte));
        }
        safe_name(hash)
    }
}

/// Returns the 32-bit FNV-1a hash of bytes.
pub fn fnv1a_32(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(FNV_OFFSET, fnv1a)
}

/// Returns a number as letters and digits that form no words. Upstream: apimachinery/pkg/util/rand, SafeEncodeString of
/// its decimal digits.
pub fn safe_name(number: u32) -> String {
    number.to_string().bytes().map(|digit| SAFE_LETTERS[usize::from(digit) % SAFE_LETTERS.len()] as char).collect()
}

/// Letters and digits that form no words.
const SAFE_LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// The initial hash, and the factor for each byte, of the 32-bit FNV-1a algorithm.
const FNV_OFFSET: u32 = 2_166_136_261;
const FNV_PRIME: u32 = 16_777_619;

fn fnv1a(hash: u32, byte: u8) -> u32 {
    (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME)
}

/// Returns the name prefix of an owner's pods: its name and a dash, unless that is not a valid prefix. A prefix may
/// have one byte more than a name, because the dash at its end is not counted. Upstream: pkg/controller, getPodsPrefix.
fn pods_prefix(owner: &str) -> String {
    const MAX_PREFIX_BYTES: usize = 254;
    if owner.len() < MAX_PREFIX_BYTES { format!("{owner}-") } else { owner.to_owned() }
}

fn is_label(field: &Field<'_>, key: &str) -> bool {
    field.number == object_meta::LABELS && map_entry(field.value.bytes()).is_ok_and(|(name, _)| name == key)
}

/// Compares template metadata field by field, without the hash label. Map entries are encoded in key order.
fn is_meta_equal(a: &[u8], b: &[u8]) -> bool {
    let relevant = |message| {
        let mut kept: Vec<&[u8]> = fields(message)
            .flatten()
            .filter(|field| !is_label(field, POD_TEMPLATE_HASH) && !is_empty(field))
            .map(|field| field.raw)
            .collect();
        kept.sort_unstable();
        kept
    };
    relevant(a) == relevant(b)
}

/// Returns true if a field is empty or zero. In template metadata, such a field equals an absent one: the only optional
/// scalar there, `deletionGracePeriodSeconds`, has no effect.
fn is_empty(field: &Field<'_>) -> bool {
    matches!(field.value, Value::Bytes([]) | Value::Varint(0))
}

/// The treatment of fields that are zero in one message and absent in the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ZeroFields {
    /// Zero and absent are different.
    Differs,
    /// Zero and absent are equal.
    IsAbsent,
}

/// Compares two messages of one type, ignoring the spelling of quantities. Both come from the API server, which writes
/// fields and map entries in one fixed order.
///
/// Descends only into messages that the schema lists, so that neither depth nor cost depend on a user's text.
fn are_equal(a: &[u8], b: &[u8], message: &Message, zero: ZeroFields) -> bool {
    if a == b {
        return true;
    }
    if message.is_quantity() {
        let text = |message| find_str(message, quantity_message::STRING);
        return quantity::equal(text(a), text(b));
    }
    let counts = |field: &Result<Field<'_>, WireError>| {
        zero == ZeroFields::Differs || !matches!(field, Ok(field) if is_empty(field))
    };
    let (mut left, mut right) = (fields(a).filter(counts), fields(b).filter(counts));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return true,
            (Some(Ok(x)), Some(Ok(y))) if x.number == y.number => {
                let deeper = || match (x.value, y.value, message.nested(x.number)) {
                    (Value::Bytes(x), Value::Bytes(y), Some(nested)) => are_equal(x, y, nested, zero),
                    _ => false,
                };
                if x.value != y.value && !deeper() {
                    return false;
                }
            }
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decode::Sections;
    use crate::intern::Interner;
    use crate::meta::Uid;
    use crate::wire::schema::{container, env_var, pod_spec, resource_requirements};

    fn template(labels: &[(&str, &str)], build: impl FnOnce(&mut Vec<u8>)) -> Template {
        let mut message = Vec::new();
        message.put_message(pod_template_spec::METADATA, |meta| {
            for (key, value) in labels {
                meta.put_entry(object_meta::LABELS, key, value);
            }
        });
        message.put_message(pod_template_spec::SPEC, build);
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        Template::decode(&context, &message).expect("well-formed")
    }

    fn with_limit(name: &str, limit: &str) -> Template {
        template(&[("app", "web")], |spec| {
            spec.put_message(pod_spec::CONTAINERS, |message| {
                message.put_str(container::NAME, name);
                message.put_message(container::RESOURCES, |resources| {
                    resources.put_message(resource_requirements::LIMITS, |entry| {
                        entry.put_str(1, "cpu");
                        entry.put_message(2, |quantity| quantity.put_str(quantity_message::STRING, limit));
                    });
                });
            });
        })
    }

    #[test]
    fn equality_ignores_the_hash_label_and_the_spelling_of_quantities() {
        let plain = with_limit("c", "1");
        assert!(plain.equal_ignoring_hash(&plain.with_label(POD_TEMPLATE_HASH, Some("abc"))));
        assert!(plain.equal_ignoring_hash(&with_limit("c", "1000m")));
        assert!(!plain.equal_ignoring_hash(&with_limit("c", "1001m")));
        assert!(!with_limit("1", "1").equal_ignoring_hash(&with_limit("1000m", "1")), "a name is not a quantity");
        assert!(!plain.equal_ignoring_hash(&plain.with_label("app", Some("db"))));
        assert!(!plain.equal_ignoring_hash(&plain.with_label("app", None)));
    }

    #[test]
    fn zero_and_absent_fields_are_possibly_equal() {
        let with = |extra: Option<i64>| {
            template(&[("app", "web")], |spec| {
                spec.put_message(pod_spec::CONTAINERS, |message| {
                    message.put_str(container::NAME, "c");
                    if let Some(value) = extra {
                        message.put_int(99, value);
                    }
                });
            })
        };
        for (other, equal, may_equal) in [(None, true, true), (Some(0), false, true), (Some(1), false, false)] {
            assert_eq!(with(None).equal_ignoring_hash(&with(other)), equal, "{other:?}");
            assert_eq!(with(None).may_equal_ignoring_hash(&with(other)), may_equal, "{other:?}");
        }
    }

    #[test]
    fn label_is_set_and_removed_in_both_representations() {
        let set = with_limit("c", "1").with_label("a", Some("1"));
        assert_eq!(set.labels.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["a", "app"]);
        let removed = set.with_label("a", None);
        assert_eq!(removed.meta, with_limit("c", "1").meta);
    }

    #[test]
    fn created_pod_has_the_template_and_one_owner() {
        let owner = OwnerRef {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "web".into(),
            uid: Uid::parse("u"),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let template = with_limit("c", "1");
        let message = template.pod(&ObjectKey::new("default", "web"), &owner);
        let meta = find(&message, pod::METADATA);
        assert_eq!(find(meta, object_meta::GENERATE_NAME), b"web-");
        assert_eq!(map_entry(find(meta, object_meta::LABELS)), Ok(("app", "web")));
        assert!(!find(meta, object_meta::OWNER_REFERENCES).is_empty());
        assert_eq!(find(&message, pod::SPEC), &*template.spec);
        assert_eq!(pods_prefix(&"x".repeat(253)).len(), 254);
        assert_eq!(pods_prefix(&"x".repeat(254)).len(), 254);
    }

    #[test]
    fn hashes_are_short_safe_and_changed_by_collisions() {
        let template = with_limit("c", "1");
        let hashes =
            [template.hash(None), template.hash(Some(0)), template.hash(Some(1)), with_limit("d", "1").hash(None)];
        for (at, hash) in hashes.iter().enumerate() {
            assert!(
                (1..=10).contains(&hash.len()) && hash.bytes().all(|letter| SAFE_LETTERS.contains(&letter)),
                "{hash}"
            );
            assert!(!hashes[..at].contains(hash));
        }
    }

    fn with_variable(value: &[u8]) -> Template {
        template(&[], |spec| {
            spec.put_message(pod_spec::CONTAINERS, |message| {
                message.put_message(container::ENV, |variable| variable.put_bytes(2, value));
                message.put_str(env_var::NAME, "c");
            });
        })
    }

    /// Returns a text that could be parsed as `depth` nested messages around `core`.
    fn nested_text(depth: usize, core: &[u8]) -> Vec<u8> {
        let mut heads = Vec::new();
        let mut length = core.len();
        for _ in 0..depth {
            let mut head = Vec::new();
            head.put_varint(u64::from(container::NAME) << 3 | 2);
            head.put_varint(length as u64);
            length += head.len();
            heads.push(head);
        }
        heads.into_iter().rev().flatten().chain(core.iter().copied()).collect()
    }

    #[test]
    fn text_that_parses_as_nested_messages_is_compared_as_text() {
        let text = |core: &[u8]| nested_text(320_000, core);
        assert!(text(b"ab").len() > 1_200_000);
        let (first, second) = (with_variable(&text(b"ab")), with_variable(&text(b"ac")));
        // A smaller stack than the processes have: one frame per level would overflow it.
        let compared = std::thread::Builder::new()
            .stack_size(256 << 10)
            .spawn(move || (first.equal_ignoring_hash(&second), first.may_equal_ignoring_hash(&second)))
            .expect("a thread");
        assert_eq!(compared.join().expect("no overflow"), (false, false));
    }

    #[test]
    fn depth_of_the_pod_schema_is_bounded() {
        fn depth(message: &Message, above: usize) -> usize {
            assert!(above < 16, "{} is nested too deeply, or contains itself", message.name);
            message.nested.iter().map(|nested| depth(nested.message, above + 1)).max().unwrap_or(above)
        }
        assert_eq!(depth(&POD_SPEC, 0), 8);
    }

    /// Generates the bytes of a message of the pod schema, sometimes with an error.
    fn message_bytes() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..12),
            "[0-9]{1,3}(m|k|Ki|e3|\\.5)?".prop_map(|text| {
                let mut quantity = Vec::new();
                quantity.put_str(quantity_message::STRING, &text);
                quantity
            }),
        ];
        leaf.prop_recursive(10, 64, 5, |inner| {
            let field = prop_oneof![
                (1u32..46, inner).prop_map(|(number, bytes)| (number, Err(bytes))),
                (1u32..46, -1i64..3).prop_map(|(number, value)| (number, Ok(value))),
            ];
            proptest::collection::vec(field, 0..6).prop_map(|fields| {
                let mut message = Vec::new();
                for (number, value) in fields {
                    match value {
                        Ok(value) => message.put_int(number, value),
                        Err(bytes) => message.put_bytes(number, &bytes),
                    }
                }
                message
            })
        })
    }

    proptest! {
        #[test]
        fn comparison_of_any_specs_ends_and_is_symmetric(a in message_bytes(), b in message_bytes()) {
            let spec = |bytes: &[u8]| template(&[], |spec| spec.extend_from_slice(bytes));
            let (a, b) = (spec(&a), spec(&b));
            prop_assert!(a.equal_ignoring_hash(&a) && a.may_equal_ignoring_hash(&a));
            prop_assert_eq!(a.equal_ignoring_hash(&b), b.equal_ignoring_hash(&a));
            prop_assert_eq!(a.may_equal_ignoring_hash(&b), b.may_equal_ignoring_hash(&a));
            prop_assert!(a.may_equal_ignoring_hash(&b) || !a.equal_ignoring_hash(&b));
        }
    }
}
