//! Rates at which nodes of a zone are tainted, by the number of its nodes that are not ready.
//!
//! A zone in which most nodes fail is more likely disconnected than dead. If all nodes of the cluster fail, this
//! process is more likely disconnected than they are dead: no node is tainted. Upstream: pkg/controller/nodelifecycle,
//! handleDisruption.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use kinds::Str;
use runtime::backoff::doubled;
use tokio::time::Instant;

/// Disruption state of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// Not evaluated yet, or none of its nodes counts.
    #[default]
    Initial,
    /// Enough of its nodes are ready.
    Normal,
    /// A large share of its nodes is not ready.
    Partial,
    /// None of its nodes is ready.
    Full,
}

/// Rates from flags.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    /// Nodes per second in a zone that is not partially disrupted.
    pub normal: f64,
    /// Nodes per second in a large zone that is partially disrupted.
    pub reduced: f64,
    /// A zone of more nodes than this is large.
    pub large: usize,
    /// Share of nodes that are not ready at which a zone becomes partially disrupted, if they are more than two.
    pub threshold: f64,
}

impl Rates {
    /// Returns the rate for a zone that had `size` nodes when it entered its state. A zone without any ready node has
    /// the normal rate: its pods can run in another zone.
    fn of(&self, state: State, size: usize) -> f64 {
        match state {
            State::Partial if size > self.large => self.reduced,
            State::Partial => 0.0,
            State::Initial | State::Normal | State::Full => self.normal,
        }
    }
}

/// Numbers of nodes of a zone, without excluded ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Census {
    /// All nodes.
    pub size: usize,
    /// Ready nodes.
    pub ready: usize,
}

impl Census {
    /// Returns the zone's state. Upstream: pkg/controller/nodelifecycle, ComputeZoneState.
    pub fn state(self, threshold: f64) -> State {
        let failed = self.size - self.ready;
        match self.size {
            0 => State::Initial,
            _ if self.ready == 0 => State::Full,
            // The flag for the threshold has single precision, so the comparison also uses single precision.
            size if failed > 2 && failed as f32 / size as f32 >= threshold as f32 => State::Partial,
            _ => State::Normal,
        }
    }
}

/// A token bucket that holds one token.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    rate: f64,
    tokens: f64,
    at: Instant,
}

impl Pace {
    /// Creates a full bucket.
    pub fn new(rate: f64, now: Instant) -> Self {
        Self { rate, tokens: 1.0, at: now }
    }

    /// Returns the time until there is a token; `None`: never.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        if self.rate <= 0.0 {
            return None;
        }
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + gained).min(1.0);
        self.at = now;
        let missing = (1.0 - self.tokens).max(0.0) / self.rate;
        if missing == 0.0 {
            return Some(Duration::ZERO);
        }
        // The time of a tiny rate does not fit into a duration.
        let wait = Duration::try_from_secs_f64(missing).unwrap_or(Duration::MAX);
        // The wait is slightly longer than needed: otherwise rounding could leave less than one token in the bucket.
        Some(wait.saturating_add(Duration::from_millis(1)))
    }

    /// Takes the token after [`Pace::wait`] returned zero.
    pub fn take(&mut self) {
        self.tokens = (self.tokens - 1.0).max(0.0);
    }

    /// Returns an unused token to the bucket.
    pub fn give_back(&mut self) {
        self.tokens = 1.0;
    }

    /// Changes the rate. A full bucket stays full; any other bucket, and one whose rate was zero, becomes empty.
    /// Upstream: pkg/controller/nodelifecycle, RateLimitedTimedQueue.SwapLimiter.
    pub fn set_rate(&mut self, rate: f64, now: Instant) {
        if self.rate == rate {
            return;
        }
        let full = self.wait(now).is_some_and(|wait| wait.is_zero());
        *self = Self { rate, tokens: if full { 1.0 } else { 0.0 }, at: now };
    }
}

/// First and maximum delay after failed writes of taints. The maximum is the time between two taints at the default
/// rate.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// The delay of a zone's next taint after consecutive failed writes. It belongs to the zone, not to the node: if each
/// write fails, the number of requests does not grow with the number of nodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Backoff {
    failures: u32,
    ends: Option<Instant>,
}

impl Backoff {
    /// Records a failed write. `requested` is the minimum delay that the API server requests.
    pub fn extend(&mut self, requested: Duration, now: Instant) {
        let (first, max) = RETRY_DELAYS;
        let delay = doubled(first, self.failures, max);
        self.failures = self.failures.saturating_add(1);
        self.ends = Some(now + delay.max(requested));
    }

    /// Returns the remaining delay.
    pub fn wait(&self, now: Instant) -> Duration {
        self.ends.map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now))
    }
}

/// A zone: its state, and its nodes that wait for a `NoExecute` taint.
#[derive(Debug)]
pub struct Zone {
    /// State after the last pass.
    pub state: State,
    /// Number of counted nodes when the zone entered its state. The rate depends on it: a zone that grows or shrinks
    /// while it is partially disrupted keeps its rate. Upstream: pkg/controller/nodelifecycle, setLimiterInZone, which
    /// is called at changes of the state.
    size_at_change: usize,
    /// Limits the rate of its taints.
    pub pace: Pace,
    /// Delays its next taint after a failed write.
    pub backoff: Backoff,
    /// Nodes that wait for their taint.
    pub waiting: Waiting,
}

/// Names of nodes without duplicates, oldest first. In a large outage all nodes of a zone are here, and each pass
/// searches for each of them.
#[derive(Debug, Default)]
pub struct Waiting {
    order: VecDeque<Str>,
    names: HashSet<Str>,
}

impl Waiting {
    /// Adds a node at the end, unless it is contained already.
    pub fn add(&mut self, name: &Str) {
        if self.names.insert(name.clone()) {
            self.order.push_back(name.clone());
        }
    }

    /// Removes a node.
    pub fn remove(&mut self, name: &Str) {
        if self.names.remove(name) {
            self.order.retain(|waiting| waiting != name);
        }
    }

    /// Returns the node that has waited the longest.
    pub fn first(&self) -> Option<&Str> {
        self.order.front()
    }

    /// Returns true if no node waits.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl Zone {
    /// Creates a zone that was never evaluated.
    pub fn new(rates: &Rates, now: Instant) -> Self {
        let pace = Pace::new(rates.normal, now);
        Self {
            state: State::Initial,
            size_at_change: 0,
            pace,
            backoff: Backoff::default(),
            waiting: Waiting::default(),
        }
    }
}

/// Change between a cluster in which no node is ready and one in which some nodes are ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisruptionChange {
    /// There is none.
    None,
    /// No node of the cluster is ready: the `NoExecute` taints of this controller are removed and none is added.
    AllFailed,
    /// Some node is ready again: all grace periods restart.
    SomeRecovered,
}

/// Updates the states and rates of all zones from a census. A zone without counted nodes keeps its state unless all
/// counted nodes fail, or did in the last pass. Without any counted node, nothing changes.
pub fn update_disruption(
    zones: &mut BTreeMap<Str, Zone>,
    census: &BTreeMap<Str, Census>,
    rates: &Rates,
    now: Instant,
) -> DisruptionChange {
    let state = |name: &Str| census.get(name).map_or(State::Initial, |census| census.state(rates.threshold));
    let counted = || census.iter().filter(|(_, census)| census.size > 0).map(|(name, _)| name);
    if counted().next().is_none() {
        return DisruptionChange::None;
    }
    let all_fail = counted().all(|name| state(name) == State::Full);
    // A new zone has the state Initial. It does not show that some node was ready before.
    let before = |name: &Str| zones.get(name).map_or(State::Initial, |zone| zone.state);
    let all_failed = counted().any(|name| before(name) == State::Full)
        && counted().all(|name| matches!(before(name), State::Full | State::Initial));
    for (name, zone) in zones.iter_mut() {
        let size = census.get(name).map_or(0, |census| census.size);
        if all_fail {
            zone.state = State::Full;
            zone.waiting = Waiting::default();
            zone.pace.set_rate(0.0, now);
        } else if size > 0 || all_failed {
            let before = std::mem::replace(&mut zone.state, state(name));
            if zone.state != before {
                zone.size_at_change = size;
            }
            zone.pace.set_rate(rates.of(zone.state, zone.size_at_change), now);
        }
    }
    match (all_failed, all_fail) {
        (false, true) => DisruptionChange::AllFailed,
        (true, false) => DisruptionChange::SomeRecovered,
        _ => DisruptionChange::None,
    }
}
