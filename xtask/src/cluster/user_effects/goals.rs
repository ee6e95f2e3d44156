//! The goals: users are never worse off with our manager than with upstream's.

use std::time::Duration;

use super::effects::{Sample, Summary};

/// Differences of times below this are due to the intervals of kubelets' probes and of this command's reads.
pub const RESOLUTION: Duration = Duration::from_secs(1);

/// The missed goals of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissedGoals {
    /// The change took longer than with upstream's manager, beyond the tolerance.
    pub time: bool,
    /// More requests failed per run than with upstream's manager.
    pub failed: bool,
    /// The last failed request was later after the change than with upstream's manager, beyond the tolerance.
    pub failures_lasted: bool,
}

/// Compares a scenario.
///
/// Numbers of failed requests are compared, without a tolerance, and not their rates: a slower manager has a lower rate
/// over a longer time. For times, the spread of upstream's runs is tolerated. The spread of our own runs is not: a
/// manager that is slow in some runs must not get a higher tolerance.
pub fn compare(own: &Summary, their: &Summary) -> MissedGoals {
    MissedGoals {
        time: is_longer(own.took, their.took),
        failed: own.failed_per_run() > their.failed_per_run(),
        failures_lasted: is_longer(own.failures_lasted, their.failures_lasted),
    }
}

/// Returns the tolerance of a comparison of medians with those of upstream's manager: the spread of its runs, and at
/// least [`RESOLUTION`].
pub fn tolerance(their: Sample) -> Duration {
    their.spread.max(RESOLUTION)
}

fn is_longer(own: Sample, their: Sample) -> bool {
    own.median > their.median + tolerance(their)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(median: f64, spread: f64) -> Sample {
        Sample { median: Duration::from_secs_f64(median), spread: Duration::from_secs_f64(spread) }
    }

    #[test]
    fn goal_is_missed_when_worse_than_upstream_beyond_the_tolerance() {
        let base = Summary {
            runs: 3,
            took: sample(10.0, 0.5),
            requests: 3000,
            failed: 30,
            failures_lasted: sample(20.0, 2.0),
            load: 0.0,
        };
        let (time, failed, lasted) = (
            MissedGoals { time: true, ..MissedGoals::default() },
            MissedGoals { failed: true, ..MissedGoals::default() },
            MissedGoals { failures_lasted: true, ..MissedGoals::default() },
        );
        for (name, own, missed) in [
            ("equal", base, MissedGoals::default()),
            ("faster", Summary { took: sample(5.0, 0.0), ..base }, MissedGoals::default()),
            ("slower within the resolution", Summary { took: sample(10.9, 0.0), ..base }, MissedGoals::default()),
            ("slower within our own spread", Summary { took: sample(12.9, 3.0), ..base }, time),
            ("slower", Summary { took: sample(11.1, 0.5), ..base }, time),
            ("fewer failures", Summary { failed: 29, ..base }, MissedGoals::default()),
            ("more failures", Summary { failed: 31, ..base }, failed),
            ("more failures at a lower rate", Summary { failed: 31, requests: 30_000, ..base }, failed),
            ("the same number of failures in fewer runs", Summary { failed: 30, runs: 2, ..base }, failed),
            (
                "a later failure within upstream's spread",
                Summary { failures_lasted: sample(21.9, 0.0), ..base },
                MissedGoals::default(),
            ),
            ("a later failure within our own spread", Summary { failures_lasted: sample(22.5, 9.0), ..base }, lasted),
            ("a later failure", Summary { failures_lasted: sample(22.5, 0.0), ..base }, lasted),
        ] {
            assert_eq!(compare(&own, &base), missed, "{name}");
        }
    }

    #[test]
    fn no_failed_request_is_tolerated_when_none_fails_with_upstream() {
        let base = Summary { runs: 3, requests: 3000, ..Summary::default() };
        let own = Summary { failed: 1, ..base };
        assert!(compare(&own, &base).failed);
        assert_eq!(compare(&base, &own), MissedGoals::default());
    }

    #[test]
    fn goal_is_missed_when_the_last_failed_request_is_later_after_a_node_failure() {
        let run = |took, requests, failed, lasted| Summary {
            runs: 1,
            took: sample(took, 0.0),
            requests,
            failed,
            failures_lasted: sample(lasted, 0.0),
            ..Summary::default()
        };
        let missed = compare(&run(56.5, 13_199, 444, 143.1), &run(57.4, 10_175, 423, 123.1));
        assert_eq!(missed, MissedGoals { failed: true, failures_lasted: true, time: false });
    }
}
