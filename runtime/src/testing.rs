//! Fakes for the tests of controllers: stores without a watch, metadata of test objects, a client without a server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kinds::meta::ObjectKey;
use kinds::schema::object_meta;
use kinds::wire::Put as _;
use kinds::{Decode, Interner, Kind, Meta, Resource, Sections, Time, Uid, envelope};
use rustix::time::{ClockId, clock_gettime};

use crate::client::rate::TokenBucket;
use crate::client::{Clients, ConnectOptions, Identity, PodEnvironment, ProxyEnvironment, RequestLayer, connect};
use crate::events::{EventSink, SinkError};
use crate::fence::Fence;
use crate::lock::lock;
use crate::store::{Index, Store};
use crate::write::Writer;

/// A time of the CPU's clock for the current thread. Unlike the time of day, it does not depend on the load of the
/// machine, so that tests can limit the cost of an algorithm.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime(Duration);

impl CpuTime {
    /// Returns the current time.
    pub fn now() -> Self {
        // The conversion only fails for negative times.
        Self(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default())
    }

    /// Returns the time for which this thread has run since then.
    pub fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// Returns a store with these sections and indexes that contains these records, as if a watch had delivered them in
/// this order. It has no watch: [`Store::progress`] reports that nothing was listed yet.
pub fn filled_store<K: Kind>(decode: Decode, indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Store<K> {
    let store = Store::new(decode, indexes);
    records.into_iter().for_each(|record| store.put(record));
    store
}

/// Returns the metadata of an object with only a namespace, a name and a version.
pub fn meta(namespace: &str, name: &str, version: u64) -> Meta {
    let interner = Interner::default();
    Meta {
        namespace: namespace.into(),
        name: name.into(),
        uid: Uid::default(),
        version,
        generation: 0,
        created: Time::default(),
        deletion: Time::default(),
        labels: interner.labels(Vec::new()),
        owners: interner.owners(&[]),
        finalizers: interner.list(&[]),
    }
}

/// Returns an object of the namespace `ns` with only metadata; its uid is its name.
///
/// # Panics
/// When records of this kind need more than metadata.
pub fn object<K: Kind>(name: &str, sections: Sections) -> K {
    K::decode(&Decode { interner: Arc::default(), sections }, &encoded("ns", name, 1)).expect("well-formed")
}

/// Returns the body of a response with an object that has only metadata; its uid is its name.
pub fn response(resource: &Resource, namespace: &str, name: &str, version: u64) -> Vec<u8> {
    envelope::wrap(resource, &encoded(namespace, name, version))
}

/// Returns an encoded object with only metadata; its uid is its name.
fn encoded(namespace: &str, name: &str, version: u64) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, namespace);
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
    });
    object
}

/// Changes a record of a store as its watch would.
pub fn deliver<K: Kind>(store: &Store<K>, record: K) {
    let version = record.meta().version;
    store.put(record);
    store.progress().advance(version);
}

/// Completes the first list of a store, as its watch would.
pub fn deliver_end_of_list<K: Kind>(store: &Store<K>) {
    store.progress().set_synced();
}

/// Records that an object of a store cannot be decoded, as its watch would.
///
/// # Panics
/// When the store has too many undecodable objects.
pub fn deliver_undecodable<K: Kind>(store: &Store<K>, key: ObjectKey) {
    assert!(store.set_undecodable(key), "too many undecodable objects");
}

/// Removes a record from a store as its watch would.
pub fn deliver_deletion<K: Kind>(store: &Store<K>, name: &ObjectKey) {
    store.remove(&name.namespace, &name.name);
}

/// Continues a store at an older version, as its watch would after the server's storage was restored from a backup.
pub fn deliver_restore<K: Kind>(store: &Store<K>, version: u64) {
    store.restart(version);
}

/// A sink that drops all events.
pub struct NoEvents;

impl EventSink for NoEvents {
    fn create<'a>(&'a self, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async { Ok(()) }.boxed()
    }

    fn patch<'a>(&'a self, _: &'a str, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async { Ok(()) }.boxed()
    }
}

/// A sink that keeps the bodies of new events.
#[derive(Default)]
pub struct KeptEvents(Mutex<Vec<String>>);

impl KeptEvents {
    /// Returns the bodies of all events so far, as text.
    pub fn bodies(&self) -> Vec<String> {
        lock(&self.0).clone()
    }
}

impl EventSink for KeptEvents {
    fn create<'a>(&'a self, _: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        lock(&self.0).push(String::from_utf8_lossy(&body).into_owned());
        async { Ok(()) }.boxed()
    }

    fn patch<'a>(&'a self, _: &'a str, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async { Ok(()) }.boxed()
    }
}

/// Returns a writer without a server: for each request, `respond` gets the method and the path with query, and returns
/// the HTTP status and body of the response.
///
/// # Panics
/// When the client cannot be built.
pub async fn writer(respond: impl Fn(&Method, &str) -> (u16, Vec<u8>) + Send + Sync + 'static) -> Writer {
    writer_of(clients(move |method, path, _| respond(method, path)).await)
}

/// Returns a writer without a server that gives each request the same response, and the number of its requests.
///
/// # Panics
/// When the client cannot be built.
pub async fn counting_writer(status: u16, body: &'static str) -> (Writer, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let respond = move |_: &Method, _: &str| {
        counted.fetch_add(1, Ordering::Relaxed);
        (status, body.as_bytes().to_vec())
    };
    (writer(respond).await, sent)
}

/// Returns a writer without a server whose requests all succeed, and these requests: the method, and the path below
/// `collection`, without the query.
///
/// # Panics
/// When the client cannot be built.
pub async fn recording_writer(collection: &'static str) -> (Writer, Arc<Mutex<Vec<String>>>) {
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let sent = requests.clone();
    let respond = move |method: &Method, path: &str| {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let path = path.strip_prefix(collection).map_or(path, |name| name.trim_start_matches('/'));
        lock(&sent).push(format!("{method} {path}"));
        (200, Vec::new())
    };
    (writer(respond).await, requests)
}

/// Returns a writer that sends its requests through `clients`.
pub fn writer_of(clients: Arc<Clients>) -> Writer {
    Writer::new(clients, Identity::Own, Arc::new(TokenBucket::new(-1.0, 1)), Fence::open())
}

/// Like [`writer`], but returns clients, and `respond` also gets the body of the request.
///
/// # Panics
/// When the clients cannot be built.
pub async fn clients(respond: impl Fn(&Method, &str, &[u8]) -> (u16, Vec<u8>) + Send + Sync + 'static) -> Arc<Clients> {
    slow_clients(Duration::ZERO, respond).await
}

/// Like [`clients`]; each response arrives `delay` after its request.
///
/// # Panics
/// When the clients cannot be built.
pub async fn slow_clients(
    delay: Duration,
    respond: impl Fn(&Method, &str, &[u8]) -> (u16, Vec<u8>) + Send + Sync + 'static,
) -> Arc<Clients> {
    let respond = Arc::new(respond);
    let layer = RequestLayer::new(move |_, request, _| {
        let respond = respond.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let (status, body) = respond(&head.method, &head.uri.to_string(), &body);
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let body = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
            let mut response = Response::new(body);
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            Ok(response)
        })
    });
    let options = ConnectOptions {
        kubeconfig: None,
        pod: PodEnvironment { host: String::new(), port: String::new(), folder: "/nonexistent".into() },
        master: Some("http://127.0.0.1:1".to_owned()),
        proxies: ProxyEnvironment::default(),
        layer: Some(layer),
        ..ConnectOptions::default()
    };
    Arc::new(connect(&options).await.expect("clients"))
}
