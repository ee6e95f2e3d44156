//! The report: a folder with a page, a plot, all measurements, and the managers' logs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cargo::workspace;

use super::measure::{Goal, Measurement, Metric, Row, Scenario};
use super::plot::plot;
use super::subject::{
    ALL_WORKLOADS, AUTOSCALING, ENDPOINTS, FLAGS, GARBAGE, Mode, NAMESPACES, NODES, Subject, VOLUMES, WORKLOADS,
};

/// A folder that a report is written to.
pub struct Report {
    folder: PathBuf,
}

impl Report {
    /// Creates the folder: the given one, or a new one in `target/bench`.
    pub fn create(folder: Option<PathBuf>) -> Result<Self> {
        let folder = folder.unwrap_or_else(|| {
            let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
            let target = target.unwrap_or_else(|| workspace().join("target"));
            target.join("bench").join(jiff::Zoned::now().strftime("%Y-%m-%d-%H%M%S").to_string())
        });
        fs::create_dir_all(folder.join("logs")).with_context(|| format!("make the folder {}", folder.display()))?;
        let folder = folder.canonicalize().with_context(|| format!("resolve {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Returns its path.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a manager's log.
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.join("logs").join(format!("{name}.log"))
    }

    /// Writes the page, the plot and the measurements.
    pub fn write(&self, measurements: &[Measurement], rows: &[Row], failures: &[String], runs: u32) -> Result<()> {
        let all: Vec<Value> = measurements.iter().map(to_json).collect();
        let files = [
            ("README.md", page(measurements, rows, failures, runs)),
            ("ratios.svg", plot(rows)),
            ("measurements.json", serde_json::to_string_pretty(&all)?),
        ];
        for (name, text) in files {
            let path = self.folder.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }
}

fn to_json(measurement: &Measurement) -> Value {
    let values: BTreeMap<&str, f64> =
        measurement.values.iter().map(|(metric, value)| (metric.name(), *value)).collect();
    json!({
        "subject": measurement.subject.name(),
        "mode": measurement.mode.name(),
        "scenario": measurement.scenario.name(),
        "case": measurement.case.map(|case| case.to_string()),
        "values": values,
        "requests": measurement.requests,
    })
}

fn page(measurements: &[Measurement], rows: &[Row], failures: &[String], runs: u32) -> String {
    let cores = available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let mut page = format!(
        "# Our controller manager compared with upstream's

{}, {cores} cores, load at the end {load}, runs: {runs} (medians). Both managers: `{}`, with `{WORKLOADS}`, or `{ENDPOINTS}` for endpoint-lag and endpoint-churn, `{ALL_WORKLOADS}` for mixed, `{AUTOSCALING}` for autoscaling, `{NAMESPACES}` for namespace-delete, `{GARBAGE}` for garbage-collection, `{NODES}` for node-leases, `{VOLUMES}` for volumes-provision, volumes-attach, volumes-move and claims-at-rest, and all complete controllers that are on by default for many-kinds and for scenarios whose names begin with all; mode raised adds `{}`.

{}
![ratios](ratios.svg)
",
        jiff::Zoned::now().strftime("%Y-%m-%d %H:%M"),
        FLAGS.join(" "),
        Mode::Raised.flags().join(" "),
        table(rows),
    );
    for failure in failures {
        page += &format!("\nFAILED: {failure}\n");
    }
    page += "\n# Requests\n";
    for ((mode, scenario), kinds) in requests(measurements) {
        page += &format!("\n## {}, mode {}\n\n", scenario.name(), mode.name());
        let lines = kinds.iter().map(|(kind, [ours, upstream])| [kind.clone(), ours.clone(), upstream.clone()]);
        page += &aligned(&["request", "ours", "upstream"], &lines.collect::<Vec<_>>());
    }
    page
}

/// Returns the mean number of requests of a run by kind: of our manager and of upstream's.
fn requests(measurements: &[Measurement]) -> BTreeMap<(Mode, Scenario), BTreeMap<String, [String; 2]>> {
    let mut sums: BTreeMap<(Mode, Scenario), BTreeMap<String, [u64; 2]>> = BTreeMap::new();
    let mut runs: BTreeMap<(Mode, Scenario, Subject), u64> = BTreeMap::new();
    for Measurement { mode, scenario, subject, requests, .. } in measurements {
        *runs.entry((*mode, *scenario, *subject)).or_default() += 1;
        for (kind, count) in requests {
            let sum = sums.entry((*mode, *scenario)).or_default().entry(kind.clone()).or_default();
            sum[usize::from(*subject == Subject::Upstream)] += count;
        }
    }
    let mean =
        |sum: u64, about| runs.get(&about).map_or("-".into(), |runs| format!("{:.0}", sum as f64 / *runs as f64));
    let means = |((mode, scenario), kinds): (_, BTreeMap<String, [u64; 2]>)| {
        let kinds = kinds.into_iter().map(|(kind, [ours, upstream])| {
            let ours = mean(ours, (mode, scenario, Subject::Ours));
            (kind, [ours, mean(upstream, (mode, scenario, Subject::Upstream))])
        });
        ((mode, scenario), kinds.collect())
    };
    sums.into_iter().map(means).collect()
}

/// Formats values, ratios and goals as a Markdown table that is also readable as plain text.
pub fn table(rows: &[Row]) -> String {
    let show = |metric: Metric, value: Option<f64>| value.map_or("-".into(), |value| metric.show(value));
    let cells = |row: &Row| {
        let goal = match row.goal() {
            Some(Goal::Ratio(max)) => format!("<= {max:.2}"),
            Some(Goal::Max(max)) => format!("ours <= {}", row.metric.show(max)),
            Some(Goal::Zero) => "ours 0".into(),
            None => String::new(),
        };
        let met = row.met().map_or("", |met| if met { "met" } else { "MISSED" });
        [
            row.mode.name().into(),
            row.scenario(),
            row.metric.name().into(),
            show(row.metric, row.ours),
            show(row.metric, row.upstream),
            row.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}")),
            goal,
            met.into(),
        ]
    };
    let lines: Vec<[String; 8]> = rows.iter().map(cells).collect();
    aligned(&["mode", "scenario", "metric", "ours", "upstream", "ratio", "goal", ""], &lines)
}

/// Formats a Markdown table whose columns are as wide as their widest cell.
fn aligned<const N: usize>(heads: &[&str; N], lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).chain([heads[column].len()]).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} "));
        let _ = writeln!(text, "|{}|", cells.collect::<Vec<_>>().join("|"));
    };
    line(&heads.map(String::from));
    line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>());
    for cells in lines {
        line(cells);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_ratio_goal_and_result() {
        let row = |ours, upstream| Row {
            mode: Mode::Raised,
            scenario: Scenario::Create,
            case: None,
            metric: Metric::Cpu,
            ours,
            upstream,
        };
        let table = table(&[row(Some(1.0), Some(2.0)), row(Some(1.0), None)]);
        let lines: Vec<String> = table.lines().skip(2).map(|line| line.replace(' ', "")).collect();
        assert_eq!(
            lines,
            ["|raised|create|CPU(s)|1.00|2.00|0.50|<=0.33|MISSED|", "|raised|create|CPU(s)|1.00|-|-|<=0.33||"]
        );
    }
}
