//! StatefulSet: its scale, ordinals, update strategy, claim templates and status.

use std::collections::HashSet;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, ObjectKey, OwnerRef, Parts};
use crate::template::Template;
use crate::template::raw_object::{AnnotationEdits, Raw};
use crate::value::condition::{Condition, ConditionFields, splice};
use crate::value::int_or_string::IntOrString;
use crate::value::selector::Selector;
use crate::wire::schema::{
    label_selector, object_meta, owner_reference, persistent_volume_claim as claim,
    rolling_update_stateful_set as rolling, stateful_set_condition as condition, stateful_set_ordinals,
    stateful_set_retention as retention, stateful_set_spec as spec, stateful_set_status as status,
    stateful_set_update_strategy as strategy,
};
use crate::wire::{self, Put, WireError, fields, find, map_entry};

const CONDITION: ConditionFields = ConditionFields {
    kind: condition::TYPE,
    status: condition::STATUS,
    reason: condition::REASON,
    message: condition::MESSAGE,
    last_update: None,
    last_transition: condition::LAST_TRANSITION_TIME,
};

/// A StatefulSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatefulSet {
    /// Metadata.
    pub meta: Meta,
    /// Desired number of pods.
    pub replicas: i32,
    /// The ordinal of the first pod.
    pub start: i32,
    /// Seconds for which a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Selector of the pods that it may own.
    pub selector: Selector,
    /// Pods are created and deleted concurrently, not one after the other.
    pub parallel: bool,
    /// Update strategy of its pods.
    pub strategy: Strategy,
    /// The bounds of a rolling update, if they are given.
    pub rolling: Option<Rolling>,
    /// Number of revisions to keep in addition to those in use; a negative limit keeps all.
    pub history_limit: i32,
    /// Retention policy of its pods' claims.
    pub retention: Retention,
    /// The Service that provides the DNS names of its pods.
    pub service: Str,
    /// Template of its pods; only with section [`StatefulSet::TEMPLATE`].
    pub template: Option<Template>,
    /// `status`, as last read.
    pub status: StatefulSetStatus,
    raw: Raw,
}

/// `spec.updateStrategy`: the replacement of old pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// Pods are replaced within [`Rolling`], from the highest ordinal down.
    #[default]
    RollingUpdate,
    /// Pods are replaced when a user deletes them.
    OnDelete,
    /// All old pods are deleted before new ones are created.
    Recreate,
}

/// The bounds of a rolling update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rolling {
    /// Pods with an ordinal below this one stay at the previous revision.
    pub partition: i32,
    /// Number of pods that may be unavailable.
    pub max_unavailable: Option<IntOrString>,
}

/// `spec.persistentVolumeClaimRetentionPolicy`: true where claims are deleted, false where they are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Claims are deleted together with the StatefulSet.
    pub when_deleted: bool,
    /// Claims are deleted when their pod is deleted by scaling down.
    pub when_scaled: bool,
}

/// `status` of a StatefulSet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatefulSetStatus {
    /// Generation of the spec that this status refers to.
    pub observed_generation: i64,
    /// Number of pods.
    pub replicas: i32,
    /// Ready pods.
    pub ready_replicas: i32,
    /// Pods that have been ready for `min_ready_seconds`.
    pub available_replicas: i32,
    /// Pods of the last revision that was rolled out completely, without those that are being deleted.
    pub current_replicas: i32,
    /// Pods of the newest revision, without those that are being deleted.
    pub updated_replicas: i32,
    /// The last revision that was rolled out completely.
    pub current_revision: Str,
    /// The newest revision.
    pub update_revision: Str,
    /// Number of name collisions of revisions.
    pub collision_count: i32,
    /// `conditions`, in their order in the object.
    pub conditions: Vec<Condition>,
}

/// One of `spec.volumeClaimTemplates`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTemplate<'a> {
    /// Its name, which is also that of the volume.
    pub name: &'a str,
    object: &'a [u8],
}

impl ClaimTemplate<'_> {
    /// Returns true if claims of the template already have a controller: an object may have only one.
    pub fn has_controller(&self) -> bool {
        let owners = fields(find(self.object, claim::METADATA)).flatten();
        owners.filter(|field| field.number == object_meta::OWNER_REFERENCES).any(|owner| {
            let mut flags = fields(owner.value.bytes()).flatten();
            flags.any(|field| field.number == owner_reference::CONTROLLER && field.value.bool())
        })
    }
}

impl StatefulSet {
    /// Section: the pod template, the claim templates, and the raw object for a PUT.
    pub const TEMPLATE: Sections = Sections(1);

    /// Returns the claim templates; none without [`StatefulSet::TEMPLATE`].
    pub fn claim_templates(&self) -> Vec<ClaimTemplate<'_>> {
        fields(self.raw.spec())
            .flatten()
            .filter(|field| field.number == spec::VOLUME_CLAIM_TEMPLATES)
            .map(|field| {
                let object = field.value.bytes();
                let name = std::str::from_utf8(find(find(object, claim::METADATA), object_meta::NAME));
                ClaimTemplate { name: name.unwrap_or_default(), object }
            })
            .collect()
    }

    /// Returns a claim for a POST: the template with the name of `key`, with the labels of the selector, which take
    /// precedence over its own, and with further owners. Upstream: pkg/controller/statefulset,
    /// getPersistentVolumeClaims.
    pub fn claim(&self, template: &ClaimTemplate<'_>, key: &ObjectKey, owners: &[OwnerRef]) -> Vec<u8> {
        let selector = find(self.raw.spec(), spec::SELECTOR);
        let selected: Vec<(&str, &str)> = fields(selector)
            .flatten()
            .filter(|field| field.number == label_selector::MATCH_LABELS)
            .filter_map(|field| map_entry(field.value.bytes()).ok())
            .collect();
        let replaced: HashSet<&str> = selected.iter().map(|(name, _)| *name).collect();
        let mut message = Vec::with_capacity(template.object.len() + 256);
        message.put_message(claim::METADATA, |meta| {
            meta.put_str(object_meta::NAME, &key.name);
            meta.put_str(object_meta::NAMESPACE, &key.namespace);
            // An API server sends only well-formed templates; decoding does not check them.
            let copied = wire::copy_fields(find(template.object, claim::METADATA), meta, |field| match field.number {
                object_meta::LABELS => !map_entry(field.value.bytes()).is_ok_and(|(name, _)| replaced.contains(name)),
                object_meta::ANNOTATIONS
                | object_meta::FINALIZERS
                | object_meta::GENERATE_NAME
                | object_meta::OWNER_REFERENCES => true,
                _ => false,
            });
            debug_assert!(copied.is_ok());
            selected.iter().for_each(|(name, value)| meta.put_entry(object_meta::LABELS, name, value));
            owners.iter().for_each(|owner| owner.put(meta, object_meta::OWNER_REFERENCES));
        });
        message.put_bytes(claim::SPEC, find(template.object, claim::SPEC));
        message
    }

    /// Returns the object for a PUT of this status.
    pub fn status_update(&self, status: &StatefulSetStatus) -> Vec<u8> {
        self.raw.status_update(&AnnotationEdits::new(), &status.splice(self.raw.status()))
    }
}

impl StatefulSetStatus {
    const FIELDS: [u32; 10] = [
        status::OBSERVED_GENERATION,
        status::REPLICAS,
        status::READY_REPLICAS,
        status::CURRENT_REPLICAS,
        status::UPDATED_REPLICAS,
        status::CURRENT_REVISION,
        status::UPDATE_REVISION,
        status::COLLISION_COUNT,
        status::CONDITIONS,
        status::AVAILABLE_REPLICAS,
    ];

    fn splice(&self, old: &[u8]) -> Vec<u8> {
        splice(old, &Self::FIELDS, |out| {
            out.put_int(status::OBSERVED_GENERATION, self.observed_generation);
            out.put_int(status::REPLICAS, self.replicas.into());
            out.put_int(status::READY_REPLICAS, self.ready_replicas.into());
            out.put_int(status::CURRENT_REPLICAS, self.current_replicas.into());
            out.put_int(status::UPDATED_REPLICAS, self.updated_replicas.into());
            out.put_str(status::CURRENT_REVISION, &self.current_revision);
            out.put_str(status::UPDATE_REVISION, &self.update_revision);
            out.put_int(status::COLLISION_COUNT, self.collision_count.into());
            for condition in &self.conditions {
                condition.put(out, status::CONDITIONS, &CONDITION);
            }
            out.put_int(status::AVAILABLE_REPLICAS, self.available_replicas.into());
        })
    }

    fn decode(context: &Decode, message: &[u8]) -> Result<Self, WireError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::OBSERVED_GENERATION => status.observed_generation = field.value.i64(),
                status::REPLICAS => status.replicas = field.value.i32(),
                status::READY_REPLICAS => status.ready_replicas = field.value.i32(),
                status::CURRENT_REPLICAS => status.current_replicas = field.value.i32(),
                status::UPDATED_REPLICAS => status.updated_replicas = field.value.i32(),
                status::CURRENT_REVISION => status.current_revision = context.interner.str(field.value.str()),
                status::UPDATE_REVISION => status.update_revision = context.interner.str(field.value.str()),
                status::COLLISION_COUNT => status.collision_count = field.value.i32(),
                status::CONDITIONS => {
                    status.conditions.push(Condition::decode(&context.interner, &CONDITION, field.value.bytes())?);
                }
                status::AVAILABLE_REPLICAS => status.available_replicas = field.value.i32(),
                _ => {}
            }
        }
        Ok(status)
    }
}

impl Rolling {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                rolling::PARTITION => read.partition = field.value.i32(),
                rolling::MAX_UNAVAILABLE => {
                    read.max_unavailable = Some(IntOrString::decode(field.value.bytes())?);
                }
                _ => {}
            }
        }
        Ok(read)
    }
}

impl Kind for StatefulSet {
    const RESOURCE: Resource =
        Resource { group: "apps", version: "v1", kind: "StatefulSet", plural: "statefulsets", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let whole = context.sections.contains(Self::TEMPLATE);
        let mut set = Self {
            meta: Meta::decode(&context.interner, meta, |_, _| {})?,
            replicas: 1,
            start: 0,
            min_ready_seconds: 0,
            selector: Selector::default(),
            parallel: false,
            strategy: Strategy::default(),
            rolling: None,
            history_limit: 10,
            retention: Retention::default(),
            service: context.interner.str(""),
            template: None,
            status: StatefulSetStatus::decode(context, status)?,
            raw: if whole { Raw::keep(object)? } else { Raw::default() },
        };
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::REPLICAS => set.replicas = field.value.i32(),
                spec::SELECTOR => set.selector = Selector::decode(&context.interner, field.value.bytes())?,
                spec::TEMPLATE if whole => set.template = Some(Template::decode(context, field.value.bytes())?),
                spec::SERVICE_NAME => set.service = context.interner.str(field.value.str()),
                spec::POD_MANAGEMENT_POLICY => set.parallel = field.value.str() == "Parallel",
                spec::UPDATE_STRATEGY => set.read_strategy(field.value.bytes())?,
                spec::REVISION_HISTORY_LIMIT => set.history_limit = field.value.i32(),
                spec::MIN_READY_SECONDS => set.min_ready_seconds = field.value.i32(),
                spec::RETENTION => {
                    let deletes = |number| find(field.value.bytes(), number) == b"Delete";
                    set.retention = Retention {
                        when_deleted: deletes(retention::WHEN_DELETED),
                        when_scaled: deletes(retention::WHEN_SCALED),
                    };
                }
                spec::ORDINALS => {
                    let start = |field: &wire::Field<'_>| field.number == stateful_set_ordinals::START;
                    let read = fields(field.value.bytes()).flatten().filter(start).last();
                    set.start = read.map_or(0, |field| field.value.i32());
                }
                _ => {}
            }
        }
        Ok(set)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl StatefulSet {
    fn read_strategy(&mut self, message: &[u8]) -> Result<(), WireError> {
        for field in fields(message) {
            let field = field?;
            match field.number {
                strategy::TYPE => {
                    self.strategy = match field.value.str() {
                        "OnDelete" => Strategy::OnDelete,
                        "Recreate" => Strategy::Recreate,
                        _ => Strategy::RollingUpdate,
                    }
                }
                strategy::ROLLING_UPDATE => self.rolling = Some(Rolling::decode(field.value.bytes())?),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::intern::Interner;
    use crate::wire::schema::{int_or_string, pod_template_spec, stateful_set as object};

    fn object() -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "web");
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::RESOURCE_VERSION, "5");
            meta.put_str(object_meta::MANAGED_FIELDS, "large");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_int(spec::REPLICAS, 3);
            spec.put_message(spec::SELECTOR, |selector| selector.put_entry(label_selector::MATCH_LABELS, "app", "web"));
            spec.put_message(spec::TEMPLATE, |template| template.put_message(pod_template_spec::METADATA, |_| {}));
            spec.put_message(spec::VOLUME_CLAIM_TEMPLATES, |template| {
                template.put_message(claim::METADATA, |meta| {
                    meta.put_str(object_meta::NAME, "data");
                    meta.put_entry(object_meta::LABELS, "app", "other");
                    meta.put_entry(object_meta::LABELS, "own", "1");
                    meta.put_entry(object_meta::ANNOTATIONS, "note", "x");
                });
                template.put_str(claim::SPEC, "the spec");
            });
            spec.put_str(spec::SERVICE_NAME, "names");
            spec.put_str(spec::POD_MANAGEMENT_POLICY, "Parallel");
            spec.put_message(spec::UPDATE_STRATEGY, |update| {
                update.put_str(strategy::TYPE, "RollingUpdate");
                update.put_message(strategy::ROLLING_UPDATE, |bounds| {
                    bounds.put_int(rolling::PARTITION, 2);
                    bounds.put_message(rolling::MAX_UNAVAILABLE, |count| count.put_int(int_or_string::INT_VAL, 4));
                });
            });
            spec.put_message(spec::RETENTION, |policy| {
                policy.put_str(retention::WHEN_DELETED, "Delete");
                policy.put_str(retention::WHEN_SCALED, "Retain");
            });
            spec.put_message(spec::ORDINALS, |ordinals| ordinals.put_int(stateful_set_ordinals::START, 7));
        });
        object.put_message(object::STATUS, |status| status.put_str(99, "unknown"));
        object
    }

    fn read(object: &[u8]) -> StatefulSet {
        let context = Decode { interner: Arc::new(Interner::default()), sections: StatefulSet::TEMPLATE };
        StatefulSet::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn statefulset_fields_are_decoded() {
        let set = read(&object());
        assert_eq!((set.replicas, set.start, set.history_limit, set.parallel), (3, 7, 10, true));
        let rolling = Rolling { partition: 2, max_unavailable: Some(IntOrString::Int(4)) };
        assert_eq!((set.strategy, set.rolling.clone()), (Strategy::RollingUpdate, Some(rolling)));
        assert_eq!(set.retention, Retention { when_deleted: true, when_scaled: false });
        assert_eq!(&*set.service, "names");
        assert!(set.template.is_some());
    }

    #[test]
    fn claims_have_the_selectors_labels() {
        let set = read(&object());
        let templates = set.claim_templates();
        assert_eq!(templates.iter().map(|template| template.name).collect::<Vec<_>>(), ["data"]);
        let message = set.claim(&templates[0], &ObjectKey::new("ns", "data-web-7"), &[set.controller_ref()]);
        let mut versioned = find(&message, claim::METADATA).to_vec();
        versioned.put_str(object_meta::RESOURCE_VERSION, "1");
        let meta = Meta::decode(&Interner::default(), &versioned, |key, value| assert_eq!((key, value), ("note", "x")));
        let meta = meta.expect("well-formed");
        let labels: Vec<_> = meta.labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!((&*meta.name, &*labels), ("data-web-7", &[("app", "web"), ("own", "1")][..]));
        assert!(meta.is_controlled_by(&set.meta.uid));
        assert_eq!(find(&message, claim::SPEC), b"the spec");
    }

    #[test]
    fn claims_keep_the_owners_of_their_template() {
        for (is_controller, owners) in [(false, 2), (true, 1)] {
            let owner = OwnerRef {
                api_version: "example.com/v1".into(),
                kind: "Backup".into(),
                name: "nightly".into(),
                uid: crate::meta::Uid::parse("nightly"),
                controller: Some(is_controller),
                block_owner_deletion: None,
            };
            let mut template = Vec::new();
            template.put_message(claim::METADATA, |meta| {
                meta.put_str(object_meta::NAME, "data");
                meta.put_str(object_meta::GENERATE_NAME, "data-");
                meta.put_str(object_meta::UID, "of the template");
                owner.put(meta, object_meta::OWNER_REFERENCES);
            });
            let set = read(&object());
            let template = ClaimTemplate { name: "data", object: &template };
            assert_eq!(template.has_controller(), is_controller);
            let own = Some(set.controller_ref()).filter(|_| !template.has_controller());
            let message = set.claim(&template, &ObjectKey::new("ns", "data-web-7"), own.as_slice());
            let meta = find(&message, claim::METADATA);
            assert_eq!(find(meta, object_meta::GENERATE_NAME), b"data-");
            assert_eq!(find(meta, object_meta::UID), b"");
            let found = fields(meta).flatten().filter(|field| field.number == object_meta::OWNER_REFERENCES);
            assert_eq!(found.count(), owners, "{is_controller}");
        }
    }

    #[test]
    fn status_round_trips() {
        let set = read(&object());
        let status = StatefulSetStatus {
            observed_generation: 1,
            replicas: 2,
            ready_replicas: 3,
            available_replicas: 4,
            current_replicas: 5,
            updated_replicas: 6,
            current_revision: "web-a".into(),
            update_revision: "web-b".into(),
            collision_count: 7,
            conditions: Vec::new(),
        };
        let update = set.status_update(&status);
        assert_eq!(read(&update).status, status);
        assert_eq!(find(find(&update, object::STATUS), 99), b"unknown");
    }
}
