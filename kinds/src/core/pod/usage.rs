//! Use of quota by a pod: its requests and limits, and the scopes that it is in.

use std::collections::HashMap;
use std::sync::Arc;

use super::Pod as Record;
use crate::decode::{Decode, Sections};
use crate::value::resource_list::{Amount, Amounts, add, raise, read_entry};
use crate::wire::schema::{
    affinity, container, container_status, object_meta, pod_affinity, pod_affinity_term, pod_anti_affinity,
    pod_condition, pod_extended_resource_claim_status, pod_spec, pod_status, resource_requirements,
    weighted_pod_affinity_term,
};
use crate::wire::{Put, WireError, fields, find};

/// Field numbers of the packed form, which never leaves the process.
mod packed {
    pub const REQUEST: u32 = 1;
    pub const LIMIT: u32 = 2;
    pub const PRIORITY_CLASS: u32 = 3;
    pub const TERMINATING: u32 = 4;
    pub const BEST_EFFORT: u32 = 5;
    pub const CROSSES: u32 = 6;
    pub const EXTENDED_CLAIM: u32 = 7;
    pub const GRACE: u32 = 8;
}

/// A pod's use of quota, packed; pods of one template share it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PackedUsage(Arc<[u8]>);

/// A pod's use of quota.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage<'a> {
    /// Requests of its containers and of the pod itself.
    pub requests: Amounts<'a>,
    /// Limits of its containers and of the pod itself.
    pub limits: Amounts<'a>,
    /// Name of its priority class; empty without one.
    pub priority_class: &'a str,
    /// `spec.activeDeadlineSeconds` is set and not negative: the scope `Terminating` contains the pod.
    pub terminating: bool,
    /// Its QoS class is BestEffort: by its status, or, if that has no class, because it has neither requests nor limits
    /// of CPU and memory.
    pub best_effort: bool,
    /// A term of its affinity or anti-affinity has a list or a selector of namespaces.
    pub crosses_namespaces: bool,
    /// Name of the claim that was created for its extended resources; empty without one.
    pub extended_claim: &'a str,
    /// Grace period of its deletion in seconds.
    pub grace: i64,
}

impl PackedUsage {
    /// Computes and packs the use of quota by a pod.
    pub(super) fn read(context: &Decode, meta: &[u8], spec: &[u8], status: &[u8]) -> Result<Self, WireError> {
        let usage = Usage::read(meta, spec, status, context.sections)?;
        let mut out = Vec::new();
        for (number, amounts) in [(packed::REQUEST, &usage.requests), (packed::LIMIT, &usage.limits)] {
            amounts.iter().for_each(|(name, amount)| out.put_entry(number, name, &amount.exact_text()));
        }
        out.put_str(packed::PRIORITY_CLASS, usage.priority_class);
        out.put_bool(packed::TERMINATING, usage.terminating);
        out.put_bool(packed::BEST_EFFORT, usage.best_effort);
        out.put_bool(packed::CROSSES, usage.crosses_namespaces);
        out.put_str(packed::EXTENDED_CLAIM, usage.extended_claim);
        out.put_int(packed::GRACE, usage.grace);
        Ok(Self(context.interner.blob(&out)))
    }

    /// Returns true if both values share the same memory.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Unpacks the usage.
    pub fn unpack(&self) -> Usage<'_> {
        let mut usage = Usage::default();
        for field in fields(&self.0).flatten() {
            match field.number {
                packed::REQUEST => unpack_amount(&mut usage.requests, field.value.bytes()),
                packed::LIMIT => unpack_amount(&mut usage.limits, field.value.bytes()),
                packed::PRIORITY_CLASS => usage.priority_class = field.value.str(),
                packed::TERMINATING => usage.terminating = field.value.bool(),
                packed::BEST_EFFORT => usage.best_effort = field.value.bool(),
                packed::CROSSES => usage.crosses_namespaces = field.value.bool(),
                packed::EXTENDED_CLAIM => usage.extended_claim = field.value.str(),
                packed::GRACE => usage.grace = field.value.i64(),
                _ => {}
            }
        }
        usage
    }
}

fn unpack_amount<'a>(amounts: &mut Amounts<'a>, entry: &'a [u8]) {
    let (name, text) = crate::wire::map_entry(entry).unwrap_or_default();
    amounts.extend(Amount::from_exact_text(text).map(|amount| (name, amount)));
}

/// Requests and limits, of a container or of a pod.
#[derive(Debug, Clone, Default)]
struct Resources<'a> {
    requests: Amounts<'a>,
    limits: Amounts<'a>,
}

impl<'a> Resources<'a> {
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                resource_requirements::REQUESTS => read_entry(&mut read.requests, field.value.bytes())?,
                resource_requirements::LIMITS => read_entry(&mut read.limits, field.value.bytes())?,
                _ => {}
            }
        }
        Ok(read)
    }

    /// Keeps only the resources that a pod as a whole may request (component-helpers/resource,
    /// IsSupportedPodLevelResource).
    fn pod_level_only(mut self) -> Self {
        let supported = |name: &&str| matches!(*name, "cpu" | "memory") || name.starts_with("hugepages-");
        self.requests.retain(|name, _| supported(name));
        self.limits.retain(|name, _| supported(name));
        self
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }

    /// Returns true if no request and no limit of CPU or memory is greater than zero.
    fn has_no_cpu_or_memory(&self) -> bool {
        let has_neither = |amounts: &Amounts<'_>| {
            ["cpu", "memory"].iter().all(|name| amounts.get(name).is_none_or(|amount| amount.is_zero()))
        };
        has_neither(&self.requests) && has_neither(&self.limits)
    }
}

/// The fields of a container that determine its use of quota.
#[derive(Debug)]
struct Container<'a> {
    name: &'a str,
    resources: Resources<'a>,
    sidecar: bool,
}

impl<'a> Container<'a> {
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self { name: "", resources: Resources::default(), sidecar: false };
        for field in fields(message) {
            let field = field?;
            match field.number {
                container::NAME => read.name = field.value.str(),
                container::RESOURCES => read.resources = Resources::read(field.value.bytes())?,
                container::RESTART_POLICY => read.sidecar = field.value.str() == "Always",
                _ => {}
            }
        }
        Ok(read)
    }
}

/// The resources of a container as reported by the kubelet.
#[derive(Debug, Default)]
struct KubeletResources<'a> {
    allocated: Amounts<'a>,
    actual: Resources<'a>,
}

/// The fields of a pod that determine its use of quota.
#[derive(Debug, Default)]
struct Pod<'a> {
    containers: Vec<Container<'a>>,
    init: Vec<Container<'a>>,
    reported: HashMap<&'a str, KubeletResources<'a>>,
    /// The node has permanently refused a resize of the pod.
    infeasible: bool,
    pod_level: Resources<'a>,
    /// The resources of the pod itself alone determine its QoS class, even if they are empty.
    pod_level_decides: bool,
    overhead: Amounts<'a>,
    qos: &'a str,
}

/// A function that returns a container's requests or limits, which are then summed over the containers.
type AmountsView<'v, 'a> = &'v dyn Fn(&Container<'a>, Option<&KubeletResources<'a>>) -> Amounts<'a>;

impl<'a> Pod<'a> {
    /// Returns the resources that all containers need together. Init containers run one after the other before the
    /// regular ones; a sidecar runs in addition to all containers after it (component-helpers/resource,
    /// aggregateContainerResourcesByFn).
    fn sum(&self, view: AmountsView<'_, 'a>) -> Amounts<'a> {
        let of = |container: &Container<'a>| view(container, self.reported.get(container.name));
        let (mut sum, mut sidecars, mut init_peak) = (Amounts::new(), Amounts::new(), Amounts::new());
        self.containers.iter().for_each(|container| add(&mut sum, &of(container)));
        for container in &self.init {
            let mut amounts = of(container);
            if container.sidecar {
                add(&mut sum, &amounts);
                add(&mut sidecars, &amounts);
                amounts = sidecars.clone();
            } else {
                add(&mut amounts, &sidecars);
            }
            raise(&mut init_peak, &amounts);
        }
        raise(&mut sum, &init_peak);
        sum
    }

    /// Returns the requests with the overhead. The amounts that the kubelet reports as allocated and as actual always
    /// count: the result is the maximum of these and of the requests of the containers. The requests of the containers
    /// do not count if the node has refused a change permanently. Requests of the pod itself override the sum of the
    /// containers (component-helpers/resource, PodRequests).
    fn requests(&self) -> Amounts<'a> {
        let requested = |container: &Container<'a>| {
            if self.infeasible { Amounts::new() } else { container.resources.requests.clone() }
        };
        let allocated = |reported: Option<&KubeletResources<'a>>| {
            reported.map(|reported| &reported.allocated).filter(|amounts| !amounts.is_empty()).cloned()
        };
        let actual = |reported: Option<&KubeletResources<'a>>| {
            reported.map(|reported| &reported.actual.requests).filter(|amounts| !amounts.is_empty()).cloned()
        };
        let mut sum = self.sum(&|container, reported| allocated(reported).unwrap_or_else(|| requested(container)));
        let actual = self.sum(&|container, reported| {
            actual(reported).or_else(|| allocated(reported)).unwrap_or_else(|| requested(container))
        });
        raise(&mut sum, &actual);
        if !self.infeasible {
            raise(&mut sum, &self.sum(&|container, _| container.resources.requests.clone()));
        }
        sum.extend(self.pod_level.requests.iter().map(|(name, amount)| (*name, *amount)));
        add(&mut sum, &self.overhead);
        sum
    }

    /// Like [`Pod::requests`], for limits; overhead only increases existing ones (component-helpers/resource,
    /// PodLimits).
    fn limits(&self) -> Amounts<'a> {
        let mut sum = self.sum(&|container, reported| {
            let actual = reported.map(|reported| &reported.actual.limits).filter(|amounts| !amounts.is_empty());
            match actual {
                Some(actual) => actual.clone(),
                None if self.infeasible => Amounts::new(),
                None => container.resources.limits.clone(),
            }
        });
        if !self.infeasible {
            raise(&mut sum, &self.sum(&|container, _| container.resources.limits.clone()));
        }
        sum.extend(self.pod_level.limits.iter().map(|(name, amount)| (*name, *amount)));
        for (name, amount) in &self.overhead {
            if let Some(limit) = sum.get_mut(name).filter(|limit| !limit.is_zero()) {
                *limit = limit.plus(*amount);
            }
        }
        sum
    }

    /// Returns true if the QoS class is BestEffort: by the status, or, if it has no class, because there are no
    /// requests and no limits of CPU or memory. Upstream: pkg/apis/core/v1/helper/qos, ComputePodQOS.
    fn is_best_effort(&self) -> bool {
        match self.qos {
            "" if !self.pod_level.is_empty() || self.pod_level_decides => self.pod_level.has_no_cpu_or_memory(),
            "" => self.containers.iter().chain(&self.init).all(|container| container.resources.has_no_cpu_or_memory()),
            class => class == "BestEffort",
        }
    }

    fn read_status(&mut self, status: &'a [u8]) -> Result<(), WireError> {
        for field in fields(status) {
            let field = field?;
            let message = field.value.bytes();
            match field.number {
                pod_status::QOS_CLASS => self.qos = field.value.str(),
                pod_status::CONTAINER_STATUSES | pod_status::INIT_CONTAINER_STATUSES => {
                    let mut name = "";
                    let mut reported = KubeletResources::default();
                    for field in fields(message) {
                        let field = field?;
                        match field.number {
                            container_status::NAME => name = field.value.str(),
                            container_status::ALLOCATED_RESOURCES => {
                                read_entry(&mut reported.allocated, field.value.bytes())?;
                            }
                            container_status::RESOURCES => reported.actual = Resources::read(field.value.bytes())?,
                            _ => {}
                        }
                    }
                    self.reported.entry(name).or_insert(reported);
                }
                pod_status::CONDITIONS if find(message, pod_condition::TYPE) == b"PodResizePending" => {
                    self.infeasible = find(message, pod_condition::REASON) == b"Infeasible";
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Affinity and anti-affinity have the same fields.
const _: () = {
    assert!(
        pod_affinity::REQUIRED == pod_anti_affinity::REQUIRED
            && pod_affinity::PREFERRED == pod_anti_affinity::PREFERRED
    );
};

impl<'a> Usage<'a> {
    fn read(meta: &'a [u8], spec: &'a [u8], status: &'a [u8], sections: Sections) -> Result<Self, WireError> {
        let (mut usage, mut pod) = (Self::default(), Pod::default());
        for field in fields(spec) {
            let field = field?;
            let message = field.value.bytes();
            match field.number {
                pod_spec::CONTAINERS => pod.containers.push(Container::read(message)?),
                pod_spec::INIT_CONTAINERS => pod.init.push(Container::read(message)?),
                pod_spec::OVERHEAD => read_entry(&mut pod.overhead, message)?,
                pod_spec::RESOURCES if sections.contains(Record::CONTAINER_RESOURCES_ONLY) => {}
                pod_spec::RESOURCES => {
                    pod.pod_level = Resources::read(message)?.pod_level_only();
                    pod.pod_level_decides = sections.contains(Record::ANY_POD_RESOURCES_DECIDE);
                }
                pod_spec::PRIORITY_CLASS_NAME => usage.priority_class = field.value.str(),
                pod_spec::ACTIVE_DEADLINE_SECONDS => usage.terminating = field.value.i64() >= 0,
                pod_spec::AFFINITY => usage.crosses_namespaces = crosses_namespaces(message)?,
                _ => {}
            }
        }
        pod.read_status(status)?;
        for field in fields(meta) {
            let field = field?;
            if field.number == object_meta::DELETION_GRACE_PERIOD_SECONDS {
                usage.grace = field.value.i64();
            }
        }
        let claim =
            find(find(status, pod_status::EXTENDED_RESOURCE_CLAIM_STATUS), pod_extended_resource_claim_status::NAME);
        usage.extended_claim = std::str::from_utf8(claim).unwrap_or_default();
        usage.requests = pod.requests();
        usage.limits = pod.limits();
        usage.best_effort = pod.is_best_effort();
        Ok(usage)
    }
}

/// Returns true if a term of affinity or anti-affinity has a list or a selector of namespaces. Upstream:
/// pkg/quota/v1/evaluator/core, usesCrossNamespacePodAffinity.
fn crosses_namespaces(message: &[u8]) -> Result<bool, WireError> {
    let crosses = |term: &[u8]| {
        fields(term)
            .flatten()
            .any(|field| matches!(field.number, pod_affinity_term::NAMESPACES | pod_affinity_term::NAMESPACE_SELECTOR))
    };
    for field in fields(message) {
        let field = field?;
        if !matches!(field.number, affinity::POD_AFFINITY | affinity::POD_ANTI_AFFINITY) {
            continue;
        }
        for term in fields(field.value.bytes()) {
            let term = term?;
            let crossing = match term.number {
                pod_affinity::REQUIRED => crosses(term.value.bytes()),
                pod_affinity::PREFERRED => {
                    crosses(find(term.value.bytes(), weighted_pod_affinity_term::POD_AFFINITY_TERM))
                }
                _ => false,
            };
            if crossing {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::schema::quantity;

    fn amounts(out: &mut Vec<u8>, number: u32, amounts: &[(&str, &str)]) {
        for (name, amount) in amounts {
            out.put_message(number, |entry| {
                entry.put_str(1, name);
                entry.put_message(2, |message| message.put_str(quantity::STRING, amount));
            });
        }
    }

    fn put_container(out: &mut Vec<u8>, number: u32, name: &str, requests: &[(&str, &str)], sidecar: bool) {
        out.put_message(number, |message| {
            message.put_str(container::NAME, name);
            message.put_message(container::RESOURCES, |resources| {
                amounts(resources, resource_requirements::REQUESTS, requests);
                amounts(resources, resource_requirements::LIMITS, requests);
            });
            if sidecar {
                message.put_str(container::RESTART_POLICY, "Always");
            }
        });
    }

    fn packed(spec: &[u8], status: &[u8]) -> PackedUsage {
        packed_with(Sections::default(), spec, status)
    }

    fn packed_with(sections: Sections, spec: &[u8], status: &[u8]) -> PackedUsage {
        let context = Decode { interner: Arc::default(), sections };
        PackedUsage::read(&context, &[], spec, status).expect("well-formed")
    }

    #[test]
    fn gates_decide_how_pod_level_resources_count() {
        let on = Sections::default();
        let off = Record::CONTAINER_RESOURCES_ONLY;
        let any = Record::ANY_POD_RESOURCES_DECIDE;
        for (name, pod_level, sections, cpu, best_effort) in [
            ("none", None, on, "1", false),
            ("more", Some(&[("cpu", "3")][..]), on, "3", false),
            ("more, without PodLevelResources", Some(&[("cpu", "3")]), off, "1", false),
            ("empty", Some(&[]), on, "1", false),
            ("empty, without PodLevelResourcesFixKubeletQOSClass", Some(&[]), any, "1", true),
            ("empty, without both gates", Some(&[]), off | any, "1", false),
        ] {
            let mut spec = Vec::new();
            let requests = [("cpu", "1"), ("ephemeral-storage", "32Mi")];
            put_container(&mut spec, pod_spec::CONTAINERS, "a", &requests, false);
            if let Some(pod_level) = pod_level {
                spec.put_message(pod_spec::RESOURCES, |resources| {
                    amounts(resources, resource_requirements::REQUESTS, pod_level);
                    amounts(resources, resource_requirements::LIMITS, pod_level);
                });
            }
            let packed = packed_with(sections, &spec, &[]);
            let usage = packed.unpack();
            assert_eq!((usage.requests["cpu"].to_string().as_str(), usage.best_effort), (cpu, best_effort), "{name}");
            let expected = [format!("cpu={cpu}"), "ephemeral-storage=32Mi".to_owned()];
            assert_eq!([texts(&usage.requests), texts(&usage.limits)], [expected.clone(), expected], "{name}");
        }
    }

    fn texts(amounts: &Amounts<'_>) -> Vec<String> {
        amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
    }

    #[test]
    fn init_containers_count_one_at_a_time_and_sidecars_in_addition() {
        let mut spec = Vec::new();
        put_container(&mut spec, pod_spec::CONTAINERS, "a", &[("cpu", "1"), ("memory", "64Mi")], false);
        put_container(&mut spec, pod_spec::CONTAINERS, "b", &[("cpu", "500m")], false);
        put_container(&mut spec, pod_spec::INIT_CONTAINERS, "side", &[("cpu", "100m")], true);
        put_container(&mut spec, pod_spec::INIT_CONTAINERS, "init", &[("cpu", "3"), ("memory", "32Mi")], false);
        amounts(&mut spec, pod_spec::OVERHEAD, &[("cpu", "10m"), ("ephemeral-storage", "1Gi")]);
        let packed = packed(&spec, &[]);
        let usage = packed.unpack();
        assert_eq!(texts(&usage.requests), ["cpu=3110m", "ephemeral-storage=1Gi", "memory=64Mi"]);
        assert_eq!(texts(&usage.limits), ["cpu=3110m", "memory=64Mi"]);
        assert!(!usage.best_effort);
    }

    #[test]
    fn resize_counts_until_it_is_refused_permanently() {
        let mut spec = Vec::new();
        put_container(&mut spec, pod_spec::CONTAINERS, "a", &[("cpu", "4")], false);
        let status = |reason: &str| {
            let mut status = Vec::new();
            status.put_message(pod_status::CONTAINER_STATUSES, |message| {
                message.put_str(container_status::NAME, "a");
                amounts(message, container_status::ALLOCATED_RESOURCES, &[("cpu", "1")]);
            });
            status.put_message(pod_status::CONDITIONS, |condition| {
                condition.put_str(pod_condition::TYPE, "PodResizePending");
                condition.put_str(pod_condition::REASON, reason);
            });
            status
        };
        for (reason, expected) in [("Deferred", "cpu=4"), ("Infeasible", "cpu=1")] {
            let packed = packed(&spec, &status(reason));
            assert_eq!(texts(&packed.unpack().requests), [expected], "{reason}");
        }
    }

    #[test]
    fn larger_of_requested_and_actual_resources_counts() {
        let of_spec = [("cpu", "100m"), ("memory", "200Mi")];
        for (actual, expected) in [
            (&[][..], ["cpu=100m", "memory=200Mi"]),
            (&[("memory", "150Mi")], ["cpu=100m", "memory=200Mi"]),
            (&[("cpu", "150m")], ["cpu=150m", "memory=200Mi"]),
            (&[("cpu", "150m"), ("memory", "250Mi")], ["cpu=150m", "memory=250Mi"]),
        ] {
            let mut spec = Vec::new();
            put_container(&mut spec, pod_spec::CONTAINERS, "a", &of_spec, false);
            let mut status = Vec::new();
            status.put_message(pod_status::CONTAINER_STATUSES, |message| {
                message.put_str(container_status::NAME, "a");
                message.put_message(container_status::RESOURCES, |resources| {
                    amounts(resources, resource_requirements::REQUESTS, actual);
                });
            });
            let packed = packed(&spec, &status);
            let usage = packed.unpack();
            assert_eq!(texts(&usage.requests), expected, "{actual:?}");
            assert_eq!(texts(&usage.limits), ["cpu=100m", "memory=200Mi"], "{actual:?}");
        }
    }

    #[test]
    fn any_term_of_affinity_with_a_list_or_selector_of_namespaces_crosses_them() {
        const LABEL_SELECTOR: u32 = 1;
        for kind in [affinity::POD_AFFINITY, affinity::POD_ANTI_AFFINITY] {
            for (field, expected) in [
                (pod_affinity_term::NAMESPACES, true),
                (pod_affinity_term::NAMESPACE_SELECTOR, true),
                (LABEL_SELECTOR, false),
            ] {
                let required = |terms: &mut Vec<u8>| {
                    terms.put_message(pod_affinity::REQUIRED, |term| term.put_str(field, "any"));
                };
                let preferred = |terms: &mut Vec<u8>| {
                    terms.put_message(pod_affinity::PREFERRED, |weighted| {
                        weighted.put_message(weighted_pod_affinity_term::POD_AFFINITY_TERM, |term| {
                            term.put_str(field, "any");
                        });
                    });
                };
                for terms in [&required as &dyn Fn(&mut Vec<u8>), &preferred] {
                    let mut message = Vec::new();
                    message.put_message(kind, terms);
                    assert_eq!(crosses_namespaces(&message).expect("well-formed"), expected, "{kind} {field}");
                }
            }
        }
    }

    #[test]
    fn scopes_are_decoded() {
        let nothing = packed(&[], &[]);
        assert_eq!(nothing.unpack(), Usage { best_effort: true, ..Usage::default() });
        let mut spec = Vec::new();
        spec.put_str(pod_spec::PRIORITY_CLASS_NAME, "high");
        spec.put_int(pod_spec::ACTIVE_DEADLINE_SECONDS, 0);
        spec.put_message(pod_spec::AFFINITY, |message| {
            message.put_message(affinity::POD_ANTI_AFFINITY, |message| {
                message.put_message(pod_affinity::PREFERRED, |message| {
                    message.put_message(weighted_pod_affinity_term::POD_AFFINITY_TERM, |term| {
                        term.put_message(pod_affinity_term::NAMESPACE_SELECTOR, |_| {});
                    });
                });
            });
        });
        let mut status = Vec::new();
        status.put_str(pod_status::QOS_CLASS, "Burstable");
        let packed = packed(&spec, &status);
        let usage = packed.unpack();
        assert_eq!((usage.priority_class, usage.terminating, usage.crosses_namespaces), ("high", true, true));
        assert!(!usage.best_effort, "the server reports another class");
    }
}
