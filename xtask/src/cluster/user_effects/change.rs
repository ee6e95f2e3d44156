//! The scenarios: changes and failures, and events in the middle of them that affect the manager.

use std::time::Duration;

/// A change or a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A Deployment is scaled from 0.
    Scale,
    /// A rolling update of all servers to another image.
    Update,
    /// A node fails, as after a loss of power.
    NodeFailure,
}

/// An event in the middle of a change that affects the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// No event.
    None,
    /// The manager is killed with SIGKILL and started again.
    Kill,
    /// The manager is ended with SIGTERM, and the other manager is started.
    Replace,
}

const CHANGES: [Change; 3] = [Change::Scale, Change::Update, Change::NodeFailure];
const DISTURBANCES: [Disturbance; 3] = [Disturbance::None, Disturbance::Kill, Disturbance::Replace];

impl Change {
    /// Returns the time from the change to its disturbance: well before the change is complete with upstream's manager.
    pub const fn delay_to_disturbance(self) -> Duration {
        match self {
            Self::Scale => Duration::from_secs(1),
            Self::Update => Duration::from_secs(5),
            // A node is unresponsive after 50 s without a heartbeat.
            Self::NodeFailure => Duration::from_secs(25),
        }
    }
}

/// Returns the number of rounds, in each of which all scenarios are run with both managers. A tolerance can be computed
/// only from several rounds.
pub const fn rounds(quick: bool) -> usize {
    if quick { 1 } else { 3 }
}

/// Returns all scenarios, or those of a quick run.
pub fn scenarios(quick: bool) -> Vec<(Change, Disturbance)> {
    let all = CHANGES.iter().flat_map(|change| DISTURBANCES.map(|disturbance| (*change, disturbance)));
    all.filter(|(change, disturbance)| !quick || *change == Change::Update || *disturbance == Disturbance::None)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_run_disturbs_only_rolling_updates() {
        assert_eq!(scenarios(false).len(), 9);
        let quick = scenarios(true);
        assert_eq!(quick.len(), 5);
        assert!(quick.contains(&(Change::Update, Disturbance::Replace)));
        assert!(!quick.contains(&(Change::NodeFailure, Disturbance::Kill)));
    }
}
