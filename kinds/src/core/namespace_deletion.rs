//! The record of a namespace that is being deleted: finalizers and conditions, and the raw object for PUTs.

use crate::core::namespace::Namespace;
use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::value::condition::{Condition, ConditionFields, splice};
use crate::wire::schema::{
    namespace as object, namespace_condition, namespace_spec, namespace_status, pod, pod_spec, pod_status,
};
use crate::wire::splice::without_managed_fields;
use crate::wire::{Put, fields, find};

const CONDITION: ConditionFields = ConditionFields {
    kind: namespace_condition::TYPE,
    status: namespace_condition::STATUS,
    reason: namespace_condition::REASON,
    message: namespace_condition::MESSAGE,
    last_update: None,
    last_transition: namespace_condition::LAST_TRANSITION_TIME,
};

/// A namespace that is being deleted. It is read from the API server when needed, and never stored in the cache.
#[derive(Debug, Clone)]
pub struct TerminatingNamespace {
    /// Metadata.
    pub meta: Meta,
    /// `spec.finalizers`: the API server keeps the namespace while there are any.
    pub finalizers: Vec<Str>,
    /// Its phase is `Terminating`.
    pub terminating: bool,
    /// Its conditions, in the order of the status.
    pub conditions: Vec<Condition>,
    raw: Vec<u8>,
}

impl TerminatingNamespace {
    /// Returns the object for a PUT of its status with the phase `Terminating` and these conditions.
    pub fn status_update(&self, conditions: &[Condition]) -> Vec<u8> {
        let mut object = self.metadata();
        object.put_bytes(object::SPEC, find(&self.raw, object::SPEC));
        let ours = [namespace_status::PHASE, namespace_status::CONDITIONS];
        let status = splice(find(&self.raw, object::STATUS), &ours, |status| {
            status.put_str(namespace_status::PHASE, "Terminating");
            conditions.iter().for_each(|condition| condition.put(status, namespace_status::CONDITIONS, &CONDITION));
        });
        object.put_bytes(object::STATUS, &status);
        object
    }

    /// Returns the object for a PUT that replaces `spec.finalizers`.
    pub fn finalize(&self, finalizers: &[Str]) -> Vec<u8> {
        let mut object = self.metadata();
        let spec = splice(find(&self.raw, object::SPEC), &[namespace_spec::FINALIZERS], |spec| {
            finalizers.iter().for_each(|finalizer| spec.put_str(namespace_spec::FINALIZERS, finalizer));
        });
        object.put_bytes(object::SPEC, &spec);
        object
    }

    /// Returns true if the namespace still has finalizers after `finalizer` is removed from `spec.finalizers`.
    pub fn has_other_finalizers(&self, finalizer: &str) -> bool {
        !self.meta.finalizers.is_empty() || self.finalizers.iter().any(|other| &**other != finalizer)
    }

    fn metadata(&self) -> Vec<u8> {
        let (mut object, mut meta) = (Vec::new(), Vec::new());
        // The object was decoded before, so it is well-formed.
        let copied = without_managed_fields(find(&self.raw, object::METADATA), &mut meta);
        debug_assert!(copied.is_ok());
        object.put_bytes(object::METADATA, &meta);
        object
    }
}

impl Kind for TerminatingNamespace {
    const RESOURCE: Resource = Namespace::RESOURCE;

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let meta = Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?;
        let mut finalizers = Vec::new();
        let mut terminating = false;
        let mut conditions = Vec::new();
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            if field.number == namespace_spec::FINALIZERS {
                finalizers.push(context.interner.str(field.value.str()));
            }
        }
        for field in fields(find(object, object::STATUS)) {
            let field = field?;
            match field.number {
                namespace_status::PHASE => terminating = field.value.bytes() == b"Terminating",
                namespace_status::CONDITIONS => {
                    conditions.push(Condition::decode(&context.interner, &CONDITION, field.value.bytes())?);
                }
                _ => {}
            }
        }
        Ok(Self { meta, finalizers, terminating, conditions, raw: object.to_vec() })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// Returns the termination grace period in a `Pod` message, in seconds; zero if it is absent or negative, or the pod
/// has terminated.
pub fn pod_grace(object: &[u8]) -> i64 {
    if matches!(find(find(object, pod::STATUS), pod_status::PHASE), b"Succeeded" | b"Failed") {
        return 0;
    }
    let spec = fields(find(object, pod::SPEC)).flatten();
    spec.filter(|field| field.number == pod_spec::TERMINATION_GRACE_PERIOD_SECONDS)
        .last()
        .map_or(0, |field| field.value.i64().max(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::value::time::Time;
    use crate::wire::schema::object_meta;

    fn message(phase: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "n");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_str(object_meta::MANAGED_FIELDS, "long");
            meta.put_entry(object_meta::ANNOTATIONS, "a", "kept");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_str(namespace_spec::FINALIZERS, "kubernetes");
            spec.put_str(namespace_spec::FINALIZERS, "other");
        });
        object.put_message(object::STATUS, |status| status.put_str(namespace_status::PHASE, phase));
        object
    }

    fn decode(object: &[u8]) -> TerminatingNamespace {
        let context = Decode { interner: Arc::default(), sections: crate::decode::Sections::default() };
        TerminatingNamespace::decode(&context, object).expect("a namespace")
    }

    #[test]
    fn update_changes_only_phase_and_conditions() {
        let read = decode(&message("Active"));
        assert_eq!((read.finalizers.len(), read.terminating, read.conditions.len()), (2, false, 0));
        let condition = Condition {
            kind: "NamespaceContentRemaining".into(),
            status: "True".into(),
            reason: "SomeResourcesRemain".into(),
            message: "some".into(),
            last_update: Time(0),
            last_transition: Time(5),
        };
        let written = read.status_update(std::slice::from_ref(&condition));
        assert!(find(find(&written, object::METADATA), object_meta::MANAGED_FIELDS).is_empty());
        assert!(!find(find(&written, object::METADATA), object_meta::ANNOTATIONS).is_empty());
        let again = decode(&written);
        assert_eq!(
            (again.finalizers, again.terminating, again.conditions),
            (read.finalizers.clone(), true, vec![condition])
        );
        let finalized = decode(&read.finalize(&["other".into()]));
        assert_eq!(finalized.finalizers, [Str::from("other")]);
    }

    #[test]
    fn finished_pod_has_no_remaining_grace() {
        let pod = |phase: &str, grace: Option<i64>| {
            let mut object = Vec::new();
            object.put_message(pod::SPEC, |spec| {
                if let Some(grace) = grace {
                    spec.put_int(pod_spec::TERMINATION_GRACE_PERIOD_SECONDS, grace);
                }
            });
            object.put_message(pod::STATUS, |status| status.put_str(pod_status::PHASE, phase));
            object
        };
        for (phase, grace, expected) in
            [("Running", Some(30), 30), ("Pending", None, 0), ("Failed", Some(30), 0), ("Succeeded", Some(30), 0)]
        {
            assert_eq!(pod_grace(&pod(phase, grace)), expected, "{phase} {grace:?}");
        }
    }
}
