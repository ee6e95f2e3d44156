//! One pass over a namespace that is being deleted: pods, then all else, then the namespace's finalizer.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::meta::{Meta, ObjectKey};
use kinds::namespace_ending::{NamespaceEnding, pod_grace};
use kinds::{Decode, Kind, Namespace, Sections, Uid};
use runtime::controller::{Outcome, Reconcile, ReconcileError};
use runtime::discovery::{Discovery, Served, Verbs};
use runtime::store::Store;
use runtime::write::{Deletion, Propagation, WriteError, Writer};
use tracing::{info, warn};

use super::decide::{Findings, Remains, discovery_problem, pods_estimate, without_ours};
use crate::controllers::Clock;

/// Resources of one namespace that are dealt with at the same time.
const RESOURCES_AT_ONCE: usize = 10;

/// Deletions of single objects that are under way together.
const DELETIONS_AT_ONCE: usize = 10;

/// Namespaces that go at about the same time share one look at what is served.
const DISCOVERY_AGE: Duration = Duration::from_secs(2);

/// A resource, whatever its version.
type Name = (&'static str, &'static str);

/// The controller's state.
pub struct Namespaces {
    pub namespaces: Arc<Store<Namespace>>,
    pub discovery: Arc<Discovery>,
    pub writer: Writer,
    pub clock: Clock,
    pub sync_period: Duration,
    /// Resources that were found empty in an earlier pass, by namespace: they are looked at again only once nothing
    /// else is left, so that what waits for one broken group asks for nothing but that.
    pub emptied: Mutex<HashMap<Uid, HashSet<Name>>>,
}

impl Reconcile for Namespaces {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Namespaces {
    /// Forgets a namespace that is gone.
    pub fn forget(&self, uid: &Uid) {
        self.emptied().remove(uid);
    }

    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if self.namespaces.get(key).is_none() {
            return Ok(Outcome::Done);
        }
        let Some(namespace) = self.terminating(key).await? else { return Ok(Outcome::Done) };
        if namespace.finalizers.is_empty() {
            return Ok(Outcome::After(self.sync_period));
        }
        let (findings, totals) = self.pass(&namespace).await;
        if let Some(conditions) = findings.conditions(&namespace.conditions, totals, (self.clock)()) {
            let object = namespace.status_update(&conditions);
            if let Err(error) = self.writer.replace(&Namespace::RESOURCE, key, Some("status"), &object).await {
                warn!(%error, "the namespace's conditions could not be written");
            }
        }
        if let Some(problem) = findings.problem() {
            return Err(ReconcileError::new(problem));
        }
        if !findings.is_clean() {
            return Ok(Outcome::After(findings.look_again()));
        }
        self.finalize(key, &namespace.meta.uid).await
    }

    /// The namespace as the server has it, marked as terminating; `None` if it is gone, or is not being deleted.
    async fn terminating(&self, key: &ObjectKey) -> Result<Option<NamespaceEnding>, ReconcileError> {
        let mut uid = None;
        loop {
            let Some(namespace) = self.live(key).await?.filter(|namespace| namespace.meta.is_deleting()) else {
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
                Ok(answer) => return Ok(Some(answer.decode(&decoding()).map_err(WriteError::from)?)),
                Err(error) if error.is_conflict() => {}
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn live(&self, key: &ObjectKey) -> Result<Option<NamespaceEnding>, ReconcileError> {
        match self.writer.get(&Namespace::RESOURCE, key).await {
            Ok(answer) => Ok(Some(answer.decode(&decoding()).map_err(WriteError::from)?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes what there is; answers what is left, and whether pods let us come to all of it.
    async fn pass(&self, namespace: &NamespaceEnding) -> (Findings, bool) {
        let (snapshot, problem) = match self.discovery.at_most_old(DISCOVERY_AGE).await {
            Ok(snapshot) => (snapshot.clone(), discovery_problem(snapshot.failed())),
            Err(error) => (self.discovery.current(), Some(error.to_string())),
        };
        let mut findings = Findings::after_discovery(problem);
        let deletable = |served: &&Served| served.resource.namespaced && served.verbs.contains(Verbs::DELETE);
        let is_pods = |served: &Served| name(served) == ("", "pods");
        let (pods, others): (Vec<Served>, Vec<Served>) =
            snapshot.preferred().iter().filter(deletable).copied().partition(is_pods);
        for served in &pods {
            let remains = self.empty(served, namespace).await;
            findings.add(&served.resource, &remains);
            if remains.objects > 0 {
                return (findings, false);
            }
        }
        let emptied = self.emptied().get(&namespace.meta.uid).cloned().unwrap_or_default();
        let (known, open): (Vec<Served>, Vec<Served>) =
            others.into_iter().partition(|served| emptied.contains(&name(served)));
        self.empty_all(&open, namespace, &mut findings).await;
        if findings.is_clean() {
            // All of it once more before the namespace goes.
            self.empty_all(&known, namespace, &mut findings).await;
        }
        (findings, true)
    }

    async fn empty_all(&self, resources: &[Served], namespace: &NamespaceEnding, findings: &mut Findings) {
        let done: Vec<(Served, Remains)> = stream::iter(resources.to_vec())
            .map(|served| async move { (served, self.empty(&served, namespace).await) })
            .buffer_unordered(RESOURCES_AT_ONCE)
            .collect()
            .await;
        let mut emptied = self.emptied();
        let emptied = emptied.entry(namespace.meta.uid.clone()).or_default();
        for (served, remains) in done {
            findings.add(&served.resource, &remains);
            if remains == Remains::default() {
                emptied.insert(name(&served));
            } else {
                emptied.remove(&name(&served));
            }
        }
    }

    fn emptied(&self) -> MutexGuard<'_, HashMap<Uid, HashSet<Name>>> {
        self.emptied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes all objects of a resource; answers what is left.
    async fn empty(&self, served: &Served, namespace: &NamespaceEnding) -> Remains {
        let estimate = match self.estimate(served, namespace).await {
            Ok(Some(estimate)) => estimate,
            Ok(None) => return Remains::default(),
            Err(error) => return Remains::failed(error, 0),
        };
        let emptied = self.delete_all(served, &namespace.meta.name).await;
        let listed = match emptied {
            Ok(()) => self.list(served, &namespace.meta.name).await,
            Err(error) => Err(error),
        };
        match listed {
            Ok(objects) => {
                let finalizers = objects.iter().map(|meta| &*meta.finalizers);
                Remains::of(&served.resource, &namespace.meta.name, finalizers, estimate)
            }
            Err(error) => Remains::failed(error, estimate),
        }
    }

    /// Seconds that the objects of a resource may take to go; `None` if there are none, so that most resources of
    /// most namespaces cost one request.
    async fn estimate(&self, served: &Served, namespace: &NamespaceEnding) -> Result<Option<i64>, WriteError> {
        if name(served) != ("", "pods") {
            let listable = served.verbs.contains(Verbs::LIST);
            let empty = listable && self.list(served, &namespace.meta.name).await?.is_empty();
            return Ok((!empty).then_some(0));
        }
        let (mut count, mut longest) = (0, 0);
        let visit = |pod: &[u8]| {
            count += 1;
            longest = pod_grace(pod).max(longest);
        };
        self.writer.list_each(&served.resource, &namespace.meta.name, visit).await?;
        Ok((count > 0).then(|| pods_estimate(longest, namespace.meta.deletion, (self.clock)())))
    }

    async fn delete_all(&self, served: &Served, namespace: &str) -> Result<(), WriteError> {
        if served.verbs.contains(Verbs::DELETE_COLLECTION) {
            match self.writer.delete_collection(&served.resource, namespace).await {
                Err(error) if is_unsupported(&error) => {}
                answered => return answered,
            }
        }
        let objects = self.list(served, namespace).await?;
        let deleted: Vec<Result<(), WriteError>> = stream::iter(objects)
            .map(|meta| async move {
                let deletion = Deletion { uid: &meta.uid, version: None, propagation: Propagation::Background };
                self.writer.delete_object(&served.resource, &meta.key(), deletion).await
            })
            .buffer_unordered(DELETIONS_AT_ONCE)
            .collect()
            .await;
        // One that became another object meanwhile is found by the list that follows.
        deleted
            .into_iter()
            .find(|result| result.as_ref().is_err_and(|error| !is_unsupported(error) && !error.is_conflict()))
            .unwrap_or(Ok(()))
    }

    /// The objects of a resource; none if it cannot be listed.
    async fn list(&self, served: &Served, namespace: &str) -> Result<Vec<Meta>, WriteError> {
        if !served.verbs.contains(Verbs::LIST) {
            return Ok(Vec::new());
        }
        match self.writer.list_meta(&served.resource, namespace, "").await {
            Err(error) if is_unsupported(&error) => Ok(Vec::new()),
            answered => answered,
        }
    }

    /// Removes our finalizer, so that the server lets the namespace go.
    async fn finalize(&self, key: &ObjectKey, uid: &Uid) -> Result<Outcome, ReconcileError> {
        loop {
            let Some(namespace) = self.live(key).await?.filter(|namespace| namespace.meta.uid == *uid) else { break };
            let others = without_ours(&namespace.finalizers);
            if others.len() == namespace.finalizers.len() {
                return Ok(Outcome::After(self.sync_period));
            }
            let object = namespace.finalize(&others);
            match self.writer.replace(&Namespace::RESOURCE, key, Some("finalize"), &object).await {
                Ok(_) => break,
                Err(error) if error.is_not_found() => break,
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        info!("nothing is left in the namespace");
        Ok(Outcome::Done)
    }
}

fn name(served: &Served) -> Name {
    (served.resource.group, served.resource.plural)
}

fn decoding() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

/// The server has no such operation, or no such resource or object any more.
fn is_unsupported(error: &WriteError) -> bool {
    error.is_not_found() || matches!(error, WriteError::Refused(status) if status.code == 405)
}
