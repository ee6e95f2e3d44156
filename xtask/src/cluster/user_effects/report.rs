//! The comparison of both managers, as a table.

use std::fmt::Write as _;

use super::change::{Change, Disturbance};
use super::{Results, UserEffects};

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

fn requests(effects: &UserEffects) -> String {
    if effects.requests == 0 { String::new() } else { format!("{} of {}", effects.failed, effects.requests) }
}

fn failures(effects: &UserEffects) -> String {
    if effects.failed == 0 { String::new() } else { format!("{:.1}", effects.failures_lasted.as_secs_f64()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn report_compares_scenarios_that_both_have() {
        let effects = |seconds, failed| UserEffects {
            took: Duration::from_secs(seconds),
            requests: 100,
            failed,
            failures_lasted: Duration::from_secs(2),
            load: 1.5,
        };
        let (update, failure) = ((Change::Update, Disturbance::Kill), (Change::NodeFailure, Disturbance::None));
        let ours = Results::from([(update, effects(3, 1)), (failure, effects(4, 1))]);
        let text = markdown(&ours, &Results::from([(update, effects(5, 0))]));
        let row = "| rolling update of 20, manager killed | 3.0 | 5.0 | 1 of 100 | 0 of 100 | 2.0 |  | 2 | 2 |\n";
        assert!(text.ends_with(row), "{text}");
    }
}
