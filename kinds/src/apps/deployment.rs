//! Deployment: its scale, strategy, template and status.

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Labels, label};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::template::raw_object::{AnnotationEdits, Raw, StrategyMessage, StrategyMessageFields, annotated_meta};
use crate::template::{POD_TEMPLATE_HASH, Template};
use crate::value::condition::{Condition, ConditionFields, splice};
use crate::value::int_or_string::IntOrString;
use crate::value::selector::Selector;
use crate::wire::schema::{
    deployment_condition as condition, deployment_spec as spec, deployment_status as status, deployment_strategy,
    label_selector, object_meta, replica_set, replica_set_spec, rolling_update_deployment,
};
use crate::wire::{Put, WireError, fields};

const CONDITION: ConditionFields = ConditionFields {
    kind: condition::TYPE,
    status: condition::STATUS,
    reason: condition::REASON,
    message: condition::MESSAGE,
    last_update: Some(condition::LAST_UPDATE_TIME),
    last_transition: condition::LAST_TRANSITION_TIME,
};

/// `spec.strategy`: the replacement of old pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// All old pods are deleted before new ones are created.
    Recreate,
    /// Old pods are replaced gradually, within these bounds; an absent bound is zero.
    RollingUpdate {
        /// Number of pods that may be missing.
        max_unavailable: Option<IntOrString>,
        /// Number of pods that may be added.
        max_surge: Option<IntOrString>,
    },
    /// An unknown type.
    Other(String),
}

/// A Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Metadata.
    pub meta: Meta,
    /// Annotations, except the one that `kubectl apply` sets.
    pub annotations: Labels,
    /// Desired pods.
    pub replicas: i32,
    /// Selector of the ReplicaSets that it may own.
    pub selector: Selector,
    /// Template of its pods; only with section [`Deployment::TEMPLATE`].
    pub template: Option<Template>,
    /// The replacement of old pods.
    pub strategy: Strategy,
    /// Seconds for which a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Number of old ReplicaSets to keep.
    pub revision_history_limit: Option<i32>,
    /// True while rollouts are halted.
    pub paused: bool,
    /// Seconds without progress after which a rollout is reported as stuck.
    pub progress_deadline_seconds: Option<i32>,
    /// `status`, as last read.
    pub status: DeploymentStatus,
    /// Raw `spec.selector`; only with section [`Deployment::TEMPLATE`].
    raw_selector: Vec<u8>,
    raw: Raw,
}

/// `status` of a Deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeploymentStatus {
    /// Generation of the spec that this status refers to.
    pub observed_generation: i64,
    /// Pods of all ReplicaSets.
    pub replicas: i32,
    /// Pods of the newest template.
    pub updated_replicas: i32,
    /// Ready pods.
    pub ready_replicas: i32,
    /// Pods that have been ready for long enough.
    pub available_replicas: i32,
    /// Number of desired pods that are not available.
    pub unavailable_replicas: i32,
    /// Pods that are being deleted; absent until every ReplicaSet reports its number.
    pub terminating_replicas: Option<i32>,
    /// Number of name collisions of new ReplicaSets.
    pub collision_count: Option<i32>,
    /// `conditions`, in their order in the object.
    pub conditions: Vec<Condition>,
}

/// The parts of a new ReplicaSet that its Deployment decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewReplicaSet {
    /// Its name.
    pub name: String,
    /// Value of the hash label on it, its selector and its template.
    pub hash: String,
    /// Its scale.
    pub replicas: i32,
    /// All its annotations.
    pub annotations: Vec<(String, String)>,
}

impl Deployment {
    /// Section: the pod template, and the raw object for a PUT.
    pub const TEMPLATE: Sections = Sections(1);

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        label(&self.annotations, key)
    }

    /// Returns the object for a PUT with another template, unless `template` is `None`, and with these edits of its
    /// annotations. `None` if the template was not decoded, because a PUT would lose fields.
    pub fn update(&self, template: Option<&Template>, annotations: &AnnotationEdits) -> Option<Vec<u8>> {
        Some(self.raw.update(annotations, template.or(self.template.as_ref())?, &[], |_| {}))
    }

    /// Returns the object for a PUT of this status with these edits of the annotations, which the API server applies,
    /// too.
    pub fn status_update(&self, status: &DeploymentStatus, annotations: &AnnotationEdits) -> Vec<u8> {
        self.raw.status_update(annotations, &status.splice(self.raw.status()))
    }

    /// Returns a `ReplicaSet` message for this Deployment's template. `None` if the template was not decoded. Upstream:
    /// pkg/controller/deployment, getNewReplicaSet.
    pub fn new_replica_set(&self, new: &NewReplicaSet) -> Option<Vec<u8>> {
        let template = self.template.as_ref()?.with_label(POD_TEMPLATE_HASH, Some(&new.hash));
        let mut object = Vec::new();
        object.put_message(replica_set::METADATA, |meta| {
            meta.put_str(object_meta::NAME, &new.name);
            meta.put_str(object_meta::NAMESPACE, &self.meta.namespace);
            for (key, value) in template.labels.iter() {
                meta.put_entry(object_meta::LABELS, key, value);
            }
            for (key, value) in &new.annotations {
                meta.put_entry(object_meta::ANNOTATIONS, key, value);
            }
            self.controller_ref().put(meta, object_meta::OWNER_REFERENCES);
        });
        object.put_message(replica_set::SPEC, |spec| {
            spec.put_int(replica_set_spec::REPLICAS, new.replicas.into());
            spec.put_int(replica_set_spec::MIN_READY_SECONDS, self.min_ready_seconds.into());
            spec.put_message(replica_set_spec::SELECTOR, |selector| {
                selector.extend_from_slice(&self.raw_selector);
                selector.put_entry(label_selector::MATCH_LABELS, POD_TEMPLATE_HASH, &new.hash);
            });
            spec.put_bytes(replica_set_spec::TEMPLATE, &template.encode());
        });
        Some(object)
    }
}

impl DeploymentStatus {
    /// Returns true if the statuses are equal except for the number of terminating pods, which both have or both lack.
    pub fn differs_only_in_terminating(&self, other: &Self) -> bool {
        Self { terminating_replicas: other.terminating_replicas, ..self.clone() } == *other
            && self.terminating_replicas.is_some() == other.terminating_replicas.is_some()
    }

    const FIELDS: [u32; 9] = [
        status::OBSERVED_GENERATION,
        status::REPLICAS,
        status::UPDATED_REPLICAS,
        status::AVAILABLE_REPLICAS,
        status::UNAVAILABLE_REPLICAS,
        status::CONDITIONS,
        status::READY_REPLICAS,
        status::COLLISION_COUNT,
        status::TERMINATING_REPLICAS,
    ];

    fn splice(&self, old: &[u8]) -> Vec<u8> {
        splice(old, &Self::FIELDS, |out| {
            out.put_int(status::OBSERVED_GENERATION, self.observed_generation);
            out.put_int(status::REPLICAS, self.replicas.into());
            out.put_int(status::UPDATED_REPLICAS, self.updated_replicas.into());
            out.put_int(status::AVAILABLE_REPLICAS, self.available_replicas.into());
            out.put_int(status::UNAVAILABLE_REPLICAS, self.unavailable_replicas.into());
            out.put_int(status::READY_REPLICAS, self.ready_replicas.into());
            if let Some(count) = self.collision_count {
                out.put_int(status::COLLISION_COUNT, count.into());
            }
            if let Some(terminating) = self.terminating_replicas {
                out.put_int(status::TERMINATING_REPLICAS, terminating.into());
            }
            for condition in &self.conditions {
                condition.put(out, status::CONDITIONS, &CONDITION);
            }
        })
    }

    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::OBSERVED_GENERATION => status.observed_generation = field.value.i64(),
                status::REPLICAS => status.replicas = field.value.i32(),
                status::UPDATED_REPLICAS => status.updated_replicas = field.value.i32(),
                status::AVAILABLE_REPLICAS => status.available_replicas = field.value.i32(),
                status::UNAVAILABLE_REPLICAS => status.unavailable_replicas = field.value.i32(),
                status::READY_REPLICAS => status.ready_replicas = field.value.i32(),
                status::COLLISION_COUNT => status.collision_count = Some(field.value.i32()),
                status::TERMINATING_REPLICAS => status.terminating_replicas = Some(field.value.i32()),
                status::CONDITIONS => {
                    status.conditions.push(Condition::decode(interner, &CONDITION, field.value.bytes())?)
                }
                _ => {}
            }
        }
        Ok(status)
    }
}

impl Strategy {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let numbers = StrategyMessageFields {
            kind: deployment_strategy::TYPE,
            rolling_update: deployment_strategy::ROLLING_UPDATE,
            max_unavailable: rolling_update_deployment::MAX_UNAVAILABLE,
            max_surge: rolling_update_deployment::MAX_SURGE,
        };
        let StrategyMessage { kind, max_unavailable, max_surge } = StrategyMessage::read(message, &numbers)?;
        Ok(match kind {
            "Recreate" => Self::Recreate,
            "RollingUpdate" => Self::RollingUpdate { max_unavailable, max_surge },
            other => Self::Other(other.to_owned()),
        })
    }
}

impl Kind for Deployment {
    const RESOURCE: Resource =
        Resource { group: "apps", version: "v1", kind: "Deployment", plural: "deployments", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let (meta, annotations) = annotated_meta(&context.interner, meta)?;
        let whole = context.sections.contains(Self::TEMPLATE);
        let mut deployment = Self {
            meta,
            annotations,
            replicas: 0,
            selector: Selector::Nothing,
            template: None,
            strategy: Strategy::Other(String::new()),
            min_ready_seconds: 0,
            revision_history_limit: None,
            paused: false,
            progress_deadline_seconds: None,
            status: DeploymentStatus::decode(&context.interner, status)?,
            raw_selector: Vec::new(),
            raw: if whole { Raw::keep(object)? } else { Raw::default() },
        };
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::REPLICAS => deployment.replicas = field.value.i32(),
                spec::SELECTOR => {
                    deployment.selector = Selector::decode(&context.interner, field.value.bytes())?;
                    if whole {
                        deployment.raw_selector = field.value.bytes().to_vec();
                    }
                }
                spec::TEMPLATE if whole => deployment.template = Some(Template::decode(context, field.value.bytes())?),
                spec::STRATEGY => deployment.strategy = Strategy::decode(field.value.bytes())?,
                spec::MIN_READY_SECONDS => deployment.min_ready_seconds = field.value.i32(),
                spec::REVISION_HISTORY_LIMIT => deployment.revision_history_limit = Some(field.value.i32()),
                spec::PAUSED => deployment.paused = field.value.bool(),
                spec::PROGRESS_DEADLINE_SECONDS => deployment.progress_deadline_seconds = Some(field.value.i32()),
                _ => {}
            }
        }
        Ok(deployment)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
