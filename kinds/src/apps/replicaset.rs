//! ReplicaSet: its scale, selector, template and status.

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Labels, label};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::template::Template;
use crate::template::raw_object::{AnnotationEdits, Raw, annotated_meta};
use crate::value::condition::{Condition, ConditionFields, splice};
use crate::value::selector::Selector;
use crate::wire::schema::{replica_set_condition as condition, replica_set_spec as spec, replica_set_status as status};
use crate::wire::{Put, WireError, fields};

const CONDITION: ConditionFields = ConditionFields {
    kind: condition::TYPE,
    status: condition::STATUS,
    reason: condition::REASON,
    message: condition::MESSAGE,
    last_update: None,
    last_transition: condition::LAST_TRANSITION_TIME,
};

/// A ReplicaSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSet {
    /// Metadata.
    pub meta: Meta,
    /// Annotations, except the one that `kubectl apply` sets.
    pub annotations: Labels,
    /// Desired pods.
    pub replicas: i32,
    /// Seconds for which a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Selector of the pods that it may own.
    pub selector: Selector,
    /// Template of its pods; only with section [`ReplicaSet::TEMPLATE`].
    pub template: Option<Template>,
    /// `status`, as last read.
    pub status: ReplicaSetStatus,
    raw: Raw,
}

/// `status` of a ReplicaSet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaSetStatus {
    /// Active pods.
    pub replicas: i32,
    /// Active pods that have all labels of the template.
    pub fully_labeled_replicas: i32,
    /// Ready pods.
    pub ready_replicas: i32,
    /// Pods that have been ready for long enough.
    pub available_replicas: i32,
    /// Pods that are being deleted; absent until counted once.
    pub terminating_replicas: Option<i32>,
    /// Generation of the spec that this status refers to.
    pub observed_generation: i64,
    /// `conditions`, in their order in the object.
    pub conditions: Vec<Condition>,
}

impl ReplicaSet {
    /// Section: the pod template, and the raw object for a PUT.
    pub const TEMPLATE: Sections = Sections(1);

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        label(&self.annotations, key)
    }

    /// Returns the object for a PUT with another scale, minimum ready time and annotations. `None` if the
    /// template was not decoded, because a PUT would lose fields.
    pub fn update(&self, replicas: i32, min_ready_seconds: i32, annotations: &AnnotationEdits) -> Option<Vec<u8>> {
        let dropped = [spec::REPLICAS, spec::MIN_READY_SECONDS];
        Some(self.raw.update(annotations, self.template.as_ref()?, &dropped, |spec| {
            spec.put_int(spec::REPLICAS, replicas.into());
            spec.put_int(spec::MIN_READY_SECONDS, min_ready_seconds.into());
        }))
    }

    /// Returns the object for a PUT of this status.
    pub fn status_update(&self, status: &ReplicaSetStatus) -> Vec<u8> {
        self.raw.status_update(&AnnotationEdits::new(), &status.splice(self.raw.status()))
    }
}

impl ReplicaSetStatus {
    /// Returns true if the statuses are equal except for the number of terminating pods, which both have or both lack.
    pub fn differs_only_in_terminating(&self, other: &Self) -> bool {
        Self { terminating_replicas: other.terminating_replicas, ..self.clone() } == *other
            && self.terminating_replicas.is_some() == other.terminating_replicas.is_some()
    }

    const FIELDS: [u32; 7] = [
        status::REPLICAS,
        status::FULLY_LABELED_REPLICAS,
        status::OBSERVED_GENERATION,
        status::READY_REPLICAS,
        status::AVAILABLE_REPLICAS,
        status::CONDITIONS,
        status::TERMINATING_REPLICAS,
    ];

    fn splice(&self, old: &[u8]) -> Vec<u8> {
        splice(old, &Self::FIELDS, |out| {
            out.put_int(status::REPLICAS, self.replicas.into());
            out.put_int(status::FULLY_LABELED_REPLICAS, self.fully_labeled_replicas.into());
            out.put_int(status::OBSERVED_GENERATION, self.observed_generation);
            out.put_int(status::READY_REPLICAS, self.ready_replicas.into());
            out.put_int(status::AVAILABLE_REPLICAS, self.available_replicas.into());
            if let Some(terminating) = self.terminating_replicas {
                out.put_int(status::TERMINATING_REPLICAS, terminating.into());
            }
            for condition in &self.conditions {
                condition.put(out, status::CONDITIONS, &CONDITION);
            }
        })
    }

    fn decode(context: &Decode, message: &[u8]) -> Result<Self, DecodeError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::REPLICAS => status.replicas = field.value.i32(),
                status::FULLY_LABELED_REPLICAS => status.fully_labeled_replicas = field.value.i32(),
                status::OBSERVED_GENERATION => status.observed_generation = field.value.i64(),
                status::READY_REPLICAS => status.ready_replicas = field.value.i32(),
                status::AVAILABLE_REPLICAS => status.available_replicas = field.value.i32(),
                status::TERMINATING_REPLICAS => status.terminating_replicas = Some(field.value.i32()),
                status::CONDITIONS => {
                    status.conditions.push(Condition::decode(&context.interner, &CONDITION, field.value.bytes())?);
                }
                _ => {}
            }
        }
        Ok(status)
    }
}

impl Kind for ReplicaSet {
    const RESOURCE: Resource =
        Resource { group: "apps", version: "v1", kind: "ReplicaSet", plural: "replicasets", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with(context, object, |interner, spec| match find_last(spec, spec::SELECTOR)? {
            Some(selector) => Selector::decode(interner, selector),
            None => Ok(Selector::Nothing),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl ReplicaSet {
    /// Decodes an object with a ReplicaSet's fields; `selector` decodes its selector from the spec.
    pub(crate) fn decode_with(
        context: &Decode,
        object: &[u8],
        selector: impl FnOnce(&Interner, &[u8]) -> Result<Selector, WireError>,
    ) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let (meta, annotations) = annotated_meta(&context.interner, meta)?;
        let whole = context.sections.contains(Self::TEMPLATE);
        let mut set = Self {
            meta,
            annotations,
            replicas: 0,
            min_ready_seconds: 0,
            selector: selector(&context.interner, spec)?,
            template: None,
            status: ReplicaSetStatus::decode(context, status)?,
            raw: if whole { Raw::keep(object)? } else { Raw::default() },
        };
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::REPLICAS => set.replicas = field.value.i32(),
                spec::MIN_READY_SECONDS => set.min_ready_seconds = field.value.i32(),
                spec::TEMPLATE if whole => set.template = Some(Template::decode(context, field.value.bytes())?),
                _ => {}
            }
        }
        Ok(set)
    }
}

/// Returns the last field with this number, if there is one.
fn find_last(message: &[u8], number: u32) -> Result<Option<&[u8]>, WireError> {
    let mut found = None;
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            found = Some(field.value.bytes());
        }
    }
    Ok(found)
}
