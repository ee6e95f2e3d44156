//! The comparison of both managers, as a table.

use std::fmt::Write as _;
use std::time::Duration;

use super::change::{Change, Disturbance};
use super::{Results, UserEffects};

/// Differences of times below this are due to the intervals of kubelets' probes and of this command's reads.
const RESOLUTION: Duration = Duration::from_secs(1);

/// Returns the name of a scenario.
pub fn name(change: Change, disturbance: Disturbance) -> String {
    let change = match change {
        Change::Scale => "scale 0 to 50",
        Change::Update => "rolling update of 20",
        Change::NodeFailure => "node fails",
    };
    let disturbance = match disturbance {
        Disturbance::None => "",
        Disturbance::Kill => ", manager killed",
        Disturbance::Replace => ", manager replaced by the other",
    };
    format!("{change}{disturbance}")
}

/// Returns a table with a row for each scenario of both managers.
pub fn markdown(ours: &Results, upstream: &Results) -> String {
    let mut text = String::from(
        "| scenario | ours, s | upstream, s | ours, failed requests | upstream, failed requests | ours, failures until s | upstream, failures until s | load: ours | upstream |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (scenario, our_effects) in ours {
        let Some(upstream_effects) = upstream.get(scenario) else { continue };
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.1} | {} | {} | {} | {} | {:.0} | {:.0} |",
            name(scenario.0, scenario.1),
            our_effects.took.as_secs_f64(),
            upstream_effects.took.as_secs_f64(),
            requests(our_effects),
            requests(upstream_effects),
            failures(our_effects),
            failures(upstream_effects),
            our_effects.load,
            upstream_effects.load,
        );
    }
    text
}

/// Returns a sentence for each goal that is missed: our times are at most upstream's with the tolerance of the sample, and
/// the rate of failed requests is at most upstream's.
pub fn missed_goals(ours: &Results, upstream: &Results) -> Vec<String> {
    let mut missed = Vec::new();
    for (scenario, own) in ours {
        let name = name(scenario.0, scenario.1);
        let Some(their) = upstream.get(scenario) else {
            missed.push(format!("{name}: was not measured with upstream's manager"));
            continue;
        };
        let tolerance = own.spread.max(their.spread).max(RESOLUTION);
        if own.took > their.took + tolerance {
            missed.push(format!(
                "{name}: {:.1} s, {:.2} of upstream's, beyond the tolerance of {:.1} s",
                own.took.as_secs_f64(),
                own.took.as_secs_f64() / their.took.as_secs_f64().max(f64::EPSILON),
                tolerance.as_secs_f64()
            ));
        }
        if own.failure_rate() > their.failure_rate() {
            missed.push(format!("{name}: {} failed requests, {} with upstream's", requests(own), requests(their)));
        }
    }
    missed
}

fn requests(effects: &UserEffects) -> String {
    if effects.requests == 0 {
        String::new()
    } else {
        format!("{} of {} ({:.2} %)", effects.failed, effects.requests, 100.0 * effects.failure_rate())
    }
}

fn failures(effects: &UserEffects) -> String {
    if effects.failed == 0 { String::new() } else { format!("{:.1}", effects.failures_lasted.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goal_is_missed_when_slower_than_the_tolerance_or_with_a_higher_rate_of_failures() {
        let scenario = (Change::Update, Disturbance::None);
        let effects = |seconds: f64, spread: f64, requests, failed| UserEffects {
            took: Duration::from_secs_f64(seconds),
            spread: Duration::from_secs_f64(spread),
            requests,
            failed,
            ..UserEffects::default()
        };
        let base = effects(10.0, 0.5, 1000, 2);
        for (name, own, missed) in [
            ("equal", base, 0),
            ("faster", effects(5.0, 0.0, 500, 1), 0),
            ("slower within the resolution", effects(10.9, 0.0, 1000, 2), 0),
            ("slower within the spread", effects(12.9, 3.0, 1000, 2), 0),
            ("slower", effects(11.1, 0.5, 1000, 2), 1),
            ("fewer failures at a higher rate", effects(5.0, 0.0, 400, 1), 1),
            ("slower with failures", effects(20.0, 0.5, 1000, 3), 2),
        ] {
            let missed_goals = missed_goals(&Results::from([(scenario, own)]), &Results::from([(scenario, base)]));
            assert_eq!(missed_goals.len(), missed, "{name}: {missed_goals:?}");
        }
        assert_eq!(missed_goals(&Results::from([(scenario, base)]), &Results::new()).len(), 1);
    }

    #[test]
    fn report_compares_scenarios_that_both_have() {
        let effects = |seconds, failed| UserEffects {
            took: Duration::from_secs(seconds),
            requests: 100,
            failed,
            failures_lasted: Duration::from_secs(2),
            load: 1.5,
            ..UserEffects::default()
        };
        let (update, failure) = ((Change::Update, Disturbance::Kill), (Change::NodeFailure, Disturbance::None));
        let ours = Results::from([(update, effects(3, 1)), (failure, effects(4, 1))]);
        let text = markdown(&ours, &Results::from([(update, effects(5, 0))]));
        let row = "| rolling update of 20, manager killed | 3.0 | 5.0 | 1 of 100 (1.00 %) | 0 of 100 (0.00 %) | 2.0 |  | 2 | 2 |\n";
        assert!(text.ends_with(row), "{text}");
    }
}
