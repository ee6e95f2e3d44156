//! The decision about a node, given its readiness and the state of its instance: policy, no IO.
//!
//! A node is deleted only if it is older than [`MIN_NODE_AGE`], and the cloud has reported twice, at least
//! [`MIN_REPORT_SPAN`] apart, that its instance does not exist. The count is reset if the node is ready or the instance
//! exists. An error changes nothing.

use std::time::Duration;

use providers::InstanceState;

/// Minimum age of a node that is deleted: clouds list new instances with delay.
pub const MIN_NODE_AGE: Duration = Duration::from_secs(60);
/// Minimum time between the first and the last report that the instance does not exist.
pub const MIN_REPORT_SPAN: Duration = Duration::from_secs(4);
/// Required number of reports that the instance does not exist.
pub const REQUIRED_REPORTS: u32 = 2;

/// The cloud's reports that an instance does not exist, since it was last found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Number of reports.
    pub times: u32,
    /// Time since the first report.
    pub since: Duration,
}

/// Observed state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The Ready condition is True.
    pub ready: bool,
    /// The node has the shutdown taint.
    pub shut_down: bool,
    /// Its age.
    pub age: Duration,
    /// Reports that its instance does not exist, including the current one; `None` before the state is read.
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
    /// Delete the node.
    Delete,
}

/// Returns true if the state of a node's instance has to be read from the cloud. The instance of a ready node exists.
///
/// Upstream: cloud-provider, CloudNodeLifecycleController.MonitorNodes.
pub fn needs_instance_state(facts: &Facts) -> bool {
    !facts.ready
}

/// Returns the action for a node. `state` is the state of its instance, if it was read. `facts.missing` includes that
/// result.
pub fn verdict(facts: &Facts, state: Option<&InstanceState>) -> Verdict {
    if facts.ready {
        return if facts.shut_down { Verdict::MarkStarted } else { Verdict::Leave };
    }
    match state {
        Some(InstanceState::Gone) => {
            let confirmed = facts
                .missing
                .is_some_and(|missing| missing.times >= REQUIRED_REPORTS && missing.since >= MIN_REPORT_SPAN);
            if confirmed && facts.age >= MIN_NODE_AGE { Verdict::Delete } else { Verdict::Suspect }
        }
        Some(InstanceState::Stopped) if !facts.shut_down => Verdict::MarkShutDown,
        _ => Verdict::Leave,
    }
}
