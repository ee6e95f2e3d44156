//! The results of runs, compared in a table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde_json::Value;

/// Maximum length of a failure's message in the report, in characters.
const MAX_MESSAGE_LENGTH: usize = 200;

/// The result of each spec of a run that was not skipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    /// By the spec's full name: `None` if it passed, else the failure.
    pub specs: BTreeMap<String, Option<String>>,
    /// The time of the run, in seconds.
    pub seconds: f64,
}

impl Results {
    /// Reads the JSON report of the suite.
    pub fn read(json: &[u8]) -> Result<Self> {
        let suites: Value = serde_json::from_slice(json).context("read the report of the suite")?;
        let suite = &suites[0];
        let reports = suite["SpecReports"].as_array().context("a report without specs")?;
        let specs_run = reports.iter().filter(|spec| spec["LeafNodeType"] == "It" && spec["State"] != "skipped");
        Ok(Self {
            specs: specs_run.map(|spec| (name(spec), failure(spec))).collect(),
            seconds: suite["RunTime"].as_f64().unwrap_or(0.0) / 1e9,
        })
    }

    /// Returns the numbers of passed and of all specs, and the duration.
    pub fn summary(&self) -> String {
        let passed = self.specs.values().filter(|failure| failure.is_none()).count();
        format!("{passed} of {} specs pass, in {:.0} s", self.specs.len(), self.seconds)
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

/// Returns specs that pass with upstream's manager and do not with another one.
pub fn regressions(all: &[(String, Results)]) -> BTreeSet<&str> {
    let Some((_, upstream)) = all.iter().find(|(name, _)| name == "upstream") else { return BTreeSet::new() };
    let passed = |name: &str| upstream.specs.get(name).is_some_and(Option::is_none);
    let others = all.iter().filter(|(name, _)| name != "upstream");
    let failed = others.flat_map(|(_, results)| results.specs.iter().filter(|(_, failure)| failure.is_some()));
    failed.map(|(name, _)| name.as_str()).filter(|name| passed(name)).collect()
}

/// Formats a summary for each manager, and a line for each spec that did not pass with all of them.
pub fn markdown(all: &[(String, Results)]) -> String {
    let mut text = String::new();
    for (manager, results) in all {
        let _ = writeln!(text, "* {manager}: {}", results.summary());
    }
    let mut failed: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (manager, results) in all {
        for (spec, failure) in &results.specs {
            if let Some(failure) = failure {
                failed.entry(spec).or_default().push(format!("{manager}: {failure}"));
            }
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
    use super::*;

    const JSON: &str = r#"[{"RunTime": 2000000000, "SpecReports": [
        {"LeafNodeType": "It", "State": "passed", "ContainerHierarchyTexts": ["[sig-apps] Job"], "LeafNodeText": "should run"},
        {"LeafNodeType": "It", "State": "failed", "ContainerHierarchyTexts": [], "LeafNodeText": "breaks", "Failure": {"Message": "a|b\nc"}},
        {"LeafNodeType": "It", "State": "skipped", "LeafNodeText": "left out"},
        {"LeafNodeType": "BeforeSuite", "State": "passed", "LeafNodeText": ""}
    ]}]"#;

    #[test]
    fn results_have_specs_that_were_not_skipped() {
        let results = Results::read(JSON.as_bytes()).unwrap();
        assert_eq!(results.summary(), "1 of 2 specs pass, in 2 s");
        assert_eq!(results.specs["[sig-apps] Job should run"], None);
        assert_eq!(results.specs["breaks"].as_deref(), Some("failed: a b c"));
    }

    #[test]
    fn regression_is_a_spec_that_passes_with_upstream_only() {
        let ours = Results::read(JSON.as_bytes()).unwrap();
        let mut upstream = ours.clone();
        assert!(regressions(&[("ours".into(), ours.clone()), ("upstream".into(), upstream.clone())]).is_empty());
        upstream.specs.insert("breaks".into(), None);
        let all = [("ours".into(), ours), ("upstream".into(), upstream)];
        assert_eq!(regressions(&all), BTreeSet::from(["breaks"]));
        assert!(markdown(&all).contains("| breaks | ours: failed: a b c |"), "{}", markdown(&all));
    }
}
