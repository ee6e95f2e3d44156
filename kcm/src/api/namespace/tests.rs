//! Tests of a namespace's conditions, in upstream's wording, and of the time at which it is processed again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::meta::{ObjectKey, Uid};
use kinds::schema::{list_meta, namespace as object, namespace_spec, namespace_status, object_meta};
use kinds::wire::Put;
use kinds::{Decode, Kind, Namespace, Resource, Sections, Str, Time, envelope};
use proptest::prelude::*;
use runtime::client::Clients;
use runtime::discovery::Discovery;
use runtime::queue::{Queue, QueueOptions};
use runtime::testing::{clients, filled_store, writer_of};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile as _, ReconcileError};
use serde_json::json;

use super::GRACE;
use super::decide::{CleanupResult, Findings, discovery_problem, pods_estimate, resync, without_own};
use super::sync::{MAX_CONFLICTS, Namespaces};
use super::tally::Tally;

const PODS: Resource = Resource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };
const WIDGETS: Resource =
    Resource { group: "example.com", version: "v1", kind: "Widget", plural: "widgets", namespaced: true };

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn finalizers(list: &[&str]) -> Vec<Str> {
    list.iter().map(|finalizer| Str::from(*finalizer)).collect()
}

/// The result for objects, each given by its finalizers.
fn tallied(resource: &Resource, objects: &[&Vec<Str>], estimate_seconds: i64) -> CleanupResult {
    let mut tally = Tally::new();
    for finalizers in objects {
        let mut meta = Vec::new();
        finalizers.iter().for_each(|finalizer| meta.put_str(object_meta::FINALIZERS, finalizer));
        tally.add(&meta);
    }
    tally.finish(resource, "n", estimate_seconds).result
}

/// `<type>=<status> <reason>: <message>`
fn texts(conditions: &[Condition]) -> Vec<String> {
    let text = |condition: &Condition| {
        format!("{}={} {}: {}", condition.kind, condition.status, condition.reason, condition.message)
    };
    conditions.iter().map(text).collect()
}

const NO_PROBLEMS: [&str; 5] = [
    "NamespaceDeletionDiscoveryFailure=False ResourcesDiscovered: All resources successfully discovered",
    "NamespaceDeletionGroupVersionParsingFailure=False ParsedGroupVersions: All legacy kube types successfully parsed",
    "NamespaceDeletionContentFailure=False ContentDeleted: All content successfully deleted, may be waiting on finalization",
    "NamespaceContentRemaining=False ContentRemoved: All content successfully removed",
    "NamespaceFinalizersRemaining=False ContentHasNoFinalizers: All content-preserving finalizers finished",
];

#[test]
fn delay_follows_from_the_remaining_objects() {
    let (none, one, two) = (finalizers(&[]), finalizers(&["a/x"]), finalizers(&["a/x", "b/y"]));
    let of = |objects: &[&Vec<Str>], estimate_seconds| tallied(&WIDGETS, objects, estimate_seconds);
    assert_eq!(of(&[], 30), CleanupResult::default(), "nothing remains");
    let waits = of(&[&none], 30);
    assert_eq!((waits.objects, waits.estimate_seconds, waits.problem), (1, 30, None));
    let held = of(&[&one, &two, &none], 0);
    assert_eq!((held.objects, held.estimate_seconds, held.problem.clone()), (3, 15, None));
    assert_eq!(held.finalizers, BTreeMap::from([("a/x".into(), 2), ("b/y".into(), 1)]));
    assert_eq!(
        of(&[&none, &none], 0).problem.as_deref(),
        Some("unexpected items still remain in namespace: n for gvr: example.com/v1, Resource=widgets")
    );
    let of_core = tallied(&PODS, &[&none], 0).problem;
    assert_eq!(of_core.as_deref(), Some("unexpected items still remain in namespace: n for gvr: /v1, Resource=pods"));
}

#[test]
fn pods_get_their_grace_period_once() {
    for (grace, passed, expected) in [(30, 0, 30), (30, 29, 30), (30, 30, 0), (0, 0, 0), (600, 60, 600)] {
        assert_eq!(pods_estimate(grace, Time(1000), at(1000 + passed)), expected, "{grace} {passed}");
    }
    for (estimate_seconds, seconds) in [(30, 16), (15, 8), (1, 1)] {
        let mut findings = Findings::default();
        findings.add(&PODS, &CleanupResult { estimate_seconds, objects: 1, ..CleanupResult::default() });
        findings.add(&WIDGETS, &CleanupResult::default());
        assert_eq!(findings.recheck_delay(), Duration::from_secs(seconds));
        assert!(!findings.is_clean() && findings.problem().is_none());
    }
}

#[test]
fn all_five_conditions_are_set_in_order() {
    let after = Findings::default().conditions(&[], true, at(5)).expect("the conditions are new");
    assert_eq!(texts(&after), NO_PROBLEMS);
    assert!(after.iter().all(|condition| condition.last_transition == Time(5)));
    assert_eq!(Findings::default().conditions(&after, true, at(9)), None, "nothing to write");
    assert!(Findings::default().is_clean());
}

#[test]
fn conditions_report_the_problems() {
    let mut findings = Findings::after_discovery(discovery_problem(&BTreeMap::from([
        ("b.io/v1".to_owned(), "stale GroupVersion discovery: b.io/v1".to_owned()),
        ("a.io/v1".to_owned(), "down".to_owned()),
    ])));
    let held = |objects, held: &[(&str, usize)]| CleanupResult {
        objects,
        finalizers: held.iter().map(|(finalizer, count)| (Str::from(*finalizer), *count)).collect(),
        estimate_seconds: 15,
        problem: None,
    };
    findings.add(&WIDGETS, &held(2, &[("z/z", 1), ("a/x", 2)]));
    findings.add(&Resource { plural: "secrets", ..PODS }, &held(1, &[("a/x", 1)]));
    findings.add(&PODS, &CleanupResult::failed("second"));
    findings.add(&PODS, &CleanupResult::failed("first"));
    let earlier = Findings::default().conditions(&[], true, at(5)).expect("the conditions are new");
    let after = findings.conditions(&earlier, true, at(9)).expect("the conditions differ");
    assert_eq!(
        texts(&after),
        [
            "NamespaceDeletionDiscoveryFailure=True DiscoveryFailed: Discovery failed for some groups, 2 failing: unable to \
         retrieve the complete list of server APIs: a.io/v1: down, b.io/v1: stale GroupVersion discovery: b.io/v1",
            NO_PROBLEMS[1],
            "NamespaceDeletionContentFailure=True ContentDeletionFailed: Failed to delete all resource types, 2 remaining: \
         first, second",
            "NamespaceContentRemaining=True SomeResourcesRemain: Some resources are remaining: secrets. has 1 resource \
         instances, widgets.example.com has 2 resource instances",
            "NamespaceFinalizersRemaining=True SomeFinalizersRemain: Some content in the namespace has finalizers \
         remaining: a/x in 3 resource instances, z/z in 1 resource instances",
        ]
    );
    let moved: Vec<i64> = after.iter().map(|condition| condition.last_transition.0).collect();
    assert_eq!(moved, [9, 5, 9, 9, 9]);
    let while_pods_remain = findings.conditions(&[], false, at(9)).expect("the conditions are new");
    assert_eq!(texts(&while_pods_remain)[3..], NO_PROBLEMS[3..], "remaining objects are not counted yet");
    assert!(!findings.is_clean() && findings.problem().is_some_and(|problem| problem.contains("first")));
    let after_recovery = Findings::default().conditions(&after, true, at(12)).expect("the conditions differ");
    assert_eq!(texts(&after_recovery), NO_PROBLEMS);
}

#[test]
fn conditions_of_other_clients_keep_their_place() {
    let other = Condition {
        kind: "Other".into(),
        status: "True".into(),
        reason: "Theirs".into(),
        message: "".into(),
        last_update: Time(0),
        last_transition: Time(1),
    };
    let after =
        Findings::default().conditions(std::slice::from_ref(&other), true, at(5)).expect("the conditions are new");
    assert_eq!((after.len(), &after[0]), (6, &other));
}

#[test]
fn only_the_controllers_finalizer_is_removed() {
    assert_eq!(without_own(&finalizers(&["z/z", "kubernetes", "a/x"])), finalizers(&["a/x", "z/z"]));
    assert!(without_own(&finalizers(&["kubernetes"])).is_empty());
}

proptest! {
    /// A namespace is not clean while anything remains, is unknown or has failed; its next check is at least a second
    /// away.
    #[test]
    fn namespace_is_clean_only_if_nothing_remains(
        parts in proptest::collection::vec((0usize..3, 0i64..40, any::<bool>(), any::<bool>()), 0..6),
        broken: bool,
    ) {
        let mut findings = Findings::after_discovery(broken.then(|| "broken".to_owned()));
        let mut left = 0;
        let mut failed = false;
        for (objects, estimate_seconds, held, fails) in parts {
            let list = finalizers(if held { &["a/x"] } else { &[] });
            let result = if fails {
                CleanupResult::failed("failed")
            } else {
                tallied(&WIDGETS, &vec![&list; objects], estimate_seconds)
            };
            left += result.objects;
            failed |= fails;
            findings.add(&WIDGETS, &result);
        }
        prop_assert_eq!(findings.is_clean(), left == 0 && !failed && !broken);
        prop_assert!(findings.recheck_delay() >= Duration::from_secs(1));
        let after = findings.conditions(&[], true, at(1)).expect("the conditions are new");
        prop_assert_eq!(findings.conditions(&after, true, at(2)), None);
    }
}

#[test]
fn waiting_namespace_is_not_requeued_when_the_period_is_zero() {
    assert_eq!(resync(Duration::ZERO), Outcome::Done);
    assert_eq!(resync(Duration::from_secs(300)), Outcome::RequeueAfter(Duration::from_secs(300)));
}

/// An empty namespace that is being deleted, as the API server returns it.
fn terminating_namespace(phase: &str) -> Vec<u8> {
    let mut namespace = Vec::new();
    namespace.put_message(object::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "n");
        meta.put_str(object_meta::UID, "uid-of-n");
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        Time(5).put(meta, object_meta::DELETION_TIMESTAMP);
    });
    namespace.put_message(object::SPEC, |spec| spec.put_str(namespace_spec::FINALIZERS, "kubernetes"));
    namespace.put_message(object::STATUS, |status| status.put_str(namespace_status::PHASE, phase));
    namespace
}

/// Reconciles a namespace of this phase while the API server refuses every update with a conflict. Returns the result,
/// and the paths of the updates.
async fn reconcile_with_conflicts(phase: &'static str) -> (Result<Outcome, ReconcileError>, Vec<String>) {
    let updates = Arc::<Mutex<Vec<String>>>::default();
    let sent = updates.clone();
    let clients = clients(move |method, path, _| {
        if method.as_str() == "PUT" {
            sent.lock().expect("the updates").push(path.to_owned());
            let status = json!({"kind": "Status", "apiVersion": "v1", "code": 409, "reason": "Conflict"});
            return (409, status.to_string().into_bytes());
        }
        if path.starts_with("/api/v1/namespaces/") {
            return (200, envelope::wrap(&Namespace::RESOURCE, &terminating_namespace(phase)));
        }
        // Discovery: a group without resources.
        let versions = json!([{"version": "v1", "freshness": "Current", "resources": []}]);
        (200, json!({"items": [{"metadata": {}, "versions": versions}]}).to_string().into_bytes())
    })
    .await;
    let result = reconcile(clients, phase).await;
    let updates = updates.lock().expect("the updates").clone();
    (result, updates)
}

/// Reconciles a namespace of this phase after its grace period.
async fn reconcile(clients: Arc<Clients>, phase: &str) -> Result<Outcome, ReconcileError> {
    let decoding = Decode { interner: Arc::default(), sections: Sections::default() };
    let namespace = Namespace::decode(&decoding, &terminating_namespace(phase)).expect("a namespace");
    let namespaces = Namespaces {
        namespaces: Arc::new(filled_store(decoding, Vec::new(), [namespace])),
        discovery: Arc::new(Discovery::new(clients.clone())),
        watched: Builder::default().build().watched(),
        queue: Queue::new(QueueOptions::named("test")),
        writer: writer_of(clients),
        clock: Arc::new(|| at(60)),
        sync_period: Duration::ZERO,
        deletions: Default::default(),
    };
    namespaces.deletions.begin(&Uid::parse("uid-of-n"));
    tokio::time::advance(GRACE).await;
    let key = ObjectKey { namespace: "".into(), name: "n".into() };
    let result = tokio::time::timeout(Duration::from_secs(60), namespaces.reconcile(&key)).await;
    result.expect("the reconcile never ended")
}

#[tokio::test(start_paused = true)]
async fn update_that_always_conflicts_is_retried_with_backoff() {
    for (phase, path, problem) in [
        ("Active", "/api/v1/namespaces/n/status", "status conflicts"),
        ("Terminating", "/api/v1/namespaces/n/finalize", "finalizers conflicts"),
    ] {
        let (result, updates) = reconcile_with_conflicts(phase).await;
        let error = result.expect_err("every update was refused");
        assert!(error.message.contains(problem) && !error.terminal, "{phase}: {error:?}");
        assert_eq!(updates, vec![path; MAX_CONFLICTS], "{phase}");
    }
}

/// A page of widgets with these names, and a label and finalizers each; `next` is the token of the next page.
fn page_of_widgets(names: &[&str], label: &str, next: &str) -> (u16, Vec<u8>) {
    let mut list = Vec::new();
    list.put_message(1, |meta| {
        // The versions of some aggregated APIs are not numbers.
        meta.put_str(list_meta::RESOURCE_VERSION, "9/12");
        meta.put_str(list_meta::CONTINUE, next);
    });
    for name in names {
        list.put_message(2, |widget| {
            widget.put_message(1, |meta| {
                meta.put_str(object_meta::NAME, name);
                meta.put_str(object_meta::UID, &format!("uid-of-{name}"));
                meta.put_str(object_meta::RESOURCE_VERSION, "8/11");
                meta.put_entry(object_meta::LABELS, "text", label);
                meta.put_str(object_meta::FINALIZERS, "a/x");
            });
        });
    }
    (200, envelope::wrap_as("meta.k8s.io/v1", "PartialObjectMetadataList", &list))
}

/// Discovery of widgets with these verbs.
fn discovery_of_widgets(path: &str, verbs: &[&str]) -> (u16, Vec<u8>) {
    let kind = json!({"group": "", "version": "", "kind": WIDGETS.kind});
    let widgets = json!({"resource": WIDGETS.plural, "responseKind": kind, "scope": "Namespaced", "verbs": verbs});
    let (group, resources) = if path == "/apis" { (WIDGETS.group, json!([widgets])) } else { ("", json!([])) };
    let versions = json!([{"version": "v1", "freshness": "Current", "resources": resources}]);
    let groups = json!([{"metadata": {"name": group}, "versions": versions}]);
    (200, json!({ "items": groups }).to_string().into_bytes())
}

/// Returns true if `text` is a part of a body.
fn contains(body: &[u8], text: &str) -> bool {
    body.windows(text.len()).any(|part| part == text.as_bytes())
}

/// The widgets of a namespace are more than fit into memory, or into the response to their deletion.
#[tokio::test(start_paused = true)]
async fn remaining_objects_are_counted_however_many_they_are() {
    const PAGES: usize = 10;
    for deleted in [Vec::new(), vec![0; 65 << 20]] {
        let statuses = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let (written, label) = (statuses.clone(), "x".repeat(30 << 20));
        let clients = clients(move |method, path, body| match method.as_str() {
            "PUT" => {
                written.lock().expect("the updates").push(body.to_vec());
                (200, body.to_vec())
            }
            "DELETE" => (200, deleted.clone()),
            _ if path.starts_with("/api/v1/namespaces/") => {
                (200, envelope::wrap(&Namespace::RESOURCE, &terminating_namespace("Terminating")))
            }
            _ if path.contains("/widgets?") => {
                let page = path.split_once("continue=").map_or(1, |(_, page)| page.parse().expect("a page"));
                page_of_widgets(&["w"], &label, &if page < PAGES { (page + 1).to_string() } else { String::new() })
            }
            _ => discovery_of_widgets(path, &["delete", "deletecollection", "list"]),
        });
        let outcome = reconcile(clients.await, "Terminating").await.expect("no failure");
        assert_eq!(outcome, Outcome::RequeueAfter(Duration::from_secs(8)));
        let statuses = statuses.lock().expect("the updates").clone();
        for text in ["widgets.example.com has 10 resource instances", "a/x in 10 resource instances"] {
            assert!(contains(&statuses[0], text), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn objects_without_a_collection_are_deleted_page_by_page() {
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let sent = requests.clone();
    let clients = clients(move |method, path, body| {
        if path.contains("/widgets") {
            let page = path.split_once("continue=").map_or("", |(_, token)| token);
            sent.lock()
                .expect("the requests")
                .push(format!("{method} {}{page}", path.rsplit('/').next().unwrap_or("")));
        }
        match method.as_str() {
            "PUT" => (200, body.to_vec()),
            "DELETE" => (200, envelope::wrap_as("v1", "Status", &[])),
            _ if path.starts_with("/api/v1/namespaces/") => {
                (200, envelope::wrap(&Namespace::RESOURCE, &terminating_namespace("Terminating")))
            }
            _ if path.contains("/widgets?") && path.contains("continue=first") => {
                let status =
                    json!({"kind": "Status", "code": 410, "reason": "Expired", "metadata": {"continue": "later"}});
                (410, status.to_string().into_bytes())
            }
            _ if path.contains("/widgets?") && path.contains("continue=later") => page_of_widgets(&["b"], "", ""),
            _ if path.contains("/widgets?") => page_of_widgets(&["a"], "", "first"),
            _ => discovery_of_widgets(path, &["delete", "list"]),
        }
    });
    let error = reconcile(clients.await, "Terminating").await.expect_err("the count of the rest fails");
    assert!(error.message.contains("410") || error.message.contains("Expired"), "{error:?}");
    let requests = requests.lock().expect("the requests").clone();
    let deleted: Vec<&String> = requests.iter().filter(|request| request.starts_with("DELETE")).collect();
    assert_eq!(deleted, ["DELETE a", "DELETE b"], "{requests:?}");
}

#[test]
fn tally_keeps_few_objects_and_finalizers() {
    let mut tally = Tally::new();
    for number in 0..10_001 {
        let mut meta = Vec::new();
        meta.put_str(object_meta::NAME, &format!("w{number}"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.put_str(object_meta::FINALIZERS, &format!("a/{number}-{}", "x".repeat(300)));
        tally.add(&meta);
        if number == 0 {
            assert_eq!(tally.awaited().map(<[_]>::len), Some(1));
        }
    }
    assert!(tally.awaited().is_none());
    let result = tally.finish(&WIDGETS, "n", 0).result;
    assert_eq!((result.objects, result.estimate_seconds), (10_001, 15));
    assert!((800..900).contains(&result.finalizers.len()), "{}", result.finalizers.len());
}
