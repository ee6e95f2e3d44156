//! A pod with its readiness gates and their conditions.
//!
//! This is a separate record, so that the records of pods for other controllers do not grow. A process that needs gates
//! watches pods in this form only.

use std::collections::HashMap;

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::wire::schema::{pod_condition, pod_readiness_gate, pod_spec, pod_status};
use crate::wire::{WireError, fields, find};

/// `status` of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Status {
    /// There is no such condition.
    #[default]
    Unset,
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`, or any other word.
    Unknown,
}

impl Status {
    fn parse(word: &str) -> Self {
        match word {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }

    /// Returns the API's word; empty for [`Status::Unset`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unset => "",
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A readiness gate, and the condition that it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    /// The condition's type.
    pub condition: Str,
    /// The condition's status.
    pub status: Status,
    /// Its reason, for machines.
    pub reason: Str,
    /// Its human-readable message.
    pub message: Str,
}

/// A pod with its readiness gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatedPod {
    /// Metadata.
    pub meta: Meta,
    /// All of its containers are ready: only gates may keep it from being ready.
    pub containers_ready: bool,
    /// Its gates; nearly all pods have none.
    pub gates: Box<[Gate]>,
}

impl GatedPod {
    /// Returns the gates whose condition type has this prefix.
    pub fn prefixed_gates<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Gate> {
        self.gates.iter().filter(move |gate| gate.condition.starts_with(prefix))
    }

    /// Returns true if the pod's containers are ready, at least one gate is not true, and all gates that are not true
    /// have this prefix.
    pub fn waits_only_for(&self, prefix: &str) -> bool {
        let open = |gate: &&Gate| gate.status != Status::True;
        let mut open = self.gates.iter().filter(open).peekable();
        self.containers_ready && open.peek().is_some() && open.all(|gate| gate.condition.starts_with(prefix))
    }
}

impl Kind for GatedPod {
    const RESOURCE: Resource = Resource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };
    const MANY: bool = true;

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let mut pod = Self {
            meta: Meta::decode(&context.interner, meta, |_, _| {})?,
            containers_ready: false,
            gates: gates(context, spec)?,
        };
        pod.read_conditions(context, status)?;
        Ok(pod)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

fn gates(context: &Decode, spec: &[u8]) -> Result<Box<[Gate]>, WireError> {
    let mut gates = Vec::new();
    for field in fields(spec) {
        let field = field?;
        if field.number == pod_spec::READINESS_GATES {
            let condition = find(field.value.bytes(), pod_readiness_gate::CONDITION_TYPE);
            let empty = context.interner.str("");
            gates.push(Gate {
                condition: context.interner.str(std::str::from_utf8(condition).unwrap_or_default()),
                status: Status::Unset,
                reason: empty.clone(),
                message: empty,
            });
        }
    }
    Ok(gates.into())
}

/// A condition of a pod.
#[derive(Default)]
struct Condition<'a> {
    kind: &'a str,
    status: &'a str,
    reason: &'a str,
    message: &'a str,
}

impl<'a> Condition<'a> {
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut condition = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                pod_condition::TYPE => condition.kind = field.value.str(),
                pod_condition::STATUS => condition.status = field.value.str(),
                pod_condition::REASON => condition.reason = field.value.str(),
                pod_condition::MESSAGE => condition.message = field.value.str(),
                _ => {}
            }
        }
        Ok(condition)
    }
}

impl GatedPod {
    /// Reads the conditions of the pod's gates. The cost is linear in the size of the pod, whose author chooses the
    /// numbers of gates and conditions. Of several conditions with one type the last one counts.
    fn read_conditions(&mut self, context: &Decode, status: &[u8]) -> Result<(), WireError> {
        let mut conditions = HashMap::new();
        for field in fields(status) {
            let field = field?;
            if field.number == pod_status::CONDITIONS {
                let condition = Condition::read(field.value.bytes())?;
                if condition.kind == "ContainersReady" {
                    self.containers_ready = condition.status == "True";
                }
                if !self.gates.is_empty() {
                    conditions.insert(condition.kind, condition);
                }
            }
        }
        for gate in &mut self.gates {
            if let Some(condition) = conditions.get(&*gate.condition) {
                gate.status = Status::parse(condition.status);
                gate.reason = context.interner.str(condition.reason);
                gate.message = context.interner.str(condition.message);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::Sections;
    use crate::wire::Put;
    use crate::wire::schema::object_meta;

    fn pod(gates: &[&str], conditions: &[(&str, &str)]) -> GatedPod {
        let mut object = Vec::new();
        object.put_message(Parts::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "web-0");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(Parts::SPEC, |spec| {
            for gate in gates {
                spec.put_message(pod_spec::READINESS_GATES, |out| {
                    out.put_str(pod_readiness_gate::CONDITION_TYPE, gate);
                });
            }
        });
        object.put_message(Parts::STATUS, |out| {
            for (kind, status) in conditions {
                out.put_message(pod_status::CONDITIONS, |out| {
                    out.put_str(pod_condition::TYPE, kind);
                    out.put_str(pod_condition::STATUS, status);
                    out.put_str(pod_condition::REASON, "Why");
                });
            }
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        GatedPod::decode(&context, &object).expect("well-formed")
    }

    #[test]
    fn gates_have_status_and_reason_of_their_conditions() {
        let read = pod(&["a.example/x", "b.example/y"], &[("b.example/y", "False"), ("Ready", "True")]);
        let gates: Vec<_> = read.gates.iter().map(|gate| (&*gate.condition, gate.status, &*gate.reason)).collect();
        assert_eq!(gates, [("a.example/x", Status::Unset, ""), ("b.example/y", Status::False, "Why")]);
        assert_eq!(read.prefixed_gates("b.").count(), 1);
        assert!(pod(&[], &[("Ready", "True")]).gates.is_empty());
    }

    #[test]
    fn cost_is_linear_in_the_number_of_gates() {
        let names: Vec<String> = (0..20_000).map(|number| format!("a.example/gate-{number}")).collect();
        let gates: Vec<&str> = names.iter().map(String::as_str).collect();
        let conditions: Vec<(&str, &str)> = gates.iter().map(|gate| (*gate, "True")).collect();
        let started = std::time::Instant::now();
        assert!(pod(&gates, &conditions).gates.iter().all(|gate| gate.status == Status::True));
        // A comparison of all pairs would take half a minute in a debug build.
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "took {:?}", started.elapsed());
    }

    #[test]
    fn pod_waits_only_for_a_prefix_when_its_containers_and_all_other_gates_are_ready() {
        let ready = ("ContainersReady", "True");
        for (gates, conditions, expected) in [
            (&["a.example/x"][..], &[ready][..], true),
            (&["a.example/x", "b.example/y"], &[ready], false),
            (&["a.example/x", "b.example/y"], &[ready, ("b.example/y", "True")], true),
            (&["a.example/x"], &[ready, ("a.example/x", "True")], false),
            (&["a.example/x"], &[("ContainersReady", "False")], false),
            (&[], &[ready], false),
        ] {
            assert_eq!(pod(gates, conditions).waits_only_for("a.example/"), expected, "{gates:?} {conditions:?}");
        }
    }
}
