//! StorageVersionMigration: a request to write all objects of a resource again in the storage version.

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::value::time::Time;
use crate::wire::schema::{
    condition, group_resource, storage_version_migration as object, storage_version_migration_spec as spec,
    storage_version_migration_status as status,
};
use crate::wire::{Put, WireError, copy_fields, fields, find, splice};

/// A StorageVersionMigration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageVersionMigration {
    /// Metadata.
    pub meta: Meta,
    /// API group of the resource; empty for the core group.
    pub group: Str,
    /// Plural name of the resource.
    pub resource: Str,
    /// `status.resourceVersion`: objects with a later version are already stored in the current storage version. Empty
    /// until it is known.
    pub version: Str,
    /// `status.conditions`.
    pub conditions: Box<[MigrationCondition]>,
    /// The object's message, without managed fields.
    raw: Box<[u8]>,
}

/// A condition of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationCondition {
    /// Type: `Running`, `Succeeded` or `Failed`.
    pub kind: Str,
    /// `True`, `False` or `Unknown`.
    pub status: Str,
    /// Machine-readable reason.
    pub reason: Str,
    /// Human-readable message.
    pub message: Box<str>,
    /// `observedGeneration`; zero if absent.
    pub generation: i64,
    /// `lastTransitionTime`.
    pub since: Time,
}

impl MigrationCondition {
    fn read(context: &Decode, message: &[u8]) -> Result<Self, WireError> {
        let empty = context.interner.str("");
        let mut read = Self {
            kind: empty.clone(),
            status: empty.clone(),
            reason: empty,
            message: Box::default(),
            generation: 0,
            since: Time::default(),
        };
        for field in fields(message) {
            let field = field?;
            match field.number {
                condition::TYPE => read.kind = context.interner.str(field.value.str()),
                condition::STATUS => read.status = context.interner.str(field.value.str()),
                condition::REASON => read.reason = context.interner.str(field.value.str()),
                condition::MESSAGE => read.message = field.value.str().into(),
                condition::OBSERVED_GENERATION => read.generation = field.value.i64(),
                condition::LAST_TRANSITION_TIME => read.since = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(read)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_message(status::CONDITIONS, |message| {
            message.put_str(condition::TYPE, &self.kind);
            message.put_str(condition::STATUS, &self.status);
            message.put_int(condition::OBSERVED_GENERATION, self.generation);
            self.since.put(message, condition::LAST_TRANSITION_TIME);
            message.put_str(condition::REASON, &self.reason);
            message.put_str(condition::MESSAGE, &self.message);
        });
    }
}

impl StorageVersionMigration {
    /// Returns true if the condition of type `kind` has the status `True`.
    pub fn is_true(&self, kind: &str) -> bool {
        self.conditions.iter().any(|condition| *condition.kind == *kind && &*condition.status == "True")
    }

    /// Returns true if the migration has ended.
    pub fn is_terminal(&self) -> bool {
        self.is_true("Succeeded") || self.is_true("Failed")
    }

    /// Sets a condition; its transition time changes only with its status. Returns true if anything changed.
    ///
    /// Upstream: apimachinery pkg/api/meta, SetStatusCondition.
    pub fn set_condition(&mut self, mut new: MigrationCondition) -> bool {
        let mut conditions = std::mem::take(&mut self.conditions).into_vec();
        let is_changed = match conditions.iter_mut().find(|known| known.kind == new.kind) {
            Some(known) => {
                if known.status == new.status {
                    new.since = known.since;
                }
                let is_changed = *known != new;
                *known = new;
                is_changed
            }
            None => {
                conditions.push(new);
                true
            }
        };
        self.conditions = conditions.into();
        is_changed
    }

    /// Returns the object for a PUT of its status with the version and conditions of this record.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn to_object(&self) -> Result<Vec<u8>, WireError> {
        let mut status = Vec::new();
        copy_fields(find(&self.raw, object::STATUS), &mut status, |field| {
            !matches!(field.number, status::CONDITIONS | status::RESOURCE_VERSION)
        })?;
        self.conditions.iter().for_each(|condition| condition.put(&mut status));
        if !self.version.is_empty() {
            status.put_str(status::RESOURCE_VERSION, &self.version);
        }
        splice::edited(
            &self.raw,
            &[],
            |field| field.number != object::STATUS,
            |out| out.put_bytes(object::STATUS, &status),
        )
    }
}

impl Kind for StorageVersionMigration {
    const RESOURCE: Resource = Resource {
        group: "storagemigration.k8s.io",
        version: "v1",
        kind: "StorageVersionMigration",
        plural: "storageversionmigrations",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let (mut group, mut resource) = ("", "");
        for field in fields(find(spec, spec::RESOURCE)) {
            let field = field?;
            match field.number {
                group_resource::GROUP => group = field.value.str(),
                group_resource::RESOURCE => resource = field.value.str(),
                _ => {}
            }
        }
        let mut version = "";
        let mut conditions = Vec::new();
        for field in fields(status) {
            let field = field?;
            match field.number {
                status::CONDITIONS => conditions.push(MigrationCondition::read(context, field.value.bytes())?),
                status::RESOURCE_VERSION => version = field.value.str(),
                _ => {}
            }
        }
        Ok(Self {
            meta: Meta::decode(&context.interner, meta, |_, _| {})?,
            group: context.interner.str(group),
            resource: context.interner.str(resource),
            version: version.into(),
            conditions: conditions.into(),
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
    use crate::wire::schema::object_meta;

    fn decode(object: &[u8]) -> StorageVersionMigration {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        StorageVersionMigration::decode(&context, object).expect("well-formed")
    }

    fn condition(status: &str, message: &str, since: i64) -> MigrationCondition {
        MigrationCondition {
            kind: "Running".into(),
            status: status.into(),
            reason: "R".into(),
            message: message.into(),
            generation: 0,
            since: Time(since),
        }
    }

    fn migration() -> StorageVersionMigration {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "m");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_message(spec::RESOURCE, |resource| {
                resource.put_str(group_resource::GROUP, "apps");
                resource.put_str(group_resource::RESOURCE, "deployments");
            });
        });
        object.put_message(object::STATUS, |status| status.put_str(99, "unknown"));
        decode(&object)
    }

    #[test]
    fn status_is_written_and_read_back_with_unknown_fields() {
        let mut migration = migration();
        assert_eq!((&*migration.group, &*migration.resource, &*migration.version), ("apps", "deployments", ""));
        migration.version = "12".into();
        assert!(migration.set_condition(condition("True", "m", 5)));
        let object = migration.to_object().expect("well-formed");
        assert_eq!(find(find(&object, object::STATUS), 99), b"unknown");
        let read = decode(&object);
        assert_eq!((&*read.version, &read.conditions), ("12", &migration.conditions));
        assert!(read.is_true("Running") && !read.is_terminal());
    }

    #[test]
    fn time_of_a_condition_changes_only_with_its_status() {
        for (name, new, is_changed, since) in [
            ("same", condition("True", "m", 9), false, 5),
            ("other message", condition("True", "n", 9), true, 5),
            ("other status", condition("False", "m", 9), true, 9),
        ] {
            let mut migration = migration();
            migration.set_condition(condition("True", "m", 5));
            assert_eq!(migration.set_condition(new), is_changed, "{name}");
            assert_eq!((migration.conditions.len(), migration.conditions[0].since), (1, Time(since)), "{name}");
        }
    }
}
