//! The set of watched kinds, according to discovery and to the requests of controllers.

use std::sync::atomic::AtomicUsize;

use serde_json::json;

use super::*;
use crate::store::by_namespace;
use crate::testing::clients;

fn every() -> EveryKind {
    every_requested(RequestedKinds::all())
}

fn every_requested(requested: RequestedKinds) -> EveryKind {
    let typed: Arc<Store<kinds::Pod>> =
        Arc::new(Store::new(Decode { interner: Arc::default(), sections: Sections::default() }, Vec::new()));
    EveryKind::new(Arc::default(), vec![by_namespace()], requested, [typed as Arc<dyn Source>])
}

fn snapshot(groups: serde_json::Value) -> Snapshot {
    Snapshot::from_json(&json!({ "items": groups }).to_string())
}

fn group(name: &str, freshness: &str, resources: &[(&str, &str)]) -> serde_json::Value {
    let resources: Vec<_> = resources
        .iter()
        .map(|(plural, kind)| {
            json!({"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced",
                "verbs": ["delete", "get", "list", "watch"]})
        })
        .collect();
    json!({"metadata": {"name": name}, "versions": [
        {"version": "v1", "freshness": freshness, "resources": resources},
    ]})
}

/// Applies a snapshot; returns the added and the removed kinds.
fn step(every: &EveryKind, snapshot: &Snapshot) -> (Vec<&'static str>, Vec<&'static str>) {
    let removed = every.kinds_to_remove(snapshot);
    removed.iter().for_each(|resource| every.remove_kind(resource));
    let added = every.kinds_to_add(snapshot);
    added.iter().for_each(|resource| every.add_kind(*resource));
    let plurals = |list: &[Resource]| list.iter().map(|resource| resource.plural).collect();
    (plurals(&added), plurals(&removed))
}

#[test]
fn watches_follow_the_served_kinds_without_duplicates() {
    let every = every();
    let core = || group("", "Current", &[("pods", "Pod"), ("secrets", "Secret"), ("events", "Event")]);
    let own = |freshness, kinds: &[_]| group("example.com", freshness, kinds);
    let widgets = [("widgets", "Widget")];
    assert_eq!(step(&every, &snapshot(json!([core()]))), (vec!["secrets"], vec![]), "pods have a typed store");
    let with_own = snapshot(json!([core(), own("Current", &widgets)]));
    assert_eq!(step(&every, &with_own), (vec!["widgets"], vec![]));
    assert_eq!(step(&every, &with_own), (vec![], vec![]));
    let broken = snapshot(json!([core(), own("Stale", &[])]));
    assert_eq!(step(&every, &broken), (vec![], vec![]), "an unavailable group keeps its kinds");
    let unwatched = Arc::new(Mutex::new(Vec::new()));
    let recorded = unwatched.clone();
    every.subscribe(move |change| {
        if let MetaChange::Unwatched { resource } = change {
            recorded.lock().unwrap().push(resource.plural);
        }
    });
    assert_eq!(step(&every, &snapshot(json!([core()]))), (vec![], vec!["widgets"]));
    assert_eq!(*unwatched.lock().unwrap(), ["widgets"]);
    assert!(every.source("example.com", "widgets").is_none() && every.source("", "pods").is_some());
}

#[test]
fn watch_is_replaced_when_its_definition_is() {
    let every = every();
    let served = |plural, scope: &str| {
        let mut group = group("example.com", "Current", &[(plural, "Widget")]);
        group["versions"][0]["resources"][0]["scope"] = scope.into();
        snapshot(json!([group]))
    };
    assert_eq!(step(&every, &served("widgets", "Namespaced")), (vec!["widgets"], vec![]));
    let of_cluster = served("widgets", "Cluster");
    assert_eq!(step(&every, &of_cluster), (vec!["widgets"], vec!["widgets"]), "another scope");
    let source = every.source("example.com", "widgets").expect("a source");
    assert!(!source.resource().namespaced);
    assert_eq!(step(&every, &of_cluster), (vec![], vec![]));
    let renamed = served("gadgets", "Cluster");
    assert_eq!(step(&every, &renamed), (vec!["gadgets"], vec!["widgets"]), "another plural name");
    assert_eq!(step(&every, &renamed), (vec![], vec![]));
}

#[test]
fn group_with_very_many_kinds_takes_limited_watches() {
    let every = every();
    let names: Vec<(String, String)> = (0..2500).map(|number| (format!("k{number}s"), format!("K{number}"))).collect();
    let kinds: Vec<(&str, &str)> = names.iter().map(|(plural, kind)| (&**plural, &**kind)).collect();
    let served = snapshot(json!([group("hostile.io", "Current", &kinds), group("a.io", "Current", &[("as", "A")])]));
    let (added, _) = step(&every, &served);
    assert_eq!((added.len(), added.contains(&"as")), (MAX_KINDS_OF_GROUP + 1, true));
    assert_eq!(step(&every, &served), (vec![], vec![]));
}

#[test]
fn resources_of_one_kind_are_watched_without_restarts() {
    let every = every();
    let mut group = group("example.com", "Current", &[("widgetviews", "Widget"), ("widgets", "Widget")]);
    group["versions"][0]["resources"][0]["verbs"] = json!(["get"]);
    let served = snapshot(json!([group]));
    assert_eq!(step(&every, &served), (vec!["widgets"], vec![]));
    assert_eq!(step(&every, &served), (vec![], vec![]));
}

#[test]
fn requested_kinds_are_watched_while_requested() {
    let every = every_requested(RequestedKinds::default());
    let core = group("", "Current", &[("pods", "Pod"), ("secrets", "Secret")]);
    let definitions = ("customresourcedefinitions", "CustomResourceDefinition");
    let served = snapshot(json!([core, group("apiextensions.k8s.io", "Current", &[definitions])]));
    assert_eq!(step(&every, &served), (vec![], vec![]));
    assert!(every.requested.is_empty());
    every.request_kind("", "secrets");
    every.request_kind("", "secrets");
    every.request_kind("example.com", "widgets");
    assert_eq!(step(&every, &served), (vec!["secrets", "customresourcedefinitions"], vec![]));
    every.release_kind("", "secrets");
    assert_eq!(step(&every, &served), (vec![], vec![]));
    every.release_kind("", "secrets");
    assert_eq!(step(&every, &served), (vec![], vec!["secrets"]));
    every.release_kind("example.com", "widgets");
    assert_eq!(
        step(&every, &served),
        (vec![], vec!["customresourcedefinitions"]),
        "definitions are watched only while a kind is requested"
    );
    assert!(every.requested.is_empty());
}

#[test]
fn changes_of_all_stores_reach_a_subscriber() {
    let every = every();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = seen.clone();
    every.subscribe(move |change| {
        if let MetaChange::Object { resource, old, new } = change {
            let name = |meta: &Option<&Meta>| meta.map(|meta| meta.name.to_string());
            recorded.lock().unwrap().push((resource.plural, name(old), name(new)));
        }
    });
    let resource = Resource { group: "", version: "v1", kind: "Secret", plural: "secrets", namespaced: true };
    every.add_kind(resource);
    let store = every.untyped("", "secrets").expect("a store");
    let object = |version: &str| {
        use kinds::schema::object_meta as f;
        use kinds::wire::Put;
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(f::NAME, "a");
            meta.put_str(f::RESOURCE_VERSION, version);
            meta.put_entry(f::LABELS, "app", "web");
        });
        Metadata::decode(store.decoding(), &object).expect("metadata")
    };
    store.put(object("1"));
    store.remove("", "a");
    let a = || Some("a".to_owned());
    assert_eq!(*seen.lock().unwrap(), [("secrets", None, a()), ("secrets", a(), None)]);
    assert!(object("2").0.labels.is_empty());
}

const SECRETS: Resource = Resource { group: "", version: "v1", kind: "Secret", plural: "secrets", namespaced: true };
const WIDGETS: Resource =
    Resource { group: "example.com", version: "v1", kind: "Widget", plural: "widgets", namespaced: true };

#[tokio::test]
async fn watch_that_panicked_is_started_again_and_others_continue() {
    let mut watches = Watches::default();
    let started = Arc::new(AtomicUsize::new(0));
    let counted = || {
        started.fetch_add(1, Ordering::SeqCst);
    };
    let panicking = || {
        counted();
        async { panic!("a defect") }.boxed()
    };
    let endless = || {
        counted();
        std::future::pending().boxed()
    };
    watches.start(SECRETS, panicking);
    watches.start(WIDGETS, endless);
    watches.start(WIDGETS, || unreachable!("it runs"));
    while !watches.running[&name(&SECRETS)].is_finished() {
        tokio::task::yield_now().await;
    }
    watches.remove_ended();
    assert_eq!(watches.running.keys().collect::<Vec<_>>(), [&name(&WIDGETS)]);
    watches.start(SECRETS, endless);
    watches.start(WIDGETS, || unreachable!("it runs"));
    assert_eq!((started.load(Ordering::SeqCst), watches.running.len()), (3, 2));
}

/// Returns the documents of discovery with these groups besides the core group; requests for objects fail.
async fn discovered(groups: impl Fn() -> Vec<serde_json::Value> + Send + Sync + 'static) -> Arc<Clients> {
    clients(move |_, path, _| {
        let items = match path.rsplit('/').next() {
            Some("api") => vec![group("", "Current", &[("secrets", "Secret")])],
            // A document without groups counts as unreadable.
            Some("apis") => [vec![group("apps", "Current", &[])], groups()].concat(),
            _ => return (500, Vec::new()),
        };
        (200, json!({ "items": items }).to_string().into_bytes())
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn watch_that_panicked_is_started_again_in_the_next_round() {
    let clients = discovered(Vec::new).await;
    let (every, starts) = (every(), Arc::new(AtomicUsize::new(0)));
    let reflect = |_: Resource, _: Arc<Store<Metadata>>| {
        let starts = starts.clone();
        async move {
            if starts.fetch_add(1, Ordering::SeqCst) == 0 {
                panic!("a defect");
            }
            std::future::pending::<()>().await;
        }
        .boxed()
    };
    let discovery = Discovery::new(clients);
    let rounds = every.follow_discovery(&discovery, reflect);
    tokio::time::timeout(DISCOVERY_INTERVAL * 4, rounds).await.expect_err("it never ends");
    assert_eq!(starts.load(Ordering::SeqCst), 2, "once more after the panic, and not in later rounds");
}

#[tokio::test(start_paused = true)]
async fn kinds_are_followed_again_after_a_panic() {
    let is_served = Arc::new(AtomicUsize::new(1));
    let served = is_served.clone();
    let clients = discovered(move || {
        let widgets = group("example.com", "Current", &[("widgets", "Widget")]);
        if served.load(Ordering::SeqCst) == 1 { vec![widgets] } else { Vec::new() }
    })
    .await;
    let every = Arc::new(every());
    every.subscribe(|change| {
        if let MetaChange::Unwatched { .. } = change {
            panic!("a defect");
        }
    });
    let discovery = Arc::new(Discovery::new(clients.clone()));
    let run = tokio::spawn(every.clone().run(clients, discovery, None, Arc::new(Semaphore::new(1))));
    for (is_widget_served, failures) in [(1, 0), (0, 1), (1, 1)] {
        is_served.store(is_widget_served, Ordering::SeqCst);
        tokio::time::sleep(DISCOVERY_INTERVAL * 3).await;
        let is_watched = every.source("example.com", "widgets").is_some();
        assert_eq!((is_watched, every.failures()), (is_widget_served == 1, failures));
    }
    run.abort();
}
