//! Random histories with crashes at any step: each pod is counted exactly once, and no index succeeds twice.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::job::{CompletionMode, TRACKING_FINALIZER};
use kinds::pod::Phase;
use kinds::{Job, Pod, Time, Uid};
use proptest::prelude::*;

use super::builders::{NOW, a_job, a_pod, view, with};
use crate::workloads::job::manage::{Plan, PodChanges};
use crate::workloads::job::track;

/// A step of a history.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// A running pod ends: its number, and whether it succeeds.
    Ends(usize, bool),
    /// A pod is deleted by another client.
    Deleted(usize),
    /// The controller reconciles, and crashes after this number of writes, if there is one.
    Sync(Option<usize>),
}

/// The API server: a Job, its pods, and the number of writes.
#[derive(Debug)]
struct Server {
    job: Job,
    pods: Vec<Pod>,
    created: usize,
    writes: usize,
    /// Number of writes before the process crashes; `None`: it does not crash.
    writes_left: Option<usize>,
}

impl Server {
    fn new(indexed: bool) -> Self {
        let mut job = with(a_job(3, Some(4)), |job| job.backoff_limit = i32::MAX);
        if indexed {
            job.completion_mode = CompletionMode::Indexed;
        }
        Self { job, pods: Vec::new(), created: 0, writes: 0, writes_left: None }
    }

    /// Counts a write. Returns `Err` if the process crashes after it.
    fn write(&mut self) -> Result<(), ()> {
        self.writes += 1;
        let Some(left) = &mut self.writes_left else { return Ok(()) };
        *left = left.saturating_sub(1);
        if *left == 0 { Err(()) } else { Ok(()) }
    }

    /// Creates and deletes the pods of a plan.
    fn execute(&mut self, plan: &Plan) -> Result<PodChanges, ()> {
        let mut pod_changes = PodChanges::default();
        match plan {
            Plan::Nothing | Plan::Wait(_) => {}
            Plan::Create(new) => {
                for new in new {
                    let name = format!("pod-{}", self.created);
                    self.created += 1;
                    self.pods.push(a_pod(&name, Phase::Running, new.index));
                    pod_changes.created += 1;
                    self.write()?;
                }
            }
            Plan::End(pods) | Plan::Remove(pods) => {
                for pod in pods {
                    if matches!(plan, Plan::Remove(_)) {
                        self.untrack(&pod.meta.uid);
                        self.write()?;
                    }
                    self.delete(&pod.meta.uid);
                    pod_changes.deleted += 1;
                    self.write()?;
                }
            }
        }
        Ok(pod_changes)
    }

    /// Runs one reconcile, `late` seconds after [`NOW`], in the order in which `sync.rs` writes. With `with_delays`,
    /// writes that may be delayed are delayed. Returns `Err` if the process crashes after its last allowed write.
    fn sync(&mut self, crashes_after: Option<usize>, late: i64, with_delays: bool) -> Result<(), ()> {
        self.writes_left = crashes_after;
        if self.job.is_finished() {
            return Ok(());
        }
        let job = self.job.clone();
        let pods: Vec<Arc<Pod>> = self.pods.iter().cloned().map(Arc::new).collect();
        let settled = HashSet::new();
        let mut view = view(&job, &pods, &settled);
        // The time advances, so that no backoff lasts forever.
        view.now = view.now.checked_add(jiff::SignedDuration::from_secs(late)).expect("in range");
        let state = view.state();
        let plan = view.plan(&state);
        let pod_changes = self.execute(&plan)?;
        let outcome = view.outcome(&state, &plan, pod_changes);
        let account = view.account(&state, outcome);
        let (mut status, mut tracked) = (account.status, account.tracked);
        let delay = account.flush.into_iter().chain(account.counts).min();
        match delay.map(|write_delay| with_delays && !write_delay.is_zero()) {
            Some(false) => {
                self.job.status = status.clone();
                self.write()?;
            }
            Some(true) if account.flush.is_some() => return Ok(()),
            Some(true) | None => {}
        }
        for pod in &account.release {
            self.untrack(&pod.meta.uid);
            tracked.remove(&pod.meta.uid);
            self.write()?;
        }
        let moved = track::settle(&mut status, &tracked);
        let waits = with_delays && !account.write_delay.is_zero();
        if track::finish(&mut status, account.end.as_ref(), view.now) || moved && !waits {
            self.job.status = status;
            self.write()?;
        }
        Ok(())
    }

    fn untrack(&mut self, uid: &Uid) {
        for pod in self.pods.iter_mut().filter(|pod| pod.meta.uid == *uid) {
            pod.meta.finalizers = Arc::new([]);
        }
        self.pods.retain(|pod| !pod.meta.is_deleting() || !pod.meta.finalizers.is_empty());
    }

    fn delete(&mut self, uid: &Uid) {
        for pod in self.pods.iter_mut().filter(|pod| pod.meta.uid == *uid) {
            pod.meta.deletion = Time(NOW);
            // The kubelet ends the running pod.
            if !pod.is_terminal() {
                pod.phase = Phase::Failed;
            }
        }
        self.pods.retain(|pod| !pod.meta.is_deleting() || !pod.meta.finalizers.is_empty());
    }

    fn counted(&self) -> (i32, i32) {
        let status = &self.job.status;
        let uncounted = status.uncounted.clone().unwrap_or_default();
        (
            status.succeeded + i32::try_from(uncounted.succeeded.len()).expect("few"),
            status.failed + i32::try_from(uncounted.failed.len()).expect("few"),
        )
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0usize..4, proptest::bool::weighted(0.7)).prop_map(|(at, well)| Event::Ends(at, well)),
        (0usize..4).prop_map(Event::Deleted),
        proptest::option::of(1usize..8).prop_map(Event::Sync),
    ]
}

proptest! {
    #[test]
    fn each_pod_is_counted_once(indexed: bool, events in proptest::collection::vec(event(), 0..60)) {
        let mut server = Server::new(indexed);
        let (mut succeeded, mut failed) = (HashSet::new(), HashSet::new());
        let mut done = HashSet::new();
        let quiet = (0..200).map(|at| if at % 2 == 0 { Event::Sync(None) } else { Event::Ends(0, true) });
        for (step, event) in events.into_iter().chain(quiet).enumerate() {
            let running: Vec<Uid> = server.pods.iter().filter(|pod| pod.is_active()).map(|pod| pod.meta.uid.clone()).collect();
            match event {
                Event::Ends(at, well) => {
                    if let Some(uid) = running.get(at % running.len().max(1)) {
                        let pod = server.pods.iter_mut().find(|pod| pod.meta.uid == *uid).expect("it runs");
                        pod.phase = if well { Phase::Succeeded } else { Phase::Failed };
                        if well { succeeded.insert(uid.clone()) } else { failed.insert(uid.clone()) };
                        if well && indexed {
                            let index = pod.ending.as_ref().and_then(|ending| ending.index).expect("an index");
                            prop_assert!(done.insert(index), "index {index} succeeded twice");
                        }
                    }
                }
                Event::Deleted(at) => {
                    if let Some(uid) = running.get(at % running.len().max(1)) {
                        failed.insert(uid.clone());
                        server.delete(uid);
                    }
                }
                Event::Sync(crashes_after) => drop(server.sync(crashes_after, 1000 * step as i64, step % 3 > 0)),
            }
            let (good, bad) = server.counted();
            prop_assert!(good as usize <= succeeded.len(), "{good} successes counted, of {}", succeeded.len());
            prop_assert!(bad as usize <= failed.len(), "{bad} failures counted, of {}", failed.len());
            let active = server.pods.iter().filter(|pod| pod.is_active()).count();
            prop_assert!(active <= 3, "{active} pods in parallel");
        }
        prop_assert!(server.job.status.finished().is_some(), "{:?}", server.job.status);
        prop_assert_eq!(server.counted(), (4, i32::try_from(failed.len()).expect("few")));
        prop_assert!(server.pods.iter().all(|pod| pod.meta.finalizers.iter().all(|name| &**name != TRACKING_FINALIZER)));
        let before = server.writes;
        prop_assert!(server.sync(None, 1_000_000, false).is_ok() && server.writes == before, "a finished Job is not changed");
    }
}
