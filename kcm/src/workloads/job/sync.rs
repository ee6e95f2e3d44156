//! One reconcile of a Job: gather, claim, manage, write down, release, count.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use jiff::{SignedDuration, Timestamp};
use kinds::job::{CompletionMode, JobStatus};
use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::{Job, Kind, Pod, Uid};
use runtime::consistency::Consistency;
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, Recorder, about};
use runtime::queue::Queue;
use runtime::slow_start::slow_start;
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::{debug, error, info};

use super::BATCH;
use super::backoff::Backoff;
use super::claim::{claim_pods, patch, untracking};
use super::decide::{COMPLETE, View, has_finalizer, index_of};
use super::manage::{Deeds, NewPod, Plan, Turn};
use super::metrics::{Did, Need, Tally};
use super::pods::new_pod;
use super::track::{self, Account};
use crate::context::Clock;

/// What is remembered about a Job between two looks at it.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    uid: Uid,
    backoff: Backoff,
    /// Pods that are gone with their finalizer although the store may still show them.
    settled: HashSet<Uid>,
    /// Our stores were compared with the server.
    looked: bool,
}

/// The controller's state.
pub struct Jobs {
    pub jobs: Arc<Store<Job>>,
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    pub memory: Mutex<HashMap<ObjectKey, Memory>>,
    /// Since when counts of running pods wait to be written.
    pub debouncer: StatusDebouncer,
    /// When our time began: what another leader did last may not have reached our stores by then.
    pub begun: OnceLock<Timestamp>,
    pub tally: Arc<Tally>,
}

impl Reconcile for Jobs {
    type Key = ObjectKey;

    fn begin(&self) {
        self.begun.get_or_init(|| (self.clock)());
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

/// Why a status was not written, as far as the reconcile goes.
fn not_written(error: WriteError) -> Result<Outcome, ReconcileError> {
    match error {
        // The status was computed from what is no longer true: the change that is on its way leads to another.
        error if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
        error if error.is_not_found() => Ok(Outcome::Done),
        error => Err(error.into()),
    }
}

impl Jobs {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(job) = self.jobs.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        if let Some(manager) = &job.managed_by {
            debug!(%manager, "the Job is managed by somebody else");
            return Ok(Outcome::Done);
        }
        self.remember(key, &job.meta.uid, |_| {});
        if job.is_finished() {
            self.forget(key);
            return Ok(Outcome::Done);
        }
        if matches!(job.completion_mode, CompletionMode::Unknown(_)) {
            let message = "Skipped Job sync because completion mode is unknown".to_owned();
            self.recorder.event(&about(&*job), EventType::Warning, "UnknownCompletionMode", message);
            return Ok(Outcome::Done);
        }
        if let Selector::Invalid(why) = &job.selector {
            error!(why, "the Job's selector is invalid; nothing is done for it");
            return Ok(Outcome::Done);
        }
        let (mut did, started) = (Did::Reconciling, Instant::now());
        let ended = self.work(key, &job, &mut did).await;
        if !matches!(ended, Ok(Outcome::WaitingForCache)) {
            // What is begun anew is an error with upstream.
            let good = matches!(ended, Ok(Outcome::Done | Outcome::RequeueAfter(_)));
            self.tally.synced(&job, did, good, started.elapsed());
        }
        ended
    }

    /// Sees to the pods of a Job that goes on; says in `did` what that came to.
    async fn work(&self, key: &ObjectKey, job: &Arc<Job>, did: &mut Did) -> Result<Outcome, ReconcileError> {
        if !self.caught_up(key) || self.consistency.take_lost(key) && !self.look(key, job).await? {
            return Ok(Outcome::WaitingForCache);
        }
        let satisfied = self.consistency.deletions_seen(key, &self.pods);
        let mut children = self.pods.by_index(&by_controller(), owned_by(&job.meta.uid));
        children.extend(self.pods.by_index(&by_controller(), orphans_in(&job.meta.namespace)));
        let claimed = claim_pods(&self.writer, job, children).await;
        for version in claimed.written {
            self.consistency.wrote(key, &self.pods, version);
        }
        if !claimed.errors.is_empty() {
            return Err(ReconcileError::new(claimed.errors.join(", ")));
        }
        if !self.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let mut pods = claimed.pods;
        pods.sort_by_key(|pod| index_of(pod).unwrap_or(-1));
        let memory = self.remember(key, &job.meta.uid, |memory| {
            let shown: HashSet<&Uid> = pods.iter().filter(|pod| has_finalizer(pod)).map(|pod| &pod.meta.uid).collect();
            memory.settled.retain(|uid| shown.contains(uid));
        });
        let (settled, backoff) = (&memory.settled, memory.backoff);
        let view = View { job, pods: &pods, settled, backoff, satisfied, now: (self.clock)() };
        let ended = pods.iter().any(|pod| view.is_tracked(pod) && !pod.is_active());
        let standing = view.standing();
        let plan = view.plan(&standing);
        let acts = ended || !matches!(plan, Plan::Nothing | Plan::Wait(_));
        let ours = job.meta.created.0 > self.begun.get_or_init(|| (self.clock)()).as_second();
        if acts && !ours && !memory.looked {
            let current = self.look(key, job).await?;
            self.remember(key, &job.meta.uid, |memory| memory.looked = true);
            // What the server has may be more than was looked at above.
            return Ok(if current { Outcome::RequeueAfter(Duration::ZERO) } else { Outcome::WaitingForCache });
        }
        let after = |delay: SignedDuration| Duration::try_from(delay).unwrap_or_default();
        if let Some(deadline) = standing.deadline_in {
            self.queue.add_after(key.clone(), after(deadline));
        }
        if let Plan::Wait(wait) = plan {
            self.queue.add_after(key.clone(), after(wait).max(BATCH));
        }
        *did = match &plan {
            Plan::Create(_) | Plan::Wait(_) => Did::Created,
            Plan::Remove(_) => Did::Deleted,
            Plan::Nothing if view.may_manage() && job.suspend => Did::Deleted,
            Plan::Nothing if view.may_manage() => Did::Tracking,
            Plan::Nothing | Plan::End(_) => Did::Reconciling,
        };
        let need = Need::of(job, standing.failed, standing.terminating);
        let (deeds, failure) = self.act(key, job, &plan, need).await;
        let outcome = view.outcome(&standing, &plan, deeds);
        if let Some(turn) = outcome.turn {
            let (reason, message) = match turn {
                Turn::Suspended => ("Suspended", "Job suspended"),
                Turn::Resumed => ("Resumed", "Job resumed"),
            };
            self.recorder.event(&about(&**job), EventType::Normal, reason, message.to_owned());
        }
        let account = view.account(&standing, outcome);
        if let Err(stopped) = self.track(key, job, account, standing.backoff).await {
            return stopped;
        }
        failure.map_or(Ok(Outcome::Done), |failure| Err(ReconcileError::new(failure)))
    }

    /// Writes down, releases, counts (pkg/controller/job, trackJobStatusAndRemoveFinalizers). An error is what the
    /// reconcile ends with.
    async fn track(
        &self,
        key: &ObjectKey,
        job: &Arc<Job>,
        account: Account,
        backoff: Backoff,
    ) -> Result<(), Result<Outcome, ReconcileError>> {
        let Account { mut status, flush, counts, patience, release, mut tracked, end, judged } = account;
        let mut job = job.clone();
        match flush.into_iter().chain(counts).min().map(|patience| self.waits(key, patience)) {
            Some(false) => {
                self.debouncer.forget(key);
                job = self.write(key, &job, &status).await.map_err(not_written)?;
                self.remember(key, &job.meta.uid, |memory| memory.backoff = backoff);
            }
            // What was not written down must not be let go.
            Some(true) if flush.is_some() => return Ok(()),
            Some(true) | None => {}
        }
        judged.into_iter().for_each(|action| self.tally.judged(action));
        let failure = self.release(key, &job, &release, &mut tracked).await;
        let moved = track::settle(&mut status, &tracked);
        if let Some(failure) = failure {
            if moved {
                self.write(key, &job, &status).await.map_err(not_written)?;
            }
            return Err(Err(failure.into()));
        }
        let ended = track::finish(&mut status, end.as_ref(), (self.clock)());
        if ended || moved && !self.waits(key, patience) {
            self.debouncer.forget(key);
            self.write(key, &job, &status).await.map_err(not_written)?;
        }
        if let Some(end) = end.filter(|_| ended) {
            self.tally.finished(&job, &end.kind, &end.reason);
            let say = |kind, reason: &'static str, message: &str| {
                self.recorder.event(&about(&*job), kind, reason, message.to_owned());
            };
            if &*end.kind == COMPLETE {
                if job.completions.is_some_and(|completions| status.succeeded > completions) {
                    let message = "Too many succeeded pods running after completion count reached";
                    say(EventType::Warning, "TooManySucceededPods", message);
                }
                say(EventType::Normal, "Completed", "Job completed");
            } else {
                say(EventType::Warning, failure_reason(&end.reason), &end.message);
            }
        }
        Ok(())
    }

    /// Whether counts may wait to be written; if so, the Job comes back when they may no longer.
    fn waits(&self, key: &ObjectKey, patience: Duration) -> bool {
        let wait = self.debouncer.wait(key, patience);
        wait.into_iter().for_each(|wait| self.queue.add_after(key.clone(), wait));
        wait.is_some()
    }

    /// Puts a status; answers the Job as it is then.
    async fn write(&self, key: &ObjectKey, job: &Job, status: &JobStatus) -> Result<Arc<Job>, WriteError> {
        let written = self.writer.replace(&Job::RESOURCE, key, Some("status"), &job.status_update(status)).await;
        let written = written.and_then(|answer| Ok(answer.decode::<Job>(self.jobs.decoding())?));
        match written {
            Ok(written) => {
                self.consistency.wrote(key, &self.jobs, written.meta.version);
                self.tally.counted(job, &job.status, status);
                Ok(Arc::new(written))
            }
            Err(error) => {
                if error.is_lost() {
                    self.consistency.lost(key);
                }
                Err(error)
            }
        }
    }

    /// Takes the finalizer from pods, all at once, and their uids from `tracked`; answers the first failure.
    async fn release(
        &self,
        key: &ObjectKey,
        job: &Job,
        pods: &[Arc<Pod>],
        tracked: &mut HashSet<Uid>,
    ) -> Option<WriteError> {
        let released = join_all(pods.iter().map(|pod| patch(&self.writer, pod, untracking(pod)))).await;
        let mut failure = None;
        for (pod, released) in pods.iter().zip(released) {
            let uid = &pod.meta.uid;
            match released {
                Ok(version) => version.into_iter().for_each(|version| {
                    self.consistency.wrote(key, &self.pods, version);
                    // Whoever looks at the pods of a Job that has ended may not see yet that this one was let go.
                    self.pods.wrote(&pod.meta.key(), version);
                }),
                // Gone, or another pod has its name by now.
                Err(error) if error.is_gone() => {
                    self.remember(key, &job.meta.uid, |memory| {
                        memory.settled.insert(uid.clone());
                    });
                }
                Err(error) => {
                    failure.get_or_insert(error);
                    continue;
                }
            }
            tracked.remove(uid);
        }
        failure
    }

    /// Creates and deletes as planned; answers what was done, and the first failure.
    async fn act(&self, key: &ObjectKey, job: &Job, plan: &Plan, need: Need) -> (Deeds, Option<String>) {
        match plan {
            Plan::Nothing | Plan::Wait(_) => (Deeds::default(), None),
            Plan::End(pods) => self.delete(key, job, pods, false).await,
            Plan::Remove(pods) => {
                let unreadable = self.pods.undecodable();
                if unreadable > 0 && !job.suspend {
                    let why = format!("not deleting pods while {unreadable} pods cannot be decoded (see the log)");
                    return (Deeds::default(), Some(why));
                }
                self.delete(key, job, pods, true).await
            }
            Plan::Create(pods) => self.create(key, job, pods, need).await,
        }
    }

    /// Deletes pods, all at once; those that are not to be counted lose their finalizer first.
    async fn delete(&self, key: &ObjectKey, job: &Job, pods: &[Arc<Pod>], uncounted: bool) -> (Deeds, Option<String>) {
        debug!(count = pods.len(), uncounted, "deleting pods");
        let deletions = join_all(pods.iter().map(|pod| self.delete_one(key, job, pod, uncounted))).await;
        let mut deeds = Deeds::default();
        let mut failure = None;
        for (pod, deleted) in pods.iter().zip(deletions) {
            match deleted {
                Ok(()) => {
                    deeds.deleted += 1;
                    deeds.deleted_ready += i32::from(pod.ready);
                }
                Err(error) => {
                    failure.get_or_insert_with(|| error.to_string());
                }
            }
        }
        (deeds, failure)
    }

    async fn delete_one(&self, key: &ObjectKey, job: &Job, pod: &Pod, uncounted: bool) -> Result<(), WriteError> {
        // Gone already, or another pod has its name by now: the store will show it.
        let gone = |error: &WriteError| error.is_gone();
        if uncounted && has_finalizer(pod) {
            match patch(&self.writer, pod, untracking(pod)).await {
                Ok(version) => version.into_iter().for_each(|version| self.consistency.wrote(key, &self.pods, version)),
                Err(error) if gone(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if uncounted {
            self.consistency.deleting(key, &pod.meta);
        }
        match self.writer.delete(&Pod::RESOURCE, &pod.meta.key(), &pod.meta.uid).await {
            Ok(()) => {
                let message = format!("Deleted pod: {}", pod.meta.name);
                self.recorder.event(&about(job), EventType::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            Err(error) if gone(&error) => Ok(()),
            Err(error) => {
                // A deletion may be repeated: it is bound to the uid.
                self.consistency.not_deleting(key, &pod.meta.uid);
                let message = format!("Error deleting: {error}");
                self.recorder.event(&about(job), EventType::Warning, "FailedDelete", message);
                Err(error)
            }
        }
    }

    /// Creates pods, slowly at first.
    async fn create(&self, key: &ObjectKey, job: &Job, pods: &[NewPod], need: Need) -> (Deeds, Option<String>) {
        let Some(template) = job.template.as_ref().filter(|template| !template.labels.is_empty()) else {
            return (Deeds::default(), Some("unable to create pods, no labels".to_owned()));
        };
        debug!(count = pods.len(), "too few pods; creating");
        let create = |at: usize| async move {
            let created = self.create_one(key, job, new_pod(job, key, template, pods[at])).await;
            self.tally.made(need, created.is_ok());
            created
        };
        let (created, error) = slow_start(pods.len(), create).await;
        if error.is_some() {
            info!(created, skipped = pods.len() - created, "could not create all pods");
        }
        let created = i32::try_from(created).unwrap_or(i32::MAX);
        (Deeds { created, ..Deeds::default() }, error.map(|error| error.to_string()))
    }

    async fn create_one(&self, key: &ObjectKey, job: &Job, body: Vec<u8>) -> Result<(), WriteError> {
        let created = self.writer.create(&Pod::RESOURCE, &key.namespace, &body, false).await;
        match created.and_then(|answer| answer.meta().map_err(WriteError::from)) {
            Ok(pod) => {
                self.consistency.wrote(key, &self.pods, pod.version);
                let message = format!("Created pod: {}", pod.name);
                self.recorder.event(&about(job), EventType::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            // All further creations would fail too, and nobody need be told.
            Err(error) if error.is_namespace_terminating() => Ok(()),
            Err(error) => {
                if error.is_lost() {
                    self.consistency.lost(key);
                }
                let message = format!("Error creating: {error}");
                self.recorder.event(&about(job), EventType::Warning, "FailedCreate", message);
                Err(error)
            }
        }
    }

    /// Whether the stores show all that was written for a key; if not, the key comes back when they do.
    fn caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || {
            let (queue, key) = (self.queue.clone(), key.clone());
            move || queue.add(key)
        };
        self.consistency.caught_up(key, &self.jobs, wake()) && self.consistency.caught_up(key, &self.pods, wake())
    }

    /// Compares the Job and its pods with the server's; true when our stores are not behind. Else the key comes back
    /// when they are not.
    async fn look(&self, key: &ObjectKey, job: &Job) -> Result<bool, ReconcileError> {
        let Some(selector) = job.selector.query() else { return Ok(true) };
        let lost = |_: &WriteError| self.consistency.lost(key);
        let fresh = match self.writer.get(&Job::RESOURCE, key).await {
            Err(error) if error.is_not_found() => return Ok(false),
            fresh => fresh.inspect_err(lost)?.meta().map_err(|error| ReconcileError::new(error.to_string()))?,
        };
        let listed = self.writer.list_meta(&Pod::RESOURCE, &key.namespace, &selector).await.inspect_err(lost)?;
        self.consistency.wrote(key, &self.jobs, fresh.version);
        let newest = listed.iter().filter(|pod| pod.is_controlled_by(&job.meta.uid)).map(|pod| pod.version).max();
        if let Some(newest) = newest {
            self.consistency.wrote(key, &self.pods, newest);
        }
        // A pod that is gone from the server may still be in our store: it was counted before it could go.
        let known = self.pods.by_index(&by_controller(), owned_by(&job.meta.uid));
        let gone = known.iter().filter(|pod| !listed.iter().any(|listed| listed.uid == pod.meta.uid));
        self.remember(key, &job.meta.uid, |memory| {
            for pod in gone {
                if pod.is_active() {
                    self.consistency.deleting(key, &pod.meta);
                }
                memory.settled.insert(pod.meta.uid.clone());
            }
        });
        Ok(self.caught_up(key) && self.consistency.deletions_seen(key, &self.pods))
    }

    /// Changes what is remembered about a Job, and answers it.
    fn remember(&self, key: &ObjectKey, uid: &Uid, change: impl FnOnce(&mut Memory)) -> Memory {
        let mut memory = self.memory();
        let known = memory.entry(key.clone()).or_default();
        if known.uid != *uid {
            *known = Memory { uid: uid.clone(), ..Memory::default() };
        }
        change(known);
        known.clone()
    }

    fn forget(&self, key: &ObjectKey) {
        self.consistency.forget(key);
        self.memory().remove(key);
        self.debouncer.forget(key);
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<ObjectKey, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reasons of failures are a fixed set; whoever wrote another one into a condition is quoted by the general one.
fn failure_reason(reason: &str) -> &'static str {
    const REASONS: [&str; 5] =
        ["PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded", "MaxFailedIndexesExceeded", "FailedIndexes"];
    REASONS.into_iter().find(|known| *known == reason).unwrap_or("Failed")
}
