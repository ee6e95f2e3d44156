//! Reports about objects: the reasons why an object waits, and the responsible party of each.

use kinds::meta::Time;
use kinds::{Decode, Sections};

use super::*;
use crate::store::Store;
use crate::watch::Metadata;

fn meta(deleting: bool, finalizers: &[&str]) -> Meta {
    Meta {
        namespace: "ns".into(),
        name: "web".into(),
        uid: Uid::parse("11111111-1111-1111-1111-111111111111"),
        version: 7,
        generation: 1,
        created: Time(1),
        deletion: Time(if deleting { 2 } else { 0 }),
        labels: Vec::new().into(),
        owners: Vec::new().into(),
        finalizers: finalizers.iter().map(|finalizer| (*finalizer).into()).collect(),
    }
}

const FINALIZERS: &[FinalizerOwner] = &[
    FinalizerOwner {
        finalizer: "foregroundDeletion",
        by: "the garbage collector",
        condition: "once nothing blocks it",
    },
    FinalizerOwner { finalizer: "example.org/", by: "the example controller", condition: "once it has cleaned up" },
];

fn facts<'a>(meta: Option<&'a Meta>, states: &'a [KeyState]) -> Facts<'a> {
    Facts {
        leads: true,
        meta,
        store: Some((true, 0)),
        is_stale: false,
        blocking: 0,
        dependents: 0,
        owners: &[],
        finalizers: FINALIZERS,
        states,
    }
}

fn key_state(controller: &'static str) -> KeyState {
    KeyState { controller, ..KeyState::default() }
}

/// Returns kind, responsible party and text of each reason.
fn summaries(waits: &[Wait]) -> Vec<(WaitKind, &str, &str)> {
    waits.iter().map(|wait| (wait.what, wait.by.as_str(), wait.text.as_str())).collect()
}

#[test]
fn idle_object_waits_for_nothing() {
    assert_eq!(summaries(&waits(&facts(Some(&meta(false, &["any/finalizer"])), &[key_state("job-controller")]))), []);
}

#[test]
fn finalizer_is_reported_with_its_owner_or_else_its_domain() {
    let meta = meta(true, &["foregroundDeletion", "example.org/volume", "example.com/cleanup"]);
    let waits = waits(&Facts { blocking: 3, ..facts(Some(&meta), &[]) });
    let by: Vec<&str> = waits.iter().map(|wait| wait.by.as_str()).collect();
    assert_eq!(by, ["the garbage collector", "the example controller", "the program that added it (example.com)"]);
    assert!(waits.iter().all(|wait| wait.what == WaitKind::Finalizer));
    assert!(waits[0].text.ends_with("; 3 dependents block it"), "{}", waits[0].text);
    assert!(waits[2].text.contains("example.com/cleanup"), "{}", waits[2].text);
}

#[test]
fn errors_are_classified_by_their_messages() {
    for (error, what, by) in [
        (
            "pods \"web-1\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1",
            WaitKind::Quota,
            "the administrator of the namespace's ResourceQuota",
        ),
        (
            "admission webhook \"no.example.com\" denied the request: no",
            WaitKind::Admission,
            "the administrator of that admission webhook or policy",
        ),
        (
            "pods is forbidden: User \"system:serviceaccount:kube-system:replicaset-controller\" cannot create resource \"pods\" in API group \"\"",
            WaitKind::Permission,
            "the administrator of RBAC",
        ),
        ("connection refused", WaitKind::Error, "replicaset-controller"),
    ] {
        let state =
            KeyState { error: Some((error.to_owned(), false)), due: Some(75.0), ..key_state("replicaset-controller") };
        let waits = waits(&facts(None, std::slice::from_ref(&state)));
        assert_eq!(summaries(&waits)[0].0, what, "{error}");
        assert_eq!(summaries(&waits)[0].1, by, "{error}");
        assert!(waits[0].text.contains(error) && waits[0].text.ends_with("(retried in 1m 15s)"), "{}", waits[0].text);
        assert_eq!(waits.len(), 1, "the time of the next retry is reported once");
    }
    let dropped = KeyState { error: Some(("no".to_owned(), true)), ..key_state("job-controller") };
    let waits = waits(&facts(None, &[dropped]));
    assert!(waits[0].text.ends_with("(retried at the next change)"), "{}", waits[0].text);
}

#[test]
fn deadlines_stores_workers_and_queues_are_reported() {
    let states = [
        KeyState { due: Some(7200.0), ..key_state("deployment-controller") },
        KeyState {
            waiting_for_cache: Some("the cache of pods has not reached version 9".to_owned()),
            ..key_state("replicaset-controller")
        },
        KeyState { working: Some(30.0), ..key_state("job-controller") },
        KeyState { working: Some(1.0), ready: true, ..key_state("cronjob-controller") },
        KeyState { ready: true, ..key_state("endpoints-controller") },
    ];
    let waits = waits(&Facts { store: Some((false, 2)), is_stale: true, ..facts(None, &states) });
    let summaries = summaries(&waits);
    let kinds: Vec<WaitKind> = summaries.iter().map(|(what, ..)| *what).collect();
    assert_eq!(
        kinds,
        [
            WaitKind::Worker,
            WaitKind::Store,
            WaitKind::Store,
            WaitKind::Store,
            WaitKind::Store,
            WaitKind::Deadline,
            WaitKind::Queue
        ]
    );
    let has =
        |words: &str| assert!(summaries.iter().any(|(.., text)| text.contains(words)), "{words} in {summaries:?}");
    has("job-controller has been reconciling it for 30s");
    has("first list of its kind is not complete");
    has("2 objects of its kind cannot be decoded");
    has("its newest state cannot be decoded");
    has("the cache of pods has not reached version 9");
    has("reconciles it again in 2h 0m");
    has("waits for a worker of endpoints-controller");
}

#[test]
fn standby_and_missing_owners_are_reported() {
    let owner = OwnerRef {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: "gone".into(),
        uid: Uid::parse("22222222-2222-2222-2222-222222222222"),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let owners = [
        (owner.clone(), OwnerState::Deleted),
        (owner.clone(), OwnerState::Exists),
        (owner.clone(), OwnerState::Undecodable),
        (owner.clone(), OwnerState::Unknown),
    ];
    let waits = waits(&Facts { leads: false, owners: &owners, ..facts(None, &[]) });
    let kinds: Vec<WaitKind> = waits.iter().map(|wait| wait.what).collect();
    assert_eq!(kinds, [WaitKind::Leader, WaitKind::Owner]);
    assert!(super::owner_summary(&owner, OwnerState::Replaced).starts_with("its controller; replaced by another"));
}

#[test]
fn owner_that_cannot_be_decoded_is_not_reported_as_deleted() {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let store = Arc::new(Store::<Metadata>::new(decode, Vec::new()));
    store.progress().set_synced();
    let (old, new) = (meta(false, &[]).uid, Uid::parse("22222222-2222-2222-2222-222222222222"));
    let owner = |uid: &Uid| OwnerRef {
        api_version: "meta.k8s.io/v1".into(),
        kind: "PartialObjectMetadata".into(),
        name: "web".into(),
        uid: uid.clone(),
        controller: None,
        block_owner_deletion: None,
    };
    let sources: [Arc<dyn Source>; 1] = [store.clone()];
    let states = || [&old, &new].map(|uid| owner_state(&sources, &meta(false, &[]), &owner(uid)));
    assert_eq!(states(), [OwnerState::Deleted, OwnerState::Deleted]);
    assert!(store.set_undecodable(ObjectKey::new("ns", "web")));
    assert_eq!(states(), [OwnerState::Undecodable, OwnerState::Undecodable]);
    store.put(Metadata(meta(false, &[])));
    assert_eq!(states(), [OwnerState::Exists, OwnerState::Replaced]);
    assert!(store.set_undecodable(ObjectKey::new("ns", "web")));
    assert_eq!(states(), [OwnerState::Exists, OwnerState::Undecodable], "the record is stale");
    store.put(Metadata(meta(true, &[])));
    assert_eq!(states(), [OwnerState::BeingDeleted, OwnerState::Replaced]);
}

#[test]
fn resource_matches_its_kind_or_plural_name_with_or_without_its_group() {
    let resource =
        Resource { group: "apps", version: "v1", kind: "Deployment", plural: "deployments", namespaced: true };
    for (word, yes) in [
        ("Deployment", true),
        ("deployment", true),
        ("deployments", true),
        ("deployments.apps", true),
        ("Deployment.apps", true),
        ("deployments.batch", false),
        ("deploy", false),
        ("", false),
    ] {
        assert_eq!(names_resource(&resource, word), yes, "{word}");
    }
}
