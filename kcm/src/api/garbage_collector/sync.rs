//! One check of one object: reads its owners from the API server, decides, and writes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::meta::{Meta, ObjectKey, OwnerRef};
use kinds::{Resource, Str, Uid};
use runtime::discovery::Discovery;
use runtime::events::{EventType, ObjectReference, Recorder};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::watch::{EveryKind, MetaChange};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{Deletion, Propagation, WriteError, Writer};
use serde_json::Value;
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::decide::{FOREGROUND, ORPHAN, OwnerState, Plan, plan};
use super::graph::{Effect, Graph, View};
use super::identity::Identity;
use super::keys::{CheckKey, NodeKey};
use super::owner_path::{self, Target};
use super::patch;

/// Maximum wait for the first lists. Then work begins without the kinds that are missing. Upstream:
/// cmd/kube-controller-manager/app, core.go.
const FIRST_LISTS_TIMEOUT: Duration = Duration::from_secs(30);

/// Age from which discovery is read again for an unknown kind.
const DISCOVERY_AGE: Duration = Duration::from_secs(5);

/// Maximum number of concurrent patches of one owner's dependents.
const MAX_CONCURRENT_ORPHANS: usize = 20;

/// Applies watch events to the graph, and adds the resulting checks to the queues.
pub struct GraphUpdater {
    graph: Mutex<Graph>,
    pub checks: Arc<Queue<CheckKey>>,
    pub orphans: Arc<Queue<NodeKey>>,
    recorder: Recorder,
    begun: AtomicBool,
}

impl GraphUpdater {
    pub fn new(checks: Arc<Queue<CheckKey>>, orphans: Arc<Queue<NodeKey>>, recorder: Recorder) -> Self {
        Self { graph: Mutex::default(), checks, orphans, recorder, begun: AtomicBool::new(false) }
    }

    pub fn graph(&self) -> MutexGuard<'_, Graph> {
        lock(&self.graph)
    }

    /// Applies a watch event.
    pub fn apply_event(&self, change: &MetaChange<'_>) {
        let mut graph = self.graph();
        let mut effects = Vec::new();
        match change {
            MetaChange::Object { resource, old, new } => {
                if let Some(old) = old.filter(|old| new.is_none_or(|new| new.uid != old.uid)) {
                    effects.extend(graph.remove_deleted(&old.uid));
                }
                effects.extend(new.iter().flat_map(|new| graph.observe(resource, new)));
            }
            MetaChange::Forgotten { object, .. } => effects.extend(graph.forget_object(&object.uid)),
            MetaChange::Unwatched { resource } => effects.extend(graph.forget_kind(resource)),
        }
        drop(graph);
        self.apply(effects);
    }

    /// Returns the key of an object.
    fn key(&self, uid: Uid) -> NodeKey {
        let namespace = self.graph().namespace(&uid);
        NodeKey { uid, namespace }
    }

    /// Applies effects. Before work begins they are dropped: [`Graph::unsettled`] returns them later.
    fn apply(&self, effects: Vec<Effect>) {
        if !self.begun.load(Ordering::Acquire) {
            return;
        }
        for effect in effects {
            match effect {
                Effect::Check(uid) => self.checks.add(CheckKey::Check(self.key(uid))),
                Effect::CheckLater(uid) => self.checks.add_rate_limited(CheckKey::Check(self.key(uid))),
                Effect::Orphan(uid) => self.orphans.add(self.key(uid)),
                Effect::WrongNamespace { dependent, owner } => self.record_wrong_namespace(&dependent, &owner),
            }
        }
    }

    /// Enqueues the actions that the current graph requires, with lower priority than those of later changes.
    fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        let effects = self.graph().unsettled();
        let (nodes, unknown) = self.graph().len();
        info!(objects = nodes, unknown_owners = unknown, to_check = effects.len(), "graph of owners built");
        for effect in effects {
            match effect {
                Effect::Check(uid) | Effect::CheckLater(uid) => {
                    self.checks.add_background(CheckKey::Check(self.key(uid)))
                }
                Effect::Orphan(uid) => self.orphans.add_background(self.key(uid)),
                Effect::WrongNamespace { dependent, owner } => self.record_wrong_namespace(&dependent, &owner),
            }
        }
    }

    fn record_wrong_namespace(&self, dependent: &Identity, owner: &Identity) {
        let about = ObjectReference {
            api_version: dependent.api_version.to_string().into(),
            kind: dependent.kind.to_string().into(),
            namespace: dependent.namespace.clone(),
            name: dependent.name.clone(),
            uid: dependent.uid.to_string().into(),
            resource_version: "".into(),
        };
        let message = format!("ownerRef {owner} does not exist in namespace {:?}", &*dependent.namespace);
        self.recorder.event(&about, EventType::Warning, "OwnerRefInvalidNamespace", message);
    }
}

/// Reasons why a check could not be finished.
#[derive(Debug)]
enum CheckError {
    /// The API server has no object with these coordinates.
    Absent(Identity),
    /// An object without namespace refers to an owner that must have one: the owner can never be read.
    NamespacedOwner,
    /// The name of an owner cannot be looked up: no read shows whether the owner exists. Upstream retries forever.
    UndecidableName,
    /// Another attempt may succeed.
    Failed(ReconcileError),
}

impl From<WriteError> for CheckError {
    fn from(error: WriteError) -> Self {
        Self::Failed(error.into())
    }
}

/// The state that the workers share.
pub struct Collector {
    pub updater: Arc<GraphUpdater>,
    pub kinds: Arc<EveryKind>,
    pub discovery: Arc<Discovery>,
    pub writer: Writer,
    /// Kinds that support JSON merge patches only.
    pub merge_only_kinds: Mutex<HashSet<Resource>>,
}

impl Reconcile for Collector {
    type Key = CheckKey;

    fn reconcile<'a>(&'a self, key: &'a CheckKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            match key {
                CheckKey::Begin => self.begin().await,
                CheckKey::Check(key) => self.finish(self.check(&key.uid).await),
            }
        }
        .boxed()
    }
}

/// Orphans the dependents of objects that are being deleted with the finalizer `orphan`.
pub struct Orphaner(pub Arc<Collector>);

impl Reconcile for Orphaner {
    type Key = NodeKey;

    fn reconcile<'a>(&'a self, key: &'a NodeKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move { self.0.finish(self.0.orphan(&key.uid).await) }.boxed()
    }
}

impl Collector {
    async fn begin(&self) -> Result<Outcome, ReconcileError> {
        if timeout(FIRST_LISTS_TIMEOUT, self.kinds.synced()).await.is_err() {
            let missing = self.kinds.sources().into_iter().filter(|source| !source.is_synced());
            let missing: Vec<_> = missing.map(|source| source.resource().plural).collect();
            warn!(missing = missing.join(","), "kinds cannot be listed; collecting garbage without them");
        }
        self.updater.begin();
        Ok(Outcome::Done)
    }

    fn finish(&self, result: Result<Outcome, CheckError>) -> Result<Outcome, ReconcileError> {
        match result {
            Ok(outcome) => Ok(outcome),
            Err(CheckError::Absent(identity)) => {
                let effects = self.updater.graph().observe_absent(&identity);
                self.updater.apply(effects);
                Ok(Outcome::Done)
            }
            Err(CheckError::NamespacedOwner) => {
                debug!("cluster-scoped object refers to a namespaced owner; keeping it");
                Ok(Outcome::Done)
            }
            Err(CheckError::UndecidableName) => {
                debug!("owner's name cannot be read from the API server; keeping the dependent");
                Ok(Outcome::Done)
            }
            Err(CheckError::Failed(error)) => Err(error),
        }
    }

    async fn check(&self, uid: &Uid) -> Result<Outcome, CheckError> {
        let Some(view) = self.updater.graph().view(uid) else { return Ok(Outcome::Done) };
        if !view.state.observed {
            return self.verify(&view).await;
        }
        if view.state.foreground {
            let blocking = self.updater.graph().blocking(uid);
            if blocking.is_empty() {
                return self.remove_finalizer(&view.identity, FOREGROUND).await;
            }
            // The graph has already discarded cached reads of this owner. Therefore each check of a dependent now finds
            // that the owner is being deleted.
            for dependent in blocking.into_iter().filter(|dependent| !dependent.deleting) {
                self.updater.checks.add(CheckKey::Check(self.updater.key(dependent.uid)));
            }
            return Ok(Outcome::Done);
        }
        if view.state.deleting || !view.owned || view.settled {
            return Ok(Outcome::Done);
        }
        let resource = self.resource(&view.identity.api_version, &view.identity.kind).await?;
        let meta = self.latest(&resource, &view.identity).await?;
        self.collect(&resource, &view.identity, &meta).await
    }

    /// Reads an owner that no watch has delivered. If it exists, it is checked like any other object, because its kind
    /// may not be watchable. Then it is read again until a watch delivers it or it no longer exists.
    async fn verify(&self, view: &View) -> Result<Outcome, CheckError> {
        let resource = self.resource(&view.identity.api_version, &view.identity.kind).await?;
        let meta = self.read_uncached(&resource, &view.identity).await?;
        if !meta.is_deleting() {
            self.collect(&resource, &view.identity, &meta).await?;
        }
        Ok(Outcome::RequeueWithBackoff)
    }

    /// Decides about an object, and executes the decision.
    async fn collect(&self, resource: &Resource, item: &Identity, meta: &Meta) -> Result<Outcome, CheckError> {
        let mut owners = Vec::with_capacity(meta.owners.len());
        for owner in meta.owners.iter() {
            owners.push((owner.uid.clone(), self.owner_state(owner, &meta.namespace).await?));
        }
        let (has_dependents, in_cycle) = {
            let graph = self.updater.graph();
            (graph.has_dependents(&item.uid), || self.updater.graph().may_be_in_cycle(&item.uid))
        };
        match plan(&owners, &meta.finalizers, has_dependents, in_cycle) {
            Plan::Keep => Ok(Outcome::Done),
            Plan::DropReferences(absent) => {
                let strategic = patch::strategic_drop_references(&item.uid, &absent);
                let merge = patch::merge_drop_references(meta, &absent);
                self.patch(resource, item, &strategic, &merge).await
            }
            Plan::DeleteForeground { unblock: true } => {
                self.patch(resource, item, &patch::strategic_unblock(meta), &patch::merge_unblock(meta)).await?;
                let meta = self.read_uncached(resource, item).await?;
                self.delete(resource, item, &meta, Propagation::Foreground).await
            }
            Plan::DeleteForeground { unblock: false } => {
                self.delete(resource, item, meta, Propagation::Foreground).await
            }
            Plan::Delete(propagation) => self.delete(resource, item, meta, propagation).await,
        }
    }

    /// Deletes an object if it still has the version on which the decision was based, or a later one with the same
    /// owners and finalizers; the last attempt does not check the version.
    async fn delete(
        &self,
        resource: &Resource,
        item: &Identity,
        decided: &Meta,
        propagation: Propagation,
    ) -> Result<Outcome, CheckError> {
        let mut version = Some(decided.version);
        // The last attempt omits the resourceVersion precondition, so that a frequently updated object cannot block its
        // deletion.
        for last in [false, false, true] {
            let deletion = Deletion { uid: &item.uid, version: version.filter(|_| !last), propagation };
            match self.writer.delete_object(resource, &item.key(), deletion).await {
                Ok(()) => {
                    debug!(%item, ?propagation, "deleted object: all its owners are deleted or being deleted");
                    return Ok(Outcome::Done);
                }
                Err(error) if error.is_not_found() => return Err(CheckError::Absent(item.clone())),
                Err(error) if error.is_conflict() && !last => {
                    let current = self.read_uncached(resource, item).await?;
                    if current.owners != decided.owners || current.finalizers != decided.finalizers {
                        return Ok(Outcome::RequeueWithBackoff);
                    }
                    version = Some(current.version);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome::RequeueWithBackoff)
    }

    /// Returns the state of an owner: from the absent owners, a recent read, or the API server.
    async fn owner_state(&self, owner: &OwnerRef, namespace: &Str) -> Result<OwnerState, CheckError> {
        let mut identity = Identity::of_owner(owner, &Str::from(""));
        let known_absent = |identity: &Identity| self.updater.graph().absent.contains(identity);
        if known_absent(&identity) {
            return Ok(OwnerState::Dangling);
        }
        identity.namespace = namespace.clone();
        if known_absent(&identity) {
            return Ok(OwnerState::Dangling);
        }
        let resource = self.resource(&owner.api_version, &owner.kind).await?;
        if !resource.namespaced {
            identity.namespace = "".into();
        }
        let ticket = {
            let graph = self.updater.graph();
            if let Some(state) = graph.owner_reads.get(&identity, Instant::now()) {
                return Ok(state);
            }
            graph.owner_reads.begin()
        };
        match self.read_uncached(&resource, &identity).await {
            Ok(owner) => {
                let waits = owner.is_deleting() && owner.finalizers.iter().any(|found| **found == *FOREGROUND);
                let state = if waits { OwnerState::Waiting } else { OwnerState::Solid };
                self.updater.graph().owner_reads.add(ticket, identity, state, Instant::now());
                Ok(state)
            }
            Err(CheckError::Absent(identity)) => {
                self.updater.graph().absent.add(identity);
                Ok(OwnerState::Dangling)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the object from the cache, or reads it from the API server if the cache lacks it or its cached state is
    /// stale. Every write that is based on this state has its version or UID as a precondition.
    async fn latest(&self, resource: &Resource, item: &Identity) -> Result<Meta, CheckError> {
        let source = self.kinds.source(resource.group, resource.plural);
        let source = source.filter(|source| !source.is_stale(&item.key()));
        match source.and_then(|source| source.meta(&item.key())).filter(|meta| meta.uid == item.uid) {
            Some(meta) => Ok(meta),
            None => self.read_uncached(resource, item).await,
        }
    }

    /// Reads the object from the API server.
    async fn read_uncached(&self, resource: &Resource, item: &Identity) -> Result<Meta, CheckError> {
        if resource.namespaced && item.namespace.is_empty() {
            return Err(CheckError::NamespacedOwner);
        }
        let name = match owner_path::target(resource, &item.namespace, &item.name) {
            Target::Object(name) => name.into(),
            Target::Nothing => return Err(CheckError::Absent(item.clone())),
            Target::Undecidable => return Err(CheckError::UndecidableName),
        };
        let key = ObjectKey { name, ..item.key() };
        match self.writer.get_meta(resource, &key).await {
            Ok(meta) if meta.uid == item.uid => Ok(meta),
            Ok(_) => Err(CheckError::Absent(item.clone())),
            Err(error) if error.is_not_found() => Err(CheckError::Absent(item.clone())),
            Err(error) if error.is_invalid_name() => Err(CheckError::UndecidableName),
            Err(error) => Err(error.into()),
        }
    }

    async fn resource(&self, api_version: &str, kind: &str) -> Result<Resource, CheckError> {
        if let Some(served) = self.discovery.current().of_kind(api_version, kind) {
            return Ok(served.resource);
        }
        let failed = |error: String| CheckError::Failed(ReconcileError::new(error));
        let snapshot = self.discovery.no_older_than(DISCOVERY_AGE).await.map_err(|error| failed(error.to_string()))?;
        match snapshot.of_kind(api_version, kind) {
            Some(served) => Ok(served.resource),
            None => Err(failed(format!("the server serves no kind {kind:?} in version {api_version:?}"))),
        }
    }

    /// Sends the strategic merge patch, or the JSON merge patch if the kind does not support strategic ones.
    async fn patch(
        &self,
        resource: &Resource,
        item: &Identity,
        strategic: &Value,
        merge: &Value,
    ) -> Result<Outcome, CheckError> {
        let key = item.key();
        let merge_only = || lock(&self.merge_only_kinds);
        let is_merge_only = merge_only().contains(resource);
        if !is_merge_only {
            match self.writer.patch(resource, &key, strategic).await {
                Err(WriteError::Refused(status)) if status.code == 415 => drop(merge_only().insert(*resource)),
                result => return patch_outcome(item, result.map(drop)),
            }
        }
        patch_outcome(item, self.writer.merge_patch(resource, &key, merge).await.map(drop))
    }

    /// Orphans the dependents of an object, then removes its finalizer.
    async fn orphan(&self, uid: &Uid) -> Result<Outcome, CheckError> {
        let (view, dependents) = {
            let graph = self.updater.graph();
            (graph.view(uid), graph.dependents(uid))
        };
        let Some(view) = view.filter(|view| view.state.orphaning) else { return Ok(Outcome::Done) };
        let results: Vec<Result<Outcome, CheckError>> = stream::iter(dependents)
            .map(|dependent| async move { self.orphan_dependent(&dependent, uid).await })
            .buffer_unordered(MAX_CONCURRENT_ORPHANS)
            .collect()
            .await;
        let mut requeues = false;
        let mut problems = Vec::new();
        for outcome in results {
            match outcome {
                Ok(outcome) => requeues |= outcome == Outcome::RequeueWithBackoff,
                // The dependent no longer exists, or cannot have this owner.
                Err(CheckError::Absent(_) | CheckError::NamespacedOwner | CheckError::UndecidableName) => {}
                Err(CheckError::Failed(error)) => problems.push(error.message),
            }
        }
        if !problems.is_empty() {
            let message =
                format!("{} dependents of {} keep their owner: {}", problems.len(), view.identity, problems[0]);
            return Err(CheckError::Failed(ReconcileError::new(message)));
        }
        if requeues {
            return Ok(Outcome::RequeueWithBackoff);
        }
        self.remove_finalizer(&view.identity, ORPHAN).await
    }

    async fn orphan_dependent(&self, dependent: &Identity, owner: &Uid) -> Result<Outcome, CheckError> {
        let resource = self.resource(&dependent.api_version, &dependent.kind).await?;
        let meta = self.latest(&resource, dependent).await?;
        let owners = [owner.clone()];
        let strategic = patch::strategic_drop_references(&dependent.uid, &owners);
        let merge = patch::merge_drop_references(&meta, &owners);
        self.patch(&resource, dependent, &strategic, &merge).await
    }

    async fn remove_finalizer(&self, item: &Identity, finalizer: &str) -> Result<Outcome, CheckError> {
        let resource = self.resource(&item.api_version, &item.kind).await?;
        let mut meta = self.latest(&resource, item).await?;
        for _ in 0..3 {
            let Some(patch) = patch::without_finalizer(&meta, finalizer) else { return Ok(Outcome::Done) };
            match self.writer.merge_patch(&resource, &item.key(), &patch).await {
                Ok(_) => return Ok(Outcome::Done),
                Err(error) if error.is_conflict() => meta = self.read_uncached(&resource, item).await?,
                Err(error) if error.is_not_found() => return Err(CheckError::Absent(item.clone())),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome::RequeueWithBackoff)
    }
}

/// Returns the outcome of a patch.
fn patch_outcome(item: &Identity, result: Result<(), WriteError>) -> Result<Outcome, CheckError> {
    match result {
        Ok(()) => Ok(Outcome::Done),
        Err(error) if error.is_not_found() => Err(CheckError::Absent(item.clone())),
        Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
        Err(error) => Err(error.into()),
    }
}
