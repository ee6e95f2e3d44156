//! DaemonSet: selector, template, placement, update strategy and status.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Labels, label};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, ObjectKey, Parts};
use crate::scheduling::placement::{NodeSpecTemplate, Placement};
use crate::scheduling::taint::Toleration;
use crate::template::Template;
use crate::template::raw_object::{AnnotationEdits, Raw, StrategyMessage, StrategyMessageFields, annotated_meta};
use crate::value::condition::splice;
use crate::value::int_or_string::IntOrString;
use crate::value::selector::Selector;
use crate::wire::schema::{
    daemon_set as object, daemon_set_spec as spec, daemon_set_status as status,
    daemon_set_update_strategy as update_strategy, rolling_update_daemon_set as rolling_update,
};
use crate::wire::{Put, WireError, copy_fields, fields};

/// The annotation with the number of template changes, from the time before ControllerRevisions.
pub const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// The label of pods with the value of [`TEMPLATE_GENERATION`] at their creation.
pub const TEMPLATE_GENERATION_LABEL: &str = "pod-template-generation";

/// The label of pods and revisions with the revision's hash.
pub const REVISION_HASH_LABEL: &str = "controller-revision-hash";

/// A DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonSet {
    /// Metadata.
    pub meta: Meta,
    /// Annotations, except the one that `kubectl apply` sets.
    pub annotations: Labels,
    /// Selector of the pods that it may own.
    pub selector: Selector,
    /// Template of its pods; only with section [`DaemonSet::TEMPLATE`].
    pub template: Option<Template>,
    /// Placement of the template's pods; only with section [`DaemonSet::TEMPLATE`].
    pub placement: Option<Arc<Placement>>,
    /// The replacement of old pods.
    pub strategy: Strategy,
    /// Seconds for which a pod must be ready to count as available.
    pub min_ready_seconds: i32,
    /// Number of old revisions to keep.
    pub revision_history_limit: Option<i32>,
    /// `status`, as last read.
    pub status: DaemonSetStatus,
    raw: Raw,
}

/// `spec.updateStrategy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strategy {
    /// Pods are replaced when a user deletes them.
    OnDelete,
    /// Pods are replaced within bounds.
    RollingUpdate {
        /// Number of nodes that may lack an available pod.
        max_unavailable: Option<IntOrString>,
        /// Number of nodes that may have a second pod.
        max_surge: Option<IntOrString>,
    },
    /// An unknown type.
    Other(String),
}

/// `status` of a DaemonSet, without conditions, which no controller sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DaemonSetStatus {
    /// Nodes that should have a pod and have one.
    pub current: i32,
    /// Nodes that should not have a pod and have one.
    pub misscheduled: i32,
    /// Nodes that should have a pod.
    pub desired: i32,
    /// Nodes that should have a pod and have one that is ready.
    pub ready: i32,
    /// Generation of the spec that this status refers to.
    pub observed_generation: i64,
    /// Nodes that should have a pod and have one of the current revision.
    pub updated: i32,
    /// Nodes that should have a pod and have one that has been ready for long enough.
    pub available: i32,
    /// Nodes that should have a pod and have none that is available.
    pub unavailable: i32,
    /// Number of name collisions of new revisions.
    pub collision_count: Option<i32>,
}

/// A template for the pods of a DaemonSet: everything that they share.
#[derive(Debug, Clone)]
pub struct DaemonPods {
    template: Template,
    spec: NodeSpecTemplate,
}

impl DaemonPods {
    /// Returns the `Pod` message for a node.
    pub fn for_node(&self, node: &str, set: &DaemonSet) -> Vec<u8> {
        let template = Template { spec: self.spec.for_node(node).into(), ..self.template.clone() };
        let key = ObjectKey { namespace: set.meta.namespace.clone(), name: set.meta.name.clone() };
        template.pod(&key, &set.controller_ref())
    }
}

impl DaemonSet {
    /// Section: the pod template, its placement, and the raw object for a PUT of the status.
    pub const TEMPLATE: Sections = Sections(1);

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        label(&self.annotations, key)
    }

    /// Returns the value of the annotation [`TEMPLATE_GENERATION`], if it is a number. Upstream:
    /// pkg/controller/daemon/util, GetTemplateGeneration.
    pub fn template_generation(&self) -> Option<i64> {
        self.annotation(TEMPLATE_GENERATION)?.parse().ok()
    }

    /// Prepares pods of the current template with these tolerations, and with `hash` as the label of its revision,
    /// unless `hash` is empty. `None` if the template was not decoded. Upstream: pkg/controller/daemon/util,
    /// CreatePodTemplate.
    ///
    /// # Errors
    /// When the template is not well-formed.
    pub fn pods(&self, hash: &str, tolerations: &[Toleration<'_>]) -> Result<Option<DaemonPods>, WireError> {
        let Some(template) = &self.template else { return Ok(None) };
        let spec = NodeSpecTemplate::new(&template.spec, tolerations)?;
        let mut template = template.clone();
        if let Some(generation) = self.template_generation() {
            template = template.with_label(TEMPLATE_GENERATION_LABEL, Some(&generation.to_string()));
        }
        if !hash.is_empty() {
            template = template.with_label(REVISION_HASH_LABEL, Some(hash));
        }
        Ok(Some(DaemonPods { template, spec }))
    }

    /// Returns the object for a PUT of this status.
    pub fn status_update(&self, status: &DaemonSetStatus) -> Vec<u8> {
        self.raw.status_update(&AnnotationEdits::new(), &status.splice(self.raw.status()))
    }
}

impl DaemonSetStatus {
    const FIELDS: [u32; 9] = [
        status::CURRENT_NUMBER_SCHEDULED,
        status::NUMBER_MISSCHEDULED,
        status::DESIRED_NUMBER_SCHEDULED,
        status::NUMBER_READY,
        status::OBSERVED_GENERATION,
        status::UPDATED_NUMBER_SCHEDULED,
        status::NUMBER_AVAILABLE,
        status::NUMBER_UNAVAILABLE,
        status::COLLISION_COUNT,
    ];

    fn splice(&self, old: &[u8]) -> Vec<u8> {
        splice(old, &Self::FIELDS, |out| {
            out.put_int(status::CURRENT_NUMBER_SCHEDULED, self.current.into());
            out.put_int(status::NUMBER_MISSCHEDULED, self.misscheduled.into());
            out.put_int(status::DESIRED_NUMBER_SCHEDULED, self.desired.into());
            out.put_int(status::NUMBER_READY, self.ready.into());
            out.put_int(status::OBSERVED_GENERATION, self.observed_generation);
            out.put_int(status::UPDATED_NUMBER_SCHEDULED, self.updated.into());
            out.put_int(status::NUMBER_AVAILABLE, self.available.into());
            out.put_int(status::NUMBER_UNAVAILABLE, self.unavailable.into());
            if let Some(count) = self.collision_count {
                out.put_int(status::COLLISION_COUNT, count.into());
            }
        })
    }

    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::CURRENT_NUMBER_SCHEDULED => status.current = field.value.i32(),
                status::NUMBER_MISSCHEDULED => status.misscheduled = field.value.i32(),
                status::DESIRED_NUMBER_SCHEDULED => status.desired = field.value.i32(),
                status::NUMBER_READY => status.ready = field.value.i32(),
                status::OBSERVED_GENERATION => status.observed_generation = field.value.i64(),
                status::UPDATED_NUMBER_SCHEDULED => status.updated = field.value.i32(),
                status::NUMBER_AVAILABLE => status.available = field.value.i32(),
                status::NUMBER_UNAVAILABLE => status.unavailable = field.value.i32(),
                status::COLLISION_COUNT => status.collision_count = Some(field.value.i32()),
                _ => {}
            }
        }
        Ok(status)
    }
}

impl Strategy {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let numbers = StrategyMessageFields {
            kind: update_strategy::TYPE,
            rolling_update: update_strategy::ROLLING_UPDATE,
            max_unavailable: rolling_update::MAX_UNAVAILABLE,
            max_surge: rolling_update::MAX_SURGE,
        };
        let StrategyMessage { kind, max_unavailable, max_surge } = StrategyMessage::read(message, &numbers)?;
        Ok(match kind {
            "OnDelete" => Self::OnDelete,
            "RollingUpdate" => Self::RollingUpdate { max_unavailable, max_surge },
            other => Self::Other(other.to_owned()),
        })
    }
}

impl Kind for DaemonSet {
    const RESOURCE: Resource =
        Resource { group: "apps", version: "v1", kind: "DaemonSet", plural: "daemonsets", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let (meta, annotations) = annotated_meta(&context.interner, meta)?;
        let whole = context.sections.contains(Self::TEMPLATE);
        // The spec is not stored: only the status is ever written, and the server ignores the spec in that write.
        let mut written = Vec::new();
        copy_fields(object, &mut written, |field| field.number != object::SPEC)?;
        let mut set = Self {
            meta,
            annotations,
            selector: Selector::Nothing,
            template: None,
            placement: None,
            strategy: Strategy::Other(String::new()),
            min_ready_seconds: 0,
            revision_history_limit: None,
            status: DaemonSetStatus::decode(status)?,
            raw: if whole { Raw::keep(&written)? } else { Raw::default() },
        };
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::SELECTOR => set.selector = Selector::decode(&context.interner, field.value.bytes())?,
                spec::TEMPLATE if whole => {
                    let template = Template::decode(context, field.value.bytes())?;
                    set.placement = Some(Arc::new(Placement::decode(&context.interner, &template.spec)?));
                    set.template = Some(template);
                }
                spec::UPDATE_STRATEGY => set.strategy = Strategy::decode(field.value.bytes())?,
                spec::MIN_READY_SECONDS => set.min_ready_seconds = field.value.i32(),
                spec::REVISION_HISTORY_LIMIT => set.revision_history_limit = Some(field.value.i32()),
                _ => {}
            }
        }
        Ok(set)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
