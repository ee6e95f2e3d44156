//! ephemeral-volume-controller: creates the claims of the generic ephemeral volumes of pods.
//!
//! A claim is deleted with its pod by the garbage collector. Upstream: pkg/controller/volume/ephemeral.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::{for_ephemeral_volume, volume_names};
use kinds::pod::ClaimVolume;
use kinds::{DecodeError, Kind, Meta, Namespace, PersistentVolumeClaim, Pod, Sections};
use runtime::consistency::Consistency;
use runtime::events::{EventType, Recorder, about};
use runtime::manager::Manager;
use runtime::metrics::Count;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Store, by_namespace};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{ObjectResponse, WriteError, Writer};
use tracing::debug;

use super::indexes::{pods_by_claim, using_claim};
use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::creation_gate::CreationGate;

const EVENT_SOURCE: &str = "ephemeral_volume";
const QUEUE: &str = "ephemeral_volume";
const HELP: &str = "Number of PersistentVolumeClaim creation requests";

/// Maximum number of claims that are created for a pod before its key is requeued: a pod with thousands of volumes must
/// not occupy a worker for minutes.
const CLAIMS_PER_TURN: usize = 50;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ephemeral-volume-controller",
    service_account: "ephemeral-volume-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "persistentvolumeclaims" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of(QUEUE, "Pod")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Pod>(Pod::VOLUMES, &[pods_by_claim(), by_namespace()]);
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[]);
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named(QUEUE));
    let pods = manager.registry().store::<Pod>();
    let claims = manager.registry().store::<PersistentVolumeClaim>();
    let changed = queue.clone();
    pods.subscribe(move |change| {
        if let Some(pod) = added_pod(change) {
            changed.add(pod.meta.key());
        }
    });
    let (changed, users) = (queue.clone(), pods.clone());
    claims.subscribe(move |change| {
        if let Some(claim) = deleted_claim(change) {
            let key = using_claim(&claim.meta.namespace, &claim.meta.name);
            let pods = users.by_index(&pods_by_claim(), key).into_iter().filter(|pod| needs_claims(pod));
            pods.for_each(|pod| changed.add(pod.meta.key()));
        }
    });
    let gate = CreationGate::new(manager.registry().store());
    let changed = queue.clone();
    gate.on_new_namespace(&pods, move |pod| {
        if needs_claims(pod) {
            changed.add_background(pod.meta.key());
        }
    });
    let metrics = manager.metrics();
    let reconciler = Arc::new(EphemeralVolumes {
        created: metrics.count("ephemeral_volume_controller_create", HELP),
        failed: metrics.count("ephemeral_volume_controller_create_failures", HELP),
        pods,
        claims,
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(EVENT_SOURCE, DESCRIPTOR.service_account),
        consistency: Consistency::default(),
        queue: queue.clone(),
        gate,
    });
    let workers = context.workers("concurrent-ephemeralvolume-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}

// Keys

/// Returns true if a pod is not being deleted and has a generic ephemeral volume.
fn needs_claims(pod: &Pod) -> bool {
    !pod.meta.is_deleting() && ephemeral_volumes(pod).next().is_some()
}

fn ephemeral_volumes(pod: &Pod) -> impl Iterator<Item = &ClaimVolume> {
    pod.volumes.iter().flat_map(|volumes| &volumes.claims).filter(|volume| volume.is_ephemeral)
}

/// Returns a pod that was created, or replaced another one with its name, and needs claims. The volumes of a pod never
/// change, so its updates do not matter.
fn added_pod<'a>(change: &Change<'a, Pod>) -> Option<&'a Arc<Pod>> {
    let is_known = |new: &Pod| change.old.is_some_and(|old| old.meta.uid == new.meta.uid);
    change.new.filter(|new| !is_known(new) && needs_claims(new))
}

/// Returns a claim that was deleted, or replaced by another one with its name.
fn deleted_claim<'a>(change: &Change<'a, PersistentVolumeClaim>) -> Option<&'a Arc<PersistentVolumeClaim>> {
    let still_exists = |old: &PersistentVolumeClaim| change.new.is_some_and(|new| new.meta.uid == old.meta.uid);
    change.old.filter(|old| !still_exists(old))
}

// Sync

/// A pod as the API server returned it: read once in a reconcile, and only if a claim is missing. `None` before the
/// read, `Some(None)` if the pod is being deleted or no longer exists.
type FreshPod = Option<Option<ObjectResponse>>;

/// Reason why a pod has no claim for one of its volumes.
#[derive(Debug, thiserror::Error)]
enum VolumeError {
    /// A claim with this name belongs to another owner.
    #[error("PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwner { namespace: String, claim: String, pod: String },
    /// The claim could not be created.
    #[error("create PVC {claim}: {error}")]
    Create { claim: String, error: WriteError },
    /// The pod, or the claim that exists already, could not be read.
    #[error(transparent)]
    Read(#[from] WriteError),
}

impl From<DecodeError> for VolumeError {
    fn from(error: DecodeError) -> Self {
        Self::Read(error.into())
    }
}

fn not_owner(pod: &Pod, claim: &str) -> VolumeError {
    VolumeError::NotOwner {
        namespace: pod.meta.namespace.to_string(),
        claim: claim.to_owned(),
        pod: pod.meta.name.to_string(),
    }
}

struct EphemeralVolumes {
    pods: Arc<Store<Pod>>,
    claims: Arc<Store<PersistentVolumeClaim>>,
    writer: Writer,
    recorder: Recorder,
    consistency: Consistency,
    queue: Arc<Queue<ObjectKey>>,
    /// Namespaces that are being deleted, in which nothing can be created.
    gate: CreationGate,
    created: Count,
    failed: Count,
}

impl Reconcile for EphemeralVolumes {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl EphemeralVolumes {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(pod) = self.pods.get(key).filter(|pod| needs_claims(pod)) else {
            self.consistency.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.consistency.caught_up(key, &self.claims, self.queue.waker(key)) {
            return Ok(Outcome::WaitingForCache);
        }
        let mut volumes: Vec<&ClaimVolume> =
            ephemeral_volumes(&pod).filter(|volume| !self.has_claim(&pod, volume)).collect();
        let (mut fresh, mut requests) = (FreshPod::default(), 0);
        if let [first, _, ..] = volumes[..] {
            let sorted = self.sort(&pod, &mut volumes, &mut fresh).await;
            sorted.map_err(|error| self.fail(&pod, first, error))?;
        }
        for volume in volumes {
            let is_requested = self.provide(&pod, volume, &mut fresh).await;
            requests += usize::from(is_requested.map_err(|error| self.fail(&pod, volume, error))?);
            if requests == CLAIMS_PER_TURN {
                return Ok(Outcome::RequeueAfter(Duration::ZERO));
            }
        }
        Ok(Outcome::Done)
    }

    /// Reports a volume that has no claim.
    fn fail(&self, pod: &Pod, volume: &ClaimVolume, error: VolumeError) -> ReconcileError {
        let message = format!("ephemeral volume {}: {error}", volume.volume);
        self.recorder.event(&about(pod), EventType::Warning, "FailedBinding", message);
        reconcile_error(&volume.volume, error)
    }

    fn has_claim(&self, pod: &Pod, volume: &ClaimVolume) -> bool {
        let claim = self.claims.get(&ObjectKey::new(pod.meta.namespace.clone(), volume.claim.clone()));
        claim.is_some_and(|claim| require_owner(pod, &claim.meta).is_ok())
    }

    /// Sorts volumes by the order of the pod's spec, in which upstream creates their claims: if one claim cannot be
    /// created, no later one is created. The record of a pod has its volumes in another order.
    async fn sort(&self, pod: &Pod, volumes: &mut [&ClaimVolume], fresh: &mut FreshPod) -> Result<(), VolumeError> {
        if !self.gate.is_open(&pod.meta.namespace) {
            return Ok(());
        }
        let read = fresh.insert(self.read_pod(pod).await?);
        let Some(response) = read else { return Ok(()) };
        let names = volume_names(response.object()?).map_err(DecodeError::from)?;
        let positions: HashMap<&str, usize> = names.into_iter().enumerate().map(|(at, name)| (name, at)).collect();
        volumes.sort_by_key(|volume| positions.get(&*volume.volume).copied());
        Ok(())
    }

    /// Creates the claim of a volume unless it exists. Returns true if a request was sent to create it.
    async fn provide(&self, pod: &Pod, volume: &ClaimVolume, fresh: &mut FreshPod) -> Result<bool, VolumeError> {
        let key = ObjectKey::new(pod.meta.namespace.clone(), volume.claim.clone());
        if let Some(claim) = self.claims.get(&key) {
            return require_owner(pod, &claim.meta).map(|()| false);
        }
        if !self.gate.is_open(&key.namespace) {
            debug!(claim = %key, "not creating the claim: the namespace is being deleted");
            return Ok(false);
        }
        if fresh.is_none() {
            *fresh = Some(self.read_pod(pod).await?);
        }
        // The pod was deleted in the meantime: its claim would have to be deleted immediately.
        let Some(Some(response)) = fresh else { return Ok(false) };
        let made = for_ephemeral_volume(response.object()?, &volume.volume, &volume.claim, &pod.controller_ref());
        let Some(object) = made.map_err(DecodeError::from)? else { return Ok(false) };
        debug!(claim = %key, "creating the claim of an ephemeral volume");
        self.created.add();
        match self.writer.create(&PersistentVolumeClaim::RESOURCE, &key.namespace, &object, false).await {
            Ok(response) => {
                self.consistency.wrote(&pod.meta.key(), &self.claims, response.meta()?.version);
                Ok(true)
            }
            // The claim may have been created by this controller: the response was lost, or the cache does not contain
            // the claim yet.
            Err(error) if error.is_already_exists() => {
                let owned = self.confirm_owner(pod, &key).await;
                owned.map(|()| true).inspect_err(|_| self.failed.add())
            }
            Err(error) => {
                self.failed.add();
                if error.is_namespace_terminating() {
                    self.gate.close(&key.namespace);
                }
                Err(VolumeError::Create { claim: key.name.to_string(), error })
            }
        }
    }

    /// Reads the pod from the API server; `None` if it is being deleted or no longer exists, even if another pod has
    /// its name.
    async fn read_pod(&self, pod: &Pod) -> Result<Option<ObjectResponse>, VolumeError> {
        let response = match self.writer.get(&Pod::RESOURCE, &pod.meta.key()).await {
            Err(error) if error.is_not_found() => return Ok(None),
            response => response?,
        };
        let meta = response.meta()?;
        Ok((meta.uid == pod.meta.uid && !meta.is_deleting()).then_some(response))
    }

    async fn confirm_owner(&self, pod: &Pod, claim: &ObjectKey) -> Result<(), VolumeError> {
        let meta = self.writer.get(&PersistentVolumeClaim::RESOURCE, claim).await?.meta()?;
        require_owner(pod, &meta)?;
        self.consistency.wrote(&pod.meta.key(), &self.claims, meta.version);
        Ok(())
    }
}

fn require_owner(pod: &Pod, claim: &Meta) -> Result<(), VolumeError> {
    if claim.is_controlled_by(&pod.meta.uid) { Ok(()) } else { Err(not_owner(pod, &claim.name)) }
}

/// Returns the error of a reconcile. A creation that was refused because the namespace is being deleted is not retried.
fn reconcile_error(volume: &str, error: VolumeError) -> ReconcileError {
    let terminal = match &error {
        VolumeError::Create { error, .. } => error.is_namespace_terminating(),
        VolumeError::NotOwner { .. } | VolumeError::Read(_) => false,
    };
    ReconcileError { message: format!("ephemeral volume {volume}: {error}"), terminal }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::Method;
    use kinds::envelope;
    use kinds::schema::{claim_template, ephemeral_volume_source, object_meta, pod, pod_spec, volume, volume_source};
    use kinds::wire::{Put, find, find_str};
    use runtime::lock::lock;
    use runtime::metrics::Metrics;

    use super::*;
    use crate::storage::testing::{claim, deleting, own, pod_with, pod_with_ephemeral, recreated};

    #[test]
    fn only_new_pods_with_ephemeral_volumes_are_reconciled() {
        let plain = Arc::new(pod_with("web", &["data"]));
        let ephemeral = Arc::new(pod_with_ephemeral("web"));
        let mut being_deleted = pod_with_ephemeral("web");
        deleting(&mut being_deleted.meta, &[]);
        let being_deleted = Arc::new(being_deleted);
        let mut another = pod_with_ephemeral("web");
        recreated(&mut another.meta);
        let another = Arc::new(another);
        for (name, old, new, expected) in [
            ("created", None, Some(&ephemeral), true),
            ("without ephemeral volume", None, Some(&plain), false),
            ("created and being deleted", None, Some(&being_deleted), false),
            ("updated", Some(&ephemeral), Some(&ephemeral), false),
            ("deleted", Some(&ephemeral), None, false),
            ("replaced", Some(&ephemeral), Some(&another), true),
        ] {
            assert_eq!(added_pod(&Change { old, new }).is_some(), expected, "{name}");
        }
    }

    #[test]
    fn only_deleted_claims_requeue_their_pods() {
        let old = Arc::new(claim("data"));
        let mut another = claim("data");
        recreated(&mut another.meta);
        let another = Arc::new(another);
        for (name, before, now, expected) in [
            ("created", None, Some(&old), false),
            ("updated", Some(&old), Some(&old), false),
            ("deleted", Some(&old), None, true),
            ("replaced", Some(&old), Some(&another), true),
        ] {
            assert_eq!(deleted_claim(&Change { old: before, new: now }).is_some(), expected, "{name}");
        }
    }

    #[test]
    fn claim_of_another_owner_is_an_error() {
        let pod = pod_with_ephemeral("web");
        let mut claim = claim("web-data");
        let error = require_owner(&pod, &claim.meta).expect_err("nothing owns it");
        assert_eq!(error.to_string(), "PVC default/web-data was not created for pod default/web (pod is not owner)");
        own(&mut claim.meta, &pod);
        assert!(require_owner(&pod, &claim.meta).is_ok());
        let mut other = pod_with_ephemeral("web");
        recreated(&mut other.meta);
        assert!(require_owner(&other, &claim.meta).is_err());
    }

    fn controller(pod: Pod, namespace: Namespace, writer: Writer) -> EphemeralVolumes {
        measured_controller(pod, namespace, writer, &Metrics::new())
    }

    fn measured_controller(pod: Pod, namespace: Namespace, writer: Writer, metrics: &Metrics) -> EphemeralVolumes {
        let decode = || kinds::Decode { interner: Arc::default(), sections: Pod::VOLUMES };
        EphemeralVolumes {
            pods: Arc::new(runtime::testing::filled_store(decode(), vec![pods_by_claim()], [pod])),
            claims: Arc::new(runtime::testing::filled_store(decode(), vec![], [])),
            writer,
            recorder: Recorder::new("test", Arc::new(runtime::testing::NoEvents)).0,
            consistency: Consistency::default(),
            queue: Queue::new(QueueOptions::named("test")),
            gate: CreationGate::new(Arc::new(runtime::testing::filled_store(decode(), vec![], [namespace]))),
            created: metrics.count("created", HELP),
            failed: metrics.count("failed", HELP),
        }
    }

    fn namespace(deletion: i64) -> Namespace {
        let meta = Meta { deletion: kinds::Time(deletion), ..runtime::testing::meta("", "default", 1) };
        Namespace { meta, active: deletion == 0 }
    }

    #[tokio::test]
    async fn no_claim_is_created_in_a_namespace_that_is_being_deleted() {
        for (name, deletion, expected) in [("active", 0, 1), ("being deleted", 5, 0)] {
            let pod = pod_with_ephemeral("web");
            let key = pod.meta.key();
            let not_found = r#"{"kind": "Status", "code": 404, "reason": "NotFound"}"#;
            let (writer, sent) = runtime::testing::counting_writer(404, not_found).await;
            controller(pod, namespace(deletion), writer).reconcile(&key).await.expect(name);
            assert_eq!(sent.load(std::sync::atomic::Ordering::Relaxed), expected, "{name}");
        }
    }

    /// Returns an encoded pod with these generic ephemeral volumes.
    fn encoded_pod(volumes: &[String]) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(pod::METADATA, |meta| {
            meta.put_str(object_meta::NAMESPACE, "default");
            meta.put_str(object_meta::NAME, "web");
            meta.put_str(object_meta::UID, "web-uid");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        object.put_message(pod::SPEC, |spec| {
            for name in volumes {
                spec.put_message(pod_spec::VOLUMES, |message| {
                    message.put_str(volume::NAME, name);
                    message.put_message(volume::VOLUME_SOURCE, |source| {
                        source.put_message(volume_source::EPHEMERAL, |ephemeral| {
                            ephemeral.put_message(ephemeral_volume_source::VOLUME_CLAIM_TEMPLATE, |template| {
                                template.put_message(claim_template::SPEC, |spec| spec.put_str(5, "fast"));
                            });
                        });
                    });
                });
            }
        });
        object
    }

    fn decoded_pod(object: &[u8]) -> Pod {
        let decode = kinds::Decode { interner: Arc::default(), sections: Pod::VOLUMES };
        Pod::decode(&decode, object).expect("well-formed")
    }

    #[tokio::test]
    async fn pod_with_many_volumes_leaves_its_worker_to_other_pods() {
        for (name, exists, requests, expected) in [
            ("pod exists", true, CLAIMS_PER_TURN, Outcome::RequeueAfter(Duration::ZERO)),
            ("pod was deleted", false, 0, Outcome::Done),
        ] {
            let names: Vec<String> = (0..3 * CLAIMS_PER_TURN).map(|at| format!("data-{at}")).collect();
            let object = encoded_pod(&names);
            let pod = decoded_pod(&object);
            let sent = Arc::<Mutex<Vec<Method>>>::default();
            let recorded = sent.clone();
            let writer = runtime::testing::writer(move |method, _| {
                lock(&recorded).push(method.clone());
                match (method, exists) {
                    (&Method::GET, false) => {
                        (404, br#"{"kind": "Status", "code": 404, "reason": "NotFound"}"#.to_vec())
                    }
                    _ => (200, envelope::wrap(&Pod::RESOURCE, &object)),
                }
            });
            let key = pod.meta.key();
            let outcome = controller(pod, namespace(0), writer.await).reconcile(&key).await;
            assert_eq!(outcome, Ok(expected), "{name}");
            let sent = lock(&sent);
            let count = |method| sent.iter().filter(|sent| *sent == method).count();
            assert_eq!((count(&Method::GET), count(&Method::POST)), (1, requests), "{name}");
        }
    }

    #[tokio::test]
    async fn claims_are_created_in_the_order_of_the_pods_volumes() {
        for (name, refused, foreign, expected, failures) in [
            ("none fails", "", "", "web-z web-a web-m", 0),
            ("the second is refused", "web-a", "", "web-z web-a", 1),
            ("the second is of another owner", "", "web-a", "web-z", 0),
        ] {
            let object = encoded_pod(&["z".to_owned(), "a".to_owned(), "m".to_owned()]);
            let pod = decoded_pod(&object);
            let key = pod.meta.key();
            let sent = Arc::<Mutex<Vec<String>>>::default();
            let recorded = sent.clone();
            let respond = move |method: &Method, _: &str, body: &[u8]| {
                if method == Method::POST {
                    let sent = envelope::unwrap(body).expect("an envelope");
                    let claim = find_str(find(sent, 1), object_meta::NAME).to_owned();
                    let is_refused = claim == refused;
                    lock(&recorded).push(claim);
                    if is_refused {
                        return (403, br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#.to_vec());
                    }
                }
                (200, envelope::wrap(&Pod::RESOURCE, &object))
            };
            let writer = runtime::testing::writer_of(runtime::testing::clients(respond).await);
            let metrics = Metrics::new();
            let controller = measured_controller(pod, namespace(0), writer, &metrics);
            if !foreign.is_empty() {
                runtime::testing::deliver(&controller.claims, claim(foreign));
            }
            let is_done = controller.reconcile(&key).await.is_ok();
            assert_eq!((is_done, lock(&sent).join(" ").as_str()), (name == "none fails", expected), "{name}");
            let text = metrics.text();
            for (metric, count) in [("created", lock(&sent).len()), ("failed", failures)] {
                assert!(text.contains(&format!("\n{metric}_total {count}\n")), "{name}: {text}");
            }
        }
    }
}
