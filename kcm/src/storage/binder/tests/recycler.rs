//! Pods that wipe volumes: each counts only for the claim whose data it wipes. Also bindings whose response was lost,
//! claim references with invalid names, and undecodable objects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use kinds::meta::{ObjectKey, Uid};
use kinds::persistent_volume_claim::BIND_COMPLETED;
use kinds::pod::Phase as PodPhase;
use kinds::schema::object_meta;
use kinds::wire::Put;
use kinds::{Kind, PersistentVolume, PersistentVolumeClaim, Pod, envelope};
use runtime::lock::lock;
use runtime::store::Change;
use runtime::testing::{deliver, deliver_deletion, deliver_undecodable, writer};
use runtime::worker::{Outcome, Reconcile};
use tokio::time::advance;

use super::binders;
use super::builders::{Backend, VolumeSpec, claim, class, volume};
use crate::flags;
use crate::storage::binder::claim_sync::Claims;
use crate::storage::binder::decide_claim::{Cluster, Search};
use crate::storage::binder::reconciler::Binder;
use crate::storage::binder::recycler_pod::Recyclers;
use crate::storage::binder::volume_sync::Volumes;
use crate::storage::lost_write::REQUEST_TIMEOUT;
use crate::storage::testing::pod_with;

const POD: &str = "recycler-for-pv";

/// The API server: one volume, at most one claim, and pods with the uids `pod-1`, `pod-2` and so on.
#[derive(Debug, Default)]
struct Server {
    volume: Vec<u8>,
    claim: Vec<u8>,
    has_pod: bool,
    created_pods: usize,
    requests: Vec<String>,
    /// The volume after the next write to it, whose response is lost.
    lost: Option<Vec<u8>>,
    /// The volume cannot be read after that write.
    fails_reads: bool,
    /// That write was received, and `fails_reads` is set.
    is_down: bool,
}

impl Server {
    fn respond(&mut self, method: &Method, path: &str) -> (u16, Vec<u8>) {
        let path = path.split('?').next().unwrap_or_default();
        let short = path.rsplit_once("v1/").map_or(path, |(_, end)| end).to_owned();
        if method != Method::GET {
            self.requests.push(format!("{method} {short}"));
        }
        let refused =
            |code: u16, reason| (code, format!(r#"{{"kind": "Status", "code": {code}, "reason": "{reason}"}}"#));
        let (code, status) = match (method, short.as_str()) {
            (&Method::POST, _) if self.has_pod => refused(409, "AlreadyExists"),
            (&Method::DELETE, _) if !self.has_pod => refused(404, "NotFound"),
            (&Method::PUT, "persistentvolumes/pv") if self.lost.is_some() => {
                self.volume = self.lost.take().unwrap_or_default();
                self.is_down = self.fails_reads;
                refused(504, "Timeout")
            }
            (&Method::GET, "persistentvolumes/pv") if self.is_down => refused(504, "Timeout"),
            (_, "persistentvolumes/pv" | "persistentvolumes/pv/status") => {
                return (200, envelope::wrap(&PersistentVolume::RESOURCE, &self.volume));
            }
            (
                _,
                "namespaces/shop/persistentvolumeclaims/data" | "namespaces/shop/persistentvolumeclaims/data/status",
            ) if !self.claim.is_empty() => {
                return (200, envelope::wrap(&PersistentVolumeClaim::RESOURCE, &self.claim));
            }
            (&Method::POST, _) => {
                self.has_pod = true;
                self.created_pods += 1;
                return (201, self.pod());
            }
            (_, "namespaces/default/pods/recycler-for-pv") => {
                let pod = self.pod();
                self.has_pod &= method != Method::DELETE;
                return (200, pod);
            }
            _ => refused(404, "NotFound"),
        };
        (code, status.into_bytes())
    }

    fn pod(&self) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAMESPACE, "default");
            meta.put_str(object_meta::NAME, POD);
            meta.put_str(object_meta::UID, &format!("pod-{}", self.created_pods));
            meta.put_str(object_meta::RESOURCE_VERSION, "100");
        });
        envelope::wrap(&Pod::RESOURCE, &object)
    }
}

struct Bed {
    binder: Arc<Binder>,
    server: Arc<Mutex<Server>>,
}

impl Bed {
    async fn new() -> Self {
        let server = Arc::<Mutex<Server>>::default();
        let responding = server.clone();
        let writer = writer(move |method, path| lock(&responding).respond(method, path)).await;
        let Ok(component::flags::Invocation::Run(options)) = flags::parse([]) else { panic!("no options") };
        let recyclers = Recyclers::read(&options.values).expect("built-in templates");
        let binder = Arc::new(binders::binder(writer, false, Ok(recyclers)));
        Self { binder, server }
    }

    /// Changes the volume in the API server and in the cache.
    fn set_volume(&self, version: u64, phase: &'static str, claim: Option<&'static str>, policy: &'static str) {
        let changed: VolumeSpec = volume("pv").phase(phase).with(|volume| {
            volume.head.version = version;
            volume.claim = claim.map(|uid| ("data", uid));
            volume.policy = policy;
            volume.backend = Backend::HostPath("/tmp/data");
        });
        lock(&self.server).volume = changed.object();
        deliver(&self.binder.volumes, (*changed.record()).clone());
    }

    /// Ends the last created pod with success.
    fn end_pod(&self) {
        let mut pod = pod_with(POD, &[]);
        (pod.phase, pod.meta.uid) =
            (PodPhase::Succeeded, Uid::parse(&format!("pod-{}", lock(&self.server).created_pods)));
        deliver(&self.binder.pods, pod);
    }

    /// Reconciles the volume, and returns the writes.
    async fn reconcile(&self) -> Vec<String> {
        let reconciled = Volumes(self.binder.clone()).reconcile(&ObjectKey::new("", "pv")).await;
        assert!(reconciled.is_ok(), "{reconciled:?}");
        std::mem::take(&mut lock(&self.server).requests)
    }
}

const CREATE: &str = "POST namespaces/default/pods";
const DELETE: &str = "DELETE namespaces/default/pods/recycler-for-pv";

#[tokio::test]
async fn pod_of_an_earlier_claim_does_not_free_the_volume() {
    let bed = Bed::new().await;
    bed.set_volume(1, "Released", Some("first"), "Recycle");
    assert_eq!(bed.reconcile().await, [CREATE]);
    bed.end_pod();
    // An administrator freed the volume before its pod ended, and another claim was bound to it in the meantime.
    bed.set_volume(2, "Released", Some("second"), "Recycle");
    let failed = "PUT persistentvolumes/pv/status";
    assert_eq!(bed.reconcile().await, [CREATE, DELETE, failed], "the old pod is deleted");
}

#[tokio::test]
async fn volume_is_freed_by_the_pod_of_its_last_claim() {
    let bed = Bed::new().await;
    bed.set_volume(1, "Released", Some("first"), "Recycle");
    assert_eq!(bed.reconcile().await, [CREATE]);
    assert!(bed.reconcile().await.is_empty(), "the pod runs");
    bed.end_pod();
    assert_eq!(bed.reconcile().await, [DELETE, "PUT persistentvolumes/pv", "PUT persistentvolumes/pv/status"]);
}

#[tokio::test]
async fn pod_is_deleted_when_the_volume_may_no_longer_be_wiped() {
    for (case, phase, claim, policy) in [
        ("made available", "Available", None, "Recycle"),
        ("reserved", "Available", Some(""), "Recycle"),
        ("retained", "Released", Some("first"), "Retain"),
    ] {
        let bed = Bed::new().await;
        bed.set_volume(1, "Released", Some("first"), "Recycle");
        assert_eq!(bed.reconcile().await, [CREATE], "{case}");
        bed.set_volume(2, phase, claim, policy);
        assert_eq!(bed.reconcile().await.first().map(String::as_str), Some(DELETE), "{case}");
        assert!(!bed.reconcile().await.contains(&DELETE.to_owned()), "{case}: it is deleted once");
    }
    let bed = Bed::new().await;
    bed.set_volume(1, "Released", Some("first"), "Recycle");
    assert_eq!(bed.reconcile().await, [CREATE]);
    deliver_deletion(&bed.binder.volumes, &ObjectKey::new("", "pv"));
    assert_eq!(bed.reconcile().await, [DELETE], "volume deleted");
}

#[tokio::test]
async fn pod_of_an_earlier_process_is_deleted_when_its_volume_must_not_be_wiped() {
    for (case, namespace, phase, is_deleted) in [
        ("runs", "default", PodPhase::Running, true),
        ("has ended", "default", PodPhase::Succeeded, false),
        ("of a tenant", "shop", PodPhase::Running, false),
    ] {
        let bed = Bed::new().await;
        let mut pod = pod_with(POD, &[]);
        (pod.phase, pod.meta.namespace) = (phase, namespace.into());
        deliver(&bed.binder.pods, pod);
        lock(&bed.server).has_pod = true;
        bed.set_volume(1, "Available", None, "Recycle");
        let expected = if is_deleted { vec![DELETE] } else { Vec::new() };
        assert_eq!(bed.reconcile().await, expected, "{case}");
    }
}

#[tokio::test]
async fn volume_without_a_recycler_fails_when_no_pod_uses_it() {
    let bed = Bed::new().await;
    let released = volume("pv").of("data", "first").phase("Released").with(|volume| {
        volume.policy = "Recycle";
        volume.backend = Backend::Csi;
    });
    lock(&bed.server).volume = released.object();
    deliver(&bed.binder.volumes, (*released.record()).clone());
    let mut pod = pod_with("web", &["data"]);
    pod.meta.namespace = "shop".into();
    deliver(&bed.binder.pods, pod.clone());
    assert!(bed.reconcile().await.is_empty(), "a pod uses it");
    deliver_deletion(&bed.binder.pods, &pod.meta.key());
    assert_eq!(bed.reconcile().await, ["PUT persistentvolumes/pv/status"]);
}

#[tokio::test]
async fn undecodable_pods_count_as_users_of_the_claims_in_their_namespace() {
    for (namespace, is_known) in [("other", true), ("shop", false)] {
        let mut bed = Bed::new().await;
        bed.set_volume(1, "Released", Some("first"), "Recycle");
        Arc::get_mut(&mut bed.binder).expect("the only reference").settings.tracks_unused = true;
        deliver_undecodable(&bed.binder.pods, ObjectKey::new(namespace, "web"));
        let wiped = Volumes(bed.binder.clone()).reconcile(&ObjectKey::new("", "pv")).await;
        assert_eq!(wiped.is_ok(), is_known, "{namespace}: {wiped:?}");
        assert_eq!(lock(&bed.server).created_pods, usize::from(is_known), "{namespace}");
        assert_eq!(bed.binder.first_unused(&claim("data").record()).is_some(), is_known, "{namespace}");
    }
}

#[tokio::test]
async fn default_class_is_not_known_while_a_class_is_undecodable() {
    let bed = Bed::new().await;
    let default = class("gold", "csi.example.com", "Immediate", true, 0);
    deliver(&bed.binder.classes, (*default).clone());
    assert_eq!(bed.binder.default_class().as_deref(), Some("gold"));
    deliver_undecodable(&bed.binder.classes, ObjectKey::new("", "garbled"));
    assert_eq!(bed.binder.default_class(), None);
    let classes = ["gold", "garbled", "missing"];
    assert_eq!(classes.map(|name| bed.binder.is_class_undecodable(name)), [false, true, false]);
}

/// Returns a controller with a free volume and a claim.
async fn with_free_volume() -> Bed {
    let bed = Bed::new().await;
    bed.set_volume(1, "Available", None, "Retain");
    let free = bed.binder.volumes.all();
    bed.binder.matcher.apply(&Change { old: None, new: free.first() });
    lock(&bed.server).claim = claim("data").object();
    deliver(&bed.binder.claims, (*claim("data").record()).clone());
    bed
}

#[tokio::test]
async fn claim_takes_no_free_volume_while_a_volume_that_may_be_reserved_for_it_is_undecodable() {
    let last = || volume("garbled");
    for (case, is_undecodable, last, is_taken) in [
        ("all decodable", false, None, true),
        ("never decoded", true, None, false),
        ("was free", true, Some(last()), false),
        ("was bound to another claim", true, Some(last().of("logs", "uid-logs").phase("Bound")), true),
        ("was bound to an earlier claim", true, Some(last().of("data", "uid-earlier").phase("Bound")), true),
        ("was bound to the claim", true, Some(last().of("data", "uid-data").phase("Bound")), false),
        ("was reserved without uid", true, Some(last().of("logs", "").phase("Bound")), false),
        ("was released", true, Some(last().of("logs", "uid-logs").phase("Released")), false),
    ] {
        let bed = with_free_volume().await;
        if let Some(last) = last {
            deliver(&bed.binder.volumes, (*last.record()).clone());
        }
        if is_undecodable {
            deliver_undecodable(&bed.binder.volumes, ObjectKey::new("", "garbled"));
        }
        // The server's volume does not change, so the binding does not end.
        let _ = Claims(bed.binder.clone()).reconcile(&ObjectKey::new("shop", "data")).await;
        let is_requested = lock(&bed.server).requests.iter().any(|request| request == "PUT persistentvolumes/pv");
        assert_eq!(is_requested, is_taken, "{case}");
    }
}

/// Returns a controller after a binding of the claim to the volume whose response was lost.
async fn after_lost_binding(is_written: bool, fails_reads: bool) -> Bed {
    let bed = with_free_volume().await;
    let bound = volume("pv").of("data", "uid-data").with(|volume| volume.head.version = 2).object();
    {
        let mut server = lock(&bed.server);
        server.lost = Some(if is_written { bound } else { server.volume.clone() });
        server.fails_reads = fails_reads;
    }
    let result = Claims(bed.binder.clone()).reconcile(&ObjectKey::new("shop", "data")).await;
    result.expect_err("the response is lost");
    bed
}

impl Bed {
    fn is_free(&self) -> bool {
        self.binder.matcher.hold(&"pv".into(), &ObjectKey::new("shop", "logs"))
    }
}

#[tokio::test(start_paused = true)]
async fn volume_is_not_free_while_a_binding_whose_response_was_lost_may_succeed() {
    for (case, is_written, fails_reads) in
        [("written", true, false), ("written, not read", true, true), ("not written yet", false, false)]
    {
        let bed = after_lost_binding(is_written, fails_reads).await;
        let waiting = claim("logs").record();
        assert_eq!(bed.binder.matcher.find(&waiting, false), Search::Nothing, "{case}");
        assert!(!bed.is_free(), "{case}");
        let same = claim("data").record();
        assert_eq!(bed.binder.matcher.find(&same, false), Search::Busy, "{case}: it must not get another volume");
        advance(REQUEST_TIMEOUT - Duration::from_secs(1)).await;
        assert!(!bed.is_free(), "{case}: shortly before the timeout");
        advance(Duration::from_secs(1)).await;
        // A written version is awaited longer than that.
        let is_known = is_written && !fails_reads;
        assert_eq!(bed.is_free(), !is_known, "{case}: after the timeout");
    }
}

#[tokio::test(start_paused = true)]
async fn volume_is_free_when_its_cache_is_newer_than_a_lost_binding() {
    for is_deleted in [false, true] {
        let bed = after_lost_binding(false, false).await;
        let old = bed.binder.volumes.all();
        let new = volume("pv").with(|volume| volume.head.version = 3).record();
        assert!(!bed.is_free());
        bed.binder.matcher.apply(&Change { old: old.first(), new: old.first() });
        assert!(!bed.is_free(), "a resync");
        bed.binder.matcher.apply(&Change { old: old.first(), new: (!is_deleted).then_some(&new) });
        assert!(bed.is_free(), "deleted: {is_deleted}");
    }
}

#[tokio::test(start_paused = true)]
async fn end_of_a_lost_binding_does_not_end_a_later_one() {
    let bed = after_lost_binding(false, false).await;
    let old = bed.binder.volumes.all();
    let new = volume("pv").with(|volume| volume.head.version = 3).record();
    bed.binder.matcher.apply(&Change { old: old.first(), new: Some(&new) });
    assert!(bed.is_free() && !bed.is_free(), "it is being bound to the other claim");
    advance(REQUEST_TIMEOUT).await;
    assert!(!bed.is_free());
}

#[tokio::test]
async fn bound_claim_is_not_lost_while_its_volume_is_undecodable() {
    let bed = Bed::new().await;
    deliver_undecodable(&bed.binder.volumes, ObjectKey::new("", "pv"));
    lock(&bed.server).volume = volume("pv").of("data", "uid-data").phase("Bound").object();
    let bound = claim("data").names("pv").annotated(BIND_COMPLETED, "yes").with(|claim| claim.phase = "Bound");
    lock(&bed.server).claim = bound.object();
    deliver(&bed.binder.claims, (*bound.record()).clone());
    let result = Claims(bed.binder.clone()).reconcile(&ObjectKey::new("shop", "data")).await;
    assert_eq!(result, Ok(Outcome::RequeueWithBackoff));
    let requests = std::mem::take(&mut lock(&bed.server).requests);
    assert!(requests.is_empty(), "{requests:?}");
}

/// The API server accepts any reference to a claim.
#[tokio::test]
async fn released_volume_is_reclaimed_when_its_claim_reference_is_invalid() {
    const RELEASE: &str = "PUT persistentvolumes/pv/status";
    for (case, (namespace, name), phase, expected) in [
        ("no namespace", ("", "data"), "Released", Some(CREATE)),
        ("no namespace, not released yet", ("", "data"), "Bound", Some(RELEASE)),
        ("neither namespace nor name", ("", ""), "Released", Some(CREATE)),
        ("invalid name", ("shop", "../data"), "Released", Some(CREATE)),
        // As in upstream, such a reference does not release the volume.
        ("neither namespace nor name, not released yet", ("", ""), "Bound", None),
        ("invalid name, not released yet", ("shop", "../data"), "Bound", None),
    ] {
        let bed = Bed::new().await;
        let referring = volume("pv").of(name, "first").phase(phase).with(|volume| {
            volume.claim_namespace = namespace;
            volume.policy = "Recycle";
            volume.backend = Backend::HostPath("/tmp/data");
        });
        lock(&bed.server).volume = referring.object();
        deliver(&bed.binder.volumes, (*referring.record()).clone());
        let result = Volumes(bed.binder.clone()).reconcile(&ObjectKey::new("", "pv")).await;
        assert_eq!(result.is_ok(), expected.is_some(), "{case}: {result:?}");
        let requests = std::mem::take(&mut lock(&bed.server).requests);
        assert_eq!(requests.first().map(String::as_str), expected, "{case}");
    }
}

/// A tenant may write any volume name into a claim.
#[tokio::test]
async fn bound_claim_is_lost_when_its_volume_name_is_invalid() {
    for name in ["missing", "../pods", "50%"] {
        let bed = Bed::new().await;
        let bound = claim("data").names(name).annotated(BIND_COMPLETED, "yes").with(|claim| claim.phase = "Bound");
        lock(&bed.server).claim = bound.object();
        deliver(&bed.binder.claims, (*bound.record()).clone());
        let result = Claims(bed.binder.clone()).reconcile(&ObjectKey::new("shop", "data")).await;
        assert!(result.is_ok(), "{name}: {result:?}");
        let requests = lock(&bed.server).requests.clone();
        assert_eq!(requests, ["PUT namespaces/shop/persistentvolumeclaims/data/status"], "{name}");
    }
}
