//! PodDisruptionBudget: selector, bounds and status.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::value::int_or_string::IntOrString;
use crate::value::selector::Selector;
use crate::value::time::Time;
use crate::wire::schema::{
    condition, pod_disruption_budget as object, pod_disruption_budget_spec as spec,
    pod_disruption_budget_status as status,
};
use crate::wire::splice::edited;
use crate::wire::{self, Put, WireError, fields, find, find_str};

/// The condition that reports whether pods may be disrupted.
pub const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";

/// A PodDisruptionBudget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDisruptionBudget {
    /// Metadata.
    pub meta: Meta,
    /// The pods that it protects.
    pub selector: Selector,
    /// Minimum number of available pods.
    pub min_available: Option<IntOrString>,
    /// Maximum number of unavailable pods; takes precedence over [`PodDisruptionBudget::min_available`].
    pub max_unavailable: Option<IntOrString>,
    /// `status`, as last read.
    pub status: BudgetStatus,
    /// The selector as the server sent it.
    raw_selector: Box<[u8]>,
    /// Metadata without managed fields, and status, for a PUT of the status.
    raw: Arc<[u8]>,
}

/// `status` of a PodDisruptionBudget, without conditions of other clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BudgetStatus {
    /// Generation of the spec that this status refers to.
    pub observed_generation: i64,
    /// Names of pods whose eviction was granted and not observed yet, with the time of the grant; sorted by name.
    pub disrupted_pods: Vec<(Str, Time)>,
    /// Number of pods that may be disrupted now.
    pub disruptions_allowed: i32,
    /// Healthy pods.
    pub current_healthy: i32,
    /// Required number of healthy pods.
    pub desired_healthy: i32,
    /// Expected number of pods.
    pub expected_pods: i32,
    /// The condition [`DISRUPTION_ALLOWED`], if there is one.
    pub allowed: Option<AllowedCondition>,
}

/// The condition [`DISRUPTION_ALLOWED`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedCondition {
    /// `True` or `False`.
    pub status: Box<str>,
    /// Machine-readable reason.
    pub reason: Box<str>,
    /// Human-readable message.
    pub message: Box<str>,
    /// Generation of the spec that the condition refers to.
    pub observed_generation: i64,
    /// Time of the last change of its status.
    pub last_transition: Time,
}

impl AllowedCondition {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                condition::STATUS => read.status = field.value.str().into(),
                condition::REASON => read.reason = field.value.str().into(),
                condition::MESSAGE => read.message = field.value.str().into(),
                condition::OBSERVED_GENERATION => read.observed_generation = field.value.i64(),
                condition::LAST_TRANSITION_TIME => read.last_transition = Time::decode(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(read)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_message(status::CONDITIONS, |message| {
            message.put_str(condition::TYPE, DISRUPTION_ALLOWED);
            message.put_str(condition::STATUS, &self.status);
            message.put_int(condition::OBSERVED_GENERATION, self.observed_generation);
            self.last_transition.put(message, condition::LAST_TRANSITION_TIME);
            message.put_str(condition::REASON, &self.reason);
            message.put_str(condition::MESSAGE, &self.message);
        });
    }
}

fn is_allowed_condition(condition: &[u8]) -> bool {
    find(condition, condition::TYPE) == DISRUPTION_ALLOWED.as_bytes()
}

impl BudgetStatus {
    fn decode(context: &Decode, message: &[u8]) -> Result<Self, WireError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                status::OBSERVED_GENERATION => status.observed_generation = field.value.i64(),
                status::DISRUPTED_PODS => {
                    let entry = field.value.bytes();
                    let name = find_str(entry, 1);
                    status.disrupted_pods.push((context.interner.str(name), Time::decode(find(entry, 2))?));
                }
                status::DISRUPTIONS_ALLOWED => status.disruptions_allowed = field.value.i32(),
                status::CURRENT_HEALTHY => status.current_healthy = field.value.i32(),
                status::DESIRED_HEALTHY => status.desired_healthy = field.value.i32(),
                status::EXPECTED_PODS => status.expected_pods = field.value.i32(),
                status::CONDITIONS if is_allowed_condition(field.value.bytes()) => {
                    status.allowed = Some(AllowedCondition::decode(field.value.bytes())?);
                }
                _ => {}
            }
        }
        status.disrupted_pods.sort_unstable();
        Ok(status)
    }

    const FIELDS: [u32; 7] = [
        status::OBSERVED_GENERATION,
        status::DISRUPTED_PODS,
        status::DISRUPTIONS_ALLOWED,
        status::CURRENT_HEALTHY,
        status::DESIRED_HEALTHY,
        status::EXPECTED_PODS,
        status::CONDITIONS,
    ];

    /// Merges this status into an old one; conditions of other clients and unknown fields are kept.
    fn splice(&self, old: &[u8]) -> Result<Vec<u8>, WireError> {
        let mut status = Vec::with_capacity(old.len() + 128);
        wire::copy_fields(old, &mut status, |field| !Self::FIELDS.contains(&field.number))?;
        status.put_int(status::OBSERVED_GENERATION, self.observed_generation);
        for (name, since) in &self.disrupted_pods {
            status.put_message(status::DISRUPTED_PODS, |entry| {
                entry.put_str(1, name);
                since.put(entry, 2);
            });
        }
        status.put_int(status::DISRUPTIONS_ALLOWED, self.disruptions_allowed.into());
        status.put_int(status::CURRENT_HEALTHY, self.current_healthy.into());
        status.put_int(status::DESIRED_HEALTHY, self.desired_healthy.into());
        status.put_int(status::EXPECTED_PODS, self.expected_pods.into());
        let mut allowed = self.allowed.as_ref();
        for condition in fields(old).flatten().filter(|field| field.number == status::CONDITIONS) {
            if is_allowed_condition(condition.value.bytes()) {
                if let Some(allowed) = allowed.take() {
                    allowed.put(&mut status);
                }
            } else {
                status.extend_from_slice(condition.raw);
            }
        }
        if let Some(allowed) = allowed {
            allowed.put(&mut status);
        }
        Ok(status)
    }
}

impl PodDisruptionBudget {
    /// Returns the object for a PUT of this status.
    pub fn status_update(&self, status: &BudgetStatus) -> Vec<u8> {
        // The object was decoded before, so it is well-formed.
        let spliced = status.splice(find(&self.raw, object::STATUS)).unwrap_or_default();
        let keep = |field: &wire::Field<'_>| field.number != object::STATUS;
        edited(&self.raw, &[], keep, |object| object.put_bytes(object::STATUS, &spliced)).unwrap_or_default()
    }

    /// Returns the selector as text, formatted as in upstream's messages.
    pub fn selector_text(&self) -> String {
        crate::value::selector::format_like_go(&self.raw_selector)
    }
}

impl Kind for PodDisruptionBudget {
    const RESOURCE: Resource = Resource {
        group: "policy",
        version: "v1",
        kind: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut budget = Self {
            meta: Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?,
            selector: Selector::Nothing,
            min_available: None,
            max_unavailable: None,
            status: BudgetStatus::decode(context, find(object, object::STATUS))?,
            raw_selector: Box::default(),
            raw: edited(object, &[], |field| field.number == object::STATUS, |_| {})?.into(),
        };
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            match field.number {
                spec::MIN_AVAILABLE => budget.min_available = Some(IntOrString::decode(field.value.bytes())?),
                spec::MAX_UNAVAILABLE => budget.max_unavailable = Some(IntOrString::decode(field.value.bytes())?),
                spec::SELECTOR => {
                    budget.selector = Selector::decode(&context.interner, field.value.bytes())?;
                    budget.raw_selector = field.value.bytes().into();
                }
                _ => {}
            }
        }
        Ok(budget)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Sections;
    use crate::wire::schema::{int_or_string, label_selector, object_meta};

    fn object() -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "web");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_str(object_meta::MANAGED_FIELDS, "large");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_message(spec::MAX_UNAVAILABLE, |message| {
                message.put_int(int_or_string::TYPE, 1);
                message.put_str(int_or_string::STR_VAL, "25%");
            });
            spec.put_message(spec::SELECTOR, |message| message.put_entry(label_selector::MATCH_LABELS, "app", "web"));
        });
        object.put_message(object::STATUS, |status| {
            status.put_message(status::CONDITIONS, |condition| condition.put_str(condition::TYPE, "Foreign"));
            status.put_message(status::CONDITIONS, |condition| {
                condition.put_str(condition::TYPE, DISRUPTION_ALLOWED);
                condition.put_str(condition::STATUS, "True");
            });
            status.put_message(status::DISRUPTED_PODS, |entry| {
                entry.put_str(1, "b");
                Time(5).put(entry, 2);
            });
            status.put_str(99, "unknown");
        });
        object
    }

    fn decode(object: &[u8]) -> PodDisruptionBudget {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        PodDisruptionBudget::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn status_update_keeps_conditions_of_other_clients() {
        let budget = decode(&object());
        assert_eq!(budget.max_unavailable, Some(IntOrString::Text("25%".into())));
        assert_eq!(budget.status.disrupted_pods, [("b".into(), Time(5))]);
        let mut status = budget.status.clone();
        status.disrupted_pods.clear();
        status.disruptions_allowed = 3;
        status.allowed.as_mut().expect("it is present").reason = "SufficientPods".into();
        let written = budget.status_update(&status);
        assert_eq!(decode(&written).status, status);
        assert!(find(find(&written, object::METADATA), object_meta::MANAGED_FIELDS).is_empty());
        let raw = find(&written, object::STATUS);
        assert_eq!(find(raw, 99), b"unknown");
        let kinds: Vec<&[u8]> = fields(raw)
            .flatten()
            .filter(|field| field.number == status::CONDITIONS)
            .map(|field| find(field.value.bytes(), condition::TYPE))
            .collect();
        assert_eq!(kinds, [&b"Foreign"[..], DISRUPTION_ALLOWED.as_bytes()]);
    }

    #[test]
    fn selector_is_formatted_as_upstream() {
        let expected =
            "&LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{},}";
        assert_eq!(decode(&object()).selector_text(), expected);
    }
}
