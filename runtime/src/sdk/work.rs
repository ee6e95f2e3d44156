//! One reconcile: wait for the cache, maintain the finalizer, call the operator's function.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{Meta, ObjectKey};
use kinds::{Kind, Resource};
use serde_json::{Value, json};

use super::context::{Context, Shared};
use super::error::Error;
use super::object::Object;
use crate::queue::Queue;
use crate::store::Progress;
use crate::worker::{Outcome, Reconcile, ReconcileError};

/// An operator's function.
pub(super) type Run<K> = Box<dyn Fn(Context<K>) -> BoxFuture<'static, Result<Outcome, Error>> + Send + Sync>;

/// The finalizer of a controller and its cleanup.
pub(super) struct Finalizer<K: Object> {
    pub(super) name: &'static str,
    pub(super) clean_up: Run<K>,
}

/// The reconciler of a controller.
pub(super) struct Worker<K: Object> {
    pub(super) shared: Arc<Shared<K>>,
    pub(super) queue: Arc<Queue<ObjectKey>>,
    pub(super) run: Run<K>,
    pub(super) finalizer: Option<Finalizer<K>>,
}

/// The next step according to the finalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Add the finalizer before anything is created.
    Add,
    /// Call the operator's reconcile function.
    Work,
    /// Clean up, then remove the finalizer.
    CleanUp,
    /// Do nothing: the object is being deleted and lacks the controller's finalizer.
    Nothing,
}

/// Returns the next step for an object; `finalizer` is the controller's, if it has one.
pub(super) fn step(meta: &Meta, finalizer: Option<&str>) -> Step {
    let has = finalizer.is_some_and(|name| meta.finalizers.iter().any(|known| **known == *name));
    match (meta.is_deleting(), finalizer.is_some(), has) {
        (false, true, false) => Step::Add,
        (false, _, _) => Step::Work,
        (true, _, true) => Step::CleanUp,
        (true, _, false) => Step::Nothing,
    }
}

/// Returns the patch that adds a finalizer if `is_set`, otherwise removes it. The patch fails if the object was
/// replaced or changed.
pub(super) fn finalizer_patch(meta: &Meta, name: &str, is_set: bool) -> Value {
    let others = meta.finalizers.iter().map(|known| &**known).filter(|known| *known != name);
    let finalizers: Vec<&str> = others.chain(is_set.then_some(name)).collect();
    json!({"metadata": {
        "uid": meta.uid.to_string(), "resourceVersion": meta.version.to_string(), "finalizers": finalizers,
    }})
}

impl<K: Object> Worker<K> {
    fn caught_up(&self, key: &ObjectKey) -> bool {
        let shared = &self.shared;
        let seen = |resource: &Resource, progress: &Progress| {
            shared.consistency.caught_up_at(key, resource, progress, self.queue.waker(key))
        };
        seen(&K::RESOURCE, shared.store.progress())
            && shared.children.values().all(|(resource, store)| seen(resource, store.progress()))
    }

    async fn set_finalizer(&self, meta: &Meta, name: &str, is_set: bool) -> Result<Outcome, Error> {
        let (resource, key) = (K::RESOURCE, meta.key());
        match self.shared.writer.merge_patch(&resource, &key, &finalizer_patch(meta, name, is_set)).await {
            Ok(response) => {
                if let Ok(response) = response.meta() {
                    self.shared.consistency.wrote(&key, &self.shared.store, response.version);
                }
                Ok(Outcome::Done)
            }
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => Err(Error::Write {
                action: format!("set finalizer {name} of {} {key}", resource.kind),
                error: Box::new(error),
            }),
        }
    }

    async fn reconcile_key(&self, key: &ObjectKey) -> Result<Outcome, Error> {
        if !self.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(record) = self.shared.store.get(key) else {
            self.shared.consistency.forget(key);
            self.shared.applied.forget(key);
            return Ok(Outcome::Done);
        };
        let context = Context::new(record.clone(), self.shared.clone());
        let finalizer = self.finalizer.as_ref();
        match (step(record.meta(), finalizer.map(|finalizer| finalizer.name)), finalizer) {
            (Step::Add, Some(finalizer)) => self.set_finalizer(record.meta(), finalizer.name, true).await,
            (Step::CleanUp, Some(finalizer)) => match (finalizer.clean_up)(context).await? {
                Outcome::Done => self.set_finalizer(record.meta(), finalizer.name, false).await,
                outcome => Ok(outcome),
            },
            (Step::Work, _) => (self.run)(context).await,
            _ => Ok(Outcome::Done),
        }
    }
}

impl<K: Object> Reconcile for Worker<K> {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            match self.reconcile_key(key).await {
                Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
                result => Ok(result?),
            }
        }
        .boxed()
    }
}
