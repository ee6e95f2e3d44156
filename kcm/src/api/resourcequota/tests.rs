//! Tables and random histories of the usage of a quota.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::meta::Meta;
use kinds::persistent_volume_claim_usage::ClaimUsage;
use kinds::pod::{PackedUsage, Phase};
use kinds::resource_claim::{DeviceClass, ResourceClaim};
use kinds::resource_list::Amount;
use kinds::resource_quota::{Quantities, Scope};
use kinds::schema::{
    container, object_meta, pod as pod_fields, pod_spec, quantity, resource_quota, resource_requirements, service,
    service_port, service_spec,
};
use kinds::wire::Put;
use kinds::{
    Decode, Interner, Kind, PersistentVolumeClaim, Pod, Resource, ResourceQuota, Sections, Service, Str, Time,
};
use proptest::prelude::*;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, by_namespace};
use runtime::testing::deliver;
use runtime::watch::{Builder, MetaChange};

use super::amounts::{Classes, Family, is_volume_claim_in_scope, of_device_claim};
use super::census::Census;
use super::decide::{Content, NamespaceUsage, counted_objects, quantities_to_write, status_exceeds, used};
use super::keys::{amounts_changed, counts_kind, needs_full_count, subscribe, with_other_status};
use super::recounts::{CountMode, Recounts};

const NOW: i64 = 1_000_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("in range")
}

fn meta(name: &str) -> impl FnOnce(&mut Vec<u8>) {
    move |meta: &mut Vec<u8>| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    }
}

fn decode<K: Kind>(object: &[u8], sections: Sections) -> K {
    K::decode(&Decode { interner: Arc::default(), sections }, object).expect("well-formed")
}

fn named<K: Kind>(name: &str) -> K {
    let mut object = Vec::new();
    object.put_message(1, meta(name));
    decode(&object, Sections(u32::MAX))
}

fn pairs(list: &[(&str, &str)]) -> Quantities {
    let mut pairs: Quantities = list.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
    pairs.sort_unstable();
    pairs
}

fn quota(hard: &[&str]) -> ResourceQuota {
    let mut quota: ResourceQuota = named("few");
    assert_eq!(resource_quota::METADATA, 1);
    quota.hard = pairs(&hard.iter().map(|name| (*name, "100")).collect::<Vec<_>>());
    quota
}

fn scope(name: &str, operator: &str, values: &[&str]) -> Scope {
    Scope { name: name.into(), operator: operator.into(), values: values.iter().map(|value| (*value).into()).collect() }
}

/// Returns a pod of one container with these requests, and the same limits.
fn pod(name: &str, requests: &[(&str, &str)], spec: impl FnOnce(&mut Vec<u8>)) -> Pod {
    let mut object = Vec::new();
    object.put_message(pod_fields::METADATA, meta(name));
    object.put_message(pod_fields::SPEC, |message| {
        message.put_message(pod_spec::CONTAINERS, |message| {
            message.put_message(container::RESOURCES, |resources| {
                for (name, text) in requests {
                    for number in [resource_requirements::REQUESTS, resource_requirements::LIMITS] {
                        resources.put_message(number, |entry| {
                            entry.put_str(1, name);
                            entry.put_message(2, |message| message.put_str(quantity::STRING, text));
                        });
                    }
                }
            });
        });
        spec(message);
    });
    decode(&object, Pod::USAGE)
}

fn texts(used: &NamespaceUsage) -> Vec<String> {
    used.amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect()
}

fn of_pods(hard: &[&str], scopes: Vec<Scope>, pods: Vec<Pod>) -> Vec<String> {
    let mut quota = quota(hard);
    quota.scopes = scopes;
    let content = Content { pods: pods.into_iter().map(Arc::new).collect(), ..Content::default() };
    texts(&used(&quota, &content, now()))
}

#[test]
fn pods_count_for_all_their_requests() {
    let requests = [
        ("cpu", "250m"),
        ("memory", "64Mi"),
        ("hugepages-2Mi", "4Mi"),
        ("example.com/gpu", "2"),
        ("ephemeral-storage", "1Gi"),
    ];
    let pods = || vec![pod("a", &requests, |_| {}), pod("b", &requests, |_| {}), pod("c", &[], |_| {})];
    let hard = [
        "cpu",
        "requests.cpu",
        "limits.cpu",
        "memory",
        "requests.memory",
        "hugepages-2Mi",
        "requests.hugepages-2Mi",
        "requests.example.com/gpu",
        "limits.ephemeral-storage",
        "pods",
        "count/pods",
    ];
    let mut expected = vec![
        "cpu=500m",
        "requests.cpu=500m",
        "limits.cpu=500m",
        "memory=128Mi",
        "requests.memory=128Mi",
        "hugepages-2Mi=8Mi",
        "requests.hugepages-2Mi=8Mi",
        "requests.example.com/gpu=4",
        "limits.ephemeral-storage=2Gi",
        "pods=3",
        "count/pods=3",
    ];
    expected.sort_unstable();
    let mut found = of_pods(&hard, Vec::new(), pods());
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(of_pods(&["cpu", "pods"], Vec::new(), Vec::new()), ["cpu=0", "pods=0"]);
}

#[test]
fn pod_counts_until_it_ends_or_its_grace_period_is_over() {
    let changed = |change: fn(&mut Pod)| {
        let mut pod = pod("a", &[("cpu", "1")], |_| {});
        change(&mut pod);
        pod
    };
    for (pod, expected, recheck) in [
        (changed(|_| {}), ["count/pods=1", "cpu=1", "pods=1"], None),
        (changed(|pod| pod.phase = Phase::Failed), ["count/pods=1", "cpu=0", "pods=0"], None),
        (changed(|pod| pod.phase = Phase::Succeeded), ["count/pods=1", "cpu=0", "pods=0"], None),
        (changed(|pod| pod.meta.deletion = Time(NOW + 5)), ["count/pods=1", "cpu=1", "pods=1"], Some(6)),
        (changed(|pod| pod.meta.deletion = Time(NOW)), ["count/pods=1", "cpu=1", "pods=1"], Some(1)),
        (changed(|pod| pod.meta.deletion = Time(NOW - 1)), ["count/pods=1", "cpu=0", "pods=0"], None),
    ] {
        let content = Content { pods: vec![Arc::new(pod.clone())], ..Content::default() };
        let found = used(&quota(&["cpu", "pods", "count/pods"]), &content, now());
        assert_eq!(texts(&found), expected, "{pod:?}");
        assert_eq!(found.recheck, recheck.map(Duration::from_secs));
    }
}

#[test]
fn pod_with_the_longest_grace_period_counts_while_it_is_deleted() {
    let mut object = Vec::new();
    object.put_message(pod_fields::METADATA, |message| {
        meta("a")(message);
        Time(NOW - 1).put(message, object_meta::DELETION_TIMESTAMP);
        message.put_int(object_meta::DELETION_GRACE_PERIOD_SECONDS, i64::MAX);
    });
    let content = Content { pods: vec![Arc::new(decode(&object, Pod::USAGE))], ..Content::default() };
    let found = used(&quota(&["pods"]), &content, now());
    assert_eq!(texts(&found), ["pods=1"]);
    assert!(found.recheck.is_some_and(|wait| std::time::Instant::now().checked_add(wait).is_some()));
}

#[test]
fn scopes_select_pods() {
    let pods = || {
        vec![
            pod("plain", &[], |_| {}),
            pod("requesting", &[("cpu", "1")], |_| {}),
            pod("high", &[], |spec| spec.put_str(pod_spec::PRIORITY_CLASS_NAME, "high")),
            pod("low", &[("memory", "1")], |spec| spec.put_str(pod_spec::PRIORITY_CLASS_NAME, "low")),
            pod("with-deadline", &[], |spec| spec.put_int(pod_spec::ACTIVE_DEADLINE_SECONDS, 5)),
        ]
    };
    let exists = |name: &str| scope(name, "Exists", &[]);
    let class = |operator: &str, values: &[&str]| scope("PriorityClass", operator, values);
    for (scopes, expected) in [
        (vec![], 5),
        (vec![exists("Terminating")], 1),
        (vec![exists("NotTerminating")], 4),
        (vec![exists("BestEffort")], 3),
        (vec![exists("NotBestEffort")], 2),
        (vec![exists("BestEffort"), exists("NotTerminating")], 2),
        (vec![exists("PriorityClass")], 2),
        (vec![class("DoesNotExist", &[])], 3),
        (vec![class("In", &["high", "other"])], 1),
        (vec![class("NotIn", &["high"])], 4),
        (vec![exists("CrossNamespacePodAffinity")], 0),
        (vec![exists("VolumeAttributesClass")], 0),
    ] {
        assert_eq!(of_pods(&["pods"], scopes.clone(), pods()), [format!("pods={expected}")], "{scopes:?}");
    }
}

#[test]
fn services_count_their_node_ports() {
    let of_type = |name: &str, kind: &str, allocate: bool, ports: &[i64]| {
        let mut object = Vec::new();
        object.put_message(service::METADATA, meta(name));
        object.put_message(service::SPEC, |spec| {
            spec.put_str(service_spec::TYPE, kind);
            spec.put_bool(service_spec::ALLOCATE_LOAD_BALANCER_NODE_PORTS, allocate);
            for port in ports {
                spec.put_message(service_spec::PORTS, |message| message.put_int(service_port::NODE_PORT, *port));
            }
        });
        Arc::new(decode::<Service>(&object, Service::BALANCING))
    };
    let hard = ["services", "count/services", "services.nodeports", "services.loadbalancers"];
    for (service, [ports, balancers]) in [
        (of_type("a", "ClusterIP", true, &[0, 0]), [0, 0]),
        (of_type("a", "NodePort", true, &[30000, 30001]), [2, 0]),
        (of_type("a", "LoadBalancer", true, &[30000, 0]), [2, 1]),
        (of_type("a", "LoadBalancer", false, &[30000, 0]), [1, 1]),
        (of_type("a", "ExternalName", true, &[]), [0, 0]),
    ] {
        let content = Content { services: vec![service], ..Content::default() };
        let expected = vec![
            "count/services=1".to_owned(),
            "services=1".to_owned(),
            format!("services.loadbalancers={balancers}"),
            format!("services.nodeports={ports}"),
        ];
        assert_eq!(texts(&used(&quota(&hard), &content, now())), expected);
    }
}

fn volume_claim(name: &str, class: Option<&str>, storage: &str, attributes: &[&str]) -> Arc<PersistentVolumeClaim> {
    let mut claim: PersistentVolumeClaim = named(name);
    claim.storage = Some(Box::new(ClaimUsage {
        class: class.map(Str::from),
        storage: Amount::parse(storage),
        attributes: attributes.iter().map(|name| (*name).into()).collect(),
    }));
    Arc::new(claim)
}

#[test]
fn volume_claims_count_by_class() {
    let claims = vec![volume_claim("a", Some("gold"), "1Gi", &[]), volume_claim("b", None, "2Gi", &[])];
    let content = Content { volume_claims: claims, ..Content::default() };
    let hard = [
        "persistentvolumeclaims",
        "count/persistentvolumeclaims",
        "requests.storage",
        "gold.storageclass.storage.k8s.io/requests.storage",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims",
        "silver.storageclass.storage.k8s.io/persistentvolumeclaims",
    ];
    let mut found = texts(&used(&quota(&hard), &content, now()));
    found.sort_unstable();
    let mut expected = [
        "persistentvolumeclaims=2",
        "count/persistentvolumeclaims=2",
        "requests.storage=3Gi",
        "gold.storageclass.storage.k8s.io/requests.storage=1Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims=1",
        "silver.storageclass.storage.k8s.io/persistentvolumeclaims=0",
    ];
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn scope_selects_volume_claims_by_any_of_their_attributes_classes() {
    let claim = |names: &[&str]| ClaimUsage {
        attributes: names.iter().map(|name| (*name).into()).collect(),
        ..ClaimUsage::default()
    };
    let class = |operator: &str, values: &[&str]| scope("VolumeAttributesClass", operator, values);
    for (scope, none, fast, both) in [
        (class("Exists", &[]), false, true, true),
        (class("DoesNotExist", &[]), true, false, false),
        (class("In", &["fast"]), false, true, true),
        (class("In", &["slow"]), false, false, true),
        (class("NotIn", &["fast"]), true, false, true),
        (scope("Terminating", "Exists", &[]), false, false, false),
    ] {
        let found =
            [&[][..], &["fast"], &["fast", "slow"]].map(|names| is_volume_claim_in_scope(&scope, &claim(names)));
        assert_eq!(found, [none, fast, both], "{scope:?}");
    }
}

fn device_class(name: &str, resource: Option<&str>, created: i64) -> DeviceClass {
    let mut class: DeviceClass = named(name);
    class.extended_resource = resource.map(Str::from);
    class.meta.created = Time(created);
    class
}

#[test]
fn devices_count_by_class_and_by_extended_resource() {
    let mut claim: ResourceClaim = named("claim");
    claim.devices = [("gpu".into(), 3), ("nic".into(), 1)].into();
    let pod = Arc::new(pod("p", &[("example.com/gpu", "2")], |_| {}));
    let hard = [
        "count/resourceclaims.resource.k8s.io",
        "gpu.deviceclass.resource.k8s.io/devices",
        "requests.deviceclass.resource.kubernetes.io/gpu",
        "requests.example.com/gpu",
        "requests.deviceclass.resource.kubernetes.io/none",
    ];
    for (owner, by_resource) in [(None, 3), (Some(pod), 1)] {
        let content = Content {
            device_claims: vec![(Arc::new(claim.clone()), owner)],
            classes: Classes::new(&[device_class("gpu", Some("example.com/gpu"), 1), device_class("nic", None, 1)]),
            ..Content::default()
        };
        let mut found = texts(&used(&quota(&hard), &content, now()));
        found.sort_unstable();
        let mut expected = vec![
            "count/resourceclaims.resource.k8s.io=1".to_owned(),
            "gpu.deviceclass.resource.k8s.io/devices=3".to_owned(),
            "requests.deviceclass.resource.kubernetes.io/gpu=3".to_owned(),
            "requests.deviceclass.resource.kubernetes.io/none=0".to_owned(),
            format!("requests.example.com/gpu={by_resource}"),
        ];
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
    let classes = Classes::new(&[device_class("old", Some("r.io/x"), 1), device_class("new", Some("r.io/x"), 2)]);
    for (devices, expected) in [(&[("old", 4)][..], 4), (&[("new", 4)], 4), (&[("old", 1), ("new", 2), ("nic", 9)], 3)]
    {
        let mut claim: ResourceClaim = named("claim");
        claim.devices = devices.iter().map(|(class, count)| ((*class).into(), *count)).collect();
        let counted = of_device_claim("requests.r.io/x", &claim, &classes, None);
        assert_eq!(counted, Amount::count(expected), "devices of each class of the resource count: {devices:?}");
    }
    assert!(Family::DeviceClaims.counts_for("requests.r.io/x", &classes));
    assert!(!Family::DeviceClaims.counts_for("requests.r.io/y", &classes));
}

#[test]
fn other_kinds_are_counted_and_unknown_ones_keep_their_amount() {
    for (name, expected) in [
        ("count/configmaps", Some(("", "configmaps"))),
        ("secrets", Some(("", "secrets"))),
        ("count/widgets.example.com", Some(("example.com", "widgets"))),
        ("pods", None),
        ("requests.cpu", None),
        ("count/events", None),
        ("count/events.events.k8s.io", None),
    ] {
        assert_eq!(counted_objects(name), expected, "{name}");
    }
    let mut quota = quota(&["count/configmaps", "count/widgets.example.com"]);
    quota.status_used = pairs(&[("count/widgets.example.com", "7")]);
    let objects = [("count/configmaps".into(), Some(3)), ("count/widgets.example.com".into(), None)].into();
    let found = used(&quota, &Content { objects, ..Content::default() }, now());
    assert_eq!(texts(&found), ["count/configmaps=3"]);
    assert_eq!(found.unknown, ["count/widgets.example.com".into()]);
    let expected = pairs(&[("count/configmaps", "3"), ("count/widgets.example.com", "7")]);
    assert_eq!(quantities_to_write(&quota, &found, CountMode::Full), Some(expected));
}

#[test]
fn extended_resources_keep_their_amount_while_a_device_class_cannot_be_decoded() {
    let content = Content { has_unreadable_classes: true, ..Content::default() };
    let hard = ["requests.example.com/gpu", "requests.deviceclass.resource.kubernetes.io/gpu", "requests.cpu", "pods"];
    let found = used(&quota(&hard), &content, now());
    assert_eq!(found.unknown, [hard[1].into(), hard[0].into()]);
    let mut counted = texts(&found);
    counted.sort_unstable();
    assert_eq!(counted, ["pods=0", "requests.cpu=0"]);
}

#[tokio::test]
async fn quotas_of_extended_resources_are_counted_again_when_the_resource_of_a_class_changes() {
    let mut builder = Builder::default();
    builder.need::<ResourceQuota>(Sections::default(), &[by_namespace()]);
    builder.need::<Pod>(Sections::default(), &[by_namespace()]);
    builder.need::<Service>(Sections::default(), &[by_namespace()]);
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[by_namespace()]);
    builder.need_if_served::<DeviceClass>(Sections::default(), &[]);
    builder.need_named_kinds();
    let registry = builder.build();
    let queue = Queue::new(QueueOptions::named("test"));
    let recounts = Arc::new(Recounts::default());
    for (name, limited) in [("devices", "requests.example.com/gpu"), ("pods", "pods")] {
        let mut quota = quota(&[limited]);
        quota.meta = runtime::testing::meta("ns", name, 1);
        deliver(&registry.store(), quota);
    }
    subscribe(&registry, &queue, &recounts);
    let classes = registry.store::<DeviceClass>();
    let class = |resource, version| {
        let mut class = device_class("gpu", resource, 1);
        class.meta.version = version;
        class
    };
    for (name, class, is_queued) in [
        ("new class", class(None, 2), true),
        ("same resource", class(None, 3), false),
        ("first resource", class(Some("example.com/gpu"), 4), true),
        ("same resource again", class(Some("example.com/gpu"), 5), false),
        ("other resource", class(Some("example.com/accelerator"), 6), true),
    ] {
        deliver(&classes, class);
        assert_eq!(queue.len(), usize::from(is_queued), "{name}");
        if is_queued {
            let key = queue.next().await.expect("the quota");
            assert_eq!(&*key.name, "devices", "{name}");
            assert_eq!(recounts.begin(&key, tokio::time::Instant::now()), CountMode::Full, "{name}");
            queue.done(&key);
        }
    }
}

#[test]
fn resources_that_cannot_be_counted_keep_their_amount() {
    let content = Content { unreadable: [Family::Pods].into(), ..Content::default() };
    let found = used(&quota(&["pods", "services"]), &content, now());
    assert_eq!((texts(&found), found.unknown), (vec!["services=0".to_owned()], vec!["pods".into()]));
}

#[test]
fn a_status_is_written_only_if_an_amount_differs() {
    let found = NamespaceUsage {
        amounts: [("cpu".into(), Amount::parse("2").expect("a quantity"))].into(),
        ..NamespaceUsage::default()
    };
    let base = |hard: &str, status_hard: &str, used: &str| {
        let mut quota = quota(&[]);
        quota.hard = pairs(&[("cpu", hard)]);
        quota.status_hard = pairs(&[("cpu", status_hard)]);
        quota.status_used = pairs(&[("cpu", used)]);
        quota
    };
    for (quota, expected) in [
        (base("4", "4", "2"), None),
        (base("4", "4", "2000m"), None),
        (base("4", "4000m", "2"), None),
        (base("5", "4", "2000m"), Some("2000m")),
        (base("4", "4", "3"), Some("2")),
    ] {
        let expected = expected.map(|text| pairs(&[("cpu", text)]));
        assert_eq!(quantities_to_write(&quota, &found, CountMode::Full), expected, "{quota:?}");
    }
    let empty = quantities_to_write(&quota(&[]), &NamespaceUsage::default(), CountMode::Full);
    assert_eq!(empty, None, "nothing is limited, nothing is used");
}

/// An object that admission has counted may not be stored yet.
#[test]
fn count_after_an_addition_raises_and_never_lowers() {
    let amount = |text| Amount::parse(text).expect("a quantity");
    let found = NamespaceUsage {
        amounts: [("cpu".into(), amount("2")), ("pods".into(), amount("5"))].into(),
        ..NamespaceUsage::default()
    };
    for (cpu, pods, raised, full) in [
        ("3", "5", None, Some(("2", "5"))),
        ("3", "4", Some(("3", "5")), Some(("2", "5"))),
        ("2", "0", Some(("2", "5")), Some(("2", "5"))),
        ("2000m", "5", None, None),
    ] {
        let mut quota = quota(&["cpu", "pods"]);
        quota.status_hard = quota.hard.clone();
        quota.status_used = pairs(&[("cpu", cpu), ("pods", pods)]);
        let texts = |texts: Option<(&str, &str)>| texts.map(|(cpu, pods)| pairs(&[("cpu", cpu), ("pods", pods)]));
        assert_eq!(quantities_to_write(&quota, &found, CountMode::RaiseOnly), texts(raised), "{cpu} {pods}");
        assert_eq!(quantities_to_write(&quota, &found, CountMode::Full), texts(full), "{cpu} {pods}");
    }
    for (cpu, pods, exceeds) in [("3", "5", true), ("2", "6", true), ("2", "5", false), ("1", "4", false)] {
        let mut quota = quota(&["cpu", "pods"]);
        quota.status_used = pairs(&[("cpu", cpu), ("pods", pods), ("removed", "9")]);
        assert_eq!(status_exceeds(&quota, &found), exceeds, "{cpu} {pods}");
    }
    let mut never_counted = quota(&["cpu", "pods"]);
    never_counted.status_hard = never_counted.hard.clone();
    let written = quantities_to_write(&never_counted, &found, CountMode::RaiseOnly);
    assert_eq!(written, Some(pairs(&[("cpu", "2"), ("pods", "5")])));
}

#[test]
fn quotas_are_requeued_by_changes_of_objects_that_they_limit() {
    for (hard, group, plural, expected) in [
        ("pods", "", "pods", true),
        ("requests.example.com/gpu", "", "pods", true),
        ("requests.example.com/gpu", "resource.k8s.io", "resourceclaims", true),
        ("services.nodeports", "", "services", true),
        ("a.storageclass.storage.k8s.io/requests.storage", "", "persistentvolumeclaims", true),
        ("count/widgets.example.com", "example.com", "widgets", true),
        ("count/widgets.example.com", "example.org", "widgets", false),
        ("secrets", "", "secrets", true),
        ("pods", "", "services", false),
    ] {
        assert_eq!(counts_kind(&quota(&[hard]), group, plural), expected, "{hard} {plural}");
    }
    let old = Arc::new(quota(&["pods"]));
    let mut counted = quota(&["pods"]);
    counted.status_used = pairs(&[("pods", "3")]);
    for (new, expected) in [(counted, false), (quota(&["pods", "cpu"]), true)] {
        let new = Arc::new(new);
        let change = Change { old: Some(&old), new: Some(&new) };
        assert_eq!(needs_full_count(&change), expected);
        assert_eq!(with_other_status(&change).is_some(), !expected, "a changed status is compared with the cache");
    }
    let base = pod("a", &[("cpu", "1")], |_| {});
    let mut ended = base.clone();
    ended.phase = Phase::Failed;
    let mut restarted = base.clone();
    restarted.restarts = 3;
    let resized = pod("a", &[("cpu", "2")], |_| {});
    for (new, expected) in [(&base, false), (&restarted, false), (&ended, true), (&resized, true)] {
        assert_eq!(amounts_changed(&base, new), expected);
    }
}

fn any_usage() -> impl Strategy<Value = (u32, bool)> {
    (0u32..2000, any::<bool>())
}

proptest! {
    /// The sum over pods does not depend on their order, and equals the sum of the single amounts.
    #[test]
    fn sum_over_pods_does_not_depend_on_their_order(pods in prop::collection::vec(any_usage(), 0..30)) {
        let all: Vec<Arc<Pod>> = pods.iter().enumerate().map(|(at, (milli, ended))| {
            let mut pod = pod(&at.to_string(), &[("cpu", &format!("{milli}m"))], |_| {});
            if *ended {
                pod.phase = Phase::Succeeded;
            }
            Arc::new(pod)
        }).collect();
        let expected: u32 = pods.iter().filter(|(_, ended)| !ended).map(|(milli, _)| milli).sum();
        let reversed = all.iter().rev().cloned().collect();
        let quota = quota(&["cpu", "count/pods"]);
        let one = used(&quota, &Content { pods: all, ..Content::default() }, now());
        let other = used(&quota, &Content { pods: reversed, ..Content::default() }, now());
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(one.amounts.get("cpu").copied(), Amount::parse(&format!("{expected}m")));
        prop_assert_eq!(one.amounts.get("count/pods").copied(), Some(Amount::count(pods.len() as i64)));
    }

    /// After any additions and deletions, the census equals a count of the existing objects.
    #[test]
    fn census_equals_a_count(changes in prop::collection::vec((0usize..2, 0usize..3, 0usize..5), 0..80)) {
        const KINDS: [Resource; 2] = [Pod::RESOURCE, Service::RESOURCE];
        let census = Census::default();
        let mut existing = std::collections::HashSet::new();
        for (kind, namespace, name) in changes {
            let mut object: Meta = named::<Pod>(&name.to_string()).meta;
            object.namespace = namespace.to_string().as_str().into();
            let resource = &KINDS[kind];
            let change = if existing.insert((kind, namespace, name)) {
                MetaChange::Object { resource, old: None, new: Some(&object) }
            } else {
                existing.remove(&(kind, namespace, name));
                MetaChange::Object { resource, old: Some(&object), new: None }
            };
            census.apply(&change);
            for (at, resource) in KINDS.iter().enumerate() {
                for namespace in 0..3 {
                    let expected = existing.iter().filter(|(kind, of, _)| (*kind, *of) == (at, namespace)).count();
                    prop_assert_eq!(census.count(resource.group, resource.plural, &namespace.to_string()), expected);
                }
            }
        }
        census.apply(&MetaChange::Unwatched { resource: &KINDS[0] });
        prop_assert_eq!(census.count("", "pods", "0"), 0);
    }
}

#[test]
fn pods_of_one_template_share_their_usage() {
    let interner = Arc::new(Interner::default());
    let context = Decode { interner, sections: Pod::USAGE };
    let usages: Vec<PackedUsage> = ["a", "b"]
        .map(|name| {
            let mut object = Vec::new();
            object.put_message(pod_fields::METADATA, meta(name));
            Pod::decode(&context, &object).expect("well-formed").usage.expect("its section is decoded")
        })
        .into();
    assert!(usages[0].is_shared_with(&usages[1]));
}
