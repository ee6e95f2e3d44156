//! The comparison of both managers, as a table.

use std::fmt::Write as _;
use std::time::Duration;

use super::change::{Change, Disturbance};
use super::effects::{Runs, Scenario, Summary};
use super::goals::{self, MissedGoals};

/// Returns the name of a scenario.
pub fn name((change, disturbance): Scenario) -> String {
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

/// Returns the table of all scenarios, and the sentences about `missed` goals.
pub fn markdown(ours: &Runs, upstream: &Runs, missed: &[String]) -> String {
    let sentences: String = missed.iter().map(|goal| format!("* {goal}\n")).collect();
    let end =
        if missed.is_empty() { "No goal is missed.\n".to_owned() } else { format!("Missed goals:\n\n{sentences}") };
    format!("{}\n{end}", table(ours, upstream))
}

/// Returns a table with a row for each scenario of both managers, with missed goals in bold.
fn table(ours: &Runs, upstream: &Runs) -> String {
    let mut text = format!(
        "Medians, and sums of requests; ours / upstream's. **Bold**: a goal is missed. A median of ours may exceed \
         upstream's by the tolerance: the longest run of upstream's manager minus its shortest one, and at least {} s.\n\n\
         | scenario | runs | seconds | tolerance | failed requests | last failed request (s after the change) | tolerance | load |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        goals::RESOLUTION.as_secs()
    );
    for (scenario, own, their) in both(ours, upstream) {
        let missed = goals::compare(&own, &their);
        let _ = writeln!(
            text,
            "| {} | {} / {} | {} / {} | {} | {} / {} | {} / {} | {} | {:.0} / {:.0} |",
            name(scenario),
            own.runs,
            their.runs,
            mark(seconds(own.took.median), missed.time),
            seconds(their.took.median),
            seconds(goals::tolerance(their.took)),
            mark(requests(&own), missed.failed),
            requests(&their),
            mark(failures(&own), missed.failures_lasted),
            failures(&their),
            seconds(goals::tolerance(their.failures_lasted)),
            own.load,
            their.load,
        );
    }
    text
}

/// Returns a sentence for each goal that is missed, and for each scenario that was not measured with both managers.
pub fn missed_goals(ours: &Runs, upstream: &Runs, scenarios: &[Scenario]) -> Vec<String> {
    let mut sentences = Vec::new();
    for scenario in scenarios {
        if !(ours.contains_key(scenario) && upstream.contains_key(scenario)) {
            sentences.push(format!("{}: was not measured with both managers", name(*scenario)));
        }
    }
    for (scenario, own, their) in both(ours, upstream) {
        sentences.extend(
            sentences_of(goals::compare(&own, &their), &own, &their)
                .into_iter()
                .map(|text| format!("{}: {text}", name(scenario))),
        );
    }
    sentences
}

fn sentences_of(missed: MissedGoals, own: &Summary, their: &Summary) -> Vec<String> {
    let mut sentences = Vec::new();
    if missed.time {
        sentences.push(format!(
            "took {} s, and {} s with upstream's manager, which exceeds the tolerance of {} s",
            seconds(own.took.median),
            seconds(their.took.median),
            seconds(goals::tolerance(their.took))
        ));
    }
    if missed.failed {
        sentences.push(format!(
            "{:.1} failed requests a run, and {:.1} with upstream's manager",
            own.failed_per_run(),
            their.failed_per_run()
        ));
    }
    if missed.failures_lasted {
        sentences.push(format!(
            "the last failed request was {} s after the change, and {} s with upstream's manager, which exceeds the tolerance of {} s",
            seconds(own.failures_lasted.median),
            seconds(their.failures_lasted.median),
            seconds(goals::tolerance(their.failures_lasted))
        ));
    }
    sentences
}

/// Returns the summaries of scenarios that were measured with both managers.
fn both(ours: &Runs, upstream: &Runs) -> Vec<(Scenario, Summary, Summary)> {
    let pairs = ours.iter().filter_map(|(scenario, own)| Some((*scenario, own, upstream.get(scenario)?)));
    pairs.map(|(scenario, own, their)| (scenario, Summary::of(own), Summary::of(their))).collect()
}

fn mark(text: String, is_missed: bool) -> String {
    if is_missed { format!("**{text}**") } else { text }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1}", duration.as_secs_f64())
}

fn requests(summary: &Summary) -> String {
    if summary.requests == 0 { "–".to_owned() } else { format!("{} of {}", summary.failed, summary.requests) }
}

fn failures(summary: &Summary) -> String {
    if summary.failed == 0 { "–".to_owned() } else { seconds(summary.failures_lasted.median) }
}

#[cfg(test)]
mod tests {
    use super::super::effects::UserEffects;
    use super::*;

    const UPDATE: Scenario = (Change::Update, Disturbance::Kill);
    const FAILURE: Scenario = (Change::NodeFailure, Disturbance::None);

    fn run(took: u64, failed: usize, lasted: u64) -> UserEffects {
        UserEffects {
            took: Duration::from_secs(took),
            requests: 100,
            failed,
            failures_lasted: Duration::from_secs(lasted),
            load: 1.5,
        }
    }

    #[test]
    fn report_compares_scenarios_that_both_have_and_marks_missed_goals() {
        let ours = Runs::from([(UPDATE, vec![run(3, 1, 2)]), (FAILURE, vec![run(4, 1, 2)])]);
        let text = table(&ours, &Runs::from([(UPDATE, vec![run(5, 0, 0)])]));
        let row = "| rolling update of 20, manager killed | 1 / 1 | 3.0 / 5.0 | 1.0 | **1 of 100** / 0 of 100 | **2.0** / – | 1.0 | 2 / 2 |\n";
        assert!(text.ends_with(row), "{text}");
        let text = table(&Runs::from([(FAILURE, vec![run(9, 3, 30)])]), &Runs::from([(FAILURE, vec![run(4, 3, 30)])]));
        let row = "| node fails | 1 / 1 | **9.0** / 4.0 | 1.0 | 3 of 100 / 3 of 100 | 30.0 / 30.0 | 1.0 | 2 / 2 |\n";
        assert!(text.ends_with(row), "{text}");
    }

    #[test]
    fn each_missed_goal_is_a_sentence() {
        let ours = Runs::from([(UPDATE, vec![run(9, 1, 20)])]);
        let upstream = Runs::from([(UPDATE, vec![run(5, 0, 0)]), (FAILURE, vec![run(5, 0, 0)])]);
        let missed = missed_goals(&ours, &upstream, &[UPDATE, FAILURE]);
        assert_eq!(
            missed,
            [
                "node fails: was not measured with both managers",
                "rolling update of 20, manager killed: took 9.0 s, and 5.0 s with upstream's manager, which exceeds the tolerance of 1.0 s",
                "rolling update of 20, manager killed: 1.0 failed requests a run, and 0.0 with upstream's manager",
                "rolling update of 20, manager killed: the last failed request was 20.0 s after the change, and 0.0 s with upstream's manager, which exceeds the tolerance of 1.0 s",
            ]
        );
        assert!(missed_goals(&upstream, &upstream, &[UPDATE, FAILURE]).is_empty());
        let report = markdown(&ours, &upstream, &missed);
        assert!(missed.iter().all(|goal| report.contains(goal)), "{report}");
        assert!(markdown(&upstream, &upstream, &[]).ends_with("\nNo goal is missed.\n"));
    }
}
