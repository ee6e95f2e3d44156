//! Policy: a node is unresponsive if, for longer than its grace period, neither the heartbeat time of its Ready
//! condition has changed nor its Lease was renewed.
//!
//! Only this process's clock counts; the times that kubelets write are compared for change and never with this clock.
//! Upstream: pkg/controller/nodelifecycle, tryUpdateNodeHealth.

use std::time::Duration;

use kinds::meta::Time;
use kinds::node::{ConditionEdit, NodeCondition, READY};
use kinds::{Lease, Node};
use tokio::time::Instant;

/// The state of a node from pass to pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The start of the current grace period, by this process's clock: the last heartbeat, a restart of all grace
    /// periods, or the creation of a node that had no heartbeat.
    pub alive: Instant,
    /// The heartbeat time of the node's Ready condition in the last pass; `None` without such a condition.
    heartbeat: Option<Time>,
    /// The last observed renewal of the node's Lease; `None` if no Lease was observed.
    lease: Option<Renewal>,
}

/// The last renewal of a Lease; `None` without a time.
type Renewal = Option<(i64, i32)>;

impl Health {
    /// Returns true if a Lease is the first one, or was renewed since its last observed renewal. After a Lease without
    /// a time, no Lease counts as renewed until the Ready condition has a new heartbeat time.
    pub fn is_renewed_by(&self, lease: &Lease) -> bool {
        self.lease.is_none_or(|saved| saved.is_some() && saved < lease.renewed)
    }
}

/// Grace periods for missing heartbeats.
#[derive(Debug, Clone, Copy)]
pub struct Grace {
    /// Grace period of a node without a Ready condition.
    pub startup: Duration,
    /// Grace period of any other node.
    pub running: Duration,
}

/// Returns the health of a node after its Ready condition and its Lease were observed. `age` is the age of the node.
pub fn observe(
    before: Option<Health>,
    ready: Option<&NodeCondition>,
    lease: Option<&Lease>,
    age: Duration,
    now: Instant,
) -> Health {
    let heartbeat = ready.map(|condition| condition.heartbeat);
    let fresh = Health { alive: now, heartbeat, lease: None };
    let mut health = match (before, ready) {
        (None, None) => Health { alive: now.checked_sub(age).unwrap_or(now), ..fresh },
        // The removal of a condition is not a heartbeat.
        (Some(before), None) => Health { heartbeat: None, ..before },
        (Some(before), Some(_)) if before.heartbeat == heartbeat => before,
        (_, Some(_)) => fresh,
    };
    if let Some(lease) = lease.filter(|lease| health.is_renewed_by(lease)) {
        health.alive = now;
        health.lease = Some(lease.renewed);
    }
    health
}

/// Returns true if the node has had no heartbeat for longer than its grace period.
pub fn is_unresponsive(health: &Health, grace: Grace, now: Instant) -> bool {
    let grace = if health.heartbeat.is_some() { grace.running } else { grace.startup };
    now.saturating_duration_since(health.alive) > grace
}

/// The conditions that the kubelet reports. Other clients report the network condition.
const KUBELET_CONDITIONS: [&str; 4] = [READY, "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Returns the changed conditions of an unresponsive node; none if its Ready condition is Unknown already.
pub fn unknown_conditions(node: &Node, now: Time) -> Vec<ConditionEdit> {
    if node.ready() == Some("Unknown") {
        return Vec::new();
    }
    let edit = |kind, (reason, message), heartbeat| ConditionEdit {
        kind,
        status: "Unknown",
        reason,
        message,
        heartbeat,
        transition: now,
    };
    KUBELET_CONDITIONS
        .into_iter()
        .filter_map(|kind| match node.condition(kind) {
            None => Some(edit(
                kind,
                ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
                Some(node.meta.created),
            )),
            Some(known) if &*known.status == "Unknown" => None,
            Some(_) => Some(edit(kind, ("NodeStatusUnknown", "Kubelet stopped posting node status."), None)),
        })
        .collect()
}
