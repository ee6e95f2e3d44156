//! The pass over all nodes, and the taints and conditions of unresponsive ones.
//!
//! A pass first gathers the states of all nodes and then decides about them together, so that no node is tainted before
//! the number of failing nodes is known.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::lease::NODE_LEASES;
use kinds::meta::{ObjectKey, Time};
use kinds::node::{READY, with_conditions};
use kinds::{Kind, Lease, Node, Pod, Str, Uid};
use runtime::events::{EventType, ObjectReference, Recorder};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Cached, Store, WriteVersion};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use super::decide_health::{Grace, Health, is_unresponsive, observe, unknown_conditions};
use super::decide_taints::{is_excluded, no_execute, no_execute_key, zone};
use super::decide_zones::{Backoff, Census, DisruptionChange, Rates, State as ZoneState, Zone, update_disruption};
use super::keys::Loop;
use super::mark_pods::PodMarker;
use super::metrics::ZoneMetrics;
use super::watch_health::{WatchHealth, WatchState};
use super::{EVERY, sync};
use crate::context::Clock;

/// Maximum number of nodes that are written concurrently.
const MAX_CONCURRENT_WRITES: usize = 8;

/// Retries of a status update after conflicts.
const TRIES: usize = 5;

/// Limits from flags.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time between two passes.
    pub period: Duration,
    /// Grace periods for missing heartbeats.
    pub grace: Grace,
    /// Rates at which nodes are tainted.
    pub rates: Rates,
    /// Read the Lease from the API server before a node is marked unresponsive.
    pub breaker: bool,
}

/// State of a node from pass to pass.
struct NodeState {
    uid: Uid,
    health: Option<Health>,
    /// This controller's `NoExecute` taints, if the node had any when it was added, were removed.
    began_untainted: bool,
}

/// State from pass to pass.
#[derive(Default)]
struct State {
    nodes: HashMap<Str, NodeState>,
    watch_health: Option<WatchHealth>,
    /// A version of a renewed Lease that the API server has and the watch has not delivered: until the watch delivers
    /// it, no node is marked.
    behind: Option<WriteVersion>,
}

/// A node in a pass, with the status that its Ready condition has after the writes of this pass.
struct NodeInPass {
    node: Arc<Node>,
    ready: Option<Str>,
}

/// The Lease of a node without heartbeat, as read from the API server.
enum LeaseCheck {
    /// The API server has no renewal that the cache lacks. Also if the Lease does not exist, or was not to be read.
    NotRenewed,
    /// The Lease was renewed, in a version that is newer than the one in the cache.
    Renewed(u64),
    /// The Lease could not be read.
    Unclear,
}

/// The controller's two loops.
pub struct Monitor {
    nodes: Arc<Store<Node>>,
    leases: Arc<Store<Lease>>,
    pods: PodMarker,
    writer: Writer,
    recorder: Recorder,
    queue: Arc<Queue<Loop>>,
    clock: Clock,
    limits: Limits,
    metrics: ZoneMetrics,
    state: Mutex<State>,
    zones: Mutex<BTreeMap<Str, Zone>>,
}

impl Reconcile for Monitor {
    type Key = Loop;

    fn reconcile<'a>(&'a self, key: &'a Loop) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        match key {
            Loop::Monitor => self.pass().boxed(),
            Loop::Taint => self.taint().boxed(),
        }
    }
}

impl Monitor {
    #[allow(clippy::too_many_arguments, reason = "the parts have nothing in common, and there is one caller")]
    pub fn new(
        nodes: Arc<Store<Node>>,
        leases: Arc<Store<Lease>>,
        pods: Arc<Store<Pod>>,
        writer: Writer,
        recorder: Recorder,
        queue: Arc<Queue<Loop>>,
        clock: Clock,
        limits: Limits,
        metrics: ZoneMetrics,
    ) -> Self {
        let pods = PodMarker { pods, writer: writer.clone(), recorder: recorder.clone(), clock: clock.clone() };
        let state = Mutex::default();
        Self { nodes, leases, pods, writer, recorder, queue, clock, limits, metrics, state, zones: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn zones(&self) -> MutexGuard<'_, BTreeMap<Str, Zone>> {
        lock(&self.zones)
    }

    fn now(&self) -> Time {
        Time((self.clock)().as_second())
    }

    async fn pass(&self) -> Result<Outcome, ReconcileError> {
        let begun = Instant::now();
        let nodes = self.nodes.by_index(&EVERY, 0);
        let count = nodes.len();
        self.track_nodes(&nodes).await;
        // The removal of taints may take minutes. A heartbeat counts from the time at which it is read.
        let now = Instant::now();
        if self.check_lease_watch(now - begun, now) {
            self.examine(self.tracked_nodes(), now).await;
        }
        if let Some(health) = &mut self.state().watch_health {
            health.end_pass(Instant::now());
        }
        self.metrics.took(begun.elapsed(), count);
        Ok(Outcome::RequeueAfter(self.limits.period))
    }

    /// Returns the tracked nodes in the cache. The next pass tracks those that were added during this pass.
    fn tracked_nodes(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.nodes.by_index(&EVERY, 0);
        let state = self.state();
        nodes.retain(|node| state.nodes.get(&node.meta.name).is_some_and(|known| known.uid == node.meta.uid));
        nodes
    }

    /// Checks the Lease watch, `since_begin` after the begin of the pass. Returns true if the watch is up to date: only
    /// then does a missing heartbeat count.
    fn check_lease_watch(&self, since_begin: Duration, now: Instant) -> bool {
        let version = self.leases.progress().version();
        let mut state = self.state();
        let health = state.watch_health.get_or_insert_with(|| WatchHealth::new(version, now));
        let watch = health.check(version, self.limits.period + since_begin, now);
        if watch == WatchState::JustRecovered {
            warn!("the watch of Leases has recovered or the process was paused: all grace periods restart");
            refresh(&mut state, now);
        }
        if state.behind.is_some_and(|behind| self.leases.progress().contains(&behind)) {
            state.behind = None;
        }
        let stalled = watch == WatchState::Stalled;
        if stalled || state.behind.is_some() {
            let behind = state.behind.map(|behind| behind.version());
            warn!(stalled, behind, "the watch of Leases is not up to date: no node is marked unresponsive");
        }
        !stalled && state.behind.is_none()
    }

    /// Starts tracking added nodes, and stops tracking deleted ones. Removes this controller's `NoExecute` taints from
    /// the added ones.
    async fn track_nodes(&self, nodes: &[Arc<Node>]) {
        let (mut added, mut deleted, mut tainted) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut state = self.state();
            for node in nodes {
                let (name, uid) = (&node.meta.name, &node.meta.uid);
                if state.nodes.get(name).is_none_or(|known| known.uid != *uid) {
                    let new = NodeState { uid: uid.clone(), health: None, began_untainted: false };
                    state.nodes.insert(name.clone(), new);
                    added.push(node.clone());
                }
                if state.nodes.get(name).is_some_and(|known| !known.began_untainted) {
                    tainted.push(node.clone());
                }
            }
            if state.nodes.len() > nodes.len() {
                let present: HashSet<&Str> = nodes.iter().map(|node| &node.meta.name).collect();
                deleted.extend(
                    state.nodes.extract_if(|name, _| !present.contains(name)).map(|(name, old)| (name, old.uid)),
                );
            }
        }
        for (name, uid) in deleted {
            self.event(&name, &uid, "RemovingNode", format!("Node {name} event: Removing Node {name} from Controller"));
        }
        for node in &added {
            let name = &node.meta.name;
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            self.event(name, &node.meta.uid, "RegisteredNode", message);
        }
        let untainted = self.untaint(&tainted).await;
        let mut state = self.state();
        for name in &untainted {
            if let Some(known) = state.nodes.get_mut(name) {
                known.began_untainted = true;
            }
        }
    }

    fn event(&self, name: &Str, uid: &Uid, reason: &'static str, message: String) {
        let about = ObjectReference {
            api_version: "v1".into(),
            kind: Node::RESOURCE.kind.into(),
            name: name.clone(),
            uid: uid.to_string().into(),
            ..ObjectReference::default()
        };
        self.recorder.event(&about, EventType::Normal, reason, message);
    }

    /// Removes this controller's `NoExecute` taints from nodes. Returns the names of those without a failed write.
    async fn untaint(&self, nodes: &[Arc<Node>]) -> Vec<Str> {
        stream::iter(nodes.to_vec())
            .map(|node| async move { self.set_taint(&node, |_| true, None).await.then(|| node.meta.name.clone()) })
            .buffer_unordered(MAX_CONCURRENT_WRITES)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    /// Sets the `NoExecute` taint of this controller on a node, or removes it, if the node still `fits`. Returns false
    /// if the write failed.
    async fn set_taint(&self, node: &Arc<Node>, fits: impl Fn(&Node) -> bool, wanted: Option<&str>) -> bool {
        let now = self.now();
        let edit = |node: &Node| fits(node).then(|| no_execute(node, wanted, now)).flatten();
        let written = sync::edit_taints(&self.nodes, &self.writer, node, edit).await;
        match &written {
            Ok(true) => match wanted {
                Some(taint) => info!(node = %node.meta.name, taint, "NoExecute taint set"),
                None => info!(node = %node.meta.name, "NoExecute taints removed"),
            },
            Ok(false) => {}
            Err(error) => warn!(node = %node.meta.name, %error, "NoExecute taints not written"),
        }
        written.is_ok()
    }

    async fn examine(&self, nodes: Vec<Arc<Node>>, now: Instant) {
        let unresponsive = self.observe(&nodes, now);
        let verdicts = match self.check_leases(unresponsive).await {
            Ok(unresponsive) => self.mark_unresponsive(unresponsive).await,
            Err(newer) => {
                warn!(version = newer, "the watch of Leases is behind the API server: waiting for it");
                self.state().behind = Some(self.leases.progress().written(newer));
                return;
            }
        };
        let places: BTreeSet<Str> = nodes.iter().map(|node| zone(node)).collect();
        let all = nodes.clone();
        // A node that `mark_unresponsive` skipped does not count in its zone.
        let in_pass: Vec<NodeInPass> = nodes
            .into_iter()
            .filter_map(|node| {
                let ready = match verdicts.get(&node.meta.name) {
                    Some(true) => Some("Unknown".into()),
                    Some(false) => return None,
                    None => node.condition(READY).map(|condition| condition.status.clone()),
                };
                Some(NodeInPass { node, ready })
            })
            .collect();
        if self.update_zones(&places, &in_pass, now) == DisruptionChange::AllFailed {
            error!("no node is ready: no node is tainted for eviction until a node is ready");
        }
        if self.zones().values().all(|zone| zone.state == ZoneState::Full) {
            // All nodes lose their taints, including the skipped ones. Each pass repeats this, because a removal may
            // have failed, or a write that was in progress may have added a taint.
            self.untaint(&all).await;
        } else {
            stream::iter(&in_pass)
                .for_each_concurrent(MAX_CONCURRENT_WRITES, |in_pass| self.update_no_execute_taint(in_pass))
                .await;
        }
        // Taints are queued before any pod is marked: there may be thousands of pods, and evictions must not wait for
        // them.
        if self.zones().values().any(|zone| !zone.waiting.is_empty()) {
            self.queue.add(Loop::Taint);
        }
        let unresponsive = in_pass.iter().filter(|in_pass| in_pass.ready.as_deref() == Some("Unknown"));
        self.pods.mark_not_ready(unresponsive.map(|in_pass| &*in_pass.node)).await;
    }

    /// Records all heartbeats. Returns the nodes that had none for longer than their grace period and are not marked
    /// yet, with their health.
    fn observe(&self, nodes: &[Arc<Node>], now: Instant) -> Vec<(Arc<Node>, Health)> {
        let seconds = (self.clock)().as_second();
        let mut state = self.state();
        let mut unresponsive = Vec::new();
        for node in nodes {
            let Some(known) = state.nodes.get_mut(&node.meta.name) else { continue };
            let lease = self.leases.get(&lease_key(node));
            let age = Duration::from_secs(u64::try_from(seconds - node.meta.created.0).unwrap_or(0));
            let health = observe(known.health.take(), node.condition(READY), lease.as_deref(), age, now);
            if is_unresponsive(&health, self.limits.grace, now) && node.ready() != Some("Unknown") {
                unresponsive.push((node.clone(), health.clone()));
            }
            known.health = Some(health);
        }
        unresponsive
    }

    /// Compares the Leases of unresponsive nodes with the API server's, if the circuit breaker is on. Returns each node
    /// with false if its Lease could not be read, otherwise with true. The error is the newest version of a renewed
    /// Lease that the watch has not delivered.
    async fn check_leases(&self, unresponsive: Vec<(Arc<Node>, Health)>) -> Result<Vec<(Arc<Node>, bool)>, u64> {
        let checked: Vec<(Arc<Node>, LeaseCheck)> = stream::iter(unresponsive)
            .map(|(node, health)| async move {
                let checked =
                    if self.limits.breaker { self.check_lease(&node, &health).await } else { LeaseCheck::NotRenewed };
                (node, checked)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES)
            .collect()
            .await;
        let newer = checked.iter().filter_map(|(_, checked)| match checked {
            LeaseCheck::Renewed(version) => Some(*version),
            _ => None,
        });
        match newer.max() {
            Some(version) => Err(version),
            None => Ok(checked
                .into_iter()
                .map(|(node, checked)| (node, matches!(checked, LeaseCheck::NotRenewed)))
                .collect()),
        }
    }

    /// Reads the whole Lease, because a newer version proves no renewal: if that sufficed, a node that changes its
    /// Lease all the time would stop the decisions about all nodes.
    async fn check_lease(&self, node: &Node, health: &Health) -> LeaseCheck {
        let key = lease_key(node);
        let response = self.writer.get(&Lease::RESOURCE, &key).await;
        let lease = response.and_then(|response| Ok(response.decode::<Lease>(self.leases.decoding())?));
        let cached = self.leases.get(&key).map_or(0, |lease| lease.meta.version);
        match lease {
            // A renewal that the cache contains concerns only this node.
            Ok(lease) if health.is_renewed_by(&lease) && lease.meta.version > cached => {
                LeaseCheck::Renewed(lease.meta.version)
            }
            Ok(_) => LeaseCheck::NotRenewed,
            Err(error) if error.is_not_found() => LeaseCheck::NotRenewed,
            Err(error) => {
                warn!(node = %node.meta.name, %error, "Lease of the node cannot be read; skipping the node");
                LeaseCheck::Unclear
            }
        }
    }

    /// Sets the conditions of unresponsive nodes to Unknown. Returns true for each node that is marked now, and false
    /// for each one that has to be skipped.
    async fn mark_unresponsive(&self, unresponsive: Vec<(Arc<Node>, bool)>) -> HashMap<Str, bool> {
        stream::iter(unresponsive)
            .map(|(node, certain)| async move {
                let written = if certain { self.write_unresponsive(&node).await } else { Ok(false) };
                let written = written.unwrap_or_else(|error| {
                    warn!(node = %node.meta.name, %error, "status of the node cannot be updated; skipping the node");
                    false
                });
                (node.meta.name.clone(), written)
            })
            .buffer_unordered(MAX_CONCURRENT_WRITES)
            .collect()
            .await
    }

    /// Writes the status of one unresponsive node. Returns false if the node was deleted or replaced, its Lease was
    /// renewed since the pass read it, or its status has a heartbeat on the API server that the cache does not contain.
    async fn write_unresponsive(&self, node: &Arc<Node>) -> Result<bool, WriteError> {
        let key = node.meta.key();
        let heartbeat = |node: &Node| node.condition(READY).map(|condition| condition.heartbeat);
        let mut tries = 0..TRIES;
        loop {
            let response = match self.writer.get(&Node::RESOURCE, &key).await {
                Err(error) if error.is_not_found() => return Ok(false),
                response => response?,
            };
            let live: Node = response.decode(self.nodes.decoding())?;
            if live.meta.uid != node.meta.uid {
                return Ok(false);
            }
            let edits = unknown_conditions(&live, self.now());
            if edits.is_empty() {
                return Ok(true);
            }
            if heartbeat(&live) != heartbeat(node) || self.is_renewed(node) {
                debug!(node = %node.meta.name, "node has a newer heartbeat; skipping the node");
                return Ok(false);
            }
            let object = response.object().and_then(|object| Ok(with_conditions(object, &edits)?))?;
            match self.writer.replace(&Node::RESOURCE, &key, Some("status"), &object).await {
                Ok(response) => {
                    self.nodes.wrote(&key, response.meta().map_or(0, |meta| meta.version));
                    if live.ready() == Some("True") {
                        let name = &node.meta.name;
                        let message = format!("Node {name} status is now: NodeNotReady");
                        self.event(name, &node.meta.uid, "NodeNotReady", message);
                    }
                    return Ok(true);
                }
                Err(error) if error.is_conflict() && tries.next().is_some() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if a node's Lease was renewed since the pass read it.
    fn is_renewed(&self, node: &Node) -> bool {
        let lease = self.leases.get(&lease_key(node));
        let state = self.state();
        let health = state.nodes.get(&node.meta.name).and_then(|known| known.health.as_ref());
        lease.zip(health).is_some_and(|(lease, health)| health.is_renewed_by(&lease))
    }

    /// Updates the zones' states and rates. All grace periods restart when a node is ready again after all had failed.
    fn update_zones(&self, places: &BTreeSet<Str>, in_pass: &[NodeInPass], now: Instant) -> DisruptionChange {
        let mut census: BTreeMap<Str, Census> = BTreeMap::new();
        for NodeInPass { node, ready } in in_pass {
            let count = census.entry(zone(node)).or_default();
            if !is_excluded(node) {
                count.size += 1;
                count.ready += usize::from(ready.as_deref() == Some("True"));
            }
        }
        self.metrics.counted(&census);
        let change = {
            let mut zones = self.zones();
            zones.retain(|name, _| places.contains(name));
            for name in places {
                zones.entry(name.clone()).or_insert_with(|| Zone::new(&self.limits.rates, now));
            }
            update_disruption(&mut zones, &census, &self.limits.rates, now)
        };
        if change == DisruptionChange::SomeRecovered {
            info!("some nodes are ready again: all grace periods restart");
            refresh(&mut self.state(), Instant::now());
        }
        change
    }

    /// Updates a node's `NoExecute` taints for its Ready condition: immediately if the node loses a taint or has one
    /// already. Otherwise the node is added to the waiting nodes of its zone.
    async fn update_no_execute_taint(&self, NodeInPass { node, ready }: &NodeInPass) {
        let Some(ready) = ready.as_deref() else { return };
        let wanted = no_execute_key(ready);
        let tainted = no_execute(node, None, Time::default()).is_some();
        match wanted {
            None => {
                for zone in self.zones().values_mut() {
                    zone.waiting.remove(&node.meta.name);
                }
                if tainted {
                    self.set_taint(node, |node| node.ready() == Some(ready), None).await;
                }
            }
            // The node has used a token of its zone for its current taint: the replacement of that taint needs no
            // second token.
            Some(wanted) if tainted => {
                self.set_taint(node, |_| true, Some(wanted)).await;
            }
            Some(_) => {
                if let Some(zone) = self.zones().get_mut(&zone(node)) {
                    zone.waiting.add(&node.meta.name);
                }
            }
        }
    }

    /// Sets the `NoExecute` taints of waiting nodes, at the rates of their zones.
    async fn taint(&self) -> Result<Outcome, ReconcileError> {
        let names: Vec<Str> = self.zones().keys().cloned().collect();
        let mut next: Option<Duration> = None;
        for name in names {
            if let Some(wait) = self.taint_zone(&name).await {
                next = Some(next.map_or(wait, |next| next.min(wait)));
            }
        }
        Ok(next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Taints the waiting nodes of a zone. Returns the time until the next one may be tainted; `None` if no node waits,
    /// if the zone's rate is zero (each pass requeues the loop), or if the cache lags (its update requeues the loop).
    async fn taint_zone(&self, zone_name: &Str) -> Option<Duration> {
        loop {
            let (name, wait) = {
                let mut zones = self.zones();
                let zone = zones.get_mut(zone_name)?;
                let now = Instant::now();
                (zone.waiting.first().cloned()?, zone.pace.wait(now)?.max(zone.backoff.wait(now)))
            };
            let key = ObjectKey { namespace: "".into(), name: name.clone() };
            let node = match self.nodes.read_settled(&key, self.queue.waker(&Loop::Taint)) {
                Cached::Current(node) => Some(node).filter(|node| zone(node) == *zone_name),
                Cached::Absent => None,
                Cached::Lagging => return None,
            };
            let wanted = node.as_ref().and_then(|node| no_execute_key(node.ready()?));
            let missing = node.as_ref().is_some_and(|node| no_execute(node, wanted, Time::default()).is_some());
            let done = match (node, wanted) {
                (Some(node), Some(wanted)) if missing => {
                    if !wait.is_zero() {
                        return Some(wait);
                    }
                    self.taint_node(zone_name, &node, wanted).await
                }
                // The node was deleted, became ready, was tainted, or is in another zone now.
                _ => true,
            };
            let mut zones = self.zones();
            let zone = zones.get_mut(zone_name)?;
            zone.waiting.remove(&name);
            // The other nodes of the zone are next.
            if !done {
                zone.waiting.add(&name);
            }
        }
    }

    /// Taints a node, which uses its zone's token. Returns false if the write failed.
    async fn taint_node(&self, zone_name: &Str, node: &Arc<Node>, wanted: &str) -> bool {
        if let Some(zone) = self.zones().get_mut(zone_name) {
            zone.pace.take();
        }
        let now = self.now();
        let edit = |node: &Node| {
            (no_execute_key(node.ready()?) == Some(wanted)).then(|| no_execute(node, Some(wanted), now))?
        };
        let written = sync::edit_taints(&self.nodes, &self.writer, node, edit).await;
        match written {
            Ok(true) => {
                info!(node = %node.meta.name, taint = wanted, "NoExecute taint added to evict the node's pods");
                self.metrics.evicted(zone_name);
                if let Some(zone) = self.zones().get_mut(zone_name) {
                    zone.backoff = Backoff::default();
                }
                true
            }
            // On the API server the node is already tainted or deleted, its Ready condition has another status, or
            // another node has its name.
            Ok(false) => {
                if let Some(zone) = self.zones().get_mut(zone_name) {
                    zone.pace.give_back();
                }
                true
            }
            Err(error) => {
                warn!(node = %node.meta.name, %error, "could not taint node; retrying with backoff");
                if let Some(zone) = self.zones().get_mut(zone_name) {
                    zone.pace.give_back();
                    zone.backoff.extend(error.retry_after().unwrap_or_default(), Instant::now());
                }
                false
            }
        }
    }
}

/// Restarts all grace periods.
fn refresh(state: &mut State, now: Instant) {
    for health in state.nodes.values_mut().filter_map(|known| known.health.as_mut()) {
        health.alive = now;
    }
}

fn lease_key(node: &Node) -> ObjectKey {
    ObjectKey { namespace: NODE_LEASES.into(), name: node.meta.name.clone() }
}
