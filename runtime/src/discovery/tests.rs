//! Tests of discovery documents and of their cache.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::*;
use crate::lock::lock;

fn snapshot(items: serde_json::Value) -> Snapshot {
    Snapshot::from_json(&json!({ "items": items }).to_string())
}

fn resource(plural: &str, kind: &str, verbs: &[&str]) -> serde_json::Value {
    json!({"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": verbs})
}

#[test]
fn resource_has_one_preferred_version_and_is_found_in_all() {
    let served = snapshot(json!([{
        "metadata": {"name": "apps"},
        "versions": [
            {"version": "v1", "freshness": "Current", "resources": [resource("sets", "Set", &["get", "list"])]},
            {"version": "v1beta1", "freshness": "Current", "resources": [
                resource("sets", "Set", &["get"]), resource("olds", "Old", &["delete", "list", "watch", "patch"]),
            ]},
        ],
    }]));
    let preferred: Vec<_> = served.preferred().map(|one| (one.resource.plural, one.resource.version)).collect();
    assert_eq!(preferred, [("sets", "v1"), ("olds", "v1beta1")]);
    let old = served.of_kind("apps/v1beta1", "Old").expect("served");
    assert!(old.verbs.contains(Verbs::DELETE | Verbs::LIST | Verbs::WATCH) && !old.verbs.contains(Verbs::GET));
    assert_eq!(served.of_kind("apps/v1beta1", "Set").expect("served").resource.version, "v1beta1");
    assert_eq!(served.of_kind("apps/v1", "Old"), None);
    assert_eq!(served.of_group_kind("apps", "Old").map(|one| one.resource.version), Some("v1beta1"));
    assert_eq!(served.of_group_kind("apps", "Set").map(|one| one.resource.version), Some("v1"));
    assert_eq!(
        (served.versions_of("apps"), served.versions_of("none").len()),
        (&["v1".to_owned(), "v1beta1".to_owned()][..], 0)
    );
    assert!(served.failed().is_empty());
}

/// HorizontalPodAutoscalers and owner references have kinds that users write.
#[test]
fn kind_is_found_by_its_name_in_lower_case() {
    let version = |version: &str, resources: &[serde_json::Value]| json!({"version": version, "freshness": "Current", "resources": resources});
    let sets = |kind| resource("sets", kind, &["get"]);
    let served = snapshot(json!([
        {"metadata": {"name": "a"}, "versions": [version("v1", &[sets("BigSet"), resource("pods", "Pod", &["get"])])]},
        {"metadata": {"name": "b"}, "versions": [version("v1", &[sets("bigset")]), version("v2", &[sets("BigSet")])]},
    ]));
    let kind = |api_version, kind| served.of_kind(api_version, kind).map(|one| one.resource.kind);
    for (api_version, name, expected) in [
        ("a/v1", "BigSet", Some("BigSet")),
        ("a/v1", "bigset", Some("BigSet")),
        ("a/v1", "pod", Some("Pod")),
        ("a/v1", "bigSet", None),
        ("a/v1", "BIGSET", None),
        ("a/v1", "", None),
        ("a/v1", "set", None),
        ("a/v2", "bigset", None),
        ("b/v1", "bigset", Some("bigset")),
        ("b/v1", "BigSet", None),
        ("b/v2", "bigset", Some("BigSet")),
        ("c/v1", "bigset", None),
    ] {
        assert_eq!(kind(api_version, name), expected, "{api_version} {name}");
    }
    assert_eq!(served.of_group_kind("b", "pod"), None);
    assert_eq!(served.of_group_kind("a", "pod").map(|one| one.resource.plural), Some("pods"));
}

#[test]
fn kinds_are_those_of_all_groups_and_versions() {
    let version = |version, kind| json!({"version": version, "freshness": "Current", "resources": [resource("events", kind, &["get"])]});
    let served = snapshot(json!([
        {"metadata": {"name": ""}, "versions": [version("v1", "Event")]},
        {"metadata": {"name": "events.k8s.io"}, "versions": [version("v1", "Event"), version("v1beta1", "Event")]},
    ]));
    let mut kinds: Vec<_> = served.kinds().map(|kind| (kind.group, kind.version, kind.kind)).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [("", "v1", "Event"), ("events.k8s.io", "v1", "Event"), ("events.k8s.io", "v1beta1", "Event")]);
}

#[tokio::test(start_paused = true)]
async fn new_document_is_kept_when_the_next_request_fails() {
    let document = |group: &str, plural: &str| {
        let resources = [resource(plural, "Thing", &["get"])];
        let versions = json!([{"version": "v1", "freshness": "Current", "resources": resources}]);
        json!({"items": [{"metadata": {"name": group}, "versions": versions}]}).to_string().into_bytes()
    };
    // The responses to each call of the discovery, for the core group and for the others.
    let responses = Mutex::new(VecDeque::from([
        (200, document("", "pods")),
        (200, document("apps", "sets")),
        (200, document("", "nodes")),
        (500, b"{}".to_vec()),
        // Both documents are unchanged since the last request.
        (304, Vec::new()),
        (304, Vec::new()),
    ]));
    let clients = crate::testing::clients(move |_, _, _| lock(&responses).pop_front().expect("a response")).await;
    let discovery = Discovery::new(clients);
    let plurals = |snapshot: &Snapshot| snapshot.preferred().map(|served| served.resource.plural).collect::<Vec<_>>();
    let first = discovery.no_older_than(Duration::ZERO).await.expect("both documents");
    assert_eq!(plurals(&first), ["pods", "sets"]);
    tokio::time::advance(Duration::from_secs(1)).await;
    discovery.no_older_than(Duration::ZERO).await.expect_err("the second request fails");
    let last = discovery.no_older_than(Duration::ZERO).await.expect("both documents");
    assert_eq!(plurals(&last), ["nodes", "sets"], "the document before the failure was lost");
}

#[tokio::test(start_paused = true)]
async fn refused_discovery_is_requested_again_when_the_server_allows_it() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let clients = crate::testing::clients(move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        (429, br#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":30}}"#.to_vec())
    });
    let discovery = Discovery::new(clients.await);
    for (seconds, expected) in [(0, 1), (2, 1), (27, 1), (2, 2)] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        discovery.no_older_than(Duration::ZERO).await.expect_err("a refusal");
        assert_eq!(requests.load(Ordering::SeqCst), expected);
    }
}

#[test]
fn unavailable_group_is_reported_and_others_are_found() {
    let served = snapshot(json!([
        {"metadata": {"name": "broken.example.com"}, "versions": [{"version": "v1", "freshness": "Stale"}]},
        {"metadata": {}, "versions": [
            {"version": "v1", "freshness": "Current", "resources": [resource("pods", "Pod", &["get"])]},
        ]},
    ]));
    assert!(served.of_kind("v1", "Pod").is_some());
    assert!(served.has_failed("broken.example.com") && !served.has_failed("example.com") && !served.has_failed(""));
    assert_eq!(
        served.failed().iter().map(|(group, problem)| format!("{group}: {problem}")).collect::<Vec<_>>(),
        ["broken.example.com/v1: stale GroupVersion discovery: broken.example.com/v1"]
    );
    let stale_core = snapshot(json!([{"metadata": {}, "versions": [{"version": "v1", "freshness": "Stale"}]}]));
    assert!(stale_core.has_failed("") && !stale_core.has_failed("apps") && !stale_core.has_failed("v1"));
}

#[test]
fn resource_is_skipped_when_its_name_is_not_a_path_segment() {
    let odd = ["../secrets", "a/b", "a?watch=true", "a b", "..", "queue:length", "\u{8a9e}"];
    let resources: Vec<_> =
        odd.iter().chain(&["good"]).map(|name| resource(name, &format!("Kind{name}"), &["list"])).collect();
    let served = snapshot(json!([
        {"metadata": {"name": "example.com"}, "versions": [
            {"version": "v1", "freshness": "Current", "resources": resources},
        ]},
        {"metadata": {"name": "example.com/../.."}, "versions": [
            {"version": "v1", "freshness": "Current", "resources": [resource("good", "Good", &["list"])]},
        ]},
    ]));
    let names: Vec<_> = served.preferred().map(|one| (one.resource.group, one.resource.plural)).collect();
    assert_eq!(names, [("example.com", "good")]);
    assert!(served.failed().is_empty(), "skipped resources are not failures");
}

proptest::proptest! {
    #[test]
    fn any_discovery_document_is_parsed_or_refused(
        names in proptest::collection::vec("[a-z./%?]{0,8}|[A-Z][a-z]{0,5}", 4..8),
        verbs in "null|\\[\\]|\\[\"get\",\"x\"\\]|1",
        freshness in "Current|Stale|.{0,4}",
        text in "[\\[\\]{}\":,a-z]{0,40}",
    ) {
        let resource = format!(
            r#"{{"resource": "{}", "responseKind": {{"kind": "{}"}}, "scope": "Namespaced", "verbs": {verbs}}}"#,
            names[0], names[1],
        );
        let freshness = serde_json::Value::from(freshness);
        let document = format!(
            r#"{{"items": [{{"metadata": {{"name": "{}"}}, "versions": [{{"version": "{}", "freshness": {freshness},
                "resources": [{resource}, {resource}]}}]}}]}}"#,
            names[2], names[3],
        );
        for text in [&document, &text] {
            let Ok(document) = serde_json::from_str::<Document>(text) else { continue };
            let snapshot = Snapshot::join(vec![Arc::new(Groups::read(&document))]);
            for served in snapshot.preferred() {
                let path = served.resource.path(Some("ns"));
                proptest::prop_assert!(!path.contains(['?', '%', ' ']) && !path.contains("/../"), "{}", path);
            }
        }
    }
}

#[test]
fn null_fields_are_empty() {
    let length = json!({"resource": "fleets", "responseKind": {"group": "", "version": "", "kind": ""},
        "scope": "Namespaced", "verbs": null, "subresources": [
            {"subresource": "length", "responseKind": {"kind": "MetricValueList"}, "verbs": ["get"]}]});
    let served = snapshot(json!([
        {"metadata": {"name": "custom.metrics.k8s.io"}, "versions": [
            {"version": "v1beta2", "freshness": "Current", "resources": [length]},
            {"version": "v1beta1", "freshness": "Current", "resources": null},
        ]},
    ]));
    assert_eq!(served.versions_of("custom.metrics.k8s.io"), ["v1beta2", "v1beta1"]);
    assert!(served.preferred().next().is_none() && served.failed().is_empty());
}

#[test]
fn kind_of_several_resources_is_the_one_with_the_verb_get() {
    let (scales, pods) = (resource("scales", "Pod", &["update"]), resource("pods", "Pod", &["get", "list"]));
    let (nodes, later) = (resource("nodes", "Node", &["get"]), resource("copies", "Pod", &["get"]));
    let served = snapshot(json!([
        {"metadata": {"name": "z.example.com"}, "versions": [{"version": "v1", "resources": [nodes]}]},
        {"metadata": {}, "versions": [{"version": "v1", "resources": [scales, pods, later]}]},
    ]));
    assert_eq!(served.of_kind("v1", "Pod").expect("served").resource.plural, "pods");
    assert_eq!(served.of_kind("z.example.com/v1", "Node").expect("served").resource.plural, "nodes");
    assert_eq!((served.of_kind("v1", "Node"), served.of_kind("z.example.com/v1", "Pod")), (None, None));
    assert_eq!(served.preferred().count(), 4, "each resource is listed");
}

#[test]
fn kind_with_too_many_names_fails_its_group_only_if_no_other_version_has_it() {
    let document = json!({"items": [
        {"metadata": {"name": "a.example.com"}, "versions": [
            {"version": "v1", "resources": [resource("ants", "Ant", &["list"])]},
            {"version": "beyond", "resources": [resource("ants", "Ant", &["list"])]},
        ]},
        {"metadata": {"name": "b.example.com"}, "versions": [
            {"version": "v1", "resources": [resource("bees", "Bee", &["list"]), resource("beyond", "X", &["list"])]},
        ]},
    ]});
    let document = serde_json::from_value(document).expect("a discovery document");
    let keep = |name: &str| static_name(name).filter(|name| *name != "beyond");
    let served = Snapshot::join(vec![Arc::new(Groups::read_with(&document, &keep))]);
    assert_eq!(served.failed().keys().collect::<Vec<_>>(), ["b.example.com/v1"]);
    assert!(served.has_failed("a.example.com") && served.has_failed("b.example.com") && !served.has_failed(""));
    assert_eq!(served.preferred().map(|one| one.resource.plural).collect::<Vec<_>>(), ["ants", "bees"]);
}
