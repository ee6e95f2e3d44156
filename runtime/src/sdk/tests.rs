//! Tests of the SDK's decisions, without an API server.

use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;
use kinds::{Decode, Interner, Kind, Resource, Sections};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::applied::AppliedChildren;
use super::context::{Shared, as_child};
use super::controller::{forget_deleted, owner, requires_reconcile};
use super::work::{Step, finalizer_patch, step};
use super::*;
use crate::consistency::Consistency;
use crate::events::Recorder;
use crate::lock::lock;
use crate::manager::ManagerOptions;
use crate::serve::Probe;
use crate::store::Store;
use crate::testing;
use crate::watch::json;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct WidgetSpec {
    size: i32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct WidgetStatus {
    done: bool,
}

crate::custom_resource! {
    /// A test resource.
    Widget { spec: WidgetSpec, status: WidgetStatus }
    namespaced "widgets" in "example.com/v1"
}

fn widget(fields: Value) -> Typed<Widget> {
    let mut object = json!({
        "metadata": {"name": "w", "namespace": "ns", "uid": "u", "resourceVersion": "5", "generation": 1},
        "spec": {"size": 1},
    });
    for (path, value) in fields.as_object().expect("paths and values") {
        *object.pointer_mut(path.rsplit_once('/').expect("a path").0).expect("it exists") =
            with(object.pointer(path.rsplit_once('/').expect("a path").0), path, value);
    }
    let line = json!({"type": "ADDED", "object": object}).to_string();
    let frame = json::frame(line.as_bytes()).expect("a frame");
    let Ok(kinds::envelope::WatchEvent::Added(object)) = kinds::envelope::watch_event(&frame) else {
        panic!("{frame:?}")
    };
    let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
    Typed::decode(&context, object).expect("a widget")
}

fn with(parent: Option<&Value>, path: &str, value: &Value) -> Value {
    let mut parent = parent.cloned().unwrap_or_default();
    parent[path.rsplit('/').next().unwrap_or_default()] = value.clone();
    parent
}

#[test]
fn custom_resource_round_trips_in_the_apis_spelling() {
    let resource =
        Resource { group: "example.com", version: "v1", kind: "Widget", plural: "widgets", namespaced: true };
    assert_eq!(Widget::RESOURCE, resource);
    assert_eq!(
        [<Node as Object>::RESOURCE, <ConfigMap as Object>::RESOURCE].map(|kind| kind.namespaced),
        [false, true]
    );
    let made = serde_json::to_value(Widget::new("w", WidgetSpec { size: 2 })).expect("JSON");
    let spelled =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 2}});
    assert_eq!(made, spelled);
    let read: Widget = serde_json::from_value(spelled).expect("a widget");
    assert_eq!((read.spec, read.status), (WidgetSpec { size: 2 }, None));
}

#[test]
fn typed_object_has_the_metadata_of_a_record() {
    let record = widget(json!({
        "/metadata/labels": {"b": "2", "a": "1"}, "/metadata/finalizers": ["f"],
        "/metadata/deletionTimestamp": "2026-01-02T03:04:05Z", "/metadata/managedFields": [{"manager": "m"}],
        "/metadata/ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "o", "controller": true},
        ],
    }));
    let meta = record.meta();
    assert_eq!((meta.key(), meta.version, meta.generation), (ObjectKey::new("ns", "w"), 5, 1));
    assert_eq!(meta.labels.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["a", "b"]);
    assert!(meta.is_deleting() && &*meta.finalizers[0] == "f");
    assert_eq!(meta.controller().map(|owner| owner.uid.to_string()).as_deref(), Some("o"));
    assert_eq!(record.object.metadata.managed_fields, None, "no controller reads them");
}

#[test]
fn finalizer_is_added_before_work_and_removed_after_cleanup() {
    let deleted_at = json!("2026-01-02T03:04:05Z");
    for (deleting, carried, finalizer, expected) in [
        (false, vec![], None, Step::Work),
        (false, vec![], Some("ours"), Step::Add),
        (false, vec!["ours"], Some("ours"), Step::Work),
        (true, vec!["ours", "theirs"], Some("ours"), Step::CleanUp),
        (true, vec!["theirs"], Some("ours"), Step::Nothing),
        (true, vec!["theirs"], None, Step::Nothing),
    ] {
        let deletion = if deleting { deleted_at.clone() } else { Value::Null };
        let record = widget(json!({"/metadata/finalizers": carried, "/metadata/deletionTimestamp": deletion}));
        assert_eq!(step(record.meta(), finalizer), expected, "{deleting} {carried:?} {finalizer:?}");
    }
    let record = widget(json!({"/metadata/finalizers": ["theirs"]}));
    let patch = |on| finalizer_patch(record.meta(), "ours", on)["metadata"].clone();
    assert_eq!(patch(true), json!({"uid": "u", "resourceVersion": "5", "finalizers": ["theirs", "ours"]}));
    assert_eq!(patch(false)["finalizers"], json!(["theirs"]));
}

#[test]
fn status_change_alone_does_not_requeue() {
    let old = widget(json!({}));
    for (change, expected) in [
        (json!({"/status": {"done": true}, "/metadata/resourceVersion": "6"}), false),
        (json!({"/metadata/generation": 2}), true),
        (json!({"/metadata/generation": 0}), true),
        (json!({"/metadata/labels": {"a": "1"}}), true),
        (json!({"/metadata/annotations": {"a": "1"}}), true),
        (json!({"/metadata/deletionTimestamp": "2026-01-02T03:04:05Z"}), true),
    ] {
        assert_eq!(requires_reconcile(Some(&old), Some(&widget(change.clone()))), expected, "{change}");
    }
    assert!(requires_reconcile(None, Some(&old)) && requires_reconcile(Some(&old), None));
}

#[test]
fn owner_of_a_child_is_its_controller_of_the_kind_in_any_version() {
    for (api_version, kind, controller, expected) in [
        ("example.com/v1", "Widget", true, Some("ns/w")),
        ("example.com/v2", "Widget", true, Some("ns/w")),
        ("example.com/v1", "Widget", false, None),
        ("example.org/v1", "Widget", true, None),
        ("example.com/v1", "Gadget", true, None),
    ] {
        let child = widget(json!({"/metadata/ownerReferences": [
            {"apiVersion": api_version, "kind": kind, "name": "w", "uid": "u", "controller": controller},
        ]}));
        assert_eq!(owner::<Widget>(child.meta()).map(|key| key.to_string()).as_deref(), expected);
    }
}

#[test]
fn child_is_applied_with_its_owner_in_the_owners_namespace() {
    let owner = widget(json!({}));
    let reference = owner.controller_ref();
    let named = |name: Option<&str>, namespace: Option<&str>| ObjectMeta {
        name: name.map(str::to_owned),
        namespace: namespace.map(str::to_owned),
        ..ObjectMeta::default()
    };
    let map = |metadata| ConfigMap { metadata, ..ConfigMap::default() };
    let (key, sent) = as_child(&map(named(Some("c"), None)), owner.meta(), &reference).expect("a child");
    assert_eq!(key, ObjectKey::new("ns", "c"));
    assert_eq!(
        sent,
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "ns", "ownerReferences": [{
            "apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u",
            "controller": true, "blockOwnerDeletion": true,
        }]}})
    );
    let refused = |metadata| as_child(&map(metadata), owner.meta(), &reference).expect_err("not a child").to_string();
    assert!(refused(named(None, None)).contains("metadata.name is missing"));
    assert!(refused(named(Some("c"), Some("other"))).contains("outside of it"));
    let space = Namespace { metadata: named(Some("c"), None), ..Namespace::default() };
    let refused = as_child(&space, owner.meta(), &reference).expect_err("not a child");
    assert_eq!(refused.to_string(), "Namespace: an object in a namespace cannot own one outside of it");
}

#[test]
fn applied_child_is_skipped_until_it_or_its_spec_changes() {
    let applied = AppliedChildren::default();
    let (owner, child) = (ObjectKey::new("ns", "w"), (("", "configmaps"), ObjectKey::new("ns", "c")));
    let unchanged = |sent, shown| applied.unchanged::<u8>(&owner, &child, sent, shown).map(|object| *object);
    assert_eq!(unchanged(1, Some(7)), None);
    applied.remember(&owner, child.clone(), 1, 7, Arc::new(42u8));
    for (sent, shown, expected) in [(1, Some(7), Some(42)), (2, Some(7), None), (1, Some(8), None), (1, None, None)] {
        assert_eq!(unchanged(sent, shown), expected, "{sent} {shown:?}");
    }
    applied.forget(&owner);
    assert_eq!(unchanged(1, Some(7)), None);
}

#[test]
fn applied_children_of_one_name_in_several_namespaces_are_distinct() {
    let (applied, owner) = (AppliedChildren::default(), ObjectKey::new("", "cluster"));
    let child = |namespace: &str| (("", "configmaps"), ObjectKey::new(namespace, "c"));
    for (namespace, sent) in [("a", 1), ("b", 2)] {
        applied.remember(&owner, child(namespace), sent, 7, Arc::new(sent));
    }
    for (namespace, sent) in [("a", 1), ("b", 2)] {
        assert_eq!(applied.unchanged::<u64>(&owner, &child(namespace), sent, Some(7)).as_deref(), Some(&sent));
    }
}

#[test]
fn applied_child_is_forgotten_when_another_client_deletes_it() {
    let (applied, owner) = (AppliedChildren::default(), ObjectKey::new("ns", "w"));
    let kind = ("", "configmaps");
    let own = widget(json!({"/metadata/ownerReferences": [
        {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u", "controller": true},
    ]}));
    let (child, replaced) = (own.meta(), widget(json!({"/metadata/uid": "other"})));
    for (change, new, is_known) in
        [("changed", Some(child), true), ("deleted", None, false), ("replaced", Some(replaced.meta()), false)]
    {
        let id = (kind, child.key());
        applied.remember(&owner, id.clone(), 1, 7, Arc::new(42u8));
        forget_deleted::<Widget>(&applied, kind, Some(child), new);
        assert_eq!(applied.unchanged::<u8>(&owner, &id, 1, Some(7)).is_some(), is_known, "{change}");
    }
}

#[tokio::test]
async fn operator_has_the_health_checks_of_every_manager() {
    let clients = testing::clients(|_, _, _| (404, Vec::new())).await;
    let manager = Operator::new("test").manager(clients, ManagerOptions::default()).expect("a manager");
    let health = served_content("test", &manager).health;
    assert_eq!(health.names(Probe::Live), ["leaderElection", "watches", "workers"]);
    assert_eq!(health.names(Probe::Ready).last(), Some(&"stores"));
}

#[tokio::test]
async fn status_that_is_changed_back_in_the_same_reconcile_is_written_again() {
    let statuses = Arc::<Mutex<Vec<Value>>>::default();
    let sent = statuses.clone();
    let clients = testing::clients(move |_, _, body| {
        let body: Value = serde_json::from_slice(body).expect("JSON");
        lock(&sent).push(body["status"]["done"].clone());
        // The second request fails.
        let code = if lock(&sent).len() == 2 { 500 } else { 200 };
        (code, b"{}".to_vec())
    });
    let shared = Shared {
        name: "test",
        store: Arc::new(Store::new(Decode { interner: Arc::default(), sections: Sections::default() }, Vec::new())),
        children: HashMap::new(),
        watched: HashMap::new(),
        writer: testing::writer_of(clients.await),
        recorder: Recorder::new("test", Arc::new(testing::NoEvents)).0,
        consistency: Consistency::default(),
        applied: Arc::default(),
        hasher: RandomState::new(),
    };
    let cached = widget(json!({"/status": {"done": false}}));
    let context = Context::new(Arc::new(cached), Arc::new(shared));
    let (written, equal, failed) = (Some(true), Some(false), None);
    for (step, done, expected) in [
        ("as cached", false, equal),
        ("another one", true, written),
        ("as written", true, equal),
        ("back to the cached one, with an error", false, failed),
        ("again after the error", false, written),
        ("as written after the error", false, equal),
        ("back again", true, written),
    ] {
        let result = context.clone().set_status(&WidgetStatus { done }).await;
        assert_eq!(result.ok(), expected, "{step}");
    }
    assert_eq!(*lock(&statuses), [true, false, false, true].map(Value::from));
}

#[test]
fn condition_keeps_its_transition_time_while_its_status_is_equal() {
    let at = |second| ApiTime(Timestamp::from_second(second).expect("a time"));
    let condition = |kind: &str, status: &str, second| Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: "R".to_owned(),
        message: String::new(),
        last_transition_time: at(second),
        observed_generation: None,
    };
    let mut conditions = vec![condition("Other", "True", 1), condition("Ready", "False", 1)];
    for (status, second, expected) in [("False", 2, 1), ("True", 3, 3), ("True", 4, 3)] {
        set_condition(&mut conditions, condition("Ready", status, second));
        assert_eq!(conditions[1].last_transition_time, at(expected), "{status} at {second}");
    }
    set_condition(&mut conditions, condition("New", "True", 5));
    assert_eq!(conditions.len(), 3);
}
