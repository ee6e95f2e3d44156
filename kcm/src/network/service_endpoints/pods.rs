//! Pods as endpoints: their ports and addresses, and the relevant changes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kinds::endpoint::Port;
use kinds::int_or_string::IntOrString;
use kinds::ip::{Family, Ip};
use kinds::meta::ObjectKey;
use kinds::pod::{NamedPort, Network};
use kinds::service::ServicePort;
use kinds::{Pod, Service, Str};
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::selectors::Selectors;

/// Returns a pod's network identity, which is decoded only with [`Pod::NETWORK`].
pub fn network(pod: &Pod) -> Option<&Network> {
    pod.network.as_deref()
}

/// Returns true if a pod is an endpoint: it has an address and has not ended. Upstream: k8s.io/endpointslice/util,
/// ShouldPodBeInEndpoints.
pub fn is_endpoint(pod: &Pod) -> bool {
    !pod.is_terminal() && network(pod).is_some_and(|network| !network.ips.is_empty())
}

/// Returns the name under which a pod is found in the Service's domain, if it has one. Upstream:
/// k8s.io/endpointslice/util, ShouldSetHostname.
pub fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a Str> {
    let (hostname, subdomain) = &**network(pod)?.host.as_ref()?;
    (!hostname.is_empty() && *subdomain == service.meta.name).then_some(hostname)
}

/// Returns the addresses of a pod, in canonical spelling.
pub fn addresses(pod: &Pod) -> impl Iterator<Item = Ip> {
    network(pod).into_iter().flat_map(|network| network.ips.iter().filter_map(Ip::canonical))
}

/// Returns the ports of a Service on pods with these named ports. Missing ports are left out. Of several ports of a pod
/// with the same name and protocol, the first one counts. Upstream: k8s.io/endpointslice, FindPort.
///
/// Costs O(n + m): the API server limits neither the ports of a Service nor those of a container.
pub fn ports(service: &Service, named: &[NamedPort]) -> Vec<Port> {
    let is_named = service.ports.iter().any(|port| matches!(port.target_port, IntOrString::Text(_)));
    let mut numbers: HashMap<(&str, &str), i32> = HashMap::new();
    for known in named.iter().filter(|_| is_named) {
        numbers.entry((&known.name, &known.protocol)).or_insert(known.number);
    }
    let number = |port: &ServicePort| match &port.target_port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::Text(name) => numbers.get(&(&**name, &*port.protocol)).copied(),
    };
    let port = |port: &ServicePort| {
        Some(Port {
            name: port.name.clone(),
            protocol: port.protocol.clone(),
            number: Some(number(port)?),
            app_protocol: port.app_protocol.clone(),
        })
    };
    service.ports.iter().filter_map(port).collect()
}

/// Returns the families whose addresses a Service publishes. Upstream: k8s.io/endpointslice, getAddressTypesForService.
pub fn families(service: &Service) -> BTreeSet<Family> {
    let named: BTreeSet<Family> = service.families().collect();
    if !named.is_empty() {
        return named;
    }
    match service.cluster_ip_family() {
        Some(family) => [family].into(),
        None => [Family::V4, Family::V6].into(),
    }
}

/// Returns the fields of a pod that its endpoints contain.
fn published_fields(pod: &Pod) -> impl PartialEq {
    let network = network(pod).map(|network| (network.ips.clone(), network.host.clone()));
    (pod.meta.uid.clone(), pod.meta.is_deleting(), pod.ready, network)
}

/// Returns the Services whose endpoints a change of a pod may change. A pod that is an endpoint neither before nor
/// after the change affects no Service. Upstream: k8s.io/endpointslice/util, GetPodUpdateProjectionKey and
/// GetServicesToUpdate.
pub fn services_of(change: &Change<'_, Pod>, selectors: &Selectors) -> Vec<ObjectKey> {
    let matching = |pod: &Pod| {
        let mut keys = Vec::new();
        selectors.matching(&pod.meta.namespace, &pod.meta.labels, |key| keys.push(key.clone()));
        keys
    };
    let relevant = |pod: Option<&Arc<Pod>>| pod.filter(|pod| is_endpoint(pod)).cloned();
    match (relevant(change.old), relevant(change.new)) {
        (None, None) => Vec::new(),
        (Some(pod), None) | (None, Some(pod)) => matching(&pod),
        (Some(old), Some(new)) => {
            let is_changed = published_fields(&old) != published_fields(&new);
            if old.meta.labels == new.meta.labels {
                return if is_changed { matching(&new) } else { Vec::new() };
            }
            // A namespace may have thousands of Services that select the same pods.
            let before: BTreeSet<ObjectKey> = matching(&old).into_iter().collect();
            let after: BTreeSet<ObjectKey> = matching(&new).into_iter().collect();
            if is_changed {
                return before.union(&after).cloned().collect();
            }
            before.symmetric_difference(&after).cloned().collect()
        }
    }
}

/// Enqueues the Services that changes of Services and pods affect. Changes of pods are delayed by the batch period,
/// which is zero by default.
pub fn subscribe(
    services: &Arc<Store<Service>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    batch: Duration,
) {
    let selectors = Arc::new(Selectors::default());
    let (known, changed) = (selectors.clone(), queue.clone());
    services.subscribe(move |change| {
        known.apply(change);
        if let Some(service) = change.new.or(change.old) {
            changed.add(service.meta.key());
        }
    });
    let queue = queue.clone();
    pods.subscribe(move |change| {
        for key in services_of(change, &selectors) {
            queue.add_after(key, batch);
        }
    });
}

#[cfg(test)]
mod tests {
    use kinds::{Interner, Sections};
    use proptest::prelude::*;
    use runtime::testing::{CpuTime, object};

    use super::*;

    fn labels(apps: &[u8]) -> kinds::intern::Labels {
        let pairs = apps.iter().map(|app| (Str::from(format!("app-{app}")), Str::from("web")));
        Interner::default().labels(pairs.collect())
    }

    /// Returns Services, each with the label of a pod that it selects.
    fn services(selected: impl Iterator<Item = u8>) -> Selectors {
        let selectors = Selectors::default();
        for (number, app) in selected.enumerate() {
            let mut service: Service = object(&format!("service-{number:05}"), Sections::default());
            service.selector = labels(&[app]);
            selectors.apply(&Change { old: None, new: Some(&Arc::new(service)) });
        }
        selectors
    }

    fn endpoint(apps: &[u8], is_ready: bool) -> Arc<Pod> {
        let mut made: Pod = object("pod", Pod::NETWORK);
        made.meta.labels = labels(apps);
        made.ready = is_ready;
        made.network = Some(Box::new(Network { ips: [Ip::parse("10.0.0.1")].into(), host: None, ports: Arc::new([]) }));
        Arc::new(made)
    }

    fn changed(old: &Arc<Pod>, new: &Arc<Pod>, selectors: &Selectors) -> Vec<String> {
        let keys = services_of(&Change { old: Some(old), new: Some(new) }, selectors);
        keys.iter().map(|key| key.name.to_string()).collect()
    }

    proptest! {
        /// A Service is reconciled once if it gains or loses the pod, or if it selects the pod and a published field
        /// changed.
        #[test]
        fn services_that_a_change_affects_are_found_once(
            selected in proptest::collection::vec(0u8..4, 0..12),
            old in proptest::collection::btree_set(0u8..4, 0..4),
            new in proptest::collection::btree_set(0u8..4, 0..4),
            is_ready in any::<bool>(),
        ) {
            let selectors = services(selected.iter().copied());
            let apps = |set: &BTreeSet<u8>| set.iter().copied().collect::<Vec<_>>();
            let found = changed(&endpoint(&apps(&old), true), &endpoint(&apps(&new), is_ready), &selectors);
            let expected = selected.iter().enumerate().filter(|(_, app)| {
                let (before, after) = (old.contains(app), new.contains(app));
                before != after || (before && !is_ready)
            });
            let expected: Vec<String> = expected.map(|(number, _)| format!("service-{number:05}")).collect();
            let mut sorted = found.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, expected);
        }
    }

    #[test]
    fn target_port_is_a_number_or_the_first_port_with_its_name_and_protocol() {
        let named = [("a", "UDP", 1), ("a", "TCP", 2), ("a", "TCP", 3), ("b", "SCTP", 4), ("c", "TCP", -1)];
        let named =
            named.map(|(name, protocol, number)| NamedPort { name: name.into(), protocol: protocol.into(), number });
        let text = |name: &str| IntOrString::Text(name.into());
        for (target, named, expected) in [
            (IntOrString::Int(93), &[][..], Some(93)),
            (IntOrString::Int(93), &named, Some(93)),
            (text("a"), &[], None),
            (text("a"), &named, Some(2)),
            (text("b"), &named, None),
            (text("c"), &named, Some(-1)),
            (text("d"), &named, None),
        ] {
            let mut service: Service = object("web", Sections::default());
            service.ports = vec![ServicePort {
                name: "".into(),
                protocol: "TCP".into(),
                app_protocol: Some("https".into()),
                port: 80,
                target_port: target,
                node_port: 0,
            }];
            let found = ports(&service, named);
            assert!(found.iter().all(|port| port.app_protocol.as_deref() == Some("https")));
            let found: Vec<i32> = found.iter().filter_map(|port| port.number).collect();
            assert_eq!(found, Vec::from_iter(expected), "{service:?}");
        }
    }

    /// Upstream: k8s.io/endpointslice/util, podEndpointsChanged.
    #[test]
    fn only_published_fields_of_a_pod_affect_its_services() {
        type Edit = Box<dyn Fn(&mut Pod)>;
        let ips = |list: &'static [&'static str]| {
            move |pod: &mut Pod| {
                pod.network.as_mut().expect("a network").ips = list.iter().map(|ip| Ip::parse(ip)).collect();
            }
        };
        let two = || ips(&["10.0.0.1", "fd00::1"]);
        let rows: [(&str, Edit, Edit, bool); 11] = [
            ("nothing", Box::new(|_| {}), Box::new(|_| {}), false),
            ("node", Box::new(|_| {}), Box::new(|pod| pod.node = "other".into()), false),
            ("version", Box::new(|_| {}), Box::new(|pod| pod.meta.version += 1), false),
            ("first address", Box::new(ips(&[])), Box::new(ips(&["fd00::1"])), true),
            ("other IPv4 address", Box::new(|_| {}), Box::new(ips(&["10.0.0.2"])), true),
            ("other IPv6 address", Box::new(ips(&["fd00::1"])), Box::new(ips(&["fd00::2"])), true),
            ("further address", Box::new(|_| {}), Box::new(two()), true),
            ("other further address", Box::new(two()), Box::new(ips(&["10.0.0.1", "fd00::2"])), true),
            ("no further address", Box::new(two()), Box::new(|_| {}), true),
            ("readiness", Box::new(|_| {}), Box::new(|pod| pod.ready = false), true),
            ("deletion", Box::new(|_| {}), Box::new(|pod| pod.meta.deletion = kinds::Time(5)), true),
        ];
        let selectors = services([0].into_iter());
        for (what, before, after, expected) in rows {
            let edited = |edit: &Edit| {
                let mut pod = (*endpoint(&[0], true)).clone();
                edit(&mut pod);
                Arc::new(pod)
            };
            assert_eq!(changed(&edited(&before), &edited(&after), &selectors).len(), usize::from(expected), "{what}");
        }
    }

    /// A comparison of all pairs of Services would take half a minute.
    #[test]
    fn pod_that_very_many_services_select_is_changed_in_near_linear_time() {
        const SERVICES: usize = 20_000;
        // Services that select the same label are kept in one list: an insertion costs little.
        let selectors = services((0..SERVICES).map(|_| 0));
        let (old, new) = (endpoint(&[0, 1], true), endpoint(&[0, 2], true));
        let started = CpuTime::now();
        assert!(changed(&old, &new, &selectors).is_empty(), "all of them select the pod before and after");
        assert_eq!(changed(&old, &endpoint(&[0, 2], false), &selectors).len(), SERVICES);
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    }
}
