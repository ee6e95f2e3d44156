//! Writes EndpointSlices as planned: creations, updates, deletions, in this order. The next decision waits for the
//! cache.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, stream};
use kinds::endpoint_slice::{Contents, MANAGED_BY, SERVICE_NAME};
use kinds::ip::Family;
use kinds::meta::{Meta, ObjectKey};
use kinds::metadata_edit::NewMetadata;
use kinds::{EndpointSlice, Kind, Uid};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::slow_start::slow_start;
use runtime::store::Store;
use runtime::write::{WriteError, Writer};
use tracing::debug;

use super::pace::Pace;
use super::slice_keys::{OwnChanges, by_service, slices_of};
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::{Attempt, Refusals};

/// Maximum number of slices of one Service that are updated concurrently.
const MAX_CONCURRENT_UPDATES: usize = 4;

/// The writes of a Service's slices.
#[derive(Debug, Default)]
pub struct Plan {
    /// Slices to create.
    pub create: Vec<Contents>,
    /// Slices to update, with their new contents.
    pub update: Vec<(Arc<EndpointSlice>, Contents)>,
    /// Slices to delete.
    pub delete: Vec<Arc<EndpointSlice>>,
}

impl Plan {
    /// Returns true if nothing has to be written.
    pub fn is_empty(&self) -> bool {
        self.writes() == 0
    }

    /// Returns the number of writes.
    pub fn writes(&self) -> usize {
        self.create.len() + self.update.len() + self.delete.len()
    }

    /// Returns the number of writes of slices of a family.
    pub fn writes_of(&self, family: Family) -> usize {
        let created = self.create.iter().map(|contents| contents.family);
        let updated = self.update.iter().map(|(_, contents)| contents.family);
        let deleted = self.delete.iter().map(|slice| slice.contents.family);
        created.chain(updated).chain(deleted).filter(|written| *written == Some(family)).count()
    }

    /// Adds another plan.
    pub fn append(&mut self, mut other: Self) {
        self.create.append(&mut other.create);
        self.update.append(&mut other.update);
        self.delete.append(&mut other.delete);
    }

    /// Keeps only the updates: they remove endpoints that must not get traffic, and must not wait until the creations
    /// succeed. Deletions wait, because endpoints of a deleted slice may be part of a slice that has to be created.
    pub fn keep_updates(&mut self) {
        self.create.clear();
        self.delete.clear();
    }

    /// Replaces each pair of a creation and a deletion in one family by one update, if `can_reuse` allows it. This
    /// saves writes. Upstream: k8s.io/endpointslice, finalize.
    pub fn recycle(&mut self, can_reuse: impl Fn(&EndpointSlice) -> bool) {
        let mut contents: Vec<Option<Contents>> = self.create.drain(..).map(Some).collect();
        let mut by_family: BTreeMap<Option<Family>, VecDeque<usize>> = BTreeMap::new();
        for (at, contents) in contents.iter().flatten().enumerate() {
            by_family.entry(contents.family).or_default().push_back(at);
        }
        let mut kept = Vec::new();
        for slice in self.delete.drain(..) {
            let fitting = by_family.get_mut(&slice.contents.family).filter(|_| can_reuse(&slice));
            let fitting = fitting.and_then(VecDeque::pop_front).and_then(|at| contents[at].take());
            match fitting {
                Some(contents) => self.update.push((slice, contents)),
                None => kept.push(slice),
            }
        }
        self.delete = kept;
        self.create = contents.into_iter().flatten().collect();
    }
}

/// Successful writes. Creations that were not sent, because the namespace is being deleted, do not count.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct WriteCounts {
    /// Slices created.
    pub created: usize,
    /// Slices updated.
    pub updated: usize,
    /// Slices deleted.
    pub deleted: usize,
}

/// A write that failed.
#[derive(Debug)]
pub struct WriteFailure {
    /// The write: `create`, `update` or `delete`, and the slice's name if it has one.
    pub what: Box<str>,
    /// True for a creation.
    pub is_creation: bool,
    /// The error.
    pub error: WriteError,
}

/// Metadata of slices.
pub struct SliceMetadata<'a> {
    /// Prefix of new slices' names.
    pub prefix: &'a str,
    /// Metadata of new slices.
    pub new: NewMetadata<'a>,
    /// Metadata of updated slices.
    pub updated: NewMetadata<'a>,
}

/// Writes slices on behalf of one controller.
pub struct SliceWrites {
    /// All slices.
    pub slices: Arc<Store<EndpointSlice>>,
    /// Sends the writes.
    pub writer: Writer,
    /// Writes by this process that the cache has to contain before the next decision about a key.
    pub consistency: Arc<Consistency>,
    /// This process's writes of slices. When the watch delivers its creations and updates, no reconcile is needed.
    pub own: Arc<OwnChanges>,
    /// The controller's queue.
    pub queue: Arc<Queue<ObjectKey>>,
    /// The value of the label `endpointslice.kubernetes.io/managed-by`.
    pub manager: &'static str,
    /// Delay of the reconcile after another client changed a slice.
    pub delay: Duration,
    /// Namespaces that are being deleted, in which nothing can be created.
    pub gate: CreationGate,
    /// Refused creations.
    pub refusals: Refusals,
    /// The usual duration of the writes.
    pub pace: Pace,
}

impl SliceWrites {
    /// Returns the slices of a Service that are not being deleted.
    pub fn existing(&self, key: &ObjectKey) -> Vec<Arc<EndpointSlice>> {
        let mut found = self.slices.by_index(&by_service(), slices_of(&key.namespace, &key.name, self.manager));
        found.retain(|slice| !slice.meta.is_deleting());
        found.sort_unstable_by(|a, b| a.meta.name.cmp(&b.meta.name));
        found
    }

    /// Returns true if the cache contains all writes and deletions of this process for a key. If not, the key is
    /// requeued once it does. The slices have to be read afterwards.
    pub fn caught_up(&self, key: &ObjectKey) -> bool {
        self.consistency.caught_up(key, &self.slices, self.queue.waker(key))
            && self.consistency.observe(key, &self.slices, |_| ()).are_deletions_cached
    }

    /// Returns true if the cache contains all slices that the server has for a key; if not, the key is requeued when it
    /// does. Before the first creation of a leadership term, this detects the last writes of the previous leader. After
    /// a lost response, it detects whether the request was executed.
    ///
    /// # Errors
    /// When the API server cannot be read. Then the next reconcile reads it again.
    pub async fn compare_with_server(&self, key: &ObjectKey) -> Result<bool, WriteError> {
        let selector = format!("{SERVICE_NAME}={},{MANAGED_BY}={}", key.name, self.manager);
        let listed = self.writer.list_meta(&EndpointSlice::RESOURCE, &key.namespace, &selector).await;
        let listed = listed.inspect_err(|_| self.consistency.lost(key))?;
        if let Some(newest) = listed.iter().map(|slice| slice.version).max() {
            self.consistency.wrote(key, &self.slices, newest);
        }
        let listed: HashSet<Uid> = listed.into_iter().map(|slice| slice.uid).collect();
        for slice in self.existing(key) {
            let is_missing = !listed.contains(&slice.meta.uid);
            if is_missing && self.is_deleted(&slice.meta).await.inspect_err(|_| self.consistency.lost(key))? {
                self.consistency.deleting(key, &EndpointSlice::RESOURCE, &slice.meta);
                self.own.deleting(&slice.meta.uid);
            }
        }
        Ok(self.caught_up(key))
    }

    /// Returns true if a slice that a list by labels does not contain is deleted or being deleted. Otherwise its labels
    /// were changed, and a key that waited for its deletion would wait forever.
    async fn is_deleted(&self, slice: &Meta) -> Result<bool, WriteError> {
        let fresh =
            self.writer.get(&EndpointSlice::RESOURCE, &slice.key()).await.and_then(|response| Ok(response.meta()?));
        match fresh {
            Ok(fresh) => Ok(fresh.uid != slice.uid || fresh.is_deleting()),
            Err(error) if error.is_not_found() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Returns the attempt to create the slices of a plan for the Service or Endpoints that own them.
    pub fn attempt(&self, key: &ObjectKey, owner: &Meta, plan: &Plan) -> Attempt {
        Attempt::new(owner, plan.create.len(), self.existing(key).len())
    }

    /// Returns the remaining backoff of a plan's creations after a refusal; `None` if the plan may be executed.
    pub fn refused_before(&self, key: &ObjectKey, plan: &Plan, attempt: &Attempt) -> Option<Duration> {
        if plan.create.is_empty() {
            self.refusals.forget(key);
            return None;
        }
        let waiting = self.refusals.waiting(key, attempt)?;
        debug!(
            reason = waiting.message, left = ?waiting.left,
            "not creating EndpointSlices yet: the last attempt was refused"
        );
        Some(waiting.left)
    }

    /// Executes a plan. After a failure, nothing is deleted. No slice is created if the namespace is being deleted.
    /// Changes that arrive during the writes are written after a cooldown ([`Pace`]). A refused `attempt` is recorded.
    ///
    /// Returns the number of successful writes, and the first failure.
    pub async fn write(
        &self,
        key: &ObjectKey,
        metadata: &SliceMetadata<'_>,
        plan: &Plan,
        attempt: Attempt,
    ) -> (WriteCounts, Result<(), WriteFailure>) {
        let mut counts = WriteCounts::default();
        let written = self.write_stages(key, metadata, plan, &mut counts).await;
        self.queue.cool_down(key, self.pace.cooldown(plan.writes()));
        match &written {
            Err(failure) if failure.is_creation => {
                self.refusals.failed(key, attempt.after(counts.created), &failure.error);
            }
            Ok(()) if !plan.create.is_empty() => self.refusals.forget(key),
            _ => {}
        }
        (counts, written)
    }

    async fn write_stages(
        &self,
        key: &ObjectKey,
        metadata: &SliceMetadata<'_>,
        plan: &Plan,
        counts: &mut WriteCounts,
    ) -> Result<(), WriteFailure> {
        let created = AtomicUsize::new(0);
        // A quota may refuse thousands of slices: after a refusal, later batches are not begun.
        let create = |at: usize| self.create(key, metadata, &plan.create[at], &created);
        let (_, failure) = slow_start(plan.create.len(), create).await;
        counts.created = created.into_inner();
        // No write is cancelled: otherwise its result would be unknown.
        let updates: Vec<_> =
            plan.update.iter().map(|(slice, contents)| self.update(key, metadata, slice, contents)).collect();
        let updates = stream::iter(updates).buffer_unordered(MAX_CONCURRENT_UPDATES).collect().await;
        let updated = count_successes(updates, &mut counts.updated);
        failure.map_or(Ok(()), Err).and(updated)?;
        let deletions = plan.delete.iter().map(|slice| self.delete(key, slice));
        count_successes(join_all(deletions).await, &mut counts.deleted)
    }

    async fn create(
        &self,
        key: &ObjectKey,
        metadata: &SliceMetadata<'_>,
        contents: &Contents,
        created: &AtomicUsize,
    ) -> Result<(), WriteFailure> {
        if !self.gate.is_open(&key.namespace) {
            return Ok(());
        }
        let object = contents.create(&key.namespace, metadata.prefix, &metadata.new);
        let request = self.writer.create(&EndpointSlice::RESOURCE, &key.namespace, &object, false);
        let response = self.pace.add(request).await;
        match response.and_then(|response| response.meta().map_err(WriteError::from)) {
            Ok(meta) => {
                created.fetch_add(1, Ordering::Relaxed);
                self.wrote(key, meta.version);
                Ok(())
            }
            Err(error) if error.is_namespace_terminating() => {
                self.gate.close(&key.namespace);
                Ok(())
            }
            Err(error) => {
                if error.is_lost() {
                    self.consistency.lost(key);
                }
                Err(WriteFailure { what: "create EndpointSlice".into(), is_creation: true, error })
            }
        }
    }

    async fn update(
        &self,
        key: &ObjectKey,
        metadata: &SliceMetadata<'_>,
        slice: &EndpointSlice,
        contents: &Contents,
    ) -> Result<(), WriteFailure> {
        let what = || format!("update {} EndpointSlice", slice.meta.name).into();
        let failed = |error| WriteFailure { what: what(), is_creation: false, error };
        let object =
            slice.update(&metadata.updated, contents).map_err(|error| failed(WriteError::Unreadable(error.into())))?;
        let uid = &slice.meta.uid;
        self.own.updating(uid);
        let slice_key = slice.meta.key();
        let response = self.pace.add(self.writer.replace(&EndpointSlice::RESOURCE, &slice_key, None, &object)).await;
        let meta = response.and_then(|response| response.meta().map_err(WriteError::from));
        if self.own.updated(&self.slices, uid, meta.as_ref().ok().map(|meta| meta.version)) {
            self.queue.add_after(key.clone(), self.delay);
        }
        self.consistency.wrote(key, &self.slices, meta.map_err(failed)?.version);
        Ok(())
    }

    /// Deletes a slice; one that was deleted or replaced already is not a failure.
    ///
    /// # Errors
    /// When the API server rejects the request, or does not respond.
    pub async fn delete(&self, key: &ObjectKey, slice: &EndpointSlice) -> Result<(), WriteFailure> {
        let uid = &slice.meta.uid;
        self.consistency.deleting(key, &EndpointSlice::RESOURCE, &slice.meta);
        self.own.deleting(uid);
        match self.pace.add(self.writer.delete(&EndpointSlice::RESOURCE, &slice.meta.key(), uid)).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_object_deleted() => {
                self.own.not_deleting(uid);
                Ok(())
            }
            Err(error) => {
                // A deletion may be repeated: it is bound to the uid.
                self.consistency.not_deleting(key, uid);
                self.own.not_deleting(uid);
                let what = format!("delete {} EndpointSlice", slice.meta.name).into();
                Err(WriteFailure { what, is_creation: false, error })
            }
        }
    }

    fn wrote(&self, key: &ObjectKey, version: u64) {
        self.own.wrote(&self.slices, version);
        self.consistency.wrote(key, &self.slices, version);
    }
}

/// Counts the successes, and returns the first failure.
fn count_successes(results: Vec<Result<(), WriteFailure>>, successes: &mut usize) -> Result<(), WriteFailure> {
    *successes = results.iter().filter(|result| result.is_ok()).count();
    results.into_iter().collect()
}

/// Returns the prefix of the names of an object's slices. The API server truncates it. Upstream: k8s.io/endpointslice,
/// getEndpointSlicePrefix.
pub fn prefix(name: &str) -> String {
    format!("{name}-")
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kinds::schema::object_meta;
    use kinds::wire::Put as _;
    use kinds::{Decode, Interner, Sections, envelope};
    use runtime::queue::QueueOptions;
    use runtime::testing::{filled_store, writer};

    use super::*;

    fn slice(name: &str) -> Arc<EndpointSlice> {
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        Arc::new(EndpointSlice::decode(&decode, &object(name)).expect("well-formed"))
    }

    fn object(name: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::UID, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "8");
        });
        object
    }

    fn contents() -> Contents {
        Contents { family: Some(Family::V4), ports: Arc::new([]), endpoints: Vec::new() }
    }

    /// Executes the plan of [`execute`] against a server that returns a status code and a message for the requests of a
    /// method.
    async fn write(refused: Method, code: u16, message: &'static str) -> (WriteCounts, Result<(), WriteFailure>) {
        let writes = writes(move |method| (*method == refused).then(|| (code, message.as_bytes().to_vec()))).await;
        execute(&writes).await
    }

    /// Returns a [`SliceWrites`] for a server that refuses some methods.
    async fn writes(refusal: impl Fn(&Method) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static) -> SliceWrites {
        let writer = writer(move |method, _| {
            let written = || (200, envelope::wrap(&EndpointSlice::RESOURCE, &object("written")));
            refusal(method).unwrap_or_else(written)
        });
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        SliceWrites {
            slices: Arc::new(filled_store(decode.clone(), vec![by_service()], [])),
            writer: writer.await,
            consistency: Arc::default(),
            own: Arc::default(),
            queue: Queue::new(QueueOptions::named("test")),
            manager: "test",
            delay: Duration::ZERO,
            gate: CreationGate::new(Arc::new(filled_store(decode, Vec::new(), []))),
            refusals: Refusals::default(),
            pace: Default::default(),
        }
    }

    /// Executes a plan of three creations, two updates and two deletions, unless its creations were just refused.
    async fn execute(writes: &SliceWrites) -> (WriteCounts, Result<(), WriteFailure>) {
        let labels = Interner::default().labels(Vec::new());
        let metadata =
            NewMetadata { labels: &labels, annotations: kinds::metadata_edit::Annotations::Edited(&[]), owner: None };
        let metadata = SliceMetadata { prefix: "web-", new: metadata, updated: metadata };
        let plan = Plan {
            create: vec![contents(), contents(), contents()],
            update: vec![(slice("a"), contents()), (slice("b"), contents())],
            delete: vec![slice("c"), slice("d")],
        };
        let key = ObjectKey::new("ns", "web");
        let owner = runtime::testing::meta("ns", "web", 1);
        let attempt = writes.attempt(&key, &owner, &plan);
        match writes.refused_before(&key, &plan, &attempt) {
            Some(_) => (WriteCounts::default(), Ok(())),
            None => writes.write(&key, &metadata, &plan, attempt).await,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_creations_back_off_while_pods_change() {
        const FORBIDDEN: &[u8] = br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#;
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = sent.clone();
        let writes = writes(move |method| {
            counted.fetch_add(usize::from(method == Method::POST), Ordering::Relaxed);
            (method == Method::POST).then(|| (403, FORBIDDEN.to_vec()))
        });
        let writes = writes.await;
        for _ in 0..600 {
            let (counts, _) = execute(&writes).await;
            assert_eq!(counts.created, 0);
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        let sent = sent.load(Ordering::Relaxed);
        assert!((5..=15).contains(&sent), "{sent} creations in a minute");
    }

    #[tokio::test]
    async fn only_successful_writes_are_counted() {
        const TERMINATING: &str = r#"{"kind": "Status", "code": 403, "reason": "Forbidden",
            "details": {"causes": [{"reason": "NamespaceTerminating"}]}}"#;
        const INVALID: &str = r#"{"kind": "Status", "code": 422, "reason": "Invalid"}"#;
        const REPLACED: &str = r#"{"kind": "Status", "code": 409, "reason": "Conflict",
            "message": "Precondition failed: UID in precondition: c, UID in object meta: e"}"#;
        for (name, refused, code, message, counts, succeeds) in [
            ("nothing is refused", Method::PATCH, 500, "", [3, 2, 2], true),
            ("the namespace is being deleted", Method::POST, 403, TERMINATING, [0, 2, 2], true),
            ("creations are refused", Method::POST, 422, INVALID, [0, 2, 0], false),
            ("updates are refused", Method::PUT, 422, INVALID, [3, 0, 0], false),
            ("deletions are refused", Method::DELETE, 422, INVALID, [3, 2, 0], false),
            ("the slices were replaced", Method::DELETE, 409, REPLACED, [3, 2, 2], true),
        ] {
            let (found, written) = write(refused, code, message).await;
            assert_eq!([found.created, found.updated, found.deleted], counts, "{name}");
            assert_eq!(written.is_ok(), succeeds, "{name}: {written:?}");
        }
    }
}
