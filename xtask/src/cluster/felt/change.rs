//! The scenarios: changes and failures, and what happens to the manager in the middle of them.

use std::time::Duration;

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A Deployment without servers gets many.
    Scale,
    /// All servers get another image.
    Update,
    /// A node loses power.
    NodeDeath,
}

/// What happens to the manager in the middle of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// Nothing.
    None,
    /// It is killed without a chance to finish, and started again.
    Kill,
    /// It ends as in a rollout, and the other manager is started.
    Replace,
}

const CHANGES: [Change; 3] = [Change::Scale, Change::Update, Change::NodeDeath];
const DISTURBANCES: [Disturbance; 3] = [Disturbance::None, Disturbance::Kill, Disturbance::Replace];

impl Change {
    /// How long after the change the manager is disturbed: well before upstream's manager is done.
    pub const fn middle(self) -> Duration {
        match self {
            Self::Scale => Duration::from_secs(1),
            Self::Update => Duration::from_secs(5),
            // A node is given up after 50 s without a heartbeat.
            Self::NodeDeath => Duration::from_secs(25),
        }
    }
}

/// All scenarios, or those of a quick run.
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
        assert!(!quick.contains(&(Change::NodeDeath, Disturbance::Kill)));
    }
}
