//! Reconciles during which the watch advances.

use std::sync::Mutex;

use kinds::envelope;
use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use runtime::events::Recorder;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Store, by_controller, by_namespace};
use runtime::testing::{NoEvents, deliver, deliver_deletion, filled_store, writer};
use runtime::worker::Reconcile as _;

use super::*;
use crate::pods::control::PodControl;
use crate::pods::creation_gate::CreationGate;
use crate::workloads::replicaset::decide::Gates;
use crate::workloads::replicaset::sync::PodSets;

fn decode() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

/// Metadata of an object `web` with its UID, as every response here carries it.
fn response() -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, "web");
        meta.put_str(object_meta::RESOURCE_VERSION, "2");
    });
    envelope::wrap(&ReplicaSet::RESOURCE, &object)
}

/// A pod that matches the set's selector and has no controller.
fn orphan(name: &str) -> Pod {
    let mut pod = pod(name);
    pod.meta.owners = Interner::default().owners(&[]);
    pod.meta.version = 9;
    pod
}

/// A ReplicaSet of this leadership term with two replicas.
fn web(version: u64) -> ReplicaSet {
    let mut web = set(2, 0);
    web.meta.version = version;
    web.meta.created = Time(i64::MAX);
    web.selector = Selector::of_labels(&Interner::default(), [("app", "web")]);
    web
}

#[tokio::test]
async fn pods_deleted_in_the_last_sync_are_not_deleted_again_when_the_watch_shows_them_during_the_next() {
    let key = ObjectKey::new("ns", "web");
    let sets = Arc::new(filled_store(decode(), vec![by_controller(), by_namespace()], [web(7)]));
    let pods: Arc<Store<Pod>> = Arc::new(filled_store(decode(), vec![by_controller()], ["a", "b", "c", "d"].map(pod)));
    let deleted = Arc::new(Mutex::new(Vec::<String>::new()));
    let (shown, requests) = (pods.clone(), deleted.clone());
    let writer = writer(move |method, path| {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut deleted = requests.lock().expect("the deletions");
        match method.as_str() {
            "DELETE" => deleted.push(name),
            // The orphan is adopted: after the pods were read, and before anything is decided.
            "PATCH" => deleted.iter().for_each(|name| deliver_deletion(&shown, &ObjectKey::new("ns", name.as_str()))),
            _ => {}
        }
        (200, response())
    })
    .await;
    let reconciler = PodSets {
        sets: sets.clone(),
        control: PodControl {
            pods: pods.clone(),
            writer,
            recorder: Recorder::new("replicaset-controller", Arc::new(NoEvents)).0,
            consistency: Arc::default(),
            gate: CreationGate::new(Arc::new(filled_store(decode(), vec![], []))),
        },
        queue: Queue::new(QueueOptions::named("test")),
        clock: Arc::new(now),
        gates: Gates { deletion_cost: true, terminating_replicas: false },
        handover: Default::default(),
        refusals: Default::default(),
        debouncer: Default::default(),
    };
    reconciler.reconcile(&key).await.expect("two pods are surplus");
    assert_eq!(deleted.lock().expect("the deletions").len(), 2);
    deliver(&sets, web(9));
    deliver(&pods, orphan("e"));
    reconciler.reconcile(&key).await.expect("the orphan is adopted");
    assert_eq!(pods.len(), 3, "the watch showed the deletions during the reconcile");
    let deleted = deleted.lock().expect("the deletions").clone();
    assert_eq!(deleted.len(), 2, "of five pods two were deleted before, and one is surplus later: {deleted:?}");
}
