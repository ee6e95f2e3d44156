//! The decision about a node that is not ready, given the state of its instance: policy, no IO.
//!
//! A node is deleted only after the cloud has reported twice, [`APART`] from each other, that its instance does not
//! exist, and only if the node is older than [`YOUNG`]. An existing instance resets the count. An error changes
//! nothing.

use std::time::Duration;

use providers::InstanceState;

/// Minimum age of a node that is deleted: clouds list new instances with delay.
pub const YOUNG: Duration = Duration::from_secs(60);
/// Minimum time between the first and the last confirmation.
pub const APART: Duration = Duration::from_secs(4);
/// Number of confirmations that the instance does not exist.
pub const CONFIRMATIONS: u32 = 2;

/// The cloud's reports that an instance does not exist, since it was last found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Their number.
    pub times: u32,
    /// The time since the first one.
    pub since: Duration,
}

/// The facts about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The Ready condition is True.
    pub ready: bool,
    /// It has the shutdown taint.
    pub shut_down: bool,
    /// Its age.
    pub age: Duration,
    /// Earlier reports that its instance does not exist.
    pub missing: Option<Missing>,
}

/// The action for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Change nothing.
    Leave,
    /// Change nothing yet: the instance seems to be missing, which is not confirmed.
    Suspect,
    /// Add the shutdown taint.
    MarkShutDown,
    /// Remove the shutdown taint.
    MarkStarted,
    /// Delete it.
    Delete,
}

/// Reports whether the instance of a node is requested from the cloud. The instance of a ready node exists.
///
/// Upstream: cloud-provider, CloudNodeLifecycleController.MonitorNodes.
pub fn needs_instance_state(facts: &Facts) -> bool {
    !facts.ready
}

/// Returns the action for a node. `state` is the state of its instance, if it was requested. `facts.missing` includes
/// that result.
pub fn verdict(facts: &Facts, state: Option<&InstanceState>) -> Verdict {
    if facts.ready {
        return if facts.shut_down { Verdict::MarkStarted } else { Verdict::Leave };
    }
    match state {
        Some(InstanceState::Gone) => {
            let confirmed =
                facts.missing.is_some_and(|missing| missing.times >= CONFIRMATIONS && missing.since >= APART);
            if confirmed && facts.age >= YOUNG { Verdict::Delete } else { Verdict::Suspect }
        }
        Some(InstanceState::Stopped) if !facts.shut_down => Verdict::MarkShutDown,
        _ => Verdict::Leave,
    }
}
