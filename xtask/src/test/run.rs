//! The run of the stages, one after another, with headers between them and a table at the end.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control_plane::assets::{self, Assets};
use serde_json::Value;

use super::plan::{Stage, Work};
use super::sources::Rules;
use super::tally::{Sum, Tally};
use crate::cargo::{cargo, workspace};
use crate::cluster::smoke::{self, Decision};

/// The module that determines the version of upstream's files.
const GO_MODULE: &str = "tests/control-plane";

/// Upstream's modules with `generated.proto` files or with unit tests of controllers, and the variables with their
/// folders for the tests.
const UPSTREAM_MODULES: [(&str, &str); 6] = [
    ("k8s.io/api", "KINDS_PROTO_API"),
    ("k8s.io/apimachinery", "KINDS_PROTO_APIMACHINERY"),
    ("k8s.io/apiserver", "APISERVER_SOURCE"),
    ("k8s.io/cloud-provider", "CLOUD_PROVIDER_SOURCE"),
    ("k8s.io/endpointslice", "ENDPOINTSLICE_SOURCE"),
    ("k8s.io/kubernetes", "KUBERNETES_SOURCE"),
];

/// The result of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// Skipped, because this machine cannot run it; with the reason.
    Skipped(String),
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Passed => f.write_str("passed"),
            Outcome::Skipped(why) => write!(f, "skipped: {why}"),
            Outcome::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

/// The numbers of tests, and the lines of those that failed.
type Tests = (Sum, Vec<String>);

/// A line of the table.
struct Row {
    name: &'static str,
    took: Duration,
    sum: Option<Sum>,
    /// The lines of its failed tests.
    failures: Vec<String>,
    outcome: Outcome,
}

/// Runs stages, up to the first failure unless `keep_going`, and prints the table. Returns true if no stage failed.
/// With a filter, a run without any test is a failure.
pub fn run(stages: &[Stage], keep_going: bool, filtered: bool) -> Result<bool> {
    let start = Instant::now();
    let mut rows = Vec::new();
    for stage in stages {
        println!("\n==> {} (after {})", stage.name, seconds(start.elapsed()));
        let begin = Instant::now();
        let (outcome, tests) = work(&stage.work).unwrap_or_else(|error| (Outcome::Failed(format!("{error:#}")), None));
        if outcome != Outcome::Passed {
            println!("{}: {outcome}", stage.name);
        }
        let failed = matches!(outcome, Outcome::Failed(_));
        let (sum, failures) = tests.map_or((None, Vec::new()), |(sum, failures)| (Some(sum), failures));
        rows.push(Row { name: stage.name, took: begin.elapsed(), sum, failures, outcome });
        if failed && !keep_going {
            break;
        }
    }
    let not_run: Vec<_> = stages.iter().skip(rows.len()).map(|stage| stage.name).collect();
    let sum = total(&rows);
    // The failures are printed again, so that the reasons are at the end of the output.
    for row in rows.iter().filter(|row| !row.failures.is_empty()) {
        println!("\n==> failures of {}\n{}", row.name, row.failures.join("\n"));
    }
    print!("\n{}", table(&rows, start.elapsed()));
    if !not_run.is_empty() {
        println!("not run: {} (--keep-going runs them after a failure)", not_run.join(", "));
    }
    let none = filtered && sum == Sum::default();
    if none {
        println!("no test matches the given names");
    }
    println!("{sum}");
    Ok(!none && rows.iter().all(|row| !matches!(row.outcome, Outcome::Failed(_))))
}

fn total(rows: &[Row]) -> Sum {
    rows.iter().filter_map(|row| row.sum).fold(Sum::default(), |mut total, sum| {
        total += sum;
        total
    })
}

fn table(rows: &[Row], total: Duration) -> String {
    let line = |name: &str, took, sum: Option<Sum>, end: String| {
        let sum = sum.map(|sum| sum.to_string()).unwrap_or_default();
        format!("{:<10}{:>10}  {sum:<24}{end}", name, seconds(took)).trim_end().to_owned() + "\n"
    };
    let lines = rows.iter().map(|row| line(row.name, row.took, row.sum, row.outcome.to_string()));
    lines.chain([line("total", total, None, String::new())]).collect()
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn work(work: &Work) -> Result<(Outcome, Option<Tests>)> {
    match work {
        Work::Cargo(arguments) => {
            Ok((run_cargo(cargo().args(arguments).env("RUSTDOCFLAGS", rustdoc_flags()), arguments)?, None))
        }
        Work::CargoDeny(arguments) => Ok((deny(arguments)?, None)),
        Work::Tests(arguments) => tests(arguments, &[]).map(|(outcome, tests)| (outcome, Some(tests))),
        Work::TestsWithAllGates(arguments) => {
            tests(arguments, &[(ALL_GATES, "1")]).map(|(outcome, tests)| (outcome, Some(tests)))
        }
        Work::RealCluster { is_selected } => Ok((real_cluster(*is_selected)?, None)),
        Work::Programs => build_programs().map(|()| (Outcome::Passed, None)),
    }
}

/// Builds all programs that the tests need by default: a test that builds some may exceed its time limit.
fn build_programs() -> Result<()> {
    let base = Assets::base()?;
    base.charts()?;
    base.upstream_manager()?;
    assets::csi().map(drop)
}

/// Runs the smoke test of a real cluster in a separate process, so that the cluster is removed when that process exits.
/// `is_selected`: the command line selects it.
fn real_cluster(is_selected: bool) -> Result<Outcome> {
    match smoke::decide(is_selected)? {
        Decision::Run => {}
        Decision::Skip(why) => return Ok(Outcome::Skipped(why)),
        Decision::Fail(why) => return Ok(Outcome::Failed(why)),
    }
    let program = env::current_exe().context("find this program")?;
    let status = Command::new(program).args(["cluster", "--smoke"]).status().context("run the smoke test")?;
    Ok(if status.success() { Outcome::Passed } else { Outcome::Failed(format!("the smoke test ended with {status}")) })
}

fn rustdoc_flags() -> String {
    format!("{} -D warnings", env::var("RUSTDOCFLAGS").unwrap_or_default()).trim_start().to_owned()
}

fn run_cargo(command: &mut Command, arguments: &[String]) -> Result<Outcome> {
    let status = command.status().with_context(|| format!("run cargo {}", arguments.join(" ")))?;
    Ok(if status.success() { Outcome::Passed } else { failed(arguments, &status) })
}

fn failed(arguments: &[String], status: &std::process::ExitStatus) -> Outcome {
    Outcome::Failed(format!("cargo {} ended with {status}", arguments.join(" ")))
}

fn deny(arguments: &[String]) -> Result<Outcome> {
    let version = cargo().args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if version.context("run cargo deny --version")?.success() {
        return run_cargo(cargo().args(arguments), arguments);
    }
    if arguments.iter().any(|argument| argument == "advisories") {
        bail!("--advisories needs cargo-deny: cargo install --locked cargo-deny");
    }
    check_by_metadata()
}

/// The platforms of our binaries: dependencies for other platforms do not count.
const PLATFORMS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-musl"];

/// Checks deny.toml against cargo's metadata, which is less thorough than cargo-deny.
fn check_by_metadata() -> Result<Outcome> {
    let rules = Rules::read(&fs::read_to_string(workspace().join("deny.toml")).context("read deny.toml")?)?;
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let platforms = PLATFORMS.iter().flat_map(|platform| ["--filter-platform", *platform]);
    let output = cargo().args(arguments).args(platforms).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo metadata failed ({}); its messages are above", output.status);
    }
    let violations = rules.violations(&serde_json::from_slice(&output.stdout).context("read cargo metadata")?)?;
    println!("licences, bans and sources by cargo metadata; cargo-deny, which checks more, is not installed");
    violations.iter().for_each(|violation| println!("{violation}"));
    Ok(match violations.len() {
        0 => Outcome::Passed,
        n => Outcome::Failed(format!("{n} dependencies violate deny.toml")),
    })
}

/// The variable with which the cluster tests switch every alpha and beta feature gate on.
const ALL_GATES: &str = "CLUSTER_TESTS_ALL_GATES";

/// Runs tests with these variables, with their output passed through and counted.
fn tests(arguments: &[String], variables: &[(&str, &str)]) -> Result<(Outcome, Tests)> {
    let mut command = cargo();
    command.args(arguments).args(harness_colour()).envs(variables.iter().copied()).stdout(Stdio::piped());
    for (variable, folder) in upstream_folders()? {
        command.env(variable, folder);
    }
    let mut child = command.spawn().with_context(|| format!("run cargo {}", arguments.join(" ")))?;
    let mut output = child.stdout.take().context("cargo has no output")?;
    let (sum, failures) = count(&mut output, &mut io::stdout())?;
    let status = child.wait().context("wait for cargo")?;
    let outcome = match (status.success(), sum.failed) {
        (true, 0) => Outcome::Passed,
        (true, n) => Outcome::Failed(format!("{n} tests failed, although cargo succeeded")),
        (false, _) => failed(arguments, &status),
    };
    Ok((outcome, (sum, failures)))
}

/// Copies a stream as it arrives, and counts the tests in it.
fn count(from: &mut impl Read, to: &mut impl Write) -> Result<Tests> {
    let mut tally = Tally::default();
    let mut buffer = [0; 8192];
    loop {
        match from.read(&mut buffer).context("read the tests' output")? {
            0 => return Ok(tally.finish()),
            n => {
                to.write_all(&buffer[..n]).and_then(|()| to.flush()).context("pass the tests' output on")?;
                tally.read(&buffer[..n]);
            }
        }
    }
}

/// Returns the arguments that set the colour of test programs, which write to a pipe and cannot detect a terminal.
fn harness_colour() -> &'static [&'static str] {
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match env::var("CARGO_TERM_COLOR").as_deref() {
        Ok("always") => &["--color", "always"],
        Ok("never") => &[],
        _ if io::stdout().is_terminal() && !no_color => &["--color", "always"],
        _ => &[],
    }
}

/// Returns the folders of upstream's sources, for the tests that compare our field numbers and our lists of upstream's
/// tests with them. Empty without Go: the first then reports that it was skipped, and the second compares less.
fn upstream_folders() -> Result<Vec<(&'static str, String)>> {
    let modules = UPSTREAM_MODULES.map(|(module, _)| module);
    let output = match Command::new("go")
        .args(["mod", "download", "-json"])
        .args(modules)
        .current_dir(workspace().join(GO_MODULE))
        .stderr(Stdio::inherit())
        .output()
    {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        output => output.context("run go mod download")?,
    };
    if !output.status.success() {
        bail!("go mod download {} failed ({}); its messages are above", modules.join(" "), output.status);
    }
    let found = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
    let found: Vec<Value> = found.collect::<Result<_, _>>().context("read the output of go mod download")?;
    let folder = |module: &str| {
        let value = found.iter().find(|value| value["Path"] == module);
        let folder = value.and_then(|value| value["Dir"].as_str());
        folder.map(String::from).with_context(|| format!("go mod download returned no folder for {module}"))
    };
    UPSTREAM_MODULES.iter().map(|(module, variable)| Ok((*variable, folder(module)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_passes_unchanged_and_is_counted() {
        let text = "test a ... ok\n\ntest result: ok. 3 passed; 1 failed; 0 ignored\n";
        let mut passed = Vec::new();
        let (sum, _) = count(&mut text.as_bytes(), &mut passed).unwrap();
        assert_eq!((sum.passed, sum.failed), (3, 1));
        assert_eq!(passed, text.as_bytes());
    }

    #[test]
    fn table_has_a_line_per_stage() {
        let row = |name, seconds, sum, outcome| Row {
            name,
            took: Duration::from_secs(seconds),
            sum,
            failures: Vec::new(),
            outcome,
        };
        let rows = [
            row("fmt", 1, None, Outcome::Passed),
            row("deny", 0, None, Outcome::Passed),
            row("unit", 100, Some(Sum { passed: 12, failed: 3 }), Outcome::Failed("3 tests".into())),
            row("cluster", 5, Some(Sum { passed: 1, failed: 0 }), Outcome::Passed),
        ];
        let expected = "\
fmt            1.0 s                          passed
deny           0.0 s                          passed
unit         100.0 s  12 passed, 3 failed     FAILED: 3 tests
cluster        5.0 s  1 passed, 0 failed      passed
total        106.0 s
";
        assert_eq!(table(&rows, Duration::from_secs(106)), expected);
        assert_eq!(total(&rows).to_string(), "13 passed, 3 failed");
    }
}
