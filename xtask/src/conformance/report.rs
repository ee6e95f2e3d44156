//! The results of runs, compared in a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::Value;

/// Maximum length of a failure's message in the report, in characters.
const MAX_MESSAGE_LENGTH: usize = 200;

/// The name of upstream's manager, which others are compared with.
const UPSTREAM: &str = "upstream";

/// States of specs that did not run.
const NOT_RUN: [&str; 2] = ["skipped", "pending"];

/// The results of a run, without specs that were skipped or are pending.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// By the spec's full name: `None` if it passed, else the failure.
    pub specs: BTreeMap<String, Option<String>>,
    /// Failures outside of the specs, such as a timeout or a failed BeforeSuite. They may have prevented specs, which
    /// are then missing in `specs`. Therefore a run with a fault never shows conformance.
    pub faults: Vec<String>,
    /// The time of the run, in seconds.
    pub seconds: f64,
}

impl Results {
    /// Reads the JSON report of the suite.
    pub fn read(json: &[u8]) -> Result<Self> {
        let report: Value = serde_json::from_slice(json).context("read the report of the suite")?;
        let suites = report.as_array().filter(|suites| !suites.is_empty()).context("a report without a suite")?;
        let mut results = Self::default();
        for suite in suites {
            results.add(suite)?;
        }
        if results.specs.is_empty() {
            results.faults.push("no spec ran".to_owned());
        }
        Ok(results)
    }

    fn add(&mut self, suite: &Value) -> Result<()> {
        let reports = suite["SpecReports"].as_array().context("a report without specs")?;
        let (specs, others): (Vec<&Value>, Vec<&Value>) =
            reports.iter().partition(|report| report["LeafNodeType"] == "It");
        let ran = specs.into_iter().filter(|spec| !NOT_RUN.iter().any(|state| spec["State"] == *state));
        self.specs.extend(ran.map(|spec| (name(spec), failure(spec))));
        let reasons = suite["SpecialSuiteFailureReasons"].as_array().into_iter().flatten();
        self.faults.extend(reasons.map(|reason| reason.as_str().unwrap_or("an unknown reason").to_owned()));
        // Steps before and after the specs, such as BeforeSuite.
        for other in others {
            if let Some(failure) = failure(other).filter(|_| !NOT_RUN.iter().any(|state| other["State"] == *state)) {
                self.faults.push(format!("{} {failure}", other["LeafNodeType"].as_str().unwrap_or("a step")));
            }
        }
        self.seconds += suite["RunTime"].as_f64().unwrap_or(0.0) / 1e9;
        Ok(())
    }

    /// Returns true if all specs passed, and the suite ran to its end.
    pub fn is_perfect(&self) -> bool {
        self.faults.is_empty() && self.specs.values().all(Option::is_none)
    }

    /// Returns the numbers of passed and of all specs, and the duration.
    pub fn summary(&self) -> String {
        let passed = self.specs.values().filter(|failure| failure.is_none()).count();
        let faults: String = self.faults.iter().map(|fault| format!("; {fault}")).collect();
        format!("{passed} of {} specs pass, in {:.0} s{faults}", self.specs.len(), self.seconds)
    }

    fn passed(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().filter(|(_, failure)| failure.is_none()).map(|(name, _)| name.as_str())
    }
}

fn name(spec: &Value) -> String {
    let groups = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let texts = groups.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
    texts.collect::<Vec<_>>().join(" ")
}

fn failure(spec: &Value) -> Option<String> {
    let state = spec["State"].as_str().unwrap_or("unknown");
    if state == "passed" {
        return None;
    }
    let message = spec["Failure"]["Message"].as_str().unwrap_or_default().replace(['\n', '|'], " ");
    Some(format!("{state}: {}", message.chars().take(MAX_MESSAGE_LENGTH).collect::<String>()))
}

/// Returns the specs that pass with upstream's manager, and that failed or did not run with another one.
fn regressions(all: &[(String, Results)]) -> BTreeSet<&str> {
    let Some((_, upstream)) = all.iter().find(|(name, _)| name == UPSTREAM) else { return BTreeSet::new() };
    let others = all.iter().filter(|(name, _)| name != UPSTREAM);
    others.flat_map(|(_, own)| upstream.passed().filter(move |spec| own.specs.get(*spec) != Some(&None))).collect()
}

/// Returns the reasons for which runs do not show conformance; none if they do.
///
/// Each spec that passes with upstream's manager has to pass with the others. Without upstream's manager, all have to.
pub fn faults(all: &[(String, Results)]) -> Vec<String> {
    let mut faults: Vec<String> =
        all.iter().flat_map(|(name, own)| own.faults.iter().map(move |fault| format!("{name}: {fault}"))).collect();
    if all.is_empty() {
        faults.push("no run was completed".to_owned());
    }
    let worse = regressions(all);
    if !worse.is_empty() {
        faults.push(format!("{} specs pass with upstream's manager only", worse.len()));
    }
    if !all.iter().any(|(name, _)| name == UPSTREAM) {
        let failed = |own: &Results| own.specs.len() - own.passed().count();
        let failing = all.iter().map(|(name, own)| (name, failed(own))).filter(|(_, failed)| *failed > 0);
        faults.extend(failing.map(|(name, failed)| format!("{name}: {failed} specs fail")));
    }
    faults
}

/// Formats the verdict and its reasons, a summary for each manager, and a line for each spec that did not pass with all
/// of them.
pub fn markdown(all: &[(String, Results)], faults: &[String]) -> String {
    let mut text = match faults {
        [] => "The run shows conformance.\n".to_owned(),
        _ => format!("The run does not show conformance: {}.\n", faults.join("; ")),
    };
    text.push('\n');
    for (manager, results) in all {
        let _ = writeln!(text, "* {manager}: {}", results.summary());
    }
    let mut failed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let specs: BTreeSet<&str> = all.iter().flat_map(|(_, results)| results.specs.keys().map(String::as_str)).collect();
    for (manager, results) in all {
        for spec in &specs {
            let failure = match results.specs.get(*spec) {
                Some(None) => continue,
                Some(Some(failure)) => failure.as_str(),
                None => "did not run",
            };
            failed.entry(spec).or_default().push(format!("{manager}: {failure}"));
        }
    }
    if !failed.is_empty() {
        text.push_str("\n| spec | not passed with |\n| --- | --- |\n");
        for (spec, failures) in failed {
            let _ = writeln!(text, "| {} | {} |", spec.replace('|', " "), failures.join("<br>"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const JSON: &str = r#"[{"RunTime": 2000000000, "SpecReports": [
        {"LeafNodeType": "It", "State": "passed", "ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "should run"},
        {"LeafNodeType": "It", "State": "failed", "ContainerHierarchyTexts": [], "LeafNodeText": "breaks", "Failure": {"Message": "a|b\nc"}},
        {"LeafNodeType": "It", "State": "skipped", "LeafNodeText": "left out"},
        {"LeafNodeType": "It", "State": "pending", "LeafNodeText": "not written"},
        {"LeafNodeType": "BeforeSuite", "State": "passed", "LeafNodeText": ""}
    ]}]"#;

    /// Returns results in which these specs pass and fail.
    fn results(passed: &[&str], failed: &[&str]) -> Results {
        let passed = passed.iter().map(|name| ((*name).to_owned(), None));
        let failed = failed.iter().map(|name| ((*name).to_owned(), Some("failed: x".to_owned())));
        Results { specs: passed.chain(failed).collect(), ..Results::default() }
    }

    fn compared(upstream: Results, ours: Results) -> [(String, Results); 2] {
        [("upstream".into(), upstream), ("ours".into(), ours)]
    }

    #[test]
    fn results_have_specs_that_ran() {
        let results = Results::read(JSON.as_bytes()).unwrap();
        assert_eq!(results.summary(), "1 of 2 specs pass, in 2 s");
        assert_eq!(results.specs["[sig-apps] Job should run"], None);
        assert_eq!(results.specs["breaks"].as_deref(), Some("failed: a b c"));
        assert_eq!(results.specs.len(), 2);
        assert!(results.faults.is_empty() && !results.is_perfect());
        assert!(Results::read(b"[]").is_err());
    }

    #[test]
    fn run_has_faults_when_the_suite_did_not_run_to_its_end() {
        let passed = json!({ "LeafNodeType": "It", "State": "passed", "LeafNodeText": "a" });
        for (name, suite, expected) in [
            ("complete", json!({ "SpecReports": [passed] }), &[][..]),
            ("nothing matches", json!({ "SpecReports": [] }), &["no spec ran"]),
            (
                "everything is skipped",
                json!({ "SpecReports": [{ "LeafNodeType": "It", "State": "skipped" }] }),
                &["no spec ran"],
            ),
            (
                "timeout",
                json!({ "SpecReports": [passed], "SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"] }),
                &["Suite Timeout Elapsed"],
            ),
            (
                "the cluster is not usable",
                json!({ "SpecReports": [
                    { "LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": { "Message": "no nodes" } },
                    { "LeafNodeType": "It", "State": "skipped" },
                ] }),
                &["SynchronizedBeforeSuite failed: no nodes", "no spec ran"],
            ),
        ] {
            let results = Results::read(json!([suite]).to_string().as_bytes()).unwrap();
            assert_eq!(results.faults, expected, "{name}");
        }
    }

    #[test]
    fn conformance_needs_each_spec_of_upstream_to_run_and_pass() {
        for (name, upstream, ours, expected) in [
            ("same", results(&["a", "b"], &["c"]), results(&["a", "b"], &["c"]), ""),
            ("better", results(&["a"], &["b"]), results(&["a", "b"], &[]), ""),
            ("a spec fails", results(&["a", "b"], &[]), results(&["a"], &["b"]), "1 specs pass with upstream's"),
            ("specs are missing", results(&["a", "b"], &[]), results(&[], &[]), "2 specs pass with upstream's"),
        ] {
            let faults = faults(&compared(upstream, ours));
            match expected {
                "" => assert!(faults.is_empty(), "{name}: {faults:?}"),
                text => assert!(faults.len() == 1 && faults[0].starts_with(text), "{name}: {faults:?}"),
            }
        }
    }

    #[test]
    fn faults_of_each_run_are_reported() {
        let cut = |mut results: Results| {
            results.faults.push("no spec ran".into());
            results
        };
        assert_eq!(faults(&compared(cut(Results::default()), results(&["a"], &[]))), ["upstream: no spec ran"]);
        assert_eq!(faults(&[("ours".into(), cut(Results::default()))]), ["ours: no spec ran"]);
        assert_eq!(faults(&[]), ["no run was completed"]);
    }

    #[test]
    fn every_failed_spec_counts_without_upstreams_manager() {
        assert_eq!(faults(&[("ours".into(), results(&["a"], &["b"]))]), ["ours: 1 specs fail"]);
        assert!(faults(&[("ours".into(), results(&["a"], &[]))]).is_empty());
    }

    #[test]
    fn report_lists_specs_that_did_not_pass_or_run() {
        let compared = compared(results(&["a", "b"], &["c"]), results(&["a"], &["c"]));
        let text = markdown(&compared, &faults(&compared));
        assert!(text.starts_with("The run does not show conformance: 1 specs pass with upstream's"), "{text}");
        assert!(text.contains("| c | upstream: failed: x<br>ours: failed: x |"), "{text}");
        assert!(text.contains("| b | ours: did not run |"), "{text}");
        assert!(!text.contains("| a |"), "{text}");
        assert!(markdown(&[], &[]).starts_with("The run shows conformance.\n"));
    }
}
