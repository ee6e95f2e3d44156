//! One pass over a namespace that is being deleted: pods, then all other objects, then the namespace's finalizer.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::meta::{Meta, ObjectKey};
use kinds::namespace_deletion::TerminatingNamespace;
use kinds::schema::object_meta;
use kinds::wire::find_str;
use kinds::{Decode, DecodeError, Kind, Namespace, Sections, Uid};
use runtime::discovery::{Discovery, Served, Snapshot, Verbs};
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::watch::{Source, Watched, is_empty_since, wait_until_deleted};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{Deletion, PageSize, Propagation, WriteError, Writer};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::decide::{CleanupResult, FINALIZER, Findings, discovery_problem, pods_estimate, resync, without_own};
use super::early::{NamespaceDeletions, POD_COST, ResourceName, has_comparable_versions, lead_time};
use super::tally::{Remaining, Tally};
use crate::context::Clock;

/// Maximum number of attempts of an update that conflicts with others, before it is retried with backoff.
pub const MAX_CONFLICTS: usize = 10;

/// Maximum number of resources of one namespace that are emptied concurrently.
const MAX_CONCURRENT_RESOURCES: usize = 32;

/// Maximum number of concurrent deletions of single objects.
const MAX_CONCURRENT_DELETIONS: usize = 10;

/// Maximum age of a discovery: namespaces that are deleted at about the same time share one.
const DISCOVERY_AGE: Duration = Duration::from_secs(2);

/// Maximum time to delete the objects of a resource one by one. An aggregated API may return pages forever.
const MAX_DELETION_TIME: Duration = Duration::from_secs(600);

/// Maximum wait for the watch of a resource to deliver the deletions; then the objects are listed.
const DELETIONS_TIMEOUT: Duration = Duration::from_secs(1);

const PODS: ResourceName = ("", "pods");
const EVENTS: ResourceName = ("", "events");
const EVENTS_ALIAS: ResourceName = ("events.k8s.io", "events");

/// The outcome of one pass.
struct Pass {
    findings: Findings,
    /// All resources were processed. False while pods delay the deletion of all other objects.
    is_complete: bool,
    /// The remaining objects; `None` for a resource whose deletions cannot be awaited.
    left: Vec<(ResourceName, Option<Vec<Meta>>)>,
}

impl Pass {
    fn add(&mut self, served: &Served, left: Remaining) {
        self.findings.add(&served.resource, &left.result);
        if left.result.objects > 0 {
            self.left.push((name(served), left.objects));
        }
    }
}

/// The controller's state.
pub struct Namespaces {
    pub namespaces: Arc<Store<Namespace>>,
    pub discovery: Arc<Discovery>,
    pub watched: Watched,
    pub queue: Arc<Queue<ObjectKey>>,
    pub writer: Writer,
    pub clock: Clock,
    pub sync_period: Duration,
    pub deletions: NamespaceDeletions,
}

impl Reconcile for Namespaces {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Namespaces {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(known) = self.namespaces.get(key).filter(|namespace| namespace.meta.is_deleting()) else {
            return Ok(Outcome::Done);
        };
        if let Some(grace) = self.deletions.get(&known.meta.uid).grace() {
            // The namespace is requeued at the end of the grace period.
            return self.begin_early(key, &known.meta.uid, grace).await.map(|()| Outcome::Done);
        }
        let Some(mut namespace) = self.read(key, &known.meta.uid).await? else { return Ok(Outcome::Done) };
        if namespace.finalizers.is_empty() {
            return Ok(resync(self.sync_period));
        }
        let pass = self.pass(&namespace).await;
        let findings = &pass.findings;
        // If nothing keeps the namespace, the next request deletes it: its conditions would never be read.
        let will_remain = !findings.is_clean() || namespace.has_other_finalizers(FINALIZER);
        let conditions = findings.conditions(&namespace.conditions, pass.is_complete, (self.clock)());
        if let Some(conditions) = conditions.filter(|_| will_remain) {
            let object = namespace.status_update(&conditions);
            match self.writer.replace(&Namespace::RESOURCE, key, Some("status"), &object).await {
                Ok(response) => namespace = response.decode(&decoding()).map_err(WriteError::from)?,
                Err(error) => warn!(%error, "failed to write the conditions of the namespace"),
            }
        }
        if let Some(problem) = findings.problem() {
            return Err(ReconcileError::new(problem));
        }
        if !findings.is_clean() {
            let again = findings.recheck_delay();
            self.requeue_when_deleted(key, pass.left, again);
            return Ok(Outcome::RequeueAfter(again));
        }
        self.finalize(key, namespace).await
    }

    /// Returns the namespace from the API server; the first time as it was read at the end of its grace period, if it
    /// was.
    async fn read(&self, key: &ObjectKey, uid: &Uid) -> Result<Option<TerminatingNamespace>, ReconcileError> {
        let mut read = None;
        self.deletions.change(uid, |deletion| read = deletion.read.take());
        match read {
            Some(read) => Ok(Some(Arc::unwrap_or_clone(read))),
            // Another namespace with this name has its own grace period.
            None => Ok(self.terminating(key).await?.filter(|namespace| namespace.meta.uid == *uid)),
        }
    }

    /// Empties a large namespace during its grace period, and reads the namespace when the grace period ends.
    async fn begin_early(&self, key: &ObjectKey, uid: &Uid, grace: Duration) -> Result<(), ReconcileError> {
        let ends = Instant::now() + grace;
        let Some(object_counts) = self.deletions.object_counts(&key.name, || self.watched.sources()) else {
            return Ok(());
        };
        let Some(namespace) = self.terminating(key).await?.filter(|namespace| namespace.meta.uid == *uid) else {
            return Ok(());
        };
        let read_after_grace = async {
            sleep_until(ends).await;
            if let Ok((version, read)) = self.writer.read_with_version(&decoding(), &key.name).await {
                let is_same = |read: &TerminatingNamespace| read.meta.uid == *uid && read.meta.is_deleting();
                let read = read.filter(is_same).map(Arc::new);
                self.deletions.change(uid, |deletion| {
                    deletion.after_grace = Some(version);
                    deletion.read = read;
                });
            }
        };
        tokio::join!(self.empty_early(&namespace, &object_counts, ends), read_after_grace);
        Ok(())
    }

    /// Deletes the pods, or, without pods, the kind with the most objects; then the other kinds, unless pods remain.
    /// The duration of the first deletions determines when the others begin: these should not finish before the grace
    /// period ends.
    async fn empty_early(
        &self,
        namespace: &TerminatingNamespace,
        object_counts: &[(ResourceName, usize)],
        ends: Instant,
    ) {
        let snapshot = self.discovery.current();
        let count =
            |served: &Served| object_counts.iter().find(|(kind, _)| *kind == name(served)).map(|(_, count)| *count);
        let mut kinds: Vec<(Served, usize)> =
            to_empty(&snapshot).filter_map(|served| Some((served, count(&served)?))).collect();
        kinds.sort_by_key(|(served, count)| (name(served) != PODS, Reverse(*count)));
        let Some(((first, sample), others)) = kinds.split_first() else { return };
        let start = Instant::now();
        let left = self.empty(first, namespace).await;
        if name(first) == PODS && left.result != CleanupResult::default() {
            return;
        }
        self.record_emptied(namespace, &[(*first, left)]);
        let sample = if name(first) == PODS { sample * POD_COST } else { *sample };
        let before = lead_time(sample, start.elapsed(), others.iter().map(|(_, count)| count).sum());
        if let Some(begin) = ends.checked_sub(before) {
            sleep_until(begin).await;
        }
        let others: Vec<Served> = others.iter().map(|(served, _)| *served).collect();
        self.record_emptied(namespace, &self.empty_each(&others, namespace).await);
    }

    /// Records the resources that were found empty.
    fn record_emptied(&self, namespace: &TerminatingNamespace, done: &[(Served, Remaining)]) {
        self.deletions.change(&namespace.meta.uid, |deletion| {
            done.iter()
                .for_each(|(served, left)| deletion.found(name(served), left.result == CleanupResult::default()));
        });
    }

    /// Returns true if the watch of a resource that was emptied early shows that no object was created afterwards.
    fn stays_empty(&self, served: &Served, namespace: &str, after_grace: u64) -> bool {
        let source = self.source(served).filter(|_| has_comparable_versions(served.resource.group));
        source.is_some_and(|source| is_empty_since(&*source, namespace, after_grace))
    }

    fn source(&self, served: &Served) -> Option<Arc<dyn Source>> {
        let (group, plural) = name(served);
        self.watched.source(group, plural)
    }

    /// Requeues the namespace as soon as the watches show that nothing remains, so that its deletion is not delayed.
    fn requeue_when_deleted(&self, key: &ObjectKey, left: Vec<(ResourceName, Option<Vec<Meta>>)>, at_most: Duration) {
        let sources = left.into_iter().map(|((group, plural), left)| self.watched.source(group, plural).zip(left));
        let Some(sources) = sources.collect::<Option<Vec<_>>>() else { return };
        let (queue, key) = (self.queue.clone(), key.clone());
        let requeue_when_all_are_deleted = async move {
            for (source, left) in sources {
                if !wait_until_deleted(&*source, &left, |_| false).await {
                    return;
                }
            }
            queue.add(key);
        };
        tokio::spawn(tokio::time::timeout(at_most, requeue_when_all_are_deleted));
    }

    /// Returns the namespace from the API server, marked as terminating; `None` if it no longer exists, or is not
    /// being deleted.
    async fn terminating(&self, key: &ObjectKey) -> Result<Option<TerminatingNamespace>, ReconcileError> {
        let mut uid = None;
        for _ in 0..MAX_CONFLICTS {
            let Some(namespace) = self.read_uncached(key).await?.filter(|namespace| namespace.meta.is_deleting())
            else {
                return Ok(None);
            };
            if uid.get_or_insert_with(|| namespace.meta.uid.clone()) != &namespace.meta.uid {
                return Err(ReconcileError::new("namespace uid has changed across retries"));
            }
            if namespace.terminating {
                return Ok(Some(namespace));
            }
            let object = namespace.status_update(&namespace.conditions);
            match self.writer.replace(&Namespace::RESOURCE, key, Some("status"), &object).await {
                Ok(response) => return Ok(Some(response.decode(&decoding()).map_err(WriteError::from)?)),
                Err(error) if error.is_conflict() => {}
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Err(ReconcileError::new("each update of the namespace's status conflicts with another one"))
    }

    async fn read_uncached(&self, key: &ObjectKey) -> Result<Option<TerminatingNamespace>, ReconcileError> {
        match self.writer.get(&Namespace::RESOURCE, key).await {
            Ok(response) => Ok(Some(response.decode(&decoding()).map_err(WriteError::from)?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes all objects of the namespace. Returns the outcome, with the remaining objects.
    async fn pass(&self, namespace: &TerminatingNamespace) -> Pass {
        let (snapshot, problem) = match self.discovery.no_older_than(DISCOVERY_AGE).await {
            Ok(snapshot) => (snapshot.clone(), discovery_problem(snapshot.failed())),
            Err(error) => (self.discovery.current(), Some(error.to_string())),
        };
        let mut pass = Pass { findings: Findings::after_discovery(problem), is_complete: false, left: Vec::new() };
        let (pods, others): (Vec<Served>, Vec<Served>) = to_empty(&snapshot).partition(|served| name(served) == PODS);
        for served in pods {
            let left = self.empty(&served, namespace).await;
            let delays_others = left.result.objects > 0;
            pass.add(&served, left);
            if delays_others {
                return pass;
            }
        }
        pass.is_complete = true;
        let deletion = self.deletions.get(&namespace.meta.uid);
        let (mut known, open): (Vec<Served>, Vec<Served>) =
            others.into_iter().partition(|served| deletion.emptied.contains(&name(served)));
        self.empty_all(&open, namespace, &mut pass).await;
        if pass.findings.is_clean() {
            // The resources that were found empty earlier are emptied again before the finalizer is removed, except
            // those whose watches show that they stayed empty.
            if let Some(version) = deletion.after_grace {
                known.retain(|served| !self.stays_empty(served, &namespace.meta.name, version));
            }
            self.empty_all(&known, namespace, &mut pass).await;
        }
        pass
    }

    async fn empty_all(&self, resources: &[Served], namespace: &TerminatingNamespace, pass: &mut Pass) {
        let done = self.empty_each(resources, namespace).await;
        self.record_emptied(namespace, &done);
        done.into_iter().for_each(|(served, left)| pass.add(&served, left));
    }

    async fn empty_each(&self, resources: &[Served], namespace: &TerminatingNamespace) -> Vec<(Served, Remaining)> {
        stream::iter(resources.to_vec())
            .map(|served| async move { (served, self.empty(&served, namespace).await) })
            .buffer_unordered(MAX_CONCURRENT_RESOURCES)
            .collect()
            .await
    }

    /// Deletes all objects of a resource. Returns the remaining ones.
    async fn empty(&self, served: &Served, namespace: &TerminatingNamespace) -> Remaining {
        let left = match self.delete_all(served, &namespace.meta.name).await {
            Ok(Some(found)) if self.has_delivered_deletions(served, &found).await => Ok(Remaining::default()),
            Ok(_) => self.list_remaining(served, namespace).await,
            Err(error) => Err(error),
        };
        left.unwrap_or_else(|error| Remaining { result: CleanupResult::failed(error), objects: None })
    }

    /// Returns true once the watch of the resource has delivered the deletion of all these objects. Returns false if it
    /// does not within [`DELETIONS_TIMEOUT`], if the resource is not watched, or if an object has a finalizer or is
    /// deleted gracefully.
    async fn has_delivered_deletions(&self, served: &Served, found: &[Meta]) -> bool {
        if found.is_empty() {
            return true;
        }
        let Some(source) = self.source(served) else { return false };
        let is_kept = |meta: &Meta| meta.is_deleting() || !meta.finalizers.is_empty();
        if found.iter().any(is_kept) {
            return false;
        }
        tokio::time::timeout(DELETIONS_TIMEOUT, wait_until_deleted(&*source, found, is_kept)).await.unwrap_or(false)
    }

    /// Counts the remaining objects of a resource on the API server.
    async fn list_remaining(&self, served: &Served, namespace: &TerminatingNamespace) -> Result<Remaining, WriteError> {
        let (resource, name_of_namespace) = (&served.resource, &*namespace.meta.name);
        let mut tally = Tally::new();
        let mut estimate_seconds = 0;
        if name(served) == PODS {
            self.writer.list_each(resource, name_of_namespace, |pod| tally.add_pod(pod)).await?;
            estimate_seconds = pods_estimate(tally.longest_grace, namespace.meta.deletion, (self.clock)());
        } else if served.verbs.contains(Verbs::LIST) {
            match self.writer.list_each_metadata(resource, name_of_namespace, |meta| tally.add(meta)).await {
                Err(error) if !is_unsupported(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(tally.finish(resource, name_of_namespace, estimate_seconds))
    }

    /// Deletes all objects of a resource. Returns the objects that existed, if the API server returns them.
    async fn delete_all(&self, served: &Served, namespace: &str) -> Result<Option<Vec<Meta>>, WriteError> {
        if served.verbs.contains(Verbs::DELETE_COLLECTION) {
            match self.writer.delete_collection(&served.resource, namespace).await {
                Err(error) if is_unsupported(&error) => {}
                // The objects were deleted, but the response that lists them is too long.
                Err(WriteError::TooLong(_)) => return Ok(None),
                result => return result,
            }
        }
        if !served.verbs.contains(Verbs::LIST) {
            return Ok(Some(Vec::new()));
        }
        self.delete_each(served, namespace).await
    }

    /// Deletes the objects of a resource one by one, page by page. Returns an empty list if there were none, otherwise
    /// `None`.
    async fn delete_each(&self, served: &Served, namespace: &str) -> Result<Option<Vec<Meta>>, WriteError> {
        let deadline = Instant::now() + MAX_DELETION_TIME;
        let (mut token, mut size, mut found, mut problem) = (String::new(), PageSize::METADATA, 0, None);
        loop {
            let mut page = Vec::new();
            let visit = |meta: &[u8]| page.push(identity(meta, namespace));
            match self.writer.metadata_page(&served.resource, namespace, &token, &mut size, visit).await {
                Ok(next) => token = next,
                Err(error) if token.is_empty() && is_unsupported(&error) => break,
                Err(error) => token = continued(&error).ok_or(error)?,
            }
            found += page.len();
            problem = problem.or(self.delete_page(served, page).await);
            if token.is_empty() {
                break;
            }
            if Instant::now() >= deadline {
                let text = format!("is still set: not all {} were deleted in time", served.resource.plural);
                return Err(DecodeError::field("continue", text).into());
            }
        }
        match problem {
            Some(problem) => Err(problem),
            None => Ok((found == 0).then(Vec::new)),
        }
    }

    /// Deletes these objects. Returns the first failure.
    async fn delete_page(&self, served: &Served, objects: Vec<(ObjectKey, Uid)>) -> Option<WriteError> {
        let deleted: Vec<Result<(), WriteError>> = stream::iter(objects)
            .map(|(key, uid)| async move {
                let deletion = Deletion { uid: &uid, version: None, propagation: Propagation::Background };
                self.writer.delete_object(&served.resource, &key, deletion).await
            })
            .buffer_unordered(MAX_CONCURRENT_DELETIONS)
            .collect()
            .await;
        // A conflict means that the object was replaced: the following list contains the new one.
        let failed = |error: &WriteError| !is_unsupported(error) && !error.is_conflict();
        deleted.into_iter().filter_map(Result::err).find(failed)
    }

    /// Removes the finalizer `kubernetes`, so that the API server deletes the namespace.
    async fn finalize(&self, key: &ObjectKey, mut namespace: TerminatingNamespace) -> Result<Outcome, ReconcileError> {
        let uid = namespace.meta.uid.clone();
        for _ in 0..MAX_CONFLICTS {
            let others = without_own(&namespace.finalizers);
            if others.len() == namespace.finalizers.len() {
                return Ok(resync(self.sync_period));
            }
            let object = namespace.finalize(&others);
            match self.writer.replace(&Namespace::RESOURCE, key, Some("finalize"), &object).await {
                Ok(_) => {
                    info!("removed the finalizer of the namespace: it is empty");
                    return Ok(Outcome::Done);
                }
                Err(error) if error.is_not_found() => return Ok(Outcome::Done),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
            match self.read_uncached(key).await?.filter(|namespace| namespace.meta.uid == uid) {
                Some(live) => namespace = live,
                None => return Ok(Outcome::Done),
            }
        }
        Err(ReconcileError::new("each update of the namespace's finalizers conflicts with another one"))
    }
}

/// Returns the resources of a namespace that are emptied. Events are served in two groups, and are the same objects.
fn to_empty(snapshot: &Snapshot) -> impl Iterator<Item = Served> {
    let is_deletable = |served: &&Served| served.resource.namespaced && served.verbs.contains(Verbs::DELETE);
    let has_events = snapshot.preferred().any(|served| name(served) == EVENTS);
    let is_alias = move |served: &&Served| has_events && name(served) == EVENTS_ALIAS;
    snapshot.preferred().filter(is_deletable).filter(move |served| !is_alias(served)).copied()
}

/// Returns the key and uid from the ObjectMeta of an object in this namespace. The namespace in the ObjectMeta is
/// ignored: an aggregated API may return another one.
fn identity(meta: &[u8], namespace: &str) -> (ObjectKey, Uid) {
    let key = ObjectKey::new(namespace, find_str(meta, object_meta::NAME));
    (key, Uid::parse(find_str(meta, object_meta::UID)))
}

/// Returns the token that continues a list whose previous token has expired, because the deletion of its objects took
/// long.
fn continued(error: &WriteError) -> Option<String> {
    let status = error.refused().filter(|status| status.code == 410)?;
    status.next.as_ref().map(|next| next.0.clone())
}

fn name(served: &Served) -> ResourceName {
    (served.resource.group, served.resource.plural)
}

fn decoding() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

/// Returns true if the server has no such operation, or the resource or object no longer exists.
fn is_unsupported(error: &WriteError) -> bool {
    error.is_not_found() || matches!(error, WriteError::Refused(status) if status.code == 405)
}
