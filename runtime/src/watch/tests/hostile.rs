//! Servers that send more than a server can have, or something else than was requested.

use std::sync::atomic::AtomicU64;

use super::super::list_progress::Limits;
use super::super::{MetaChange, Metadata, Source as _};
use super::*;

/// A list of `a` and `b`, as the first events of a watch.
fn valid_list(version: u64) -> Reply {
    let objects = ["a", "b"].map(|name| event("ADDED", &object(name, 3)));
    Reply::Open([&objects[..], &[end_of_list(version)]].concat())
}

/// The end of a watch whose version has expired.
fn expired() -> Reply {
    ended_by(410, "")
}

/// The end of a watch by an error.
fn ended_by(code: i64, reason: &str) -> Reply {
    let mut status = Vec::new();
    status.put_int(kinds::schema::api_status::CODE, code);
    status.put_str(kinds::schema::api_status::REASON, reason);
    Reply::Open(vec![event_of("Status", "ERROR", &status)])
}

/// Serves a valid list first, and each later one by `script`, which gets the number of the list's request.
async fn valid_list_then(
    script: impl Fn(&str, usize) -> Reply + Send + Sync + 'static,
) -> (Arc<Clients>, Arc<AtomicUsize>) {
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let clients = clients(move |uri| {
        if uri.contains("watch=true") && !uri.contains("sendInitialEvents") {
            return expired();
        }
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => valid_list(9),
            number => script(uri, number),
        }
    });
    (clients.await, lists)
}

#[tokio::test(start_paused = true)]
async fn list_without_end_is_given_up_and_what_it_added_is_removed() {
    type Script = fn(&str, usize) -> Reply;
    let cases: [(&str, Script); 3] = [
        ("empty pages", |uri, number| match uri {
            uri if uri.contains("sendInitialEvents") => Reply::Whole(Bytes::new()),
            _ => Reply::Whole(page(99, &number.to_string(), &[])),
        }),
        ("pages with new objects", |uri, number| match uri {
            uri if uri.contains("sendInitialEvents") => Reply::Whole(Bytes::new()),
            _ => {
                let objects: Vec<_> = (0..200).map(|at| object(&format!("endless-{number}-{at}"), 3)).collect();
                Reply::Whole(page(99, &number.to_string(), &objects))
            }
        }),
        ("a stream of new objects", |uri, number| match uri {
            uri if uri.contains("sendInitialEvents") => {
                Reply::Open((0..5000).map(|at| event("ADDED", &object(&format!("endless-{number}-{at}"), 3))).collect())
            }
            _ => Reply::Never,
        }),
    ];
    for (case, script) in cases {
        let (clients, lists) = valid_list_then(script).await;
        let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
        let permits = Arc::new(Semaphore::new(1));
        tasks.spawn(reflector(&clients, &store, &permits).limited(Limits::small()).run());
        within(60, "the valid list", store.progress().synced()).await;
        until(case, || lists.load(Ordering::SeqCst) >= 20 || case.starts_with("a stream")).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        until(case, || names(&store) == ["a", "b"]).await;
        let before = lists.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(100)).await;
        let more = lists.load(Ordering::SeqCst) - before;
        assert!(more < 150, "{case}: {more} requests in 100 s");
    }
}

#[tokio::test(start_paused = true)]
async fn kind_recovers_when_its_lists_end_again() {
    let (clients, _) = valid_list_then(|_, number| match number {
        1 => Reply::Open((0..5000).map(|at| event("ADDED", &object(&format!("endless-{at}"), 3))).collect()),
        _ => Reply::Whole(page(99, "", &[object("b", 3), object("c", 50)])),
    })
    .await;
    let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
    let permits = Arc::new(Semaphore::new(1));
    tasks.spawn(reflector(&clients, &store, &permits).limited(Limits::small()).run());
    until("the later list", || names(&store) == ["b", "c"]).await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_list_that_breaks_off_stay() {
    let (clients, lists) = valid_list_then(|uri, _| match uri {
        uri if uri.contains("continue=") => Reply::Refused(500),
        uri if uri.contains("limit=500") => Reply::Whole(page(99, "next", &[object("c", 50)])),
        _ => Reply::Whole(Bytes::new()),
    })
    .await;
    let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
    start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
    until("more lists", || lists.load(Ordering::SeqCst) >= 10).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(names(&store), ["a", "b", "c"]);
}

/// Responses with status 200 that are not lists: if they were read as empty lists, all objects of the cache would be
/// deleted.
#[tokio::test(start_paused = true)]
async fn response_that_is_not_a_list_deletes_nothing() {
    let status = || {
        let mut status = Vec::new();
        status.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, "99"));
        status.put_str(2, "Failure");
        wrap_as("v1", "Status", &status)
    };
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("a Status", status()),
        ("an envelope without content", wrap_as("v1", "ThingList", &[])),
        ("only the magic bytes", b"k8s\0".to_vec()),
        ("nothing", Vec::new()),
        ("a page of a proxy", b"<html>502 Bad Gateway</html>".to_vec()),
        ("JSON", b"{}".to_vec()),
    ];
    for (case, body) in bodies {
        let (clients, lists) = valid_list_then(move |_, _| Reply::Whole(body.clone().into())).await;
        let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
        start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
        until(case, || lists.load(Ordering::SeqCst) >= 6).await;
        assert_eq!(names(&store), ["a", "b"], "{case}");
    }
}

/// Serves each list and each watch by these replies, and counts the lists.
async fn list_and_watch(
    list: impl Fn() -> Reply + Send + Sync + 'static,
    watch: impl Fn() -> Reply + Send + Sync + 'static,
) -> (Arc<Clients>, Arc<AtomicUsize>) {
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let clients = clients(move |uri| match uri {
        uri if uri.contains("sendInitialEvents") => {
            counted.fetch_add(1, Ordering::SeqCst);
            list()
        }
        uri if uri.contains("limit=1") => Reply::Whole(page(2000, "", &[])),
        _ => watch(),
    });
    (clients.await, lists)
}

#[tokio::test(start_paused = true)]
async fn object_of_another_kind_is_not_stored() {
    let watch = || Reply::Open(vec![event_of("Secret", "ADDED", &object("other", 10))]);
    let (clients, lists) = list_and_watch(|| valid_list(9), watch).await;
    let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
    start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
    until("the kind is relisted", || lists.load(Ordering::SeqCst) >= 3).await;
    assert_eq!(names(&store), ["a", "b"]);
    assert_eq!(store.progress().version(), 9);
}

/// Returns the metadata of an object with a name of a kilobyte.
fn large(number: u64) -> Vec<u8> {
    object(&format!("{number}-{}", "x".repeat(1 << 10)), number)
}

#[tokio::test(start_paused = true)]
async fn list_fails_with_the_reason_when_too_many_objects_cannot_be_decoded() {
    let name = |number: usize| format!("{number}-{}", "x".repeat(1 << 20));
    let without_version = {
        let mut object = Vec::new();
        object.put_message(1, |meta| meta.put_str(object_meta::NAME, &name(100)));
        object
    };
    let clients = clients(move |_| Reply::Whole(event("ADDED", &without_version))).await;
    let store = store(Vec::new());
    assert!((0..100).any(|number| !store.set_undecodable(ObjectKey::new("", name(number)))), "the store is full");
    let error = reflector(&clients, &store, &Arc::new(Semaphore::new(1))).step().await.expect_err("an object too many");
    let expected =
        "too many objects of the kind cannot be decoded; correct or delete those that earlier log lines name";
    assert_eq!(error.to_string(), expected);
    assert_eq!(store.undecodable(), 0, "none was in a complete list");
}

/// Returns a store of metadata and a reflector for it, with low limits.
fn metadata(clients: Arc<Clients>) -> (Arc<Store<Metadata>>, Reflector) {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let store = Arc::new(Store::<Metadata>::new(decode, Vec::new()));
    let scope = Scope { resource: Thing::RESOURCE, namespace: None, form: Form::Metadata };
    let reflector = Reflector::new(clients, scope, store.clone(), Arc::new(Semaphore::new(1)));
    (store, reflector.limited(Limits::small()))
}

#[tokio::test(start_paused = true)]
async fn metadata_that_a_watch_adds_is_limited() {
    let watch =
        || Reply::Open((10..1000).map(|number| event_of("PartialObjectMetadata", "ADDED", &large(number))).collect());
    let (clients, lists) = list_and_watch(|| Reply::Open(vec![end_of_list(9)]), watch).await;
    let ((store, reflector), mut tasks) = (metadata(clients), JoinSet::new());
    tasks.spawn(reflector.run());
    until("the kind is relisted", || lists.load(Ordering::SeqCst) >= 3).await;
    assert!(store.undecodable() == 0 && store.len() < 110, "{} objects", store.len());
}

#[tokio::test(start_paused = true)]
async fn objects_that_take_too_much_memory_are_forgotten_and_not_reported_as_deleted() {
    // In the second case, a small list was complete before.
    for is_listed_before in [false, true] {
        let lists = AtomicU64::new(0);
        let clients = clients(move |uri| match uri {
            uri if uri.contains("watch=true") => expired(),
            _ if lists.fetch_add(1, Ordering::SeqCst) == 0 && is_listed_before => {
                Reply::Whole(page(9, "", &[large(1)]))
            }
            _ => Reply::Whole(page(99, "", &(1..=300).map(large).collect::<Vec<_>>())),
        })
        .await;
        let ((store, reflector), mut tasks) = (metadata(clients), JoinSet::new());
        let (deleted, forgotten) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let counts = (deleted.clone(), forgotten.clone());
        store.subscribe_meta(Arc::new(move |change| match change {
            MetaChange::Forgotten { .. } => {
                counts.1.fetch_add(1, Ordering::SeqCst);
            }
            MetaChange::Object { new: None, .. } => {
                counts.0.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }));
        tasks.spawn(reflector.paged(true).run());
        until("the list is given up", || forgotten.load(Ordering::SeqCst) > 0).await;
        assert_eq!(store.len(), usize::from(is_listed_before), "the objects of the complete list stay");
        assert_eq!(deleted.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn kind_recovers_when_incomplete_lists_have_filled_its_cache() {
    // (pages after the first one fail, a list was complete before)
    for (breaks_off, is_listed_before) in [(true, false), (true, true), (false, false), (false, true)] {
        let (lists, pages) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
        let counted = lists.clone();
        let clients = clients(move |uri| match uri {
            uri if uri.contains("watch=true") => expired(),
            uri if uri.contains("continue=") && breaks_off => Reply::Refused(500),
            uri if uri.contains("continue=") => {
                let token = pages.fetch_add(1, Ordering::SeqCst).to_string();
                Reply::Whole(page(99, &token, &[]))
            }
            _ => match counted.fetch_add(1, Ordering::SeqCst) {
                0 if is_listed_before => Reply::Whole(page(9, "", &[large(1)])),
                number @ 0..8 => {
                    let objects: Vec<_> = (1..=60).map(|at| large(1000 * (number + 1) + at)).collect();
                    Reply::Whole(page(99, "next", &objects))
                }
                _ => Reply::Whole(page(99, "", &(1..=80).map(large).collect::<Vec<_>>())),
            },
        })
        .await;
        let ((store, reflector), mut tasks) = (metadata(clients), JoinSet::new());
        tasks.spawn(reflector.paged(true).run());
        until("the later list", || lists.load(Ordering::SeqCst) > 8 && store.len() == 80).await;
    }
}

#[tokio::test(start_paused = true)]
async fn kind_is_relisted_with_backoff_when_its_watch_is_refused() {
    type Refusal = fn() -> Reply;
    // (refusal, minimum and maximum number of lists in ten minutes)
    let cases: [(&str, Refusal, usize, usize); 5] = [
        ("an error without a code in the watch", || ended_by(0, "InternalError"), 10, 30),
        ("an error of the watch", || Reply::Refused(500), 10, 30),
        ("a kind that cannot be watched", || Reply::Refused(405), 10, 30),
        ("a server that is unavailable for watches", || Reply::Refused(503), 8, 30),
        ("an overloaded server", || Reply::Refused(429), 1, 1),
    ];
    for (case, refusal, min, max) in cases {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = lists.clone();
        let clients = clients(move |uri| match uri {
            uri if uri.contains("limit=500") => {
                counted.fetch_add(1, Ordering::SeqCst);
                Reply::Whole(page(9, "", &[object("a", 3)]))
            }
            uri if uri.contains("limit=1") => Reply::Whole(page(2000, "", &[])),
            _ => refusal(),
        })
        .await;
        let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
        tasks.spawn(reflector(&clients, &store, &Arc::new(Semaphore::new(1))).paged(true).run());
        tokio::time::sleep(Duration::from_secs(600)).await;
        let lists = lists.load(Ordering::SeqCst);
        assert!((min..=max).contains(&lists), "{case}: {lists} lists");
    }
}
