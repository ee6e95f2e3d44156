//! Desired Endpoints, and the urgency of their writes, in upstream's cases and others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kinds::endpoint::Target;
use kinds::endpoints::{Address, Endpoints, OVER_CAPACITY, Subset};
use kinds::int_or_string::IntOrString;
use kinds::intern::Labels;
use kinds::ip::Ip;
use kinds::meta::ObjectKey;
use kinds::metadata_edit::{Annotations, NewMetadata};
use kinds::pod::{NamedPort, Network, Phase};
use kinds::schema::{endpoints as f, object_meta};
use kinds::service::ServicePort;
use kinds::wire::{Put, find};
use kinds::{Decode, Interner, Kind, Meta, Pod, Sections, Service, Str, Time, Uid};
use proptest::prelude::*;
use runtime::events::Recorder;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Index, Store};
use runtime::testing::{KeptEvents, NoEvents, counting_writer, deliver_undecodable, filled_store};
use runtime::worker::Reconcile as _;
use runtime::write::Writer;

use super::decide::{CAPACITY, DesiredEndpoints, TRUNCATED, Write, desired, truncate, write};
use super::initial_endpoints::InitialEndpoints;
use super::sync::AllEndpoints;
use crate::pods::creation_gate::CreationGate;
use crate::pods::indexes::by_label;

/// Returns an object with only metadata, in the namespace `ns`.
fn read<K: Kind>(name: &str, sections: Sections) -> K {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        Time(1).put(meta, object_meta::CREATION_TIMESTAMP);
    });
    K::decode(&Decode { interner: Arc::default(), sections }, &object).expect("well-formed")
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    Interner::default().labels(pairs.iter().map(|(key, value)| (Str::from(*key), Str::from(*value))).collect())
}

fn port(name: &str, target: IntOrString) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol: "TCP".into(),
        app_protocol: None,
        port: 80,
        target_port: target,
        node_port: 0,
    }
}

fn service() -> Service {
    let mut service = read::<Service>("web", Sections::default());
    service.meta.labels = labels(&[("app", "web")]);
    service.selector = labels(&[("app", "web")]);
    service.ports = vec![port("", IntOrString::Int(80))];
    service.cluster_ips = vec!["10.1.0.1".into()];
    service.ip_families = vec!["IPv4".into()];
    service
}

fn pod(number: usize) -> Pod {
    let v4 = format!("10.0.{}.{}", number / 256, number % 256);
    let mut pod = read::<Pod>(&format!("web-{number}"), Pod::NETWORK);
    pod.node = "node".into();
    pod.phase = Phase::Running;
    pod.ready = true;
    pod.ready_since = Time(1);
    pod.network = Some(Box::new(Network {
        ips: [Ip::parse(&v4), Ip::parse(&format!("fd00::{number:x}"))].into(),
        host: None,
        ports: Arc::new([]),
    }));
    pod
}

fn unready(pod: Pod) -> Pod {
    Pod { ready: false, ..pod }
}

fn terminating(pod: Pod) -> Pod {
    Pod { meta: Meta { deletion: Time(5), ..pod.meta }, ..pod }
}

fn with_port(mut pod: Pod, number: i32) -> Pod {
    let port = NamedPort { name: "http".into(), protocol: "TCP".into(), number };
    pod.network.as_mut().expect("a network").ports = Arc::new([port]);
    pod
}

fn of(service: &Service, pods: Vec<Pod>) -> DesiredEndpoints {
    desired(service, &pods.into_iter().map(Arc::new).collect::<Vec<_>>()).expect("few ports")
}

/// Subsets as `ready|not ready:ports`.
fn text(subsets: &[Subset]) -> Vec<String> {
    let list = |list: &[Address]| list.iter().map(|address| address.ip.to_string()).collect::<Vec<_>>().join(",");
    let ports = |subset: &Subset| {
        subset.ports.iter().map(|port| port.number.unwrap_or(0).to_string()).collect::<Vec<_>>().join(",")
    };
    subsets
        .iter()
        .map(|subset| format!("{}|{}:{}", list(&subset.ready), list(&subset.not_ready), ports(subset)))
        .collect()
}

/// Returns the object as the server would return it.
fn object(desired: &DesiredEndpoints) -> Endpoints {
    let mark = desired.is_truncated.then_some(TRUNCATED);
    let edits = [(OVER_CAPACITY, mark)];
    let metadata = NewMetadata { labels: &desired.labels, annotations: Annotations::Edited(&edits), owner: None };
    let created = Endpoints::create("ns", "web", &metadata, &desired.subsets);
    let mut object = Vec::new();
    object.put_message(f::METADATA, |meta| {
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.extend(find(&created, f::METADATA));
    });
    kinds::wire::copy_fields(&created, &mut object, |field| field.number != f::METADATA).expect("well-formed");
    Endpoints::decode(&Decode { interner: Arc::default(), sections: Endpoints::WHOLE }, &object).expect("well-formed")
}

#[test]
fn addresses_follow_from_pods_and_service() {
    let headless = || Service { cluster_ips: vec!["None".into()], ports: Vec::new(), ..service() };
    let two = || [port("a", IntOrString::Int(80)), port("b", IntOrString::Int(81))].into();
    let named = || Service { ports: vec![port("", IntOrString::Text("http".into()))], ..service() };
    let published = || Service { publish_not_ready_addresses: true, ..service() };
    for (what, service, pods, expected) in [
        ("none", service(), vec![], vec![]),
        ("ready", service(), vec![pod(2), pod(1)], vec!["10.0.0.1,10.0.0.2|:80"]),
        ("mixed", service(), vec![pod(1), unready(pod(2))], vec!["10.0.0.1|10.0.0.2:80"]),
        ("terminating", service(), vec![terminating(pod(1))], vec![]),
        ("all published", published(), vec![terminating(pod(1)), unready(pod(2))], vec!["10.0.0.1,10.0.0.2|:80"]),
        ("ended", service(), vec![Pod { phase: Phase::Failed, ..pod(1) }], vec![]),
        ("two ports", Service { ports: two(), ..service() }, vec![pod(1)], vec!["10.0.0.1|:80,81"]),
        ("headless without ports", headless(), vec![pod(1), unready(pod(2))], vec!["10.0.0.1|10.0.0.2:"]),
        ("no ports", Service { ports: Vec::new(), ..service() }, vec![pod(1)], vec![]),
        (
            "named",
            named(),
            vec![with_port(pod(1), 80), with_port(pod(2), 81), pod(3)],
            vec!["10.0.0.1|:80", "10.0.0.2|:81"],
        ),
        (
            "v6 first",
            Service { ip_families: vec!["IPv6".into(), "IPv4".into()], ..service() },
            vec![pod(1)],
            vec!["fd00::1|:80"],
        ),
        (
            "by its address",
            Service { ip_families: Vec::new(), cluster_ips: vec!["fd01::1".into()], ..service() },
            vec![pod(1)],
            vec!["fd00::1|:80"],
        ),
        (
            "by the pod's first",
            Service { ip_families: Vec::new(), cluster_ips: vec!["None".into()], ..service() },
            vec![pod(1)],
            vec!["10.0.0.1|:80"],
        ),
    ] {
        assert_eq!(text(&of(&service, pods).subsets), expected, "{what}");
    }
}

#[test]
fn address_names_its_pod_node_and_hostname() {
    let mut named = pod(1);
    named.network.as_mut().expect("a network").host = Some(Box::new(("a".into(), "web".into())));
    let address = of(&service(), vec![named]).subsets.remove(0).ready.remove(0);
    let target = Target::Pod { namespace: "ns".into(), name: "web-1".into(), uid: Uid::parse("web-1") };
    assert_eq!((&*address.hostname, address.node.as_deref(), address.target), ("a", Some("node"), Some(target)));
}

#[test]
fn labels_are_those_of_the_service_and_the_manager() {
    let headless = Service { cluster_ips: vec!["None".into()], ..service() };
    let mut stolen = service();
    stolen.meta.labels =
        labels(&[("endpoints.kubernetes.io/managed-by", "me"), ("service.kubernetes.io/headless", "")]);
    let managed_by = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");
    for (service, expected) in [
        (service(), labels(&[("app", "web"), managed_by])),
        (headless, labels(&[("app", "web"), managed_by, ("service.kubernetes.io/headless", "")])),
        (stolen, labels(&[managed_by])),
    ] {
        assert_eq!(of(&service, vec![]).labels, expected);
    }
}

#[test]
fn surplus_addresses_are_removed_evenly() {
    // (ready and not ready of each subset) -> the same after
    for (before, max, after) in [
        (vec![(10, 0), (5, 5)], 20, vec![(10, 0), (5, 5)]),
        (vec![(10, 10)], 15, vec![(10, 5)]),
        (vec![(10, 10)], 10, vec![(10, 0)]),
        (vec![(20, 10)], 10, vec![(10, 0)]),
        (vec![(8, 4), (8, 4)], 20, vec![(8, 2), (8, 2)]),
        (vec![(50, 5), (100, 5)], 75, vec![(25, 0), (50, 0)]),
        (vec![(3, 0), (3, 0), (3, 0)], 4, vec![(2, 0), (2, 0), (0, 0)]),
        // Go's 110.0 / 200 * 100 is greater than 55.
        (vec![(900, 110), (0, 90)], 1000, vec![(900, 56), (0, 44)]),
    ] {
        let list = |count: usize| {
            (0..count).map(|n| Address { ip: Ip::parse(&n.to_string()), hostname: "".into(), node: None, target: None })
        };
        let subset = |(ready, not_ready): &(usize, usize)| Subset {
            ready: list(*ready).collect(),
            not_ready: list(*not_ready).collect(),
            ports: Vec::new(),
        };
        let mut subsets: Vec<Subset> = before.iter().map(subset).collect();
        assert_eq!(truncate(&mut subsets, max), before != after, "{before:?}");
        let sizes: Vec<_> = subsets.iter().map(|subset| (subset.ready.len(), subset.not_ready.len())).collect();
        assert_eq!(sizes, after, "{before:?} to {max}");
    }
}

#[test]
fn object_with_too_many_addresses_is_annotated_and_written_once() {
    let all = of(&service(), (0..CAPACITY + 10).map(pod).collect());
    assert!(all.is_truncated && all.subsets[0].ready.len() == CAPACITY);
    let written = object(&all);
    assert_eq!(write(Some(&written), &all), Write::No);
    let fewer = of(&service(), (0..CAPACITY).map(pod).collect());
    assert_eq!(write(Some(&written), &fewer), Write::Now, "the annotation is removed");
}

#[test]
fn urgency_of_a_write_follows_from_its_changes() {
    let before = || vec![pod(1), unready(pod(2))];
    let mut relabelled = service();
    relabelled.meta.labels = labels(&[]);
    for (what, service, pods, expected) in [
        ("nothing", service(), before(), Write::No),
        ("one more that is not ready", service(), vec![pod(1), unready(pod(2)), unready(pod(3))], Write::Now),
        ("one less that is not ready", service(), vec![pod(1)], Write::Later),
        ("one becomes ready", service(), vec![pod(1), pod(2)], Write::Now),
        ("one is removed", service(), vec![unready(pod(2))], Write::Now),
        ("labels", relabelled, before(), Write::Now),
    ] {
        let current = object(&of(&self::service(), before()));
        assert_eq!(write(Some(&current), &of(&service, pods)), expected, "{what}");
    }
    assert_eq!(write(None, &of(&service(), vec![])), Write::Now);
}

#[test]
fn order_of_addresses_does_not_matter() {
    let mut wanted = of(&service(), vec![pod(1), pod(2), pod(3)]);
    wanted.subsets[0].ready.reverse();
    let current = object(&wanted);
    assert_eq!(write(Some(&current), &of(&service(), vec![pod(1), pod(2), pod(3)])), Write::No);
}

#[test]
fn endpoints_that_exist_at_the_start_are_checked_once() {
    let initial_endpoints = InitialEndpoints::default();
    let plain = Arc::new(object(&of(&service(), vec![])));
    let lock = {
        let edits = [(kinds::endpoints::LEADER, Some("{}"))];
        let metadata = NewMetadata { labels: &labels(&[]), annotations: Annotations::Edited(&edits), owner: None };
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.extend(find(&Endpoints::create("ns", "lock", &metadata, &[]), f::METADATA));
        });
        let context = Decode { interner: Arc::default(), sections: Endpoints::WHOLE };
        Arc::new(Endpoints::decode(&context, &object).expect("well-formed"))
    };
    for endpoints in [&plain, &lock] {
        initial_endpoints.apply(&Change { old: None, new: Some(endpoints) });
    }
    assert_eq!(initial_endpoints.take(), [plain.meta.key()].into());
    initial_endpoints.apply(&Change { old: None, new: Some(&plain) });
    assert!(initial_endpoints.take().is_empty(), "Endpoints that are created later do not count");
}

proptest! {
    #[test]
    fn every_pod_that_is_not_deleted_is_listed_once_in_any_order(
        pods in prop::collection::btree_map(0usize..30, (any::<bool>(), any::<bool>(), 80i32..83), 0..20),
        turn in 0usize..20,
    ) {
        let service = Service { ports: vec![port("", IntOrString::Text("http".into()))], ..service() };
        let mut all: Vec<Pod> = pods.iter().map(|(number, (ready, deleted, port))| {
            let pod = Pod { ready: *ready, ..with_port(pod(*number), *port) };
            if *deleted { terminating(pod) } else { pod }
        }).collect();
        let first = of(&service, all.clone());
        if !all.is_empty() {
            let turn = turn % all.len();
            all.rotate_left(turn);
        }
        prop_assert_eq!(&first, &of(&service, all));
        let listed: Vec<&Address> = first.subsets.iter().flat_map(|s| s.ready.iter().chain(&s.not_ready)).collect();
        let unique: BTreeSet<String> = listed.iter().map(|address| address.ip.to_string()).collect();
        let wanted = pods.values().filter(|(_, deleted, _)| !deleted).count();
        prop_assert_eq!((listed.len(), unique.len()), (wanted, wanted));
        prop_assert_eq!(write(Some(&object(&first)), &first), Write::No);
    }
}

fn filled<K: Kind>(indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Arc<Store<K>> {
    Arc::new(filled_store(Decode { interner: Arc::default(), sections: Sections::default() }, indexes, records))
}

/// Returns the controller of a Service without pods and Endpoints.
fn controller(service: Service, writer: Writer) -> AllEndpoints {
    AllEndpoints {
        services: filled(Vec::new(), [service]),
        pods: filled(vec![by_label()], []),
        endpoints: filled(Vec::new(), []),
        writer,
        recorder: Recorder::new("endpoint-controller", Arc::new(NoEvents)).0,
        consistency: Arc::default(),
        queue: Queue::new(QueueOptions::named("test")),
        triggers: Default::default(),
        debouncer: Default::default(),
        initial_endpoints: Arc::default(),
        gate: CreationGate::new(filled(Vec::new(), [])),
        refusals: Default::default(),
        pace: Default::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_cannot_be_decoded_affects_its_namespace_only() {
    for (namespace, expected) in [("ns", 0), ("other", 1)] {
        let (writer, sent) = counting_writer(503, "{}").await;
        let mut service: Service = read("web", Sections::default());
        service.selector = labels(&[("app", "web")]);
        let key = service.meta.key();
        let pods = filled(vec![by_label()], []);
        deliver_undecodable(&pods, ObjectKey::new(namespace, "broken"));
        let controller = AllEndpoints { pods, ..controller(service, writer) };
        controller.reconcile(&key).await.expect_err("the pod, or the server");
        assert_eq!(sent.load(Ordering::Relaxed), expected, "{namespace}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_write_is_recorded_as_an_event_about_the_endpoints() {
    const CONFLICT: &str = r#"{"kind": "Status", "code": 409, "reason": "Conflict", "message": "it was modified"}"#;
    const MISSING: &str = r#"{"kind": "Status", "code": 404, "reason": "NotFound", "message": "it was deleted"}"#;
    const TAKEN: &str = r#"{"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": "it exists"}"#;
    let update = "FailedToUpdateEndpoint Failed to update endpoint ns/web";
    for (exists, code, refusal, expected) in [
        (true, 409, CONFLICT, format!("{update}: it was modified")),
        (true, 404, MISSING, format!("{update}: it was deleted")),
        (
            false,
            409,
            TAKEN,
            "FailedToCreateEndpoint Failed to create endpoint for service ns/web: it exists".to_owned(),
        ),
    ] {
        let existing = exists.then(|| object(&of(&service(), vec![pod(1)])));
        let events = Arc::<KeptEvents>::default();
        let (recorder, sender) = Recorder::new("endpoint-controller", events.clone());
        let (writer, _) = counting_writer(code, refusal).await;
        let controller =
            AllEndpoints { endpoints: filled(Vec::new(), existing), recorder, ..controller(service(), writer) };
        controller.reconcile(&service().meta.key()).await.expect_err("the write is refused");
        controller.recorder.close();
        sender.await;
        let bodies = events.bodies();
        let line = |body: &String| {
            let event: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(event["involvedObject"]["kind"], "Endpoints", "{body}");
            assert_eq!(event["involvedObject"]["namespace"], "ns", "{body}");
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("reason"), text("message"))
        };
        assert_eq!(bodies.iter().map(line).collect::<Vec<_>>(), [expected]);
    }
}
