//! The requests that write the condition `Unused`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use http::Method;
use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::Phase;
use kinds::schema::{object_meta, persistent_volume_claim as object, persistent_volume_claim_status as status};
use kinds::splice::with_part;
use kinds::wire::{Put, find};
use kinds::{Decode, Kind, PersistentVolumeClaim, Time, envelope};
use runtime::consistency::Consistency;
use runtime::lock::lock;
use runtime::queue::{Queue, QueueOptions};
use runtime::testing::{clients, deliver, deliver_deletion, deliver_undecodable, filled_store, writer_of};
use runtime::worker::Reconcile;
use tokio::time::advance;

use crate::protection::{Protection, decode_once};
use crate::shared_read::SharedReads;
use crate::storage::indexes::pods_by_claim;
use crate::storage::pvc_protection::FINALIZER;
use crate::storage::pvc_protection::idle::IdleClaims;
use crate::storage::pvc_protection::sync::{ClaimUsers, Claims, Users, uncached_users};
use crate::storage::pvc_protection::used_claims::UsedClaims;
use crate::storage::testing::pod_with;

const RESOURCE: &kinds::Resource = &PersistentVolumeClaim::RESOURCE;

/// A field of a later version of the API.
const UNKNOWN: u32 = 99;

/// The API server's claim, and the requests that it received.
#[derive(Default)]
struct Server {
    claim: Vec<u8>,
    requests: Vec<Method>,
}

fn read(claim: &[u8]) -> PersistentVolumeClaim {
    PersistentVolumeClaim::decode(&decode_once(Default::default()), claim).expect("well-formed")
}

/// Returns a whole claim at another version.
fn at_version(claim: &[u8], version: u64) -> Vec<u8> {
    let mut copy = Vec::new();
    copy.put_message(object::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "data");
        meta.put_str(object_meta::NAMESPACE, "default");
        meta.put_str(object_meta::UID, "data-uid");
        meta.put_str(object_meta::FINALIZERS, FINALIZER);
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
    });
    copy.put_bytes(object::STATUS, find(claim, object::STATUS));
    copy
}

impl Server {
    fn respond(&mut self, method: &Method, body: &[u8]) -> (u16, Vec<u8>) {
        self.requests.push(method.clone());
        if method == Method::PUT {
            let sent = envelope::unwrap(body).expect("an envelope");
            let version = read(&self.claim).meta.version;
            if read(sent).meta.version != version {
                return (409, br#"{"kind": "Status", "code": 409, "reason": "Conflict"}"#.to_vec());
            }
            self.claim = at_version(sent, version + 1);
        }
        (200, envelope::wrap(RESOURCE, &self.claim))
    }
}

struct Bed {
    server: Arc<Mutex<Server>>,
    reconciler: Claims,
}

impl Bed {
    async fn new() -> Self {
        let mut claim = Vec::new();
        claim.put_message(object::STATUS, |out| {
            out.put_str(status::PHASE, Phase::Bound.name());
            out.put_str(UNKNOWN, "kept");
        });
        let server = Arc::new(Mutex::new(Server { claim: at_version(&claim, 1), requests: Vec::new() }));
        let responding = server.clone();
        let writer = writer_of(clients(move |method, _, body| lock(&responding).respond(method, body)).await);
        let decode = || Decode { interner: Arc::default(), sections: Default::default() };
        let protection = Protection {
            finalizer: FINALIZER,
            adds_finalizer: true,
            objects: Arc::new(filled_store(decode(), Vec::new(), [])),
            users: ClaimUsers {
                pods: Arc::new(filled_store(decode(), vec![pods_by_claim()], [])),
                lists: uncached_users(writer.clone()),
            },
            writer,
            consistency: Consistency::default(),
            queue: Queue::new(QueueOptions::named("test")),
        };
        let reconciler = Claims {
            protection,
            clock: Arc::new(|| Timestamp::UNIX_EPOCH),
            idle: IdleClaims::default(),
            used: UsedClaims::default(),
            tracks_unused: true,
        };
        Self { server, reconciler }
    }

    /// Delivers the claim to the cache, and reconciles it as [`Bed::reconcile_cached`].
    async fn reconcile(&self) -> Vec<Method> {
        let record = read(&lock(&self.server).claim);
        deliver(&self.reconciler.protection.objects, record);
        self.reconcile_cached().await
    }

    /// Reconciles the claim, and returns the methods of the requests.
    async fn reconcile_cached(&self) -> Vec<Method> {
        let key = self.reconciler.protection.objects.all()[0].meta.key();
        // The last user ended some time ago.
        self.reconciler.idle.record_idle(&key);
        advance(Duration::from_secs(5)).await;
        self.reconciler.reconcile(&key).await.expect("it succeeds");
        std::mem::take(&mut lock(&self.server).requests)
    }

    fn start_pod(&self) {
        deliver(&self.reconciler.protection.users.pods, pod_with("web", &["data"]));
    }

    fn end_pod(&self) {
        deliver_deletion(&self.reconciler.protection.users.pods, &pod_with("web", &[]).meta.key());
    }

    /// Returns the condition, and the unknown field.
    fn result(&self) -> (Option<bool>, Vec<u8>) {
        let claim = &lock(&self.server).claim;
        (read(claim).unused, find(find(claim, object::STATUS), UNKNOWN).to_vec())
    }
}

#[tokio::test(start_paused = true)]
async fn claim_whose_pod_ends_is_not_read_if_it_has_the_version_written_for_the_pod() {
    let bed = Bed::new().await;
    bed.start_pod();
    assert_eq!(bed.reconcile().await, [Method::GET, Method::PUT]);
    assert_eq!(bed.result(), (Some(false), b"kept".to_vec()));
    bed.end_pod();
    assert_eq!(bed.reconcile().await, [Method::PUT]);
    assert_eq!(bed.result(), (Some(true), b"kept".to_vec()));
    bed.start_pod();
    assert_eq!(bed.reconcile().await, [Method::GET, Method::PUT], "unused claims are not kept");
}

#[tokio::test(start_paused = true)]
async fn claim_does_not_become_unused_while_a_pod_of_its_namespace_cannot_be_decoded() {
    for (namespace, expected) in [("other", Some(true)), ("default", Some(false))] {
        let mut bed = Bed::new().await;
        bed.start_pod();
        bed.reconcile().await;
        bed.end_pod();
        let claim = read(&lock(&bed.server).claim);
        let users = &mut bed.reconciler.protection.users;
        users.lists = SharedReads::new(|_| async { Err("a pod cannot be decoded".to_owned()) }.boxed());
        deliver_undecodable(&users.pods, ObjectKey::new(namespace, "web"));
        deliver(&bed.reconciler.protection.objects, claim.clone());
        bed.reconciler.idle.record_idle(&claim.meta.key());
        advance(Duration::from_secs(5)).await;
        let outcome = bed.reconciler.reconcile(&claim.meta.key()).await;
        assert_eq!((outcome.is_ok(), bed.result().0), (expected == Some(true), expected), "{namespace}");
    }
}

#[tokio::test(start_paused = true)]
async fn claim_is_read_when_another_client_has_written_it() {
    for (name, is_cached, expected) in [
        ("the cache has that version", true, &[Method::GET, Method::PUT][..]),
        ("the cache is behind", false, &[Method::PUT, Method::GET, Method::PUT]),
    ] {
        let bed = Bed::new().await;
        bed.start_pod();
        bed.reconcile().await;
        bed.end_pod();
        let cached = lock(&bed.server).claim.clone();
        deliver(&bed.reconciler.protection.objects, read(&cached));
        lock(&bed.server).claim = at_version(&cached, 9);
        let requests = if is_cached { bed.reconcile().await } else { bed.reconcile_cached().await };
        assert_eq!(requests, expected, "{name}");
        assert_eq!(bed.result(), (Some(true), b"kept".to_vec()), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn pod_that_arrives_during_the_list_keeps_its_claim() {
    for (name, arrives, expected) in
        [("it arrives", true, &[Method::GET][..]), ("it does not", false, &[Method::GET, Method::PUT])]
    {
        let mut bed = Bed::new().await;
        let deleted = with_part(&lock(&bed.server).claim, object::METADATA, |meta| {
            let mut copy = meta.to_vec();
            Time(1).put(&mut copy, object_meta::DELETION_TIMESTAMP);
            Ok(copy)
        });
        lock(&bed.server).claim = deleted.expect("well-formed");
        let users = &mut bed.reconciler.protection.users;
        let pods = users.pods.clone();
        users.lists = SharedReads::new(move |_| {
            if arrives {
                deliver(&pods, pod_with("web", &["data"]));
            }
            async { Ok(Users::new()) }.boxed()
        });
        assert_eq!(bed.reconcile().await, expected, "{name}");
    }
}
