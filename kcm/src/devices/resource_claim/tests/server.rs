//! An API server with a few objects in memory, behind a Writer: it generates names, counts versions and refuses writes
//! that are based on an old version.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kinds::schema::{list_meta, object_meta};
use kinds::splice::replaced;
use kinds::wire::{Put, find};
use kinds::{Interner, Kind, Meta, Pod, ResourceClaim, envelope};
use runtime::client::rate::TokenBucket;
use runtime::client::{
    ConnectOptions, Identity, PodEnvironment, ProxyEnvironment, RequestLayer, ResponseBody, connect,
};
use runtime::fence::Fence;
use runtime::lock::lock;
use runtime::write::Writer;

const METADATA: u32 = 1;

/// The objects, by the paths of their requests.
#[derive(Debug, Default)]
pub struct Server {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    writes: Mutex<Vec<String>>,
    reads: Mutex<Vec<String>>,
    /// A method, and the status code and reason of the response to all its requests.
    refused: Mutex<Option<(Method, u16, &'static str)>>,
    /// Number of writes before the one with the fault.
    fault: Mutex<Option<(usize, Fault)>>,
    /// Statuses that were applied to pods and PodGroups, with the names of the objects.
    applied: Mutex<Vec<(String, serde_json::Value)>>,
    /// Number of versions after [`FIRST_VERSION`].
    versions: AtomicU64,
}

/// The version before the first write.
const FIRST_VERSION: u64 = 50;

/// A write without a conclusive response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The write is not executed.
    LostBefore,
    /// The write is executed.
    LostAfter,
}

/// The path of an object in namespace `ns`.
fn path<K: Kind>(name: &str) -> String {
    format!("{}/{name}", K::RESOURCE.path(Some("ns")))
}

fn meta_of(object: &[u8]) -> Meta {
    Meta::decode(&Interner::default(), find(object, METADATA), |_, _| {}).expect("an object")
}

/// A copy of an object with one more metadata field; of several fields with the same number the last one counts.
pub fn with_meta(object: &[u8], number: u32, value: &str) -> Vec<u8> {
    let mut meta = find(object, METADATA).to_vec();
    meta.put_str(number, value);
    replaced(object, &[METADATA], |copy| copy.put_bytes(METADATA, &meta)).expect("well-formed")
}

/// A copy of an object with another UID.
pub fn with_uid(object: &[u8], uid: &str) -> Vec<u8> {
    with_meta(object, object_meta::UID, uid)
}

fn reply(status: u16, body: Vec<u8>) -> Response<ResponseBody> {
    let body = Full::from(body).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

fn refusal(status: u16, reason: &str) -> Response<ResponseBody> {
    let body =
        serde_json::json!({"kind": "Status", "code": status, "reason": reason, "message": format!("test: {reason}")});
    reply(status, body.to_string().into_bytes())
}

fn whole(object: &[u8]) -> Response<ResponseBody> {
    reply(200, envelope::wrap(&ResourceClaim::RESOURCE, object))
}

impl Server {
    /// Adds an object under the path of its kind and name in namespace `ns`.
    pub fn add<K: Kind>(&self, object: &[u8]) {
        lock(&self.objects).insert(path::<K>(&meta_of(object).name), object.to_vec());
    }

    /// Refuses the requests of a method.
    pub fn refuse(&self, method: Method, status: u16, reason: &'static str) {
        *lock(&self.refused) = Some((method, status, reason));
    }

    /// Sets a fault for the write after this number of other writes; `None` removes it.
    pub fn set_fault(&self, fault: Option<(usize, Fault)>) {
        *lock(&self.fault) = fault;
    }

    /// Removes and returns the statuses that were applied since the last call.
    pub fn take_applied(&self) -> Vec<(String, serde_json::Value)> {
        std::mem::take(&mut lock(&self.applied))
    }

    /// The version of the last write, or [`FIRST_VERSION`] before the first one.
    pub fn version(&self) -> u64 {
        FIRST_VERSION + self.versions.load(Ordering::SeqCst)
    }

    fn next_version(&self) -> u64 {
        FIRST_VERSION + self.versions.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Changes an object as another client does.
    pub fn edit<K: Kind>(&self, name: &str, edit: impl FnOnce(&[u8]) -> Vec<u8>) {
        let version = self.next_version().to_string();
        if let Some(object) = lock(&self.objects).get_mut(&path::<K>(name)) {
            *object = with_meta(&edit(object), object_meta::RESOURCE_VERSION, &version);
        }
    }

    /// Removes an object.
    pub fn remove<K: Kind>(&self, name: &str) {
        self.next_version();
        lock(&self.objects).remove(&path::<K>(name));
    }

    /// Counts down to the write with the fault.
    fn next_fault(&self) -> Option<Fault> {
        let mut fault = lock(&self.fault);
        let (writes, kind) = (*fault)?;
        *fault = writes.checked_sub(1).map(|writes| (writes, kind));
        fault.is_none().then_some(kind)
    }

    /// An object, if it exists.
    pub fn get<K: Kind>(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.objects).get(&path::<K>(name)).cloned()
    }

    /// All claims.
    pub fn claims(&self) -> Vec<Vec<u8>> {
        let prefix = path::<ResourceClaim>("");
        let objects = lock(&self.objects);
        objects.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(_, object)| object.clone()).collect()
    }

    /// The writes so far: method and the end of the path; patches with their bodies.
    pub fn writes(&self) -> Vec<String> {
        lock(&self.writes).clone()
    }

    /// The reads so far, as the ends of their paths.
    pub fn reads(&self) -> Vec<String> {
        lock(&self.reads).clone()
    }

    /// Returns a Writer whose requests this server handles.
    pub async fn writer(self: &Arc<Self>) -> Writer {
        let server = self.clone();
        let layer = RequestLayer::new(move |_, request, _| {
            let server = server.clone();
            Box::pin(async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                Ok(server.handle(&Request::from_parts(head, body.to_vec())))
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
        let clients = Arc::new(connect(&options).await.expect("clients"));
        Writer::new(clients, Identity::Own, Arc::new(TokenBucket::new(-1.0, 1)), Fence::open())
    }

    fn handle(&self, request: &Request<Vec<u8>>) -> Response<ResponseBody> {
        let path = request.uri().path().to_owned();
        let short = path.rsplit_once("/namespaces/ns/").map_or(&*path, |(_, end)| end).to_owned();
        let method = request.method();
        if method == Method::GET {
            lock(&self.reads).push(short);
        } else {
            let body = if method == Method::PATCH { String::from_utf8_lossy(request.body()) } else { "".into() };
            lock(&self.writes).push(format!("{method} {short} {body}").trim_end().to_owned());
        }
        if let Some((_, status, reason)) = lock(&self.refused).as_ref().filter(|(refused, _, _)| refused == method) {
            return refusal(*status, reason);
        }
        let fault = if method == Method::GET { None } else { self.next_fault() };
        if fault == Some(Fault::LostBefore) {
            return refusal(504, "Timeout");
        }
        let response = self.execute(request, &path);
        if fault == Some(Fault::LostAfter) { refusal(504, "Timeout") } else { response }
    }

    fn execute(&self, request: &Request<Vec<u8>>, path: &str) -> Response<ResponseBody> {
        let mut objects = lock(&self.objects);
        let version = if request.method() == Method::GET { 0 } else { self.next_version() };
        match *request.method() {
            Method::GET if path == ResourceClaim::RESOURCE.path(Some("ns")) => list(&objects, path),
            Method::GET => objects.get(path).map_or_else(|| refusal(404, "NotFound"), |object| whole(object)),
            Method::POST => {
                let object = envelope::unwrap(request.body()).expect("protobuf");
                let prefix =
                    String::from_utf8_lossy(find(find(object, METADATA), object_meta::GENERATE_NAME)).into_owned();
                let name = format!("{prefix}{}", objects.len());
                let named = with_meta(object, object_meta::NAME, &name);
                let created = with_meta(&named, object_meta::RESOURCE_VERSION, &version.to_string());
                let response = whole(&created);
                objects.insert(format!("{path}/{name}"), created);
                response
            }
            Method::PUT => replace(&mut objects, path.trim_end_matches("/status"), request.body(), version),
            Method::PATCH => match objects.get_mut(path.trim_end_matches("/status")) {
                Some(object) => {
                    let status = serde_json::from_slice(request.body()).expect("JSON");
                    let name = path.trim_end_matches("/status").rsplit('/').next().unwrap_or_default();
                    lock(&self.applied).push((name.to_owned(), status));
                    *object = with_meta(object, object_meta::RESOURCE_VERSION, &version.to_string());
                    reply(200, envelope::wrap(&Pod::RESOURCE, object))
                }
                None => refusal(404, "NotFound"),
            },
            Method::DELETE => objects.remove(path).map_or_else(|| refusal(404, "NotFound"), |object| whole(&object)),
            _ => refusal(405, "MethodNotAllowed"),
        }
    }
}

fn list(objects: &BTreeMap<String, Vec<u8>>, path: &str) -> Response<ResponseBody> {
    let mut list = Vec::new();
    list.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, "99"));
    let items = objects.iter().filter(|(known, _)| known.starts_with(&format!("{path}/")));
    items.for_each(|(_, object)| list.put_bytes(2, object));
    whole(&list)
}

fn replace(objects: &mut BTreeMap<String, Vec<u8>>, path: &str, body: &[u8], version: u64) -> Response<ResponseBody> {
    let object = envelope::unwrap(body).expect("protobuf");
    let Some(known) = objects.get(path) else { return refusal(404, "NotFound") };
    if meta_of(object).version != meta_of(known).version {
        return refusal(409, "Conflict");
    }
    let stored = with_meta(object, object_meta::RESOURCE_VERSION, &version.to_string());
    let response = whole(&stored);
    let meta = meta_of(&stored);
    if meta.is_deleting() && meta.finalizers.is_empty() {
        objects.remove(path);
    } else {
        objects.insert(path.to_owned(), stored);
    }
    response
}
