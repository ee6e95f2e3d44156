//! The effects of a change on users: one run, and the summary of several.

use std::collections::BTreeMap;
use std::time::Duration;

use super::change::{Change, Disturbance};

/// A change, and the event in the middle of it.
pub type Scenario = (Change, Disturbance);

/// The runs of one manager.
pub type Runs = BTreeMap<Scenario, Vec<UserEffects>>;

/// Effects of one change on users.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UserEffects {
    /// From the change until the desired state was reached.
    pub took: Duration,
    /// Requests sent during the change.
    pub requests: usize,
    /// Requests that failed.
    pub failed: usize,
    /// From the change to the last request that failed; zero if none did.
    pub failures_lasted: Duration,
    /// Load average of the machine over the last minute, at the end.
    pub load: f64,
}

/// A duration that was measured several times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The median.
    pub median: Duration,
    /// The longest minus the shortest.
    pub spread: Duration,
}

/// Effects of several runs of the same scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The number of runs.
    pub runs: usize,
    /// From the change until the desired state was reached.
    pub took: Sample,
    /// Requests of all runs.
    pub requests: usize,
    /// Requests that failed.
    pub failed: usize,
    /// From the change to the last request that failed.
    pub failures_lasted: Sample,
    /// The highest load average.
    pub load: f64,
}

impl Sample {
    fn of(mut durations: Vec<Duration>) -> Self {
        durations.sort();
        // Of an even number of runs: the mean of the two in the middle.
        let at = |index: usize| durations.get(index).copied().unwrap_or_default();
        let median = (at(durations.len().saturating_sub(1) / 2) + at(durations.len() / 2)) / 2;
        let spread = match (durations.first(), durations.last()) {
            (Some(first), Some(last)) => last.saturating_sub(*first),
            _ => Duration::ZERO,
        };
        Self { median, spread }
    }
}

impl Summary {
    /// Returns the summary of runs.
    pub fn of(runs: &[UserEffects]) -> Self {
        Self {
            runs: runs.len(),
            took: Sample::of(runs.iter().map(|run| run.took).collect()),
            requests: runs.iter().map(|run| run.requests).sum(),
            failed: runs.iter().map(|run| run.failed).sum(),
            failures_lasted: Sample::of(runs.iter().map(|run| run.failures_lasted).collect()),
            load: runs.iter().map(|run| run.load).fold(0.0, f64::max),
        }
    }

    /// Returns the number of failed requests per run.
    pub fn failed_per_run(&self) -> f64 {
        if self.runs == 0 { 0.0 } else { self.failed as f64 / self.runs as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_medians_and_spreads_and_all_requests() {
        let run = |seconds, failed: usize| UserEffects {
            took: Duration::from_secs(seconds),
            requests: 100,
            failed,
            failures_lasted: Duration::from_secs(10 * failed as u64),
            load: seconds as f64,
        };
        let sample =
            |median, spread| Sample { median: Duration::from_secs(median), spread: Duration::from_secs(spread) };
        let expected = Summary {
            runs: 3,
            took: sample(8, 2),
            requests: 300,
            failed: 6,
            failures_lasted: sample(20, 30),
            load: 9.0,
        };
        let summary = Summary::of(&[run(9, 1), run(8, 4), run(7, 1)]);
        assert_eq!(summary, Summary { failures_lasted: sample(10, 30), ..expected });
        assert!((summary.failed_per_run() - 2.0).abs() < f64::EPSILON);
        assert_eq!(Summary::of(&[run(9, 2), run(8, 3), run(7, 1)]).failures_lasted, sample(20, 20));
        assert_eq!(Summary::of(&[run(9, 0), run(7, 0)]).took, sample(8, 2));
        assert_eq!(Summary::of(&[]), Summary::default());
    }
}
