//! Reflectors with scripted servers: silence, lists without an end, lost state, panics.

mod hostile;
mod refused;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use http::Response;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use kinds::envelope::wrap_as;
use kinds::meta::ObjectKey;
use kinds::schema::{list_meta, object_meta, raw_extension, watch_event};
use kinds::wire::{Put as _, find};
use kinds::{Decode, DecodeError, Form, Kind, Meta, Resource, Sections};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::reflector::Reflector;
use super::request::Scope;
use crate::client::{Clients, ConnectOptions, Lane, ProxyEnvironment, RequestLayer, ResponseBody, connect};
use crate::store::{Index, Store};

#[derive(Debug)]
struct Thing(Meta);

impl Kind for Thing {
    const RESOURCE: Resource = Resource { group: "", version: "v1", kind: "Thing", plural: "things", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let meta = Meta::decode(&context.interner, find(object, 1), |_, _| {})?;
        assert!(&*meta.name != "makes-the-decoder-panic");
        Ok(Self(meta))
    }

    fn meta(&self) -> &Meta {
        &self.0
    }
}

/// A kind with many objects, whose list is requested in one response.
#[derive(Debug)]
struct LargeThing(Thing);

impl Kind for LargeThing {
    const RESOURCE: Resource = Thing::RESOURCE;
    const MANY: bool = true;

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Thing::decode(context, object).map(Self)
    }

    fn meta(&self) -> &Meta {
        self.0.meta()
    }
}

fn object(name: &str, version: u64) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
    });
    object
}

fn event(kind: &str, object: &[u8]) -> Bytes {
    event_of("Thing", kind, object)
}

/// Returns an event with an object of a kind.
fn event_of(object_kind: &str, kind: &str, object: &[u8]) -> Bytes {
    let mut event = Vec::new();
    event.put_str(watch_event::TYPE, kind);
    event.put_message(watch_event::OBJECT, |message| {
        message.put_bytes(raw_extension::RAW, &wrap_as("v1", object_kind, object));
    });
    let mut frame = u32::try_from(event.len()).expect("a short event").to_be_bytes().to_vec();
    frame.extend(event);
    frame.into()
}

fn end_of_list(version: u64) -> Bytes {
    let mut bookmark = Vec::new();
    bookmark.put_message(1, |meta| {
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
        meta.put_entry(object_meta::ANNOTATIONS, "k8s.io/initial-events-end", "true");
    });
    event("BOOKMARK", &bookmark)
}

fn page(version: u64, next: &str, objects: &[Vec<u8>]) -> Bytes {
    let mut list = Vec::new();
    list.put_message(1, |meta| {
        meta.put_str(list_meta::RESOURCE_VERSION, &version.to_string());
        meta.put_str(list_meta::CONTINUE, next);
    });
    objects.iter().for_each(|object| list.put_bytes(2, object));
    wrap_as("v1", "ThingList", &list).into()
}

/// The body of a response.
enum Reply {
    /// The whole body.
    Whole(Bytes),
    /// The first chunks; the body never ends.
    Open(Vec<Bytes>),
    /// The whole body, [`LATE`] after the head.
    Late(Bytes),
    /// No response.
    Never,
    /// An error of the server, without a body.
    Refused(u16),
}

/// The delay of a late body.
const LATE: Duration = Duration::from_secs(10);

impl Reply {
    fn body(self) -> ResponseBody {
        let chunks: UnboundedReceiver<Bytes> = match self {
            Self::Whole(bytes) => {
                let (send, chunks) = unbounded();
                send.unbounded_send(bytes).expect("a receiver");
                chunks
            }
            Self::Open(beginning) => {
                let (send, chunks) = unbounded();
                beginning.into_iter().for_each(|bytes| send.unbounded_send(bytes).expect("a receiver"));
                // Kept open as long as the test runs.
                std::mem::forget(send);
                chunks
            }
            Self::Never => unreachable!("it has no body"),
            Self::Refused(_) => unbounded().1,
            Self::Late(bytes) => {
                let (send, chunks) = unbounded();
                tokio::spawn(async move {
                    tokio::time::sleep(LATE).await;
                    send.unbounded_send(bytes)
                });
                chunks
            }
        };
        StreamBody::new(chunks.map(|bytes| Ok(Frame::data(bytes)))).boxed_unsync()
    }
}

/// Creates clients whose requests `script` serves by path and query; no request leaves the process.
async fn clients(script: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Arc<Clients> {
    clients_by_lane(move |_, uri| script(uri)).await
}

/// As [`clients`], with a script that also gets the lane of a request.
async fn clients_by_lane(script: impl Fn(Option<Lane>, &str) -> Reply + Send + Sync + 'static) -> Arc<Clients> {
    let layer = RequestLayer::new(move |_, request, _| {
        let reply = script(request.extensions().get().copied(), &request.uri().to_string());
        Box::pin(async move {
            if let Reply::Never = reply {
                std::future::pending::<()>().await;
            }
            let status = if let Reply::Refused(code) = reply { code } else { 200 };
            Ok(Response::builder().status(status).body(reply.body()).expect("a response"))
        })
    });
    let options = ConnectOptions {
        master: Some("http://127.0.0.1:9".into()),
        proxies: ProxyEnvironment::default(),
        layer: Some(layer),
        ..ConnectOptions::default()
    };
    Arc::new(connect(&options).await.expect("clients"))
}

fn store(indexes: Vec<Index<Thing>>) -> Arc<Store<Thing>> {
    Arc::new(Store::new(Decode { interner: Arc::default(), sections: Sections::default() }, indexes))
}

fn reflector(clients: &Arc<Clients>, store: &Arc<Store<Thing>>, lists: &Arc<Semaphore>) -> Reflector {
    let scope = Scope { resource: Thing::RESOURCE, namespace: None, form: Form::Protobuf };
    Reflector::new(clients.clone(), scope, store.clone(), lists.clone())
}

fn start(clients: &Arc<Clients>, store: &Arc<Store<Thing>>, lists: &Arc<Semaphore>, tasks: &mut JoinSet<()>) {
    tasks.spawn(reflector(clients, store, lists).run());
}

fn names(store: &Store<Thing>) -> Vec<String> {
    let mut names: Vec<_> = store.all().iter().map(|thing| thing.0.name.to_string()).collect();
    names.sort();
    names
}

async fn within<F: Future>(seconds: u64, what: &str, future: F) -> F::Output {
    timeout(Duration::from_secs(seconds), future).await.unwrap_or_else(|_| panic!("not within {seconds} s: {what}"))
}

async fn until(what: &str, check: impl Fn() -> bool) {
    let wait = async {
        while !check() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(1000, what, wait).await;
}

#[tokio::test(start_paused = true)]
async fn endless_streaming_list_delays_no_other_list_and_falls_back_to_pages() {
    let endless = clients(|uri| match uri {
        uri if uri.contains("sendInitialEvents") => Reply::Open(vec![event("ADDED", &object("a", 3))]),
        uri if uri.contains("continue=a%26b%3Dc") => Reply::Whole(page(5, "", &[object("b", 4)])),
        uri if uri.contains("limit=500") => Reply::Whole(page(5, "a&b=c", &[object("a", 3)])),
        _ => Reply::Open(Vec::new()),
    })
    .await;
    let normal = clients(|_| Reply::Open(vec![event("ADDED", &object("c", 7)), end_of_list(8)])).await;
    let (lists, mut tasks) = (Arc::new(Semaphore::new(1)), JoinSet::new());
    let (slow, fast) = (store(Vec::new()), store(Vec::new()));
    start(&endless, &slow, &lists, &mut tasks);
    tokio::task::yield_now().await;
    start(&normal, &fast, &lists, &mut tasks);
    within(5, "the other kind is listed", fast.progress().synced()).await;
    assert!(!slow.progress().is_synced());
    within(60, "the kind is listed by pages", slow.progress().synced()).await;
    assert_eq!(names(&slow), ["a", "b"], "the continue token is escaped");
}

#[tokio::test(start_paused = true)]
async fn kind_is_listed_in_one_response_when_its_pages_expire() {
    type Body = fn(&str, &[&str]) -> Bytes;
    let cases: [(Form, Body); 2] = [
        (Form::Protobuf, |next, names| page(5, next, &names.iter().map(|name| object(name, 3)).collect::<Vec<_>>())),
        (Form::Json, |next, names| {
            let items: Vec<_> =
                names.iter().map(|name| json!({"metadata": {"name": name, "resourceVersion": "3"}})).collect();
            json!({"metadata": {"resourceVersion": "5", "continue": next}, "items": items}).to_string().into()
        }),
    ];
    for (form, body) in cases {
        let clients = clients(move |uri| match uri {
            uri if uri.contains("continue=") => Reply::Refused(410),
            uri if uri.contains("limit=") => Reply::Whole(body("next", &["a"])),
            uri if uri.contains("watch=") => Reply::Open(Vec::new()),
            _ => Reply::Whole(body("", &["a", "b"])),
        })
        .await;
        let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
        let scope = Scope { resource: Thing::RESOURCE, namespace: None, form };
        let reflector = Reflector::new(clients, scope, store.clone(), Arc::new(Semaphore::new(1)));
        tasks.spawn(reflector.paged(true).run());
        within(60, "the kind is listed", store.progress().synced()).await;
        assert_eq!(names(&store), ["a", "b"], "{form:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pages_that_never_end_delay_no_other_list() {
    for is_token_repeated in [true, false] {
        let pages = Arc::new(AtomicUsize::new(0));
        let counted = pages.clone();
        let endless = clients(move |uri| {
            if !uri.contains("limit=500") {
                return Reply::Whole(Bytes::new());
            }
            let number = counted.fetch_add(1, Ordering::Relaxed);
            let token = if is_token_repeated { "next".to_owned() } else { format!("next-{number}") };
            Reply::Late(page(5, &token, &[object("a", 3)]))
        })
        .await;
        let normal = clients(|_| Reply::Open(vec![event("ADDED", &object("c", 7)), end_of_list(8)])).await;
        let (lists, mut tasks) = (Arc::new(Semaphore::new(1)), JoinSet::new());
        let (slow, fast) = (store(Vec::new()), store(Vec::new()));
        start(&endless, &slow, &lists, &mut tasks);
        until("the pages are requested", || pages.load(Ordering::Relaxed) > 0).await;
        start(&normal, &fast, &lists, &mut tasks);
        within(60, "the other kind is listed", fast.progress().synced()).await;
        assert!(!slow.progress().is_synced());
        if is_token_repeated {
            let before = pages.load(Ordering::Relaxed);
            tokio::time::sleep(100 * LATE).await;
            let more = pages.load(Ordering::Relaxed) - before;
            assert!(more < 60, "{more} pages: the list is repeated with backoff");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_does_not_respond_delays_no_other_list() {
    type Script = fn(&str) -> Reply;
    let cases: [(&str, bool, Script); 3] = [
        ("a stream without a head", false, |_| Reply::Never),
        ("a page without a head", true, |_| Reply::Never),
        ("a page without an end", true, |_| Reply::Open(vec![Bytes::from_static(b"k8s\0")])),
    ];
    for (name, is_paged, script) in cases {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let hanging = clients(move |uri| {
            counted.fetch_add(1, Ordering::Relaxed);
            script(uri)
        })
        .await;
        let normal = clients(|_| Reply::Open(vec![event("ADDED", &object("c", 7)), end_of_list(8)])).await;
        let (lists, mut tasks) = (Arc::new(Semaphore::new(1)), JoinSet::new());
        let (slow, fast) = (store(Vec::new()), store(Vec::new()));
        tasks.spawn(reflector(&hanging, &slow, &lists).paged(is_paged).run());
        until("the list is requested", || requests.load(Ordering::Relaxed) > 0).await;
        start(&normal, &fast, &lists, &mut tasks);
        within(5, name, fast.progress().synced()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn list_in_one_response_delays_no_other_list_when_it_never_ends() {
    type Case<'a> = (&'a str, Form, fn() -> Reply);
    let cases: [Case<'_>; 3] = [
        ("no response", Form::Protobuf, || Reply::Never),
        ("a list without an end", Form::Protobuf, || Reply::Open(vec![Bytes::from_static(b"k8s\0")])),
        ("a list without an end in JSON", Form::Json, || Reply::Open(vec![Bytes::from_static(b"{")])),
    ];
    for (name, form, whole) in cases {
        let lists_begun = Arc::new(AtomicUsize::new(0));
        let counted = lists_begun.clone();
        let hanging = clients(move |uri| {
            if uri.contains("limit=") {
                return Reply::Refused(410);
            }
            counted.fetch_add(1, Ordering::Relaxed);
            whole()
        })
        .await;
        let normal = clients(|_| Reply::Open(vec![event("ADDED", &object("c", 7)), end_of_list(8)])).await;
        let (lists, mut tasks) = (Arc::new(Semaphore::new(1)), JoinSet::new());
        let (slow, fast) = (store(Vec::new()), store(Vec::new()));
        let scope = Scope { resource: Thing::RESOURCE, namespace: None, form };
        tasks.spawn(Reflector::new(hanging, scope, slow, lists.clone()).paged(true).run());
        until("the list is requested", || lists_begun.load(Ordering::Relaxed) > 0).await;
        start(&normal, &fast, &lists, &mut tasks);
        within(5, name, fast.progress().synced()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_kinds_with_many_objects_are_listed_over_a_dedicated_connection() {
    let lanes = Arc::new(Mutex::new(Vec::new()));
    let recorded = lanes.clone();
    let clients = clients_by_lane(move |lane, uri| match uri {
        uri if uri.contains("limit=") => Reply::Refused(410),
        uri if uri.contains("watch=") => Reply::Open(Vec::new()),
        _ => {
            recorded.lock().expect("the lanes").push(lane);
            Reply::Whole(page(5, "", &[object("a", 3)]))
        }
    })
    .await;
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let (few, many) = (store(Vec::new()), Arc::new(Store::<LargeThing>::new(decode, Vec::new())));
    let (permits, mut tasks) = (Arc::new(Semaphore::new(1)), JoinSet::new());
    tasks.spawn(reflector(&clients, &few, &permits).paged(true).run());
    within(60, "the list after expired pages", few.progress().synced()).await;
    let scope = Scope { resource: LargeThing::RESOURCE, namespace: None, form: Form::Protobuf };
    tasks.spawn(Reflector::new(clients, scope, many.clone(), permits).run());
    within(5, "the list of many objects", many.progress().synced()).await;
    assert_eq!(*lanes.lock().expect("the lanes"), [Some(Lane::Watch), Some(Lane::Dedicated)]);
}

#[tokio::test(start_paused = true)]
async fn restored_storage_is_detected_when_the_watch_is_silent() {
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let clients = clients(move |uri| match uri {
        uri if uri.contains("sendInitialEvents") => match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::Open(vec![event("ADDED", &object("before", 90)), end_of_list(100)]),
            _ => Reply::Open(vec![event("ADDED", &object("after", 40)), end_of_list(50)]),
        },
        uri if uri.contains("limit=1") => Reply::Whole(page(50, "", &[])),
        _ => Reply::Open(Vec::new()),
    })
    .await;
    let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
    start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
    until("the restored state is listed", || names(&store) == ["after"]).await;
    assert_eq!((store.progress().version(), store.progress().history()), (50, 1));
    assert_eq!(lists.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn silent_watch_continues_when_the_server_kept_its_state() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = seen.clone();
    let clients = clients(move |uri| {
        recorded.lock().expect("the requests").push(uri.to_owned());
        match uri {
            uri if uri.contains("sendInitialEvents") => Reply::Open(vec![end_of_list(100)]),
            uri if uri.contains("limit=1") => Reply::Whole(page(120, "", &[])),
            _ => Reply::Open(vec![event("ADDED", &object("missed", 110))]),
        }
    })
    .await;
    let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
    start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
    until("the missed object arrives", || names(&store) == ["missed"]).await;
    let seen = seen.lock().expect("the requests").clone();
    assert!(seen[2].contains("resourceVersion=100"), "{seen:?}");
    assert_eq!(store.progress().history(), 0);
}

#[tokio::test(start_paused = true)]
async fn object_that_makes_the_decoder_panic_counts_as_undecodable() {
    let clients = clients(|_| {
        let objects = ["a", "makes-the-decoder-panic", "z"].map(|name| event("ADDED", &object(name, 3)));
        Reply::Open([&objects[..], &[end_of_list(8)]].concat())
    })
    .await;
    let (store, mut tasks) = (store(Vec::new()), JoinSet::new());
    start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
    within(5, "the kind is listed", store.progress().synced()).await;
    assert_eq!((names(&store), store.undecodable()), (vec!["a".to_owned(), "z".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn panicking_watch_is_counted_and_restarted() {
    static PANICS_LEFT: AtomicUsize = AtomicUsize::new(3);
    let index = Index::<Thing> {
        name: "defective",
        keys: |_, _| {
            let left = PANICS_LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            assert!(left.is_err(), "a defect");
        },
    };
    let clients = clients(|uri| match uri {
        uri if uri.contains("limit=") => Reply::Whole(page(8, "", &[object("a", 3)])),
        _ => Reply::Open(vec![event("ADDED", &object("a", 3)), end_of_list(8)]),
    })
    .await;
    let (store, mut tasks) = (store(vec![index]), JoinSet::new());
    start(&clients, &store, &Arc::new(Semaphore::new(1)), &mut tasks);
    within(100, "the kind is listed in the end", store.progress().synced()).await;
    assert_eq!(store.progress().panics(), 3);
    assert!(store.get(&ObjectKey::new("", "a")).is_some());
    assert!(tasks.try_join_next().is_none(), "the watch task ended");
}

#[tokio::test(start_paused = true)]
async fn records_are_repeated_after_one_to_two_resync_periods_without_a_request_for_a_list() {
    const PERIOD: Duration = Duration::from_secs(3600);
    let lists = Arc::new(AtomicUsize::new(0));
    let counted = lists.clone();
    let clients = clients(move |uri| {
        if uri.contains("sendInitialEvents=true") {
            counted.fetch_add(1, Ordering::Relaxed);
            return Reply::Open(vec![event("ADDED", &object("a", 1)), event("ADDED", &object("b", 2)), end_of_list(2)]);
        }
        Reply::Open(Vec::new())
    })
    .await;
    let store =
        Arc::new(Store::<Thing>::new(Decode { interner: Arc::default(), sections: Sections::default() }, Vec::new()));
    let repeated = Arc::new(AtomicUsize::new(0));
    let counts = repeated.clone();
    store.subscribe(move |change| {
        counts.fetch_add(usize::from(change.old.is_some() && change.new.is_some()), Ordering::Relaxed);
    });
    let permits = Arc::new(Semaphore::new(1));
    let mut tasks = JoinSet::new();
    tasks.spawn(reflector(&clients, &store, &permits).resyncing(PERIOD).run());
    store.progress().synced().await;
    tokio::time::sleep(PERIOD - Duration::from_secs(1)).await;
    assert_eq!(repeated.load(Ordering::Relaxed), 0, "no record is repeated before one period has passed");
    tokio::time::sleep(PERIOD + Duration::from_secs(2)).await;
    assert_eq!(repeated.load(Ordering::Relaxed), 2);
    assert_eq!(lists.load(Ordering::Relaxed), 1);
}

/// Each of hundreds of kinds has such a future. The futures of requests have 3 to 5 kB.
#[tokio::test]
async fn waiting_watch_is_small() {
    let clients = clients(|_| Reply::Open(Vec::new())).await;
    let run = reflector(&clients, &store(Vec::new()), &Arc::new(Semaphore::new(1))).run();
    let size = size_of_val(&run);
    assert!(size <= 1536, "{size} bytes");
}
