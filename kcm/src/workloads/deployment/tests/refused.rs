//! The whole controller while the creation of a ReplicaSet is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use kinds::meta::ObjectKey;
use kinds::{Kind, ReplicaSet};
use runtime::events::Recorder;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::tasks::Tasks;
use runtime::testing::{NoEvents, deliver, filled_store, response, writer};
use runtime::worker::{WorkOptions, work};
use tokio::sync::Notify;

use super::builders::{context, deployment};
use crate::pods::creation_gate::CreationGate;
use crate::workloads::deployment::sync::Deployments;

const FORBIDDEN: &[u8] = br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#;

/// Returns an object of the version that the caches have.
fn written() -> Vec<u8> {
    response(&ReplicaSet::RESOURCE, "shop", "web-1", 1)
}

/// No watched object changes when the API server would accept the ReplicaSet again.
#[tokio::test(start_paused = true)]
async fn replica_set_that_was_refused_for_an_hour_is_created_without_a_change() {
    const REFUSALS: usize = 20;
    let (attempts, created) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let (sent, done) = (attempts.clone(), created.clone());
    let writer = writer(move |method, _| {
        if *method != Method::POST {
            return (200, written());
        }
        if sent.fetch_add(1, Ordering::Relaxed) < REFUSALS {
            return (403, FORBIDDEN.to_vec());
        }
        done.notify_one();
        (201, written())
    })
    .await;
    let deployments = Arc::new(filled_store(context(), vec![by_namespace()], []));
    deliver(&deployments, deployment(3));
    let queue = Queue::new(QueueOptions::named("deployment"));
    let reconciler = Arc::new(Deployments {
        deployments,
        sets: Arc::new(filled_store(context(), vec![by_controller()], [])),
        pods: Arc::new(filled_store(context(), vec![by_controller()], [])),
        writer,
        recorder: Recorder::new("deployment-controller", Arc::new(NoEvents)).0,
        consistency: Arc::default(),
        queue: queue.clone(),
        clock: Arc::new(jiff::Timestamp::now),
        debouncer: Default::default(),
        gate: CreationGate::new(Arc::new(filled_store(context(), vec![], []))),
        refusals: Default::default(),
        counts_terminating: true,
    });
    let tasks = Tasks::default();
    work(WorkOptions { name: "deployment", workers: 1 }, &queue, reconciler, &Arc::default(), &tasks);
    queue.add(ObjectKey::new("shop", "web"));
    let created = tokio::time::timeout(Duration::from_secs(3 * 3600), created.notified()).await;
    let attempts = attempts.load(Ordering::Relaxed);
    assert!(created.is_ok(), "not created, {attempts} attempts");
    queue.close();
}
