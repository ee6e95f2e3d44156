//! Resource requests and start of a pod, which autoscalers compare with its usage.

use std::sync::Arc;

use crate::intern::{Interner, Str};
use crate::value::quantity;
use crate::value::time::Time;
use crate::wire::schema::{
    container, pod_condition, pod_spec, pod_status, quantity as quantity_message, resource_requirements,
};
use crate::wire::{WireError, fields, find, find_str};

/// The parts of a pod that autoscalers read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Requests {
    /// Start time reported by the kubelet; zero before that.
    pub started: Time,
    /// Its readiness.
    pub readiness: Readiness,
    /// Requests of its containers, of its init containers and of the pod as a whole, and its overhead. Shared by the
    /// pods of a template.
    pub parts: Arc<[PartRequests]>,
}

/// The state of the Ready condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readiness {
    /// There is no Ready condition.
    #[default]
    Unset,
    /// `False`.
    Unready,
    /// `True`, or `Unknown`.
    Other,
}

/// A part of a pod that requests resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A regular container.
    Container,
    /// An init container that always restarts.
    Sidecar,
    /// Any other init container.
    Init,
    /// The pod as a whole.
    Pod,
    /// The overhead of running the pod, in addition to its containers.
    Overhead,
}

/// The requests of one part of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PartRequests {
    /// The part.
    pub part: Part,
    /// Name of the container; empty for other parts.
    pub name: Str,
    /// Requested resources with their amounts in thousandths, rounded up.
    pub resources: Box<[(Str, i64)]>,
}

impl Interner {
    /// Returns the shared copy of the resource requests of the parts of a pod.
    pub fn part_requests(&self, parts: &[PartRequests]) -> Arc<[PartRequests]> {
        self.records(parts)
    }
}

impl PartRequests {
    /// Returns the requested amount of a resource, in thousandths.
    pub fn amount(&self, resource: &str) -> Option<i64> {
        self.resources.iter().find(|(name, _)| **name == *resource).map(|(_, amount)| *amount)
    }
}

impl Requests {
    pub(super) fn read(interner: &Interner, spec: &[u8], status: &[u8]) -> Result<Self, WireError> {
        // Containers come first, then init containers and the pod as a whole, then the overhead.
        let (mut parts, mut after_containers) = (Vec::new(), Vec::new());
        for field in fields(spec) {
            let field = field?;
            let message = field.value.bytes();
            match field.number {
                pod_spec::CONTAINERS => parts.push(read_container(interner, Part::Container, message)?),
                pod_spec::INIT_CONTAINERS => {
                    let always = find(message, container::RESTART_POLICY) == b"Always";
                    let part = if always { Part::Sidecar } else { Part::Init };
                    after_containers.push(read_container(interner, part, message)?);
                }
                pod_spec::RESOURCES => {
                    let resources = amounts(interner, message, resource_requirements::REQUESTS)?;
                    after_containers.push(PartRequests { part: Part::Pod, name: interner.str(""), resources });
                }
                _ => {}
            }
        }
        parts.append(&mut after_containers);
        let overhead = amounts(interner, spec, pod_spec::OVERHEAD)?;
        if !overhead.is_empty() {
            parts.push(PartRequests { part: Part::Overhead, name: interner.str(""), resources: overhead });
        }
        let mut requests = Self { parts: interner.part_requests(&parts), ..Self::default() };
        for field in fields(status) {
            let field = field?;
            match field.number {
                pod_status::START_TIME => requests.started = Time::decode(field.value.bytes())?,
                pod_status::CONDITIONS if find(field.value.bytes(), pod_condition::TYPE) == b"Ready" => {
                    let unready = find(field.value.bytes(), pod_condition::STATUS) == b"False";
                    requests.readiness = if unready { Readiness::Unready } else { Readiness::Other };
                }
                _ => {}
            }
        }
        Ok(requests)
    }
}

fn read_container(interner: &Interner, part: Part, message: &[u8]) -> Result<PartRequests, WireError> {
    let resources = amounts(interner, find(message, container::RESOURCES), resource_requirements::REQUESTS)?;
    let name = find_str(message, container::NAME);
    Ok(PartRequests { part, name: interner.str(name), resources })
}

/// Returns the entries of a map from resources to quantities.
fn amounts(interner: &Interner, message: &[u8], map: u32) -> Result<Box<[(Str, i64)]>, WireError> {
    let mut amounts = Vec::new();
    for field in fields(message) {
        let field = field?;
        if field.number == map {
            let entry = field.value.bytes();
            let name = find_str(entry, 1);
            let amount = find_str(find(entry, 2), quantity_message::STRING);
            amounts.push((interner.str(name), quantity::thousandths(amount).unwrap_or(0)));
        }
    }
    Ok(amounts.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    fn put_amount(out: &mut Vec<u8>, map: u32, name: &str, amount: &str) {
        out.put_message(map, |entry| {
            entry.put_str(1, name);
            entry.put_message(2, |quantity| quantity.put_str(quantity_message::STRING, amount));
        });
    }

    fn put_container(spec: &mut Vec<u8>, number: u32, name: &str, policy: &str, amount: &str) {
        spec.put_message(number, |message| {
            message.put_str(container::NAME, name);
            message.put_str(container::RESTART_POLICY, policy);
            message.put_message(container::RESOURCES, |resources| {
                put_amount(resources, resource_requirements::REQUESTS, "cpu", amount);
            });
        });
    }

    #[test]
    fn requests_of_all_parts_are_decoded_and_shared() {
        let interner = Interner::default();
        let (mut spec, mut status) = (Vec::new(), Vec::new());
        put_container(&mut spec, pod_spec::INIT_CONTAINERS, "init", "", "2");
        put_container(&mut spec, pod_spec::INIT_CONTAINERS, "proxy", "Always", "50m");
        put_container(&mut spec, pod_spec::CONTAINERS, "main", "", "0.25");
        put_amount(&mut spec, pod_spec::OVERHEAD, "cpu", "1u");
        status.put_message(pod_status::CONDITIONS, |condition| {
            condition.put_str(pod_condition::TYPE, "Ready");
            condition.put_str(pod_condition::STATUS, "False");
        });
        Time(9).put(&mut status, pod_status::START_TIME);
        let read = Requests::read(&interner, &spec, &status).expect("well-formed");
        let parts: Vec<_> =
            read.parts.iter().map(|requests| (requests.part, &*requests.name, requests.amount("cpu"))).collect();
        assert_eq!(
            parts,
            [
                (Part::Container, "main", Some(250)),
                (Part::Init, "init", Some(2000)),
                (Part::Sidecar, "proxy", Some(50)),
                (Part::Overhead, "", Some(1)),
            ]
        );
        assert_eq!((read.started, read.readiness), (Time(9), Readiness::Unready));
        let again = Requests::read(&interner, &spec, &[]).expect("well-formed");
        assert!(Arc::ptr_eq(&read.parts, &again.parts), "shared");
        assert_eq!((again.started, again.readiness), (Time(0), Readiness::Unset));
    }
}
