//! Reconciles of pods that lost their Job.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use http::Method;
use kinds::meta::ObjectKey;
use kinds::pod::Phase;
use kinds::{Job, Kind, Time};
use runtime::lock::lock;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::by_controller;
use runtime::testing::{filled_store, response, writer};
use runtime::worker::{Outcome, Reconcile as _};

use super::builders::{NOW, a_pod, context};
use crate::workloads::job::orphans::{OrphanKey, Orphans, RECHECK_DELAY};

const NOT_FOUND: &[u8] = br#"{"kind": "Status", "code": 404, "reason": "NotFound"}"#;

/// The Job is created and deleted between two lists of a failed watch.
#[tokio::test(start_paused = true)]
async fn pod_is_released_although_its_job_is_deleted_before_the_cache_contains_it() {
    let requests = Arc::<Mutex<Vec<String>>>::default();
    let is_deleted = Arc::<AtomicBool>::default();
    let (sent, without_job) = (requests.clone(), is_deleted.clone());
    let writer = writer(move |method, path| {
        let path = path.split('?').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        lock(&sent).push(format!("{method} {name}"));
        let is_missing = method == Method::GET && without_job.load(Ordering::Relaxed);
        if is_missing { (404, NOT_FOUND.to_vec()) } else { (200, response(&Job::RESOURCE, "default", "pi", 9)) }
    })
    .await;
    let mut pod = a_pod("p", Phase::Failed, None);
    pod.meta.deletion = Time(NOW);
    let orphans = Orphans {
        jobs: Arc::new(filled_store(context(), vec![], [])),
        pods: Arc::new(filled_store(context(), vec![by_controller()], [pod])),
        writer,
        queue: Queue::new(QueueOptions::named("test")),
        deleted_jobs: Default::default(),
    };
    let key = OrphanKey::Pod(ObjectKey::new("default", "p"));
    assert_eq!(orphans.reconcile(&key).await, Ok(Outcome::Done));
    let due: Vec<_> = orphans.queue.waiting().into_iter().map(|waiting| (waiting.key, waiting.due)).collect();
    assert_eq!(due, [(key.clone(), Some(RECHECK_DELAY))]);
    is_deleted.store(true, Ordering::Relaxed);
    assert_eq!(orphans.reconcile(&key).await, Ok(Outcome::Done));
    assert_eq!(*lock(&requests), ["GET pi", "GET pi", "PATCH p"]);
}
