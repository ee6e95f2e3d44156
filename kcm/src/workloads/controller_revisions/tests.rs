//! Names, data and retention of revisions.

use kinds::schema::object_meta;
use kinds::template::Template;
use kinds::wire::Put as _;
use kinds::{Decode, Interner, Kind as _, Meta, Sections, Time, envelope};
use runtime::consistency::Consistency;
use runtime::testing::{filled_store, meta, writer};
use serde_json::{Value, json};

use super::*;
use crate::pods::creation_gate::CreationGate;

fn revision(name: &str, number: i64, created: i64, data: &[u8]) -> Arc<ControllerRevision> {
    let interner = Interner::default();
    let meta = Meta {
        namespace: "ns".into(),
        name: name.into(),
        uid: Uid::parse(name),
        version: 1,
        generation: 0,
        created: Time(created),
        deletion: Time::default(),
        labels: interner.labels(Vec::new()),
        owners: interner.owners(&[]),
        finalizers: interner.list(&[]),
    };
    Arc::new(ControllerRevision { meta, revision: number, data: Fingerprint::of(data) })
}

fn names(revisions: &[Arc<ControllerRevision>]) -> Vec<&str> {
    revisions.iter().map(|revision| &*revision.meta.name).collect()
}

fn data(template: Value) -> Vec<u8> {
    let workload = json!({"metadata": {"uid": "u", "generation": 2}, "spec": {"template": template}});
    Snapshot::read(workload).expect("a workload").data
}

#[test]
fn names_are_truncated_and_have_a_hash() {
    assert_eq!(revision_name("web", "abc"), "web-abc");
    assert_eq!(revision_name(&"x".repeat(253), "abc").len(), 227);
    let hashes = [hash(b"a", None), hash(b"a", Some(0)), hash(b"a", Some(1)), hash(b"b", None)];
    assert!(hashes.iter().enumerate().all(|(at, hash)| !hashes[..at].contains(hash)), "{hashes:?}");
    // Computed by upstream's code.
    assert_eq!(hash(br#"{"spec":1}"#, Some(0)), "6c6d4757f9");
    // The FNV-1 hash of no bytes is the offset 2166136261, whose digits are replaced by letters and digits as in
    // upstream.
    assert_eq!(hash(b"", None), safe_name(2_166_136_261));
}

#[test]
fn data_equals_gos_encoding() {
    let template = json!({
        "spec": {"z": 1, "a": [true, null, -3, 9_223_372_036_854_775_807_i64], "b": "<a>&\"\\\u{1}\u{7f}\u{2028}\n\u{8}\u{c}é"},
        "metadata": {"labels": {"app": "web"}},
    });
    let expected = concat!(
        r#"{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"app":"web"}},"spec":{"#,
        r#""a":[true,null,-3,9223372036854775807],"b":"\u003ca\u003e\u0026\"\\\u0001"#,
        "\u{7f}",
        r#"\u2028\n\b\fé","z":1}}}}"#
    );
    // Go decodes numbers as float64, so the largest integer is rounded.
    let expected = expected.replace("9223372036854775807", "9223372036854776000");
    assert_eq!(String::from_utf8(data(template)).expect("text"), expected);
}

#[test]
fn snapshot_contains_all_that_a_revision_needs() {
    let snapshot = Snapshot::read(json!({
        "metadata": {"uid": "u", "generation": 7, "annotations": {"note": "x"}},
        "spec": {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {}}},
    }))
    .expect("a workload");
    assert_eq!((snapshot.uid.to_string(), snapshot.generation), ("u".to_owned(), 7));
    assert_eq!(snapshot.labels, [("app".to_owned(), "web".to_owned())]);
    assert_eq!(snapshot.annotations, [("note".to_owned(), "x".to_owned())]);
    let back = template_of(&snapshot.data).expect("a patch of a template");
    assert_eq!(Value::Object(back), json!({"metadata": {"labels": {"app": "web"}}, "spec": {}}));
    assert_eq!(template_of(b"{}"), None);
    assert_eq!(template_of(b"no json"), None);
    assert!(Snapshot::read(json!({"metadata": {"uid": "u"}})).is_err());
    assert!(Snapshot::read(json!({"spec": {"template": {}}})).is_err());
}

#[test]
fn templates_that_differ_by_defaults_are_equal() {
    let short = json!({
        "metadata": {"creationTimestamp": null, "labels": {"app": "web"}},
        "spec": {
            "serviceAccountName": "a",
            "containers": [{
                "name": "c", "image": "registry:5000/web",
                "ports": [{"containerPort": 80}],
                "env": [{"name": "E", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "readinessProbe": {"httpGet": {"port": 80}},
            }],
            "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
        },
    });
    let long = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "serviceAccountName": "a", "serviceAccount": "a", "dnsPolicy": "ClusterFirst", "restartPolicy": "Always",
            "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            "containers": [{
                "name": "c", "image": "registry:5000/web", "imagePullPolicy": "Always", "resources": {},
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "env": [{"name": "E", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                "readinessProbe": {
                    "httpGet": {"path": "/", "port": 80, "scheme": "HTTP"},
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                },
            }],
            "volumes": [{"name": "v", "secret": {"secretName": "s", "defaultMode": 420}}],
        },
    });
    assert!(are_semantically_equal(&data(short.clone()), &data(long.clone())));
    for (path, value) in [
        ("/spec/restartPolicy", json!("Never")),
        ("/spec/serviceAccount", json!("b")),
        ("/spec/containers/0/image", json!("registry:5000/web:2")),
        ("/spec/containers/0/imagePullPolicy", json!("IfNotPresent")),
        ("/spec/containers/0/ports/0/protocol", json!("UDP")),
        ("/spec/containers/0/readinessProbe/periodSeconds", json!(11)),
        ("/spec/volumes/0/secret/defaultMode", json!(0)),
        ("/metadata/labels/app", json!("db")),
    ] {
        let mut other = long.clone();
        *other.pointer_mut(path).expect("a field") = value;
        assert!(!are_semantically_equal(&data(short.clone()), &data(other)), "{path}");
    }
    assert!(!are_semantically_equal(b"{}", b"{}"), "data that is not a patch is never equal");
}

#[test]
fn default_pull_policy_follows_the_tag() {
    let with = |image: &str, policy: Option<&str>| {
        let mut container = json!({"name": "c", "image": image});
        if let Some(policy) = policy {
            container["imagePullPolicy"] = policy.into();
        }
        data(json!({"spec": {"containers": [container]}}))
    };
    for (image, policy) in [
        ("web", "Always"),
        ("web:latest", "Always"),
        ("web:1", "IfNotPresent"),
        ("host:5000/web", "Always"),
        ("host:5000/web:1", "IfNotPresent"),
        ("web@sha256:0", "IfNotPresent"),
        ("web:latest@sha256:0", "Always"),
    ] {
        let other = if policy == "Always" { "IfNotPresent" } else { "Always" };
        assert!(are_semantically_equal(&with(image, None), &with(image, Some(policy))), "{image}");
        assert!(!are_semantically_equal(&with(image, None), &with(image, Some(other))), "{image}");
    }
}

#[test]
fn revisions_are_ordered_by_number_then_age_then_name() {
    let mut revisions =
        vec![revision("d", 2, 1, b""), revision("c", 1, 9, b""), revision("b", 1, 5, b""), revision("a", 1, 9, b"")];
    revisions.sort_by(|a, b| by_number(a, b));
    assert_eq!(names(&revisions), ["b", "a", "c", "d"]);
    assert_eq!(next_number(&revisions), 3);
    assert_eq!(next_number(&[]), 1);
    assert_eq!(next_number(&[revision("last", i64::MAX, 1, b"")]), i64::MAX);
}

#[test]
fn newest_of_equal_revisions_is_found() {
    let sorted = [revision("a", 1, 1, b"x"), revision("b", 2, 1, b"y"), revision("c", 3, 1, b"x")];
    assert_eq!(find_equal(&sorted, b"x").map(|found| found.meta.name.clone()).as_deref(), Some("c"));
    assert_eq!(find_equal(&sorted, b"y").map(|found| found.meta.name.clone()).as_deref(), Some("b"));
    assert!(find_equal(&sorted, b"z").is_none());
}

#[test]
fn live_revisions_are_kept_and_do_not_count() {
    let sorted: Vec<_> = ["a", "b", "c", "d"].iter().zip(1..).map(|(name, at)| revision(name, at, 1, b"")).collect();
    for (live, limit, gone) in [
        (&["d"][..], 10, &[][..]),
        (&["d"], 3, &[]),
        (&["d"], 2, &["a"]),
        (&["d"], 0, &["a", "b", "c"]),
        (&["a", "d"], 1, &["b"]),
        (&["a", "b", "c", "d"], 0, &[]),
        (&[], 1, &["a", "b", "c"]),
        (&[], -1, &[]),
    ] {
        let live = live.iter().map(|name| Str::from(*name)).collect();
        assert_eq!(names(&surplus(&sorted, &live, limit)), gone, "{live:?} {limit}");
    }
}

#[test]
fn template_is_remembered_until_it_changes() {
    let template = |spec: &[u8]| Template { labels: [].into(), meta: [].into(), spec: spec.into() };
    let memory = Memory::default();
    let owner = Meta { uid: Uid::parse("u"), ..meta("ns", "web", 1) };
    memory.remember(&owner, &template(b"1"), &"web-a".into());
    assert_eq!(memory.recall(&owner, &template(b"1")).as_deref(), Some("web-a"));
    assert_eq!(memory.recall(&owner, &template(b"2")), None);
    let successor = Meta { uid: Uid::parse("successor"), ..owner.clone() };
    assert_eq!(memory.recall(&successor, &template(b"1")), None);
    memory.forget(&owner.key());
    assert_eq!(memory.recall(&owner, &template(b"1")), None);
}

/// Random JSON that contains the field names of templates at any depth.
fn any_json() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::*;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    let name = "spec|template|metadata|labels|annotations|containers|image|imagePullPolicy|\\$patch|uid|[a-z]{0,4}";
    leaf.prop_recursive(6, 48, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name, inner, 0..5)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest::proptest! {
    #[test]
    fn any_workload_and_revision_is_read_or_refused(json in any_json(), template in any_json(), bytes: Vec<u8>) {
        let _ = Snapshot::read(json.clone());
        let whole = json!({"metadata": {"uid": "u"}, "spec": {"template": template}});
        if let Ok(snapshot) = Snapshot::read(whole) {
            proptest::prop_assert!(serde_json::from_slice::<Value>(&snapshot.data).is_ok());
            proptest::prop_assert!(equality::are_semantically_equal(&snapshot.data, &snapshot.data));
        }
        equality::are_semantically_equal(&bytes, json.to_string().as_bytes());
    }
}

#[tokio::test]
async fn revision_of_another_uid_is_neither_renumbered_nor_labelled() {
    for (uid, is_written) in [("a", true), ("other", false)] {
        let writes = Arc::<Mutex<usize>>::default();
        let counted = writes.clone();
        let mut current = Vec::new();
        current.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, "a");
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::UID, uid);
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        let response = envelope::wrap(&ControllerRevision::RESOURCE, &current);
        let writer = writer(move |method, _| {
            *counted.lock().expect("the count") += usize::from(method.as_str() == "PUT");
            (200, response.clone())
        })
        .await;
        let known = revision("a", 1, 0, b"{}");
        let reference = known.controller_ref();
        let decode = || Decode { interner: Arc::default(), sections: Sections::default() };
        let history = History {
            owner: &known.meta,
            reference: &reference,
            revisions: &Arc::new(filled_store(decode(), Vec::new(), [])),
            consistency: &Consistency::default(),
            writer: &writer,
            gate: &CreationGate::new(Arc::new(filled_store(decode(), Vec::new(), []))),
            refusals: &Default::default(),
        };
        let renumbered = history.renumber(&known, 2).await;
        let labelled = history.label(&known, "key", "value").await;
        if is_written {
            assert!(renumbered.is_ok() && labelled.is_ok(), "{renumbered:?}, {labelled:?}");
        } else {
            assert!(renumbered.is_err_and(|error| error.is_conflict()));
            assert!(labelled.is_err_and(|error| error.is_conflict()));
        }
        assert_eq!(*writes.lock().expect("the count"), if is_written { 2 } else { 0 }, "{uid}");
    }
}
