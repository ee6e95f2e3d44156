//! Random histories with lost responses, stale caches and changes of leader: no pod gets a second claim, and in the end
//! each unfinished pod has its claim while no finished one has any.

use std::collections::{BTreeMap, HashSet};

use kinds::meta::ObjectKey;
use kinds::schema as f;
use kinds::wire::find;
use proptest::prelude::*;
use runtime::events::Recorder;
use runtime::metrics::Metrics;
use runtime::store::Store;
use runtime::testing::{NoEvents, deliver, deliver_deletion};
use runtime::worker::Reconcile;
use runtime::write::Writer;

use super::server::{Fault, Server, with_meta, with_uid};
use super::*;
use crate::devices::resource_claim::keys::Key;
use crate::devices::resource_claim::metrics;
use crate::devices::resource_claim::reconciler::ResourceClaims;
use crate::devices::resource_claim::takeover::Takeover;
use crate::pods::creation_gate::CreationGate;

const PODS: [&str; 2] = ["a", "b"];

/// A step of a history. Numbers are those of pods.
#[derive(Debug, Clone, Copy)]
enum Event {
    Created(usize),
    Finished(usize),
    Deleted(usize),
    /// The scheduler allocates the pod's claim, reserves it and binds the pod.
    Scheduled(usize),
    PodsReachCache,
    ClaimsReachCache,
    /// A pod is reconciled, perhaps with a fault after a number of writes.
    PodReconciled(usize, Option<(usize, Fault)>),
    /// All claims in the cache are reconciled, perhaps with a fault.
    ClaimsReconciled(Option<(usize, Fault)>),
    /// Another process with the same caches becomes leader.
    LeaderChanged,
}

/// The API server, the caches of all processes, and the current leader.
struct History {
    server: Arc<Server>,
    writer: Writer,
    /// Pods on the API server.
    pods: BTreeMap<&'static str, Pod>,
    created: usize,
    cached_pods: Arc<Store<Pod>>,
    cached_claims: Arc<Store<ResourceClaim>>,
    leader: ResourceClaims,
}

fn record(object: &[u8]) -> ResourceClaim {
    let context = Decode { interner: Arc::default(), sections: ResourceClaim::STATE };
    ResourceClaim::decode(&context, object).expect("well-formed")
}

fn leader(pods: &Arc<Store<Pod>>, claims: &Arc<Store<ResourceClaim>>, writer: &Writer) -> ResourceClaims {
    let template: ResourceClaimTemplate = named(resource_claim_template::METADATA, "template");
    let keys = Keys {
        pods: pods.clone(),
        claims: claims.clone(),
        groups: None,
        gates: OFF,
        queue: Queue::new(QueueOptions::named("test")),
        deleted: Arc::default(),
    };
    ResourceClaims {
        keys: Arc::new(keys),
        templates: Arc::new(filled_store(decode(), vec![], [template])),
        writer: writer.clone(),
        recorder: Recorder::new("test", Arc::new(NoEvents)).0,
        takeover: Takeover::default(),
        pod_writes: Consistency::default(),
        group_writes: Consistency::default(),
        claim_writes: Consistency::default(),
        gate: CreationGate::new(Arc::new(filled_store(decode(), vec![], []))),
        pod_refusals: Default::default(),
        group_refusals: Default::default(),
        created: metrics::register_creations(&Metrics::new()),
    }
}

impl History {
    async fn new() -> Self {
        let server = Arc::new(Server::default());
        let writer = server.writer().await;
        let decode = || Decode { interner: Arc::default(), sections: ResourceClaim::STATE };
        let by_pods = vec![pods_by_claim(), pods_by_template(), pods_by_group()];
        let cached_pods = Arc::new(filled_store(decode(), by_pods, []));
        let cached_claims = Arc::new(filled_store(decode(), vec![by_controller()], []));
        let leader = leader(&cached_pods, &cached_claims, &writer);
        Self { server, writer, pods: BTreeMap::new(), created: 0, cached_pods, cached_claims, leader }
    }

    fn claims(&self) -> Vec<ResourceClaim> {
        self.server.claims().iter().map(|object| record(object)).collect()
    }

    /// Returns the claims that are controlled by a pod.
    fn claims_of(&self, pod: &Pod) -> Vec<ResourceClaim> {
        self.claims().into_iter().filter(|claim| claim.meta.is_controlled_by(&pod.meta.uid)).collect()
    }

    fn create(&mut self, name: &'static str) {
        if self.pods.contains_key(name) {
            return;
        }
        self.created += 1;
        let uid = format!("{name}-{}", self.created);
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        self.server.add::<Pod>(&with_uid(&object, &uid));
        let pod = edited(user(vec![generated("gpu", None)]), |pod| {
            pod.meta.name = name.into();
            pod.meta.uid = Uid::parse(&uid);
        });
        self.pods.insert(name, pod);
    }

    fn schedule(&mut self, name: &'static str) {
        let Some(pod) = self.pods.get_mut(name).filter(|pod| !pod.is_terminal()) else { return };
        let ClaimStatus::Named(claim) = &pod.devices.as_ref().expect("the pod has claims").entries[0].status else {
            return;
        };
        let Some(object) = self.server.get::<ResourceClaim>(claim) else { return };
        if !find(&object, resource_claim::STATUS).is_empty() || !record(&object).meta.is_controlled_by(&pod.meta.uid) {
            return;
        }
        let consumer = Consumer { uid: pod.meta.uid.clone(), ..pod_of(name) };
        self.server.edit::<ResourceClaim>(claim, |object| {
            let mut object = with_meta(object, object_meta::FINALIZERS, DELETE_PROTECTION);
            object.put_message(resource_claim::STATUS, |status| {
                status.put_message(f::resource_claim_status::ALLOCATION, |_| {});
                status.put_message(f::resource_claim_status::RESERVED_FOR, |message| {
                    message.put_str(f::claim_consumer::RESOURCE, &consumer.resource);
                    message.put_str(f::claim_consumer::NAME, &consumer.name);
                    message.put_str(f::claim_consumer::UID, &consumer.uid.to_string());
                });
            });
            object
        });
        pod.node = "node".into();
    }

    /// Writes the statuses that the controller has applied into the pods.
    fn apply_statuses(&mut self) {
        for (name, applied) in self.server.take_applied() {
            let Some(pod) = self.pods.get_mut(&*name) else { continue };
            let statuses = applied["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
            let devices = pod.devices.as_mut().expect("the pod has claims");
            let named = statuses.first().and_then(|status| status["resourceClaimName"].as_str());
            devices.entries[0].status = named.map_or(ClaimStatus::Missing, |name| ClaimStatus::Named(name.into()));
        }
    }

    fn pods_reach_cache(&self) {
        let cached = self.cached_pods.all();
        for old in cached.iter().filter(|old| !self.pods.contains_key(&*old.meta.name)) {
            deliver_deletion(&self.cached_pods, &old.meta.key());
        }
        let version = self.server.version();
        for pod in self.pods.values().cloned() {
            deliver(&self.cached_pods, edited(pod, |pod| pod.meta.version = version));
        }
    }

    fn claims_reach_cache(&self) {
        let claims = self.claims();
        let names: HashSet<Str> = claims.iter().map(|claim| claim.meta.name.clone()).collect();
        for old in self.cached_claims.all().iter().filter(|old| !names.contains(&old.meta.name)) {
            deliver_deletion(&self.cached_claims, &old.meta.key());
        }
        claims.into_iter().for_each(|claim| deliver(&self.cached_claims, claim));
        // The watch has reached the last version, too.
        let last = edited(claim("last", false, ClaimState::default()), |claim| {
            claim.meta.namespace = "other".into();
            claim.meta.version = self.server.version();
        });
        deliver(&self.cached_claims, last.clone());
        deliver_deletion(&self.cached_claims, &last.meta.key());
    }

    async fn reconcile(&mut self, keys: impl IntoIterator<Item = Key>, fault: Option<(usize, Fault)>) {
        self.server.set_fault(fault);
        for key in keys {
            // Errors are retried by later events.
            let _ = self.leader.reconcile(&key).await;
        }
        self.server.set_fault(None);
        self.apply_statuses();
    }

    async fn apply(&mut self, event: Event) {
        let pod_key = |at: usize| Key::Pod(ObjectKey::new("ns", PODS[at]));
        match event {
            Event::Created(at) => self.create(PODS[at]),
            Event::Finished(at) => {
                if let Some(pod) = self.pods.get_mut(PODS[at]) {
                    pod.phase = Phase::Succeeded;
                }
            }
            Event::Deleted(at) => {
                if self.pods.remove(PODS[at]).is_some() {
                    self.server.remove::<Pod>(PODS[at]);
                }
            }
            Event::Scheduled(at) => self.schedule(PODS[at]),
            Event::PodsReachCache => self.pods_reach_cache(),
            Event::ClaimsReachCache => self.claims_reach_cache(),
            Event::PodReconciled(at, fault) => self.reconcile([pod_key(at)], fault).await,
            Event::ClaimsReconciled(fault) => {
                let keys: Vec<Key> =
                    self.cached_claims.all().iter().map(|claim| Key::Claim(claim.meta.key())).collect();
                self.reconcile(keys, fault).await;
            }
            Event::LeaderChanged => self.leader = leader(&self.cached_pods, &self.cached_claims, &self.writer),
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let at = 0..PODS.len();
    let fault = prop_oneof![Just(Fault::LostBefore), Just(Fault::LostAfter)];
    let fault = proptest::option::weighted(0.3, (0usize..3, fault));
    prop_oneof![
        2 => at.clone().prop_map(Event::Created),
        1 => at.clone().prop_map(Event::Finished),
        1 => at.clone().prop_map(Event::Deleted),
        2 => at.clone().prop_map(Event::Scheduled),
        3 => Just(Event::PodsReachCache),
        3 => Just(Event::ClaimsReachCache),
        5 => (at, fault.clone()).prop_map(|(at, fault)| Event::PodReconciled(at, fault)),
        3 => fault.prop_map(Event::ClaimsReconciled),
        1 => Just(Event::LeaderChanged),
    ]
}

/// Events without faults after which nothing is left to do.
fn quiet() -> impl Iterator<Item = Event> {
    let round = [
        Event::PodsReachCache,
        Event::ClaimsReachCache,
        Event::PodReconciled(0, None),
        Event::PodReconciled(1, None),
        Event::ClaimsReconciled(None),
    ];
    std::iter::repeat_n(round, 8).flatten()
}

async fn check(events: Vec<Event>) -> Result<(), TestCaseError> {
    let mut history = History::new().await;
    for event in events.into_iter().chain(quiet()) {
        history.apply(event).await;
        for pod in history.pods.values() {
            let claims = history.claims_of(pod).len();
            prop_assert!(claims <= 1, "pod {} has {claims} claims after {event:?}", pod.meta.uid);
        }
    }
    for pod in history.pods.values() {
        let claims = history.claims_of(pod);
        if pod.is_terminal() {
            prop_assert!(claims.is_empty(), "finished pod {} has {claims:?}", pod.meta.name);
            continue;
        }
        let entry = &pod.devices.as_ref().expect("the pod has claims").entries[0];
        let names: Vec<Str> = claims.iter().map(|claim| claim.meta.name.clone()).collect();
        prop_assert_eq!(names.first().map(|name| ClaimStatus::Named(name.clone())), Some(entry.status.clone()));
    }
    let consumers: HashSet<Uid> = history.pods.values().map(|pod| pod.meta.uid.clone()).collect();
    for claim in history.claims() {
        let state = claim.state.expect("in its section");
        let is_stale = state.consumers.iter().any(|consumer| !consumers.contains(&consumer.uid));
        prop_assert!(!is_stale, "claim {} stays reserved for a deleted pod", claim.meta.name);
    }
    Ok(())
}

proptest! {
    // Each case starts a client, so more cases would take too long.
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn each_unfinished_pod_gets_one_claim(events in proptest::collection::vec(event(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(check(events))?;
    }
}
