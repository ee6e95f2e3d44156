//! The amount of a quota's resource that one object uses. Upstream: pkg/quota/v1/evaluator/core.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use kinds::persistent_volume_claim_usage::ClaimUsage;
use kinds::pod::Usage;
use kinds::resource_claim::{DeviceClass, ResourceClaim};
use kinds::resource_list::Amount;
use kinds::resource_quota::Scope;
use kinds::service::ServiceType;
use kinds::{Pod, Service, Str};

/// Kinds whose objects count for several resources of a quota. Objects of all other kinds count as one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// Pods.
    Pods,
    /// Services.
    Services,
    /// PersistentVolumeClaims.
    VolumeClaims,
    /// ResourceClaims.
    DeviceClaims,
}

impl Family {
    /// All kinds, with their resources.
    pub const ALL: [(Self, &'static str, &'static str); 4] = [
        (Self::Pods, "", "pods"),
        (Self::Services, "", "services"),
        (Self::VolumeClaims, "", "persistentvolumeclaims"),
        (Self::DeviceClaims, "resource.k8s.io", "resourceclaims"),
    ];

    /// Returns true if objects of this family may count for a resource. `classes` matters for extended resources only.
    pub fn counts_for(self, name: &str, classes: &Classes) -> bool {
        match self {
            Self::Pods => is_of_pods(name),
            Self::Services => {
                matches!(name, "services" | "count/services" | "services.nodeports" | "services.loadbalancers")
            }
            Self::VolumeClaims => {
                matches!(name, "persistentvolumeclaims" | "count/persistentvolumeclaims" | "requests.storage")
                    || name
                        .split_once(BY_STORAGE_CLASS)
                        .is_some_and(|(_, what)| matches!(what, "persistentvolumeclaims" | "requests.storage"))
            }
            Self::DeviceClaims => {
                name == "count/resourceclaims.resource.k8s.io"
                    || name.ends_with(BY_DEVICE_CLASS)
                    || extended(name).is_some_and(|resource| classes.has(resource))
            }
        }
    }
}

/// Separator between the name of a storage class and the resource that is counted for it.
const BY_STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
/// Suffix after the name of a device class: the resource counts its devices.
const BY_DEVICE_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// Prefix before the name of a device class that is requested as an extended resource.
const DEVICE_CLASS_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

fn is_of_pods(name: &str) -> bool {
    const PLAIN: [&str; 11] = [
        "pods",
        "count/pods",
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    PLAIN.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
        || extended(name).is_some()
}

/// Returns the extended resource or device class whose requests a quota's resource limits; `None` for resources that
/// Kubernetes itself defines.
fn extended(name: &str) -> Option<&str> {
    let resource = name.strip_prefix("requests.")?;
    let is_extended = name.contains('/') && !name.contains("kubernetes.io/");
    (is_extended || resource.starts_with(DEVICE_CLASS_RESOURCE)).then_some(resource)
}

/// Returns true if a pod still uses anything: it has not finished, and its grace period is not over. Upstream:
/// pkg/quota/v1/evaluator/core, QuotaV1Pod.
///
/// Differs from upstream: a very long grace period, which a user may request, does not overflow. In upstream the sum
/// wraps around to a time in the past, and the pod counts as unused.
pub fn is_in_use(pod: &Pod, grace: i64, now: Timestamp) -> bool {
    !pod.is_terminal() && (!pod.meta.is_deleting() || now.as_second() <= pod.meta.deletion.0.saturating_add(grace))
}

/// Returns the amount of the quota's resource `name` that a pod uses; `in_use` is the result of [`is_in_use`].
pub fn of_pod(name: &str, usage: &Usage<'_>, in_use: bool) -> Amount {
    let from =
        |amounts: &kinds::resource_list::Amounts<'_>, key: &str| amounts.get(key).copied().unwrap_or(Amount::ZERO);
    match name {
        "count/pods" => Amount::count(1),
        _ if !in_use => Amount::ZERO,
        "pods" => Amount::count(1),
        "cpu" | "memory" | "ephemeral-storage" => from(&usage.requests, name),
        _ if name.starts_with("hugepages-") => from(&usage.requests, name),
        _ => match (name.strip_prefix("requests."), name.strip_prefix("limits.")) {
            (Some(resource), _) => from(&usage.requests, resource),
            (_, Some(resource)) => from(&usage.limits, resource),
            _ => Amount::ZERO,
        },
    }
}

/// Returns the amount of the quota's resource `name` that a Service uses. If a Service of type LoadBalancer allocates
/// no node ports, only its ports with a node port are counted.
pub fn of_service(name: &str, service: &Service) -> Amount {
    let all = || i64::try_from(service.ports.len()).unwrap_or(i64::MAX);
    let allocated =
        || i64::try_from(service.ports.iter().filter(|port| port.node_port != 0).count()).unwrap_or(i64::MAX);
    Amount::count(match (name, service.kind) {
        ("services" | "count/services", _) | ("services.loadbalancers", ServiceType::LoadBalancer) => 1,
        ("services.nodeports", ServiceType::NodePort) => all(),
        ("services.nodeports", ServiceType::LoadBalancer) => {
            if service.balancing.as_ref().is_none_or(|balancing| balancing.allocate_node_ports) {
                all()
            } else {
                allocated()
            }
        }
        _ => 0,
    })
}

/// Returns the amount of the quota's resource `name` that a PersistentVolumeClaim uses.
pub fn of_volume_claim(name: &str, claim: &ClaimUsage) -> Amount {
    let what = match name.split_once(BY_STORAGE_CLASS) {
        Some((class, what)) if claim.class.as_deref() == Some(class) => what,
        Some(_) => return Amount::ZERO,
        None => name,
    };
    match what {
        "persistentvolumeclaims" | "count/persistentvolumeclaims" => Amount::count(1),
        "requests.storage" => claim.storage.unwrap_or(Amount::ZERO),
        _ => Amount::ZERO,
    }
}

/// Device classes, and the extended resources that they provide.
#[derive(Debug, Default)]
pub struct Classes {
    names: HashSet<Str>,
    /// An extended resource may have several classes, for example while one replaces another. Devices of each class
    /// count.
    by_resource: HashMap<Str, Vec<Str>>,
}

impl Classes {
    /// Reads device classes.
    pub fn new<'a>(classes: impl IntoIterator<Item = &'a DeviceClass>) -> Self {
        let mut all = Self::default();
        for class in classes {
            all.names.insert(class.meta.name.clone());
            if let Some(resource) = &class.extended_resource {
                all.by_resource.entry(resource.clone()).or_default().push(class.meta.name.clone());
            }
        }
        all
    }

    fn has(&self, resource: &str) -> bool {
        match resource.strip_prefix(DEVICE_CLASS_RESOURCE) {
            Some(class) => self.names.contains(class),
            None => self.by_resource.contains_key(resource),
        }
    }

    /// Returns true if devices of a class count for a resource: an extended resource that the class provides, or
    /// `deviceclass.resource.kubernetes.io/<class>`.
    fn provides(&self, class: &str, resource: &str) -> bool {
        match resource.strip_prefix(DEVICE_CLASS_RESOURCE) {
            Some(name) => name == class && self.names.contains(class),
            None => self.by_resource.get(resource).is_some_and(|classes| classes.iter().any(|name| **name == *class)),
        }
    }
}

/// Returns true if the cluster's device classes may decide which devices count for a quota's resource: the resource is
/// `requests.` with an extended resource or with `deviceclass.resource.kubernetes.io/<class>`.
pub fn may_depend_on_classes(name: &str) -> bool {
    name.strip_prefix("requests.").is_some_and(|resource| resource.contains('/'))
}

/// Returns the amount of the quota's resource `name` that a ResourceClaim uses. `pod` is the usage of the pod for which
/// the claim was created: devices that the pod's requests contain are not counted twice.
pub fn of_device_claim(name: &str, claim: &ResourceClaim, classes: &Classes, pod: Option<&Usage<'_>>) -> Amount {
    let devices = |counts: &dyn Fn(&str) -> bool| {
        let counted = claim.devices.iter().filter(|(class, _)| counts(class));
        counted.fold(Amount::ZERO, |sum, (_, count)| sum.plus(Amount::count(*count)))
    };
    if name == "count/resourceclaims.resource.k8s.io" {
        return Amount::count(1);
    }
    if let Some(class) = name.strip_suffix(BY_DEVICE_CLASS) {
        return devices(&|name| name == class);
    }
    let Some(resource) = extended(name).filter(|resource| classes.has(resource)) else { return Amount::ZERO };
    let counted = pod.map_or(Amount::ZERO, |usage| of_pod(name, usage, true));
    devices(&|class| classes.provides(class, resource)).minus(counted).max(Amount::ZERO)
}

/// Returns true if a pod is in a scope. Upstream: pkg/quota/v1/evaluator/core, podMatchesScopeFunc.
pub fn is_pod_in_scope(scope: &Scope, usage: &Usage<'_>) -> bool {
    match &*scope.name {
        "Terminating" => usage.terminating,
        "NotTerminating" => !usage.terminating,
        "BestEffort" => usage.best_effort,
        "NotBestEffort" => !usage.best_effort,
        "CrossNamespacePodAffinity" => usage.crosses_namespaces,
        "PriorityClass" => matches_scope(scope, Some(usage.priority_class).filter(|class| !class.is_empty())),
        _ => false,
    }
}

/// Returns true if a PersistentVolumeClaim is in a scope. Upstream: pkg/quota/v1/evaluator/core, pvcMatchesScopeFunc.
pub fn is_volume_claim_in_scope(scope: &Scope, claim: &ClaimUsage) -> bool {
    &*scope.name == "VolumeAttributesClass"
        && if claim.attributes.is_empty() {
            matches_scope(scope, None)
        } else {
            claim.attributes.iter().any(|class| matches_scope(scope, Some(class)))
        }
}

/// Returns true if a value matches the operator and values of a scope.
fn matches_scope(scope: &Scope, value: Option<&str>) -> bool {
    let listed = || value.is_some_and(|value| scope.values.iter().any(|wanted| **wanted == *value));
    match &*scope.operator {
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "In" => listed(),
        "NotIn" => !listed(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_counts_for_its_own_resources() {
        let classes = Classes {
            names: ["gpu".into()].into(),
            by_resource: [("example.com/gpu".into(), vec!["gpu".into()])].into(),
        };
        for (name, expected) in [
            ("configmaps", &[][..]),
            ("cpu", &[Family::Pods]),
            ("ephemeral-storage", &[Family::Pods]),
            ("storage", &[]),
            ("services", &[Family::Services]),
            ("count/services", &[Family::Services]),
            ("services.nodeports", &[Family::Services]),
            ("services.loadbalancers", &[Family::Services]),
            ("persistentvolumeclaims", &[Family::VolumeClaims]),
            ("count/persistentvolumeclaims", &[Family::VolumeClaims]),
            ("requests.storage", &[Family::VolumeClaims]),
            ("gold.storageclass.storage.k8s.io/requests.storage", &[Family::VolumeClaims]),
            ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", &[Family::VolumeClaims]),
            ("bronze.storageclass.storage.k8s.io/storage", &[]),
            ("gold.storage.k8s.io/requests.storage", &[]),
            ("resourceclaims", &[]),
            ("count/resourceclaims.resource.k8s.io", &[Family::DeviceClaims]),
            ("gpu.deviceclass.resource.k8s.io/devices", &[Family::DeviceClaims]),
            ("bronze.deviceclass.resource.k8s.io/storage", &[]),
            ("requests.example.com/gpu", &[Family::Pods, Family::DeviceClaims]),
            ("requests.example.com/dongle", &[Family::Pods]),
            ("requests.deviceclass.resource.kubernetes.io/gpu", &[Family::Pods, Family::DeviceClaims]),
            ("requests.deviceclass.resource.kubernetes.io/dongle", &[Family::Pods]),
        ] {
            let families = Family::ALL.iter().map(|(family, ..)| *family);
            let found: Vec<Family> = families.filter(|family| family.counts_for(name, &classes)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn pod_counts_with_its_requests_and_its_limits() {
        let amount = |text: &str| Amount::parse(text).expect("a quantity");
        let requests = [
            ("cpu", "1m"),
            ("memory", "1Mi"),
            ("ephemeral-storage", "32Mi"),
            ("hugepages-2Mi", "100Mi"),
            ("example.com/dongle", "3"),
            ("deviceclass.resource.kubernetes.io/dongle", "4"),
        ];
        let limits = [("cpu", "2m"), ("memory", "2Mi"), ("ephemeral-storage", "64Mi"), ("example.com/dongle", "3")];
        let usage = Usage {
            requests: requests.into_iter().map(|(name, text)| (name, amount(text))).collect(),
            limits: limits.into_iter().map(|(name, text)| (name, amount(text))).collect(),
            ..Usage::default()
        };
        for (name, expected) in [
            ("pods", "1"),
            ("cpu", "1m"),
            ("requests.cpu", "1m"),
            ("limits.cpu", "2m"),
            ("memory", "1Mi"),
            ("requests.memory", "1Mi"),
            ("limits.memory", "2Mi"),
            ("ephemeral-storage", "32Mi"),
            ("requests.ephemeral-storage", "32Mi"),
            ("limits.ephemeral-storage", "64Mi"),
            ("hugepages-2Mi", "100Mi"),
            ("requests.hugepages-2Mi", "100Mi"),
            ("requests.example.com/dongle", "3"),
            ("requests.deviceclass.resource.kubernetes.io/dongle", "4"),
        ] {
            assert_eq!(of_pod(name, &usage, true), amount(expected), "{name}");
            assert_eq!(of_pod(name, &usage, false), Amount::ZERO, "{name}");
        }
    }
}
