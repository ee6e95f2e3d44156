//! What becomes of a node that is not ready, by what the cloud says of its machine: all policy, no IO.
//!
//! A node is deleted only when the cloud said twice, some time apart, that its machine is gone, and not while it is so
//! young that the cloud may not show its machine yet. A machine that is there begins the count anew; an error says
//! nothing, one way or the other.

use std::time::Duration;

use providers::InstanceState;

/// How old a node must be before its machine's absence counts: clouds show new machines with delay.
pub const YOUNG: Duration = Duration::from_secs(60);
/// How far apart the first and the last confirmation must at least be.
pub const APART: Duration = Duration::from_secs(4);
/// How often the cloud must say that the machine is gone.
pub const CONFIRMATIONS: u32 = 2;

/// What the cloud has said of a machine that it says is gone, since it last said that it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// How often.
    pub times: u32,
    /// For how long.
    pub since: Duration,
}

/// A node that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The Ready condition is True.
    pub ready: bool,
    /// It has the shutdown taint.
    pub shut_down: bool,
    /// How long it exists.
    pub age: Duration,
    /// What the cloud said before, if that was that the machine is gone.
    pub missing: Option<Missing>,
}

/// What to do about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Leave,
    /// Nothing yet: its machine seems to be gone.
    Suspect,
    /// Add the shutdown taint.
    MarkShutDown,
    /// Remove the shutdown taint.
    MarkStarted,
    /// Delete it.
    Delete,
}

/// Whether the cloud is asked about a node; one that is ready is there (cloud-provider,
/// CloudNodeLifecycleController.MonitorNodes).
pub fn asks(facts: &Facts) -> bool {
    !facts.ready
}

/// What to do about a node, with what the cloud said now if it was asked. `missing` counts that answer too.
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
