//! `cargo xtask bench`: measures this project's manager and upstream's, one after the other, on identical control
//! planes. Ratios are compared, not times.

mod api;
mod autoscaling;
mod endpoint_churn;
mod groups;
mod kubelets;
mod lag;
mod many_kinds;
mod many_pods;
mod measure;
mod mixed;
mod plot;
mod report;
mod requests;
mod rollout;
mod services;
mod shared_cluster;
mod slices;
mod subject;
mod volumes;
mod workload;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use control_plane::assets::Assets;
use serde_json::Value;

use crate::aws::Cloud;
use crate::cargo::cargo;
use crate::cluster::{Manager, user_effects};
use measure::{Scenario, rows};
use report::Report;
use rollout::Size;
use subject::{Binaries, Mode, Subject};

/// Measure our controller manager and upstream's, and print ratios.
///
/// Both managers run with the same controllers: in create, update, idle, idle-empty, cold-start and memory, those of
/// Deployments, ReplicaSets, service accounts and the lifecycle of nodes; in mixed, those of all other workloads; in
/// many-kinds, and in scenarios whose names begin with all, all controllers; in each other scenario, those that its
/// name suggests. The managers run one after the other; in endpoint-lag, both run and are measured in turn. Each has
/// its own control plane in create, update, idle, idle-empty, mixed, autoscaling, endpoint-lag and in scenarios whose
/// names begin with volumes; in the other scenarios they share one. Wall time, CPU, memory and API requests are
/// compared. The report (Markdown, a plot, all measurements as JSON, the managers' logs) is written to a folder, whose
/// path is printed.
///
/// Builds our manager with --release, and upstream's with Go the first time. Takes about two hours; absolute figures
/// depend on the load of the machine.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask bench --quick                          # a short check; a few minutes
  cargo xtask bench --scenario memory,cold-start     # only some scenarios
  cargo xtask bench --scenario endpoint-lag --mode raised --profile quick
  cargo xtask bench --scenario volumes-provision,volumes-attach,volumes-move,claims-at-rest --mode raised
  cargo xtask bench --scenario many-kinds --mode default     # 500 custom kinds
  cargo xtask bench --real                           # real servers under load, effects on users; needs root rights
  cargo xtask bench aws                              # ccm and upstream's AWS manager, on moto
  cargo xtask bench --mode raised --runs 3 --assert  # medians of three; fails if a goal is missed")]
pub struct Arguments {
    /// Measure the cloud controller managers of this cloud instead: joining nodes, Services, and calls to the cloud
    #[arg(value_enum, group = "with_ccm", conflicts_with_all = ["scenario", "mode", "pods", "only", "kcm", "report", "runs"])]
    cloud: Option<Cloud>,

    /// Our cloud controller manager's binary, instead of building it
    #[arg(long, value_name = "PATH", requires = "with_ccm")]
    ccm: Option<PathBuf>,

    /// Measure effects on users instead: real servers under load, on a real cluster, which needs root rights
    #[arg(long, group = "with_ccm", conflicts_with_all = ["cloud", "scenario", "mode", "pods", "only", "runs"])]
    real: bool,

    /// Scenarios to measure; all by default
    #[arg(long, value_name = "SCENARIO", value_delimiter = ',')]
    scenario: Vec<Scenario>,

    /// Rate limits of the managers; both by default
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    mode: Vec<Mode>,

    /// Number of runs; medians are compared
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,

    /// Small numbers of objects: checks that everything works; the figures are not meaningful
    #[arg(long)]
    quick: bool,

    /// Number of pods in endpoint-churn and in the scenarios with many pods (memory, cold-start, all-memory,
    /// all-cold-start and all-claims-…) [default: 20000, 50000 in endpoint-churn, or 1000 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_000))]
    pods: Option<u32>,

    /// Number of namespaces of the Services in endpoint-churn
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    namespaces: u32,

    /// Run only one of the managers; there are no ratios then
    #[arg(long)]
    only: Option<Subject>,

    /// Our manager's binary, instead of building it
    #[arg(long, value_name = "PATH")]
    kcm: Option<PathBuf>,

    /// Cargo profile to build our manager with; `quick` builds faster, and its figures are worse than those of a
    /// release
    #[arg(long, default_value = "release", value_name = "NAME", conflicts_with = "kcm")]
    profile: String,

    /// Where to write the report [default: a new folder in target/bench]
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,

    /// Fail if a goal is missed
    #[arg(long)]
    assert: bool,
}

impl Arguments {
    fn scenarios(&self) -> Vec<Scenario> {
        if self.scenario.is_empty() { Scenario::value_variants().to_vec() } else { self.scenario.clone() }
    }

    fn modes(&self) -> Vec<Mode> {
        if self.mode.is_empty() { Mode::value_variants().to_vec() } else { self.mode.clone() }
    }

    /// Returns the managers in the order of this run. The order alternates, because the first manager changes the
    /// machine's state for the second one.
    fn subjects(&self, run: u32) -> Vec<Subject> {
        let mut both = vec![Subject::Upstream, Subject::Ours];
        if run % 2 == 1 {
            both.reverse();
        }
        both.retain(|subject| self.only.is_none_or(|only| only == *subject));
        both
    }

    fn size(&self, mode: Mode) -> Size {
        let (deployments, replicas) = match (mode, self.quick) {
            (Mode::Raised, false) => (40, 50),
            (Mode::Default, false) => (10, 20),
            (Mode::Raised, true) => (8, 10),
            (Mode::Default, true) => (4, 5),
        };
        Size { deployments, replicas, idle: self.idle() }
    }

    fn mix(&self, mode: Mode) -> mixed::Size {
        match (mode, self.quick) {
            (Mode::Raised, false) => mixed::Size::WHOLE,
            (Mode::Default, false) => mixed::Size::WHOLE.part(5),
            (Mode::Raised, true) => mixed::Size::WHOLE.part(8),
            (Mode::Default, true) => mixed::Size::WHOLE.part(20),
        }
    }

    fn autoscalers(&self, mode: Mode) -> u32 {
        match (mode, self.quick) {
            (Mode::Raised, false) => 2000,
            (Mode::Raised, true) | (Mode::Default, false) => 200,
            (Mode::Default, true) => 50,
        }
    }

    fn volumes(&self, mode: Mode) -> volumes::Size {
        let (claims, nodes) = match (mode, self.quick) {
            (Mode::Raised, false) => (2000, 100),
            // The default limit is twenty requests per second.
            (Mode::Default, false) => (200, 20),
            (Mode::Raised, true) => (100, 10),
            (Mode::Default, true) => (40, 5),
        };
        volumes::Size { claims, nodes }
    }

    fn kinds(&self) -> u32 {
        if self.quick { 120 } else { 500 }
    }

    fn idle(&self) -> Duration {
        Duration::from_secs(if self.quick { 8 } else { 30 })
    }

    fn churn(&self) -> endpoint_churn::Size {
        let endpoints = if self.quick { 25 } else { 250 };
        endpoint_churn::Size {
            services: (self.pods(50_000) / endpoints).max(1),
            endpoints,
            namespaces: self.namespaces,
        }
    }

    fn shared_cluster(&self, mode: Mode) -> shared_cluster::Size {
        let (of_each_kind, owners, dependents, nodes) = match (mode, self.quick) {
            (Mode::Raised, false) => (250, 100, 100, 1000),
            // At twenty requests a second, ten thousand dependents would take half an hour.
            (Mode::Default, false) => (250, 10, 100, 1000),
            (_, true) => (10, 5, 40, 100),
        };
        shared_cluster::Size { of_each_kind, owners, dependents, nodes, idle: self.idle() }
    }

    fn pods(&self, whole: u32) -> u32 {
        self.pods.unwrap_or(if self.quick { 1000 } else { whole })
    }
}

/// Measures, prints and writes the report.
pub fn run(arguments: Arguments) -> Result<()> {
    if let Some(Cloud::Aws) = arguments.cloud {
        return crate::aws::bench(arguments.ccm.as_deref(), arguments.quick, arguments.assert);
    }
    if arguments.real {
        let ours = arguments.kcm.map_or(Manager::Ours, Manager::Path);
        let folder = arguments.report.unwrap_or_else(|| crate::cargo::workspace().join("target/bench/real"));
        let options = user_effects::Options {
            ours: &ours,
            cloud_manager: arguments.ccm.as_deref(),
            profile: &arguments.profile,
            quick: arguments.quick,
            assert: arguments.assert,
        };
        return user_effects::bench(&options, &folder);
    }
    let upstream = match arguments.only {
        Some(Subject::Ours) => PathBuf::new(),
        _ => Assets::of(&[])?.upstream_manager()?,
    };
    let ours = match (&arguments.kcm, arguments.only) {
        (_, Some(Subject::Upstream)) => PathBuf::new(),
        (Some(path), _) => path.canonicalize().with_context(|| format!("--kcm {}", path.display()))?,
        (None, _) => build(&arguments.profile)?,
    };
    let binaries = Binaries { ours, upstream };
    let report = Report::create(arguments.report.clone())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let (measurements, failures) = runtime.block_on(groups::measure(&arguments, &binaries, &report))?;

    let rows = rows(&measurements);
    println!("{}", report::table(&rows));
    report.write(&measurements, &rows, &failures, arguments.runs)?;
    println!("Report: {}", report.folder().join("README.md").display());
    ensure!(failures.is_empty(), "{} of the measurements failed:\n{}", failures.len(), failures.join("\n"));
    let missed = rows.iter().filter(|row| row.met() == Some(false)).count();
    if arguments.assert && missed > 0 {
        bail!("{missed} goals are missed");
    }
    Ok(())
}

/// Builds our manager with a Cargo profile; returns the binary's path.
fn build(profile: &str) -> Result<PathBuf> {
    eprintln!("building kcm with --profile {profile}");
    let output = cargo()
        .args(["build", "--profile", profile, "--package", "kcm", "--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("run cargo")?;
    ensure!(output.status.success(), "kcm cannot be built: see cargo's messages above");
    let messages = String::from_utf8(output.stdout).context("read cargo's messages")?;
    let binary = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)));
    binary.context("cargo built no executable for the package kcm")
}
