//! What is said of objects in each situation.

use kinds::meta::Time;

use super::*;

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

fn facts<'a>(meta: Option<&'a Meta>, states: &'a [Facet]) -> Facts<'a> {
    Facts {
        leads: true,
        meta,
        store: Some((true, 0)),
        blocking: 0,
        dependents: 0,
        owners: &[],
        finalizers: FINALIZERS,
        states,
    }
}

fn facet(controller: &'static str) -> Facet {
    Facet { controller, ..Facet::default() }
}

/// Kind, who has to act, and the words of each.
fn told(waits: &[Wait]) -> Vec<(What, &str, &str)> {
    waits.iter().map(|wait| (wait.what, wait.by.as_str(), wait.text.as_str())).collect()
}

#[test]
fn an_object_at_rest_waits_for_nothing() {
    assert_eq!(told(&waits(&facts(Some(&meta(false, &["any/finalizer"])), &[facet("job-controller")]))), []);
}

#[test]
fn finalizer_is_reported_with_its_owner_or_else_its_domain() {
    let meta = meta(true, &["foregroundDeletion", "example.org/volume", "example.com/cleanup"]);
    let waits = waits(&Facts { blocking: 3, ..facts(Some(&meta), &[]) });
    let by: Vec<&str> = waits.iter().map(|wait| wait.by.as_str()).collect();
    assert_eq!(by, ["the garbage collector", "the example controller", "the program that added it (example.com)"]);
    assert!(waits.iter().all(|wait| wait.what == What::Finalizer));
    assert!(waits[0].text.ends_with("; 3 dependents block it"), "{}", waits[0].text);
    assert!(waits[2].text.contains("example.com/cleanup"), "{}", waits[2].text);
}

#[test]
fn errors_are_told_apart() {
    for (error, what, by) in [
        (
            "pods \"web-1\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1",
            What::Quota,
            "whoever sets the namespace's ResourceQuota",
        ),
        (
            "admission webhook \"no.example.com\" denied the request: no",
            What::Admission,
            "whoever set up that admission",
        ),
        (
            "pods is forbidden: User \"system:serviceaccount:kube-system:replicaset-controller\" cannot create resource \"pods\" in API group \"\"",
            What::Permission,
            "whoever gives roles",
        ),
        ("connection refused", What::Error, "replicaset-controller"),
    ] {
        let state = Facet { error: Some((error.to_owned(), false)), due: Some(75.0), ..facet("replicaset-controller") };
        let waits = waits(&facts(None, std::slice::from_ref(&state)));
        assert_eq!(told(&waits)[0].0, what, "{error}");
        assert_eq!(told(&waits)[0].1, by, "{error}");
        assert!(
            waits[0].text.contains(error) && waits[0].text.ends_with("(tried again in 1m 15s)"),
            "{}",
            waits[0].text
        );
        assert_eq!(waits.len(), 1, "the time of the next try is told once");
    }
    let dropped = Facet { error: Some(("no".to_owned(), true)), ..facet("job-controller") };
    let waits = waits(&facts(None, &[dropped]));
    assert!(waits[0].text.ends_with("(not tried again until something changes)"), "{}", waits[0].text);
}

#[test]
fn deadlines_stores_workers_and_queues_are_told_of() {
    let states = [
        Facet { due: Some(7200.0), ..facet("deployment-controller") },
        Facet {
            waiting_for_cache: Some("the store of pods has not come to version 9".to_owned()),
            ..facet("replicaset-controller")
        },
        Facet { working: Some(30.0), ..facet("job-controller") },
        Facet { working: Some(1.0), ..facet("cronjob-controller") },
        Facet { ready: true, ..facet("endpoints-controller") },
    ];
    let waits = waits(&Facts { store: Some((false, 2)), ..facts(None, &states) });
    let told = told(&waits);
    let kinds: Vec<What> = told.iter().map(|(what, ..)| *what).collect();
    assert_eq!(kinds, [What::Worker, What::Store, What::Store, What::Store, What::Deadline, What::Queue]);
    let has = |words: &str| assert!(told.iter().any(|(.., text)| text.contains(words)), "{words} in {told:?}");
    has("job-controller has been at it for 30s");
    has("first list of its kind is not complete");
    has("2 objects of its kind cannot be decoded");
    has("the store of pods has not come to version 9");
    has("looks at it again in 2h 0m");
    has("waits for a worker of endpoints-controller");
}

#[test]
fn a_follower_and_lost_owners_are_told_of() {
    let owner = OwnerRef {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: "gone".into(),
        uid: Uid::parse("22222222-2222-2222-2222-222222222222"),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let owners = [(owner.clone(), Owner::Gone), (owner.clone(), Owner::Here), (owner.clone(), Owner::Unknown)];
    let waits = waits(&Facts { leads: false, owners: &owners, ..facts(None, &[]) });
    let kinds: Vec<What> = waits.iter().map(|wait| wait.what).collect();
    assert_eq!(kinds, [What::Leader, What::Owner]);
    assert!(super::told(&owner, Owner::Another).starts_with("its controller; is gone; another"));
}

#[test]
fn kinds_are_named_in_many_ways() {
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
        assert_eq!(means(&resource, word), yes, "{word}");
    }
}
