//! StorageVersion: the version in which each API server stores the objects of a resource.

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts, Time};
use crate::wire::schema::{
    object_meta, server_storage_version, storage_version as object, storage_version_condition as condition,
    storage_version_status as status,
};
use crate::wire::{Field, Put, WireError, fields, find, find_str, splice};

/// The condition that [`StorageVersion::with_servers`] computes.
const ALL_EQUAL: &str = "AllEncodingVersionsEqual";

/// A StorageVersion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageVersion {
    /// Metadata.
    pub meta: Meta,
    /// `status.storageVersions[].apiServerID`, in the order of the object.
    pub servers: Box<[Str]>,
    /// The object's message, without managed fields.
    raw: Box<[u8]>,
}

impl StorageVersion {
    /// Returns the object for a PUT of its status with only the entries of the API servers that `keep` selects. The
    /// common encoding version and the condition are computed from these entries.
    ///
    /// Upstream: k8s.io/apiserver pkg/storageversion, SetCommonEncodingVersion.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn with_servers(&self, keep: impl Fn(&str) -> bool, now: Time) -> Result<Vec<u8>, WireError> {
        let mut entries = Vec::new();
        let mut encodings = Vec::new();
        let mut old_common = None;
        let mut conditions = Vec::new();
        for field in fields(find(&self.raw, object::STATUS)) {
            let field = field?;
            match field.number {
                status::STORAGE_VERSIONS
                    if keep(find_str(field.value.bytes(), server_storage_version::API_SERVER_ID)) =>
                {
                    entries.push(field.value.bytes());
                    encodings.push(find_str(field.value.bytes(), server_storage_version::ENCODING_VERSION));
                }
                status::COMMON_ENCODING_VERSION => old_common = Some(field.value.str()),
                status::CONDITIONS => conditions.push(field.value.bytes()),
                _ => {}
            }
        }
        let common = encodings.first().copied().filter(|first| encodings.iter().all(|encoding| encoding == first));
        let common_changes = matches!((old_common, common), (Some(old), Some(new)) if old != new);
        let generation = find_i64(find(&self.raw, object::METADATA), object_meta::GENERATION)?;
        let mut status = Vec::new();
        entries.iter().for_each(|entry| status.put_bytes(status::STORAGE_VERSIONS, entry));
        if let Some(common) = common {
            status.put_str(status::COMMON_ENCODING_VERSION, common);
        }
        let has_condition = conditions.iter().any(|condition| find_str(condition, condition::TYPE) == ALL_EQUAL);
        for condition in conditions {
            if find_str(condition, condition::TYPE) == ALL_EQUAL {
                let is_transition =
                    common_changes || (find_str(condition, condition::STATUS) == "True") != common.is_some();
                let since =
                    if is_transition { now } else { Time::decode(find(condition, condition::LAST_TRANSITION_TIME))? };
                put_condition(&mut status, common.is_some(), generation, since);
            } else {
                status.put_bytes(status::CONDITIONS, condition);
            }
        }
        if !has_condition {
            put_condition(&mut status, common.is_some(), generation, now);
        }
        let keep_field = |field: &Field<'_>| field.number != object::STATUS;
        splice::edited(&self.raw, &[], keep_field, |out| out.put_bytes(object::STATUS, &status))
    }
}

/// Returns the last integer field with this number; 0 if it is absent.
fn find_i64(message: &[u8], number: u32) -> Result<i64, WireError> {
    let mut value = 0;
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            value = field.value.i64();
        }
    }
    Ok(value)
}

fn put_condition(status: &mut Vec<u8>, is_common: bool, generation: i64, since: Time) {
    let (value, reason, message) = if is_common {
        ("True", "CommonEncodingVersionSet", "Common encoding version set")
    } else {
        ("False", "CommonEncodingVersionUnset", "Common encoding version unset")
    };
    status.put_message(status::CONDITIONS, |condition| {
        condition.put_str(condition::TYPE, ALL_EQUAL);
        condition.put_str(condition::STATUS, value);
        condition.put_int(condition::OBSERVED_GENERATION, generation);
        since.put(condition, condition::LAST_TRANSITION_TIME);
        condition.put_str(condition::REASON, reason);
        condition.put_str(condition::MESSAGE, message);
    });
}

impl Kind for StorageVersion {
    const RESOURCE: Resource = Resource {
        group: "internal.apiserver.k8s.io",
        version: "v1alpha1",
        kind: "StorageVersion",
        plural: "storageversions",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, status, .. } = Parts::read(object)?;
        let mut servers = Vec::new();
        for field in fields(status) {
            let field = field?;
            if field.number == status::STORAGE_VERSIONS {
                servers
                    .push(context.interner.str(find_str(field.value.bytes(), server_storage_version::API_SERVER_ID)));
            }
        }
        Ok(Self {
            meta: Meta::decode(&context.interner, meta, |_, _| {})?,
            servers: servers.into(),
            raw: splice::trimmed(object)?.into(),
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

    const BEFORE: Time = Time(1_000);
    const NOW: Time = Time(2_000);

    /// Returns a StorageVersion with an encoding version per API server, and its condition.
    fn version(servers: &[(&str, &str)], common: Option<&str>) -> StorageVersion {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "apps.deployments");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_int(object_meta::GENERATION, 3);
        });
        object.put_message(object::STATUS, |status| {
            for (server, encoding) in servers {
                status.put_message(status::STORAGE_VERSIONS, |entry| {
                    entry.put_str(server_storage_version::API_SERVER_ID, server);
                    entry.put_str(server_storage_version::ENCODING_VERSION, encoding);
                });
            }
            if let Some(common) = common {
                status.put_str(status::COMMON_ENCODING_VERSION, common);
            }
            put_condition(status, common.is_some(), 2, BEFORE);
        });
        decode(&object)
    }

    fn decode(object: &[u8]) -> StorageVersion {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        StorageVersion::decode(&context, object).expect("well-formed")
    }

    fn condition(object: &[u8]) -> (String, i64, Time) {
        let condition = find(find(object, object::STATUS), status::CONDITIONS);
        let since = Time::decode(find(condition, condition::LAST_TRANSITION_TIME)).expect("a time");
        let generation = find_i64(condition, condition::OBSERVED_GENERATION).expect("an integer");
        (find_str(condition, condition::STATUS).to_owned(), generation, since)
    }

    #[test]
    fn transition_time_changes_only_with_the_status_or_the_common_version() {
        for (name, servers, common, kept, expected_common, expected) in [
            ("same", vec![("a", "v1"), ("b", "v1")], Some("v1"), "a", "v1", ("True", BEFORE)),
            ("becomes common", vec![("a", "v1"), ("b", "v2")], None, "a", "v1", ("True", NOW)),
            ("other common", vec![("a", "v1"), ("b", "v2")], Some("v2"), "a", "v1", ("True", NOW)),
            ("still different", vec![("a", "v1"), ("ab", "v2"), ("b", "v2")], None, "a", "", ("False", BEFORE)),
        ] {
            let put = version(&servers, common).with_servers(|id| id.contains(kept), NOW).expect("well-formed");
            assert_eq!(
                find_str(find(&put, object::STATUS), status::COMMON_ENCODING_VERSION),
                expected_common,
                "{name}"
            );
            assert_eq!(condition(&put), (expected.0.to_owned(), 3, expected.1), "{name}");
            assert!(decode(&put).servers.iter().all(|id| id.contains(kept)), "{name}");
        }
    }

    #[test]
    fn status_gets_its_condition_when_it_has_none() {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "apps.deployments");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::STATUS, |status| {
            status.put_message(status::STORAGE_VERSIONS, |entry| {
                entry.put_str(server_storage_version::API_SERVER_ID, "a")
            });
        });
        let put = decode(&object).with_servers(|_| true, NOW).expect("well-formed");
        assert_eq!(condition(&put), ("True".to_owned(), 0, NOW));
    }
}
