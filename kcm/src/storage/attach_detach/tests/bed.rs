//! The controller with caches that a test fills, and an API server that has nodes and records requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::Method;
use kinds::node_volumes::CONTROLLER_ATTACHES;
use kinds::persistent_volume::{ClaimRef, Source};
use kinds::persistent_volume_claim::Phase;
use kinds::schema::{
    attached_volume, list_meta, node, node_condition, node_spec, node_status, object_meta, taint, volume_attachment,
};
use kinds::wire::Put;
use kinds::{Decode, Kind, Node, PersistentVolume, Pod, Sections, Str, VolumeAttachment, envelope};
use runtime::events::Recorder;
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store};
use runtime::testing::{KeptEvents, clients, deliver, filled_store, writer_of};
use runtime::worker::{Outcome, Reconcile, ReconcileError};

use crate::pods::indexes::by_node;
use crate::storage::attach_detach::indexes::{attachments_by_volume, nodes_by_attached_volume, pods_by_claim_and_node};
use crate::storage::attach_detach::metrics::Operations;
use crate::storage::attach_detach::node_status::NodeStatuses;
use crate::storage::attach_detach::observe::{Caches, uncached_nodes};
use crate::storage::attach_detach::reconcile::{AttachDetach, Settings, Volumes};
use crate::storage::indexes::pods_by_claim;
use crate::storage::inline_volume::pods_by_inline_volume;
use crate::storage::testing::{claim, pod_with, volume};
use crate::storage::volume_name::{attachment_name, of_csi, volumes_by_unique_name};

const DRIVER: &str = "disk.example.com";
const HANDLE: &str = "vol-1";
/// Period after which volumes in use are reconciled again.
pub const SYNC_PERIOD: Duration = Duration::from_secs(60);

/// Returns the unique name of the volume.
pub fn name() -> Str {
    of_csi(DRIVER, HANDLE)
}

/// A node's state.
#[derive(Debug, Clone, Default)]
pub struct NodeState {
    pub version: u64,
    pub attached: Vec<Str>,
    pub in_use: Vec<Str>,
    pub is_unhealthy: bool,
    pub is_out_of_service: bool,
}

impl NodeState {
    /// Returns a healthy node whose status lists these volumes as attached and in use.
    pub fn healthy(version: u64, attached: &[Str], in_use: &[Str]) -> Self {
        Self { version, attached: attached.into(), in_use: in_use.into(), ..Self::default() }
    }

    fn object(&self, name: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(node::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::UID, &format!("{name}-uid"));
            meta.put_str(object_meta::RESOURCE_VERSION, &self.version.to_string());
            meta.put_entry(object_meta::ANNOTATIONS, CONTROLLER_ATTACHES, "true");
        });
        if self.is_out_of_service {
            object.put_message(node::SPEC, |spec| {
                spec.put_message(node_spec::TAINTS, |taint| {
                    taint.put_str(taint::KEY, "node.kubernetes.io/out-of-service")
                });
            });
        }
        object.put_message(node::STATUS, |status| {
            status.put_message(node_status::CONDITIONS, |condition| {
                condition.put_str(node_condition::TYPE, "Ready");
                condition.put_str(node_condition::STATUS, if self.is_unhealthy { "Unknown" } else { "True" });
            });
            self.in_use.iter().for_each(|volume| status.put_str(node_status::VOLUMES_IN_USE, volume));
            for volume in &self.attached {
                status.put_message(node_status::VOLUMES_ATTACHED, |entry| entry.put_str(attached_volume::NAME, volume));
            }
        });
        object
    }
}

/// The API server's nodes, the requests that it received, and whether it refuses lists of attached volumes, or
/// deletions.
#[derive(Debug, Default)]
pub struct Server {
    pub nodes: BTreeMap<String, NodeState>,
    pub requests: Vec<String>,
    pub refuses_lists: bool,
    /// Writes of lists end without a response.
    pub loses_lists: bool,
    pub refuses_deletions: bool,
    /// The node whose status cannot be written.
    pub failing_node: String,
    /// The node to which no attachment can be created.
    pub unattachable_node: String,
}

impl Server {
    fn respond(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let path = path.split('?').next().unwrap_or_default();
        let short = path.rsplit_once("v1/").map_or(path, |(_, end)| end).to_owned();
        let is_list = matches!(&*short, "nodes" | "volumeattachments") && method == Method::GET;
        let is_refused = method == Method::POST && !self.unattachable_node.is_empty() && {
            let created: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
            created["spec"]["nodeName"] == *self.unattachable_node
        };
        let body = if method == Method::PATCH { String::from_utf8_lossy(body) } else { "".into() };
        self.requests.push(format!("{method} {short} {body}"));
        let name = short.trim_start_matches("nodes/").trim_end_matches("/status");
        if is_list {
            return (200, envelope::wrap(&Node::RESOURCE, &self.list(&short)));
        }
        match (method, self.nodes.get(name)) {
            (&Method::PATCH, _) if self.refuses_lists => {
                let body = r#"{"kind": "Status", "code": 422, "reason": "Invalid", "message": "status.volumesAttached: Invalid"}"#;
                (422, body.as_bytes().to_vec())
            }
            (&Method::PATCH, _) if self.loses_lists => {
                (504, br#"{"kind": "Status", "code": 504, "reason": "Timeout"}"#.to_vec())
            }
            (&Method::PATCH, _) if name == self.failing_node => {
                (403, br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#.to_vec())
            }
            (&Method::POST, _) if is_refused => {
                (403, br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#.to_vec())
            }
            (&Method::POST, _) => {
                let mut object = Vec::new();
                object.put_message(volume_attachment::METADATA, |meta| {
                    meta.put_str(object_meta::NAME, "created");
                    meta.put_str(object_meta::RESOURCE_VERSION, "100");
                });
                (201, envelope::wrap(&VolumeAttachment::RESOURCE, &object))
            }
            (&Method::DELETE, _) if self.refuses_deletions => {
                (403, br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#.to_vec())
            }
            (&Method::DELETE, _) => (200, envelope::wrap(&VolumeAttachment::RESOURCE, &[])),
            (_, Some(state)) => (200, envelope::wrap(&Node::RESOURCE, &state.object(name))),
            (_, None) => (404, br#"{"kind": "Status", "code": 404, "reason": "NotFound"}"#.to_vec()),
        }
    }

    fn list(&self, kind: &str) -> Vec<u8> {
        let mut list = Vec::new();
        list.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, "99"));
        if kind == "nodes" {
            self.nodes.iter().for_each(|(name, state)| list.put_bytes(2, &state.object(name)));
        }
        list
    }
}

/// The controller.
pub struct Bed {
    pub shared: Arc<AttachDetach>,
    pub server: Arc<Mutex<Server>>,
    pub metrics: Metrics,
    events: Arc<KeptEvents>,
    sender: BoxFuture<'static, ()>,
}

fn decode<K: Kind>() -> Decode {
    let sections = if K::RESOURCE.kind == "Node" { Node::VOLUMES } else { Sections::default() };
    Decode { interner: Arc::default(), sections }
}

fn store<K: Kind>(indexes: Vec<Index<K>>) -> Arc<Store<K>> {
    Arc::new(filled_store(decode::<K>(), indexes, []))
}

impl Bed {
    /// Returns a controller whose caches contain the volume and its bound claim `data`.
    pub async fn new() -> Self {
        let server = Arc::<Mutex<Server>>::default();
        let responding = server.clone();
        let writer = writer_of(clients(move |method, path, body| lock(&responding).respond(method, path, body)).await);
        let events = Arc::<KeptEvents>::default();
        let (recorder, sender) = Recorder::new("attachdetach-controller", events.clone());
        let caches = Caches {
            pods: store(vec![pods_by_claim(), pods_by_claim_and_node(), pods_by_inline_volume(), by_node()]),
            nodes: store(vec![nodes_by_attached_volume()]),
            claims: store(Vec::new()),
            volumes: store(vec![volumes_by_unique_name()]),
            attachments: store(vec![attachments_by_volume()]),
            drivers: store(Vec::new()),
            unresolved: Default::default(),
        };
        let mut bound = claim("data");
        let mut of_claim = volume("pv");
        bound.phase = Phase::Bound;
        bound.volume_name = "pv".into();
        of_claim.source = Source::Csi { driver: DRIVER.into(), handle: HANDLE.into() };
        of_claim.access_modes = Arc::new(["ReadWriteOnce".into()]);
        let namespace = "default".into();
        let name = "data".into();
        let uid = Some(bound.meta.uid.clone());
        of_claim.claim = Some(Box::new(ClaimRef { namespace, name, uid }));
        deliver(&caches.claims, bound);
        deliver(&caches.volumes, of_claim);
        let metrics = Metrics::default();
        let shared = Arc::new(AttachDetach {
            node_reads: uncached_nodes(writer.clone(), caches.nodes.clone()),
            caches,
            memory: Default::default(),
            consistency: Default::default(),
            writer,
            recorder,
            volume_queue: Queue::new(QueueOptions::named("volumes")),
            node_queue: Queue::new(QueueOptions::named("nodes")),
            driver_queue: Queue::new(QueueOptions::named("drivers")),
            operations: Operations::new(&metrics),
            settings: Settings { is_timeout_disabled: false, sync_period: Some(SYNC_PERIOD) },
            term: Default::default(),
        });
        Self { shared, server, metrics, events, sender: sender.boxed() }
    }

    /// Changes the source of the volume.
    pub fn set_source(&self, source: Source) {
        let mut changed: PersistentVolume = (*self.shared.caches.volumes.all()[0]).clone();
        changed.source = source;
        deliver(&self.shared.caches.volumes, changed);
    }

    /// Changes the access modes of the volume so that all nodes may have it.
    pub fn share(&self) {
        self.set_mode("ReadWriteMany");
    }

    /// Changes the access modes of the volume so that only one node may have it.
    pub fn make_exclusive(&self) {
        self.set_mode("ReadWriteOnce");
    }

    fn set_mode(&self, mode: &str) {
        let mut changed: PersistentVolume = (*self.shared.caches.volumes.all()[0]).clone();
        changed.access_modes = Arc::new([mode.into()]);
        deliver(&self.shared.caches.volumes, changed);
    }

    /// Adds a pod with the claim on a node.
    pub fn add_pod(&self, pod: &str, node: &str) -> Pod {
        let mut added = pod_with(pod, &["data"]);
        added.node = node.into();
        deliver(&self.shared.caches.pods, added.clone());
        added
    }

    /// Changes a node in the API server.
    pub fn change_node(&self, node: &str, state: NodeState) {
        lock(&self.server).nodes.insert(node.to_owned(), state);
    }

    /// Delivers the API server's current node to the cache.
    pub fn deliver_node(&self, node: &str) {
        let object = lock(&self.server).nodes[node].object(node);
        deliver(&self.shared.caches.nodes, Node::decode(&decode::<Node>(), &object).expect("well-formed"));
    }

    /// Adds an attachment of the volume to the cache.
    pub fn add_attachment(&self, node: &str, change: impl FnOnce(&mut VolumeAttachment)) {
        let mut object = Vec::new();
        object.put_message(volume_attachment::METADATA, |meta| {
            meta.put_str(object_meta::NAME, &attachment_name(DRIVER, HANDLE, node));
            meta.put_str(object_meta::UID, &format!("{node}-attachment"));
            meta.put_str(object_meta::RESOURCE_VERSION, "2");
        });
        let mut added = VolumeAttachment::decode(&decode::<VolumeAttachment>(), &object).expect("well-formed");
        added.attacher = DRIVER.into();
        added.node = node.into();
        added.volume = "pv".into();
        added.attached = true;
        change(&mut added);
        deliver(&self.shared.caches.attachments, added);
    }

    pub async fn reconcile(&self, volume: &Str) -> Result<Outcome, ReconcileError> {
        Volumes(self.shared.clone()).reconcile(volume).await
    }

    pub async fn reconcile_node(&self, node: &str) -> Result<Outcome, ReconcileError> {
        NodeStatuses(self.shared.clone()).reconcile(&node.into()).await
    }

    /// Returns the number of requests that begin with a text.
    pub fn count(&self, request: &str) -> usize {
        lock(&self.server).requests.iter().filter(|sent| sent.starts_with(request)).count()
    }

    /// Returns the messages of all events with reason FailedAttachVolume.
    pub async fn end(self) -> Vec<String> {
        self.shared.recorder.close();
        self.sender.await;
        let message = |body: &String| {
            let event: serde_json::Value = serde_json::from_str(body).expect("JSON");
            (event["reason"] == "FailedAttachVolume").then(|| event["message"].as_str().unwrap_or_default().to_owned())
        };
        self.events.bodies().iter().filter_map(message).collect()
    }
}
