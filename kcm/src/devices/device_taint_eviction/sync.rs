//! One reconcile: of a pod, which is deleted when its eviction is due, or of a rule, whose status is written.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::resource_claim::ResourceClaim;
use kinds::resource_slice::Device;
use kinds::taint::NO_EXECUTE;
use kinds::{DeviceTaintRule, Kind, Pod, ResourceSlice, Str, Time, Uid};
use runtime::events::{EventType, ObjectReference, Recorder};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Cached, Store, index_key};
use runtime::text::api_time;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{ObjectResponse, WriteError, Writer};
use tracing::info;

use super::decide::{self, Eviction};
use super::keys::{ALLOCATED, Key, Members, RULES, SLICES, SLICES_OF_POOL, pool, selects};
use super::metrics::Deletions;
use super::pending::{Pending, Stage};
use super::rules::{Counts, NO_EFFECT, cooldown_left, to_apply};
use super::{NAME, STATUS_PERIOD};
use crate::context::Clock;
use crate::pods::disruption_target;

/// The controller's state.
pub struct Evictions {
    pub pods: Arc<Store<Pod>>,
    pub claims: Arc<Store<ResourceClaim>>,
    pub slices: Arc<Store<ResourceSlice>>,
    /// `None` with the gate DRADeviceTaintRules off.
    pub rules: Option<Arc<Store<DeviceTaintRule>>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub queue: Arc<Queue<Key>>,
    pub clock: Clock,
    pub pending: Arc<Pending>,
    /// Number of pods that were evicted because of each rule.
    pub evicted: Arc<Mutex<HashMap<Uid, u64>>>,
    pub deletions: Deletions,
    /// Pods that use claims through their PodGroups.
    pub members: Members,
}

impl Reconcile for Evictions {
    type Key = Key;

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        match key {
            Key::Pod(key) => self.sync_pod(key).boxed(),
            Key::Rule(name) => self.sync_rule(name).boxed(),
        }
    }
}

impl Evictions {
    async fn sync_pod(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(pod) = self.pods.get(key).filter(|pod| !pod.meta.is_deleting()) else {
            self.end_eviction(key);
            return Ok(Outcome::Done);
        };
        let stage = self.pending.get(key, &pod.meta.uid);
        if stage == Some(Stage::Deleted) {
            return Ok(Outcome::Done);
        }
        let rules = self.rules();
        let Some(eviction) = self.eviction(&pod, &rules) else {
            if stage.is_some() {
                info!(pod = %key, "cancelled eviction: no taint of the pod's devices requires it");
                self.event(key, &pod.meta.uid, "Cancelling deletion");
            }
            self.end_eviction(key);
            return Ok(Outcome::Done);
        };
        let mut changed = self.pending.record(key, &pod.meta.uid, &eviction.rules);
        changed.extend(eviction.rules.iter().cloned());
        self.queue_status_updates(&rules, &changed);
        let now = (self.clock)();
        if let Some(left) = left(eviction.at, now) {
            return Ok(Outcome::RequeueAfter(left));
        }
        self.evict(key, &pod, stage, &eviction).await
    }

    /// Removes the eviction of a pod that was deleted or need not be evicted. The statuses of its rules count one pod
    /// less, and no other event would update them.
    fn end_eviction(&self, key: &ObjectKey) {
        let of_pod = self.pending.remove(key);
        if !of_pod.is_empty() {
            self.queue_status_updates(&self.rules(), &of_pod);
        }
    }

    /// Requeues rules for an update of their statuses, delayed so that one write covers the changes of several pods.
    fn queue_status_updates(&self, rules: &[Arc<DeviceTaintRule>], changed: &BTreeSet<Uid>) {
        for rule in rules.iter().filter(|rule| changed.contains(&rule.meta.uid)) {
            self.queue.add_after(Key::Rule(rule.meta.name.clone()), STATUS_PERIOD);
        }
    }

    /// Returns all rules; none with the gate DRADeviceTaintRules off.
    fn rules(&self) -> Vec<Arc<DeviceTaintRule>> {
        self.rules.as_ref().map(|rules| rules.by_index(&RULES, index_key(()))).unwrap_or_default()
    }

    /// Returns the eviction of a pod under these rules.
    fn eviction(&self, pod: &Pod, rules: &[Arc<DeviceTaintRule>]) -> Option<Eviction> {
        let claim = |name: &Str| self.claims.get(&ObjectKey::new(pod.meta.namespace.clone(), name.clone()));
        decide::of_pod(
            pod,
            self.members.0.is_some(),
            |used| claim(used.name),
            |claim| {
                let mut pools: HashMap<u64, Vec<Arc<ResourceSlice>>> = HashMap::new();
                for device in claim.allocation.iter().flat_map(|allocation| &allocation.devices) {
                    let of = pool(&device.driver, &device.pool);
                    pools.entry(of).or_insert_with(|| self.slices.by_index(&SLICES_OF_POOL, of));
                }
                decide::of_claim(claim, |device| {
                    let slices = pools.get(&pool(&device.driver, &device.pool)).into_iter().flatten();
                    decide::evicting_taints(device, slices.map(|slice| &**slice), rules.iter().map(|rule| &**rule))
                })
            },
        )
    }

    async fn evict(
        &self,
        key: &ObjectKey,
        pod: &Pod,
        stage: Option<Stage>,
        eviction: &Eviction,
    ) -> Result<Outcome, ReconcileError> {
        // An object that cannot be decoded may contain a toleration of the taint.
        let rules = self.rules.as_ref().map_or(0, |rules| rules.undecodable());
        if self.claims.undecodable_in(&key.namespace) + self.slices.undecodable() + rules > 0 {
            return Err(ReconcileError::new(
                "not evicting: ResourceClaims, ResourceSlices or DeviceTaintRules cannot be decoded (see the log)",
            ));
        }
        self.writer.check_deletion(key)?;
        let live = match self.writer.get(&Pod::RESOURCE, key).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() => return Ok(self.mark_deleted(key, pod)),
            Err(error) => return Err(error.into()),
        };
        let meta = live.meta().map_err(WriteError::from)?;
        if meta.uid != pod.meta.uid || meta.is_deleting() {
            return Ok(self.mark_deleted(key, pod));
        }
        if stage != Some(Stage::Announced) {
            info!(pod = %key, "deleting the pod: a taint of a device that it uses is not, or no longer, tolerated");
            self.event(key, &pod.meta.uid, "Marking for deletion");
            self.pending.set_stage(key, &pod.meta.uid, Stage::Announced);
        }
        match self.delete(key, pod, &live).await {
            Ok(()) => {
                self.count(eviction);
                Ok(self.mark_deleted(key, pod))
            }
            Err(error) if error.is_not_found() => Ok(self.mark_deleted(key, pod)),
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) => Err(error.into()),
        }
    }

    /// Marks a pod as deleted, until the cache contains the deletion.
    fn mark_deleted(&self, key: &ObjectKey, pod: &Pod) -> Outcome {
        self.pending.set_stage(key, &pod.meta.uid, Stage::Deleted);
        if self.pods.get_with_uid(&key.namespace, &key.name, &pod.meta.uid).is_none_or(|pod| pod.meta.is_deleting()) {
            self.end_eviction(key);
        }
        Outcome::Done
    }

    /// Sets the pod's condition `DisruptionTarget`, and deletes the pod.
    async fn delete(&self, key: &ObjectKey, pod: &Pod, live: &ObjectResponse) -> Result<(), WriteError> {
        let patch = disruption_target::patch(
            live.object()?,
            &pod.meta.uid,
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint",
            (self.clock)(),
        );
        if let Some(patch) = patch.map_err(kinds::DecodeError::from)? {
            self.writer.patch_status(&Pod::RESOURCE, key, &patch).await?;
        }
        self.writer.delete(&Pod::RESOURCE, key, &pod.meta.uid).await
    }

    fn count(&self, eviction: &Eviction) {
        let late = (self.clock)().as_millisecond() as f64 / 1000.0 - eviction.at.0 as f64;
        self.deletions.deleted(late);
        let mut evicted = self.evicted();
        for rule in &eviction.rules {
            *evicted.entry(rule.clone()).or_default() += 1;
        }
    }

    fn evicted(&self) -> MutexGuard<'_, HashMap<Uid, u64>> {
        lock(&self.evicted)
    }

    fn event(&self, key: &ObjectKey, uid: &Uid, message: &str) {
        let about = ObjectReference {
            api_version: "v1".into(),
            kind: Pod::RESOURCE.kind.into(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: uid.to_string().into(),
            ..ObjectReference::default()
        };
        self.recorder.event(&about, EventType::Normal, "DeviceTaintManagerEviction", message.to_owned());
    }

    async fn sync_rule(&self, name: &Str) -> Result<Outcome, ReconcileError> {
        let Some(rules) = &self.rules else { return Ok(Outcome::Done) };
        let key = ObjectKey::new("", name.clone());
        let rule = match rules.read_settled(&key, self.queue.waker(&Key::Rule(name.clone()))) {
            Cached::Current(rule) => rule,
            Cached::Absent => {
                let existing: BTreeSet<Uid> = self.rules().iter().map(|rule| rule.meta.uid.clone()).collect();
                self.evicted().retain(|uid, _| existing.contains(uid));
                return Ok(Outcome::Done);
            }
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        let now = (self.clock)();
        if let Some(left) = cooldown_left(&rule, Time(now.as_second()), STATUS_PERIOD.as_secs().cast_signed()) {
            return Ok(Outcome::RequeueAfter(Duration::from_secs(left.unsigned_abs())));
        }
        let now = api_time(now);
        let Some(status) = to_apply(&rule, &self.counts(&rule), &now) else { return Ok(Outcome::Done) };
        match self.writer.apply(&DeviceTaintRule::RESOURCE, &key, Some("status"), NAME, &status).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    rules.wrote(&key, meta.version);
                }
                Ok(Outcome::Done)
            }
            // The rule was deleted or replaced: the watch will deliver that.
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the numbers for a rule's status: devices that it selects, and pods that it evicts.
    fn counts(&self, rule: &Arc<DeviceTaintRule>) -> Counts {
        let evicted = self.evicted().get(&rule.meta.uid).copied().unwrap_or(0);
        let mut counts = Counts { evicted, ..Counts::default() };
        let rules = match &*rule.taint.effect {
            NO_EXECUTE => self.rules(),
            NO_EFFECT => {
                self.count_devices(rule, &mut counts);
                // Counts as if this were the only rule, and its effect were NoExecute.
                let mut alone = (**rule).clone();
                alone.taint.effect = NO_EXECUTE.into();
                vec![Arc::new(alone)]
            }
            _ => return counts,
        };
        let claims = self.claims.by_index(&ALLOCATED, index_key(()));
        let users: BTreeSet<ObjectKey> =
            claims.iter().filter(|claim| selects(rule, claim)).flat_map(|claim| self.members.users_of(claim)).collect();
        let is_evicted = |pod: &Arc<Pod>| {
            let eviction = self.eviction(pod, &rules).filter(|_| !pod.meta.is_deleting());
            eviction.is_some_and(|eviction| eviction.rules.contains(&rule.meta.uid))
        };
        let pods: Vec<Arc<Pod>> = users.iter().filter_map(|key| self.pods.get(key)).filter(is_evicted).collect();
        counts.pods = pods.len();
        counts.namespaces = pods.iter().map(|pod| &pod.meta.namespace).collect::<BTreeSet<_>>().len();
        counts
    }

    fn count_devices(&self, rule: &DeviceTaintRule, counts: &mut Counts) {
        let slices = self.slices.by_index(&SLICES, index_key(()));
        let mut newest: HashMap<(&Str, &Str), i64> = HashMap::new();
        for slice in &slices {
            let known = newest.entry((&slice.driver, &slice.pool)).or_insert(slice.generation);
            *known = (*known).max(slice.generation);
        }
        for slice in &slices {
            if newest.get(&(&slice.driver, &slice.pool)) == Some(&slice.generation) {
                let is_selected = |device: &&Device| rule.selects(&slice.driver, &slice.pool, &device.name);
                counts.published += slice.devices.iter().filter(is_selected).count();
            }
        }
        for claim in self.claims.by_index(&ALLOCATED, index_key(())) {
            let devices = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
            let selected = devices.filter(|device| rule.selects(&device.driver, &device.pool, &device.name));
            counts.allocated += selected.count();
        }
    }
}

/// Returns the time until `at`; `None` if it has passed.
fn left(at: Time, now: Timestamp) -> Option<Duration> {
    let millis = at.0.saturating_mul(1000).saturating_sub(now.as_millisecond());
    u64::try_from(millis).ok().filter(|millis| *millis > 0).map(Duration::from_millis)
}
