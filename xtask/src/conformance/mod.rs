//! `cargo xtask conformance`: upstream's conformance suite on a real cluster, for our manager and for upstream's.

mod report;
mod suite;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use real_cluster::images::suite as suite_images;
use real_cluster::programs::Programs;
use real_cluster::{Addresses, Footprint, RealCluster, Setup, metrics};

use crate::cluster::{self, Manager, Order};
use crate::report_folder::ReportFolder;
use crate::{cargo, interrupt, root};
use report::Results;

/// Run upstream's conformance suite on a real cluster, for our manager and for upstream's, and compare.
///
/// Each manager gets a cluster of its own, one after the other. The specs are those of upstream's e2e.test with
/// `[Conformance]` and without `[Serial]` in their names, unless chosen otherwise. The report (Markdown, the logs and
/// JSON of the suite) is written to a folder, whose path is printed. Fails if a spec passes with upstream's manager and
/// not with ours, if the suite did not run to its end, if no spec ran, or if a cluster leaks a resource; without
/// upstream's manager, if any spec fails.
///
/// Requirements: those of `cargo xtask cluster`, and those of building the images of the suite, which
/// `docs/conformance.md` lists. A full run takes about 15 minutes for each manager on an idle machine.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask conformance                                     # both managers, all parallel conformance specs
  cargo xtask conformance --manager ours --focus 'Deployment.*Conformance'
  cargo xtask conformance --focus '\\[sig-apps\\]' --skip '\\[Slow\\]|\\[Serial\\]'
  cargo xtask conformance --volumes --focus 'CSI Mock|\\[DRA\\] control plane' --skip '\\[Serial\\]|Snapshot'")]
pub struct Arguments {
    /// Managers to run the suite with: ours, upstream, or the path of a program with upstream's flags
    #[arg(long, value_delimiter = ',', default_value = "upstream,ours", value_name = "MANAGERS")]
    manager: Vec<Manager>,

    /// Specs to run: a regular expression of Go
    #[arg(long, default_value = r"\[Conformance\]", value_name = "REGEX")]
    focus: String,

    /// Specs to leave out: a regular expression of Go
    #[arg(long, default_value = r"\[Serial\]", value_name = "REGEX")]
    skip: String,

    /// Number of specs that run at the same time
    #[arg(long, default_value_t = 8, value_name = "N")]
    procs: u32,

    /// Number of nodes. Each offers all CPUs of this machine to the scheduler, so that more pods with requests fit on
    /// more nodes.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(Addresses::NODES)))]
    nodes: u8,

    /// Minutes after which the suite is ended
    #[arg(long, default_value_t = 60, value_name = "MINUTES")]
    timeout: u32,

    /// Also provide volumes, and the images of CSI and DRA drivers, which specs of storage and of DRA need
    #[arg(long)]
    volumes: bool,

    /// Also start metrics-server, and provide the image of pods that use CPU and memory, which specs of autoscaling
    /// need
    #[arg(long)]
    metrics: bool,

    /// Build our managers without --release
    #[arg(long)]
    debug: bool,

    /// Our kcm, instead of building it
    #[arg(long, value_name = "PATH")]
    kcm: Option<PathBuf>,

    /// ccm, instead of building it
    #[arg(long, value_name = "PATH")]
    cloud_manager: Option<PathBuf>,

    /// Folder of the report [default: target/conformance]
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
}

/// Runs the suite for each manager and writes the report.
pub fn run(arguments: Arguments) -> Result<()> {
    let managers: Vec<Manager> = arguments.manager.iter().map(|manager| arguments.subject(manager)).collect();
    let order = Order {
        nodes: arguments.nodes,
        managers: &managers,
        cloud_manager: arguments.cloud_manager.as_deref(),
        profile: if arguments.debug { cargo::DEBUG } else { cargo::RELEASE },
        has_volumes: arguments.volumes,
        has_suite: true,
        has_metrics: arguments.metrics,
    };
    order.prepare()?;
    // Before the first run: a failed build of the second manager must not cost the first one's run.
    let programs: Vec<PathBuf> =
        managers.iter().map(|manager| manager.program(order.profile)).collect::<Result<_>>()?;
    let cloud_manager = cluster::cloud_program(order.cloud_manager, order.profile)?;
    if !root::is_root() {
        return continue_as_root(&managers, &programs, &cloud_manager);
    }
    let images = arguments.images()?;
    let folder = arguments.report.clone().unwrap_or_else(|| cargo::workspace().join("target/conformance"));
    let folder = ReportFolder::create(&folder)?;
    let mut subjects = Vec::new();
    for (manager, program) in arguments.manager.iter().zip(&programs) {
        let name = manager.to_string().replace('/', "_");
        let program = folder.copy_program(&name, program)?;
        subjects.push(Subject { manager: manager.to_string(), folder: folder.subfolder(&name)?, program });
    }
    let setup = Setup {
        nodes: order.nodes,
        manager: PathBuf::new(),
        cloud_manager: folder.copy_program("cloud", &cloud_manager)?,
        inside: std::env::current_exe().context("find this program")?,
        images,
        has_volumes: order.has_volumes,
        when_kept: Some(root::give_kept_logs_to_user),
    };
    let mut all = Vec::new();
    let ended = interrupt::run(measure_all(&arguments, &subjects, &setup, &mut all));
    let mut faults = report::faults(&all);
    if !matches!(ended, Ok(Ok(()))) {
        faults.push("the command was interrupted".to_owned());
    }
    let text = format!("{}\n{}", arguments.conditions(order.nodes), report::markdown(&all, &faults));
    print!("\n{text}\nThe report is {}\n", folder.write("report.md", &text)?.display());
    drop(folder);
    if let Err(code) = ended? {
        interrupt::exit(code);
    }
    ensure!(faults.is_empty(), "the run does not show conformance:\n- {}", faults.join("\n- "));
    Ok(())
}

impl Arguments {
    /// Returns the conditions of all runs, for the report.
    fn conditions(&self, nodes: u8) -> String {
        let Self { focus, skip, procs, .. } = self;
        let profile = if self.debug { cargo::DEBUG } else { cargo::RELEASE };
        format!(
            "Focus `{focus}`, skip `{skip}`; {procs} specs at a time; {nodes} nodes; our managers built with the profile \
             {profile}, if they were not given.\n"
        )
    }

    /// Creates the images that specs need; returns the names of their files.
    fn images(&self) -> Result<Vec<String>> {
        let programs = Programs::locate()?;
        suite_images::file(&programs)?;
        let mut images = vec![suite_images::FILE.to_owned()];
        if self.volumes {
            suite_images::volumes::file(&programs)?;
            images.push(suite_images::volumes::FILE.to_owned());
        }
        if self.metrics {
            suite_images::metrics::file(&programs)?;
            images.push(suite_images::metrics::FILE.to_owned());
        }
        Ok(images)
    }

    /// Returns a manager of the command line, or the program that is given for ours.
    fn subject(&self, manager: &Manager) -> Manager {
        match (manager, &self.kcm) {
            (Manager::Ours, Some(path)) => Manager::Path(path.clone()),
            _ => manager.clone(),
        }
    }
}

/// A manager for which the suite runs.
struct Subject {
    /// Its name in the report.
    manager: String,
    /// The folder of its logs.
    folder: PathBuf,
    program: PathBuf,
}

/// Runs the suite for each manager, and adds the results by manager. If the suite cannot be run for a manager, its
/// result is a fault, and the results of the other managers are reported nevertheless.
async fn measure_all(
    arguments: &Arguments,
    subjects: &[Subject],
    setup: &Setup,
    all: &mut Vec<(String, Results)>,
) -> Result<()> {
    for subject in subjects {
        println!("==> {}", subject.manager);
        let setup = Setup { manager: subject.program.clone(), ..setup.clone() };
        let results = measure(arguments, setup, &subject.folder).await.unwrap_or_else(|error| Results {
            faults: vec![format!("the suite could not be run: {error:#}")],
            ..Results::default()
        });
        println!("{}: {}", subject.manager, results.summary());
        all.push((subject.manager.clone(), results));
    }
    Ok(())
}

/// Starts this command again as root with the programs that it has built.
fn continue_as_root(managers: &[Manager], programs: &[PathBuf], cloud_manager: &Path) -> Result<()> {
    let ours = managers.iter().zip(programs).filter(|(manager, _)| **manager == Manager::Ours);
    let mut binaries: Vec<(&str, &Path)> = ours.map(|(_, program)| ("kcm", program.as_path())).collect();
    binaries.push(("ccm", cloud_manager));
    root::restart(&binaries)
}

/// Runs the suite on a cluster of its own. A leaked resource of the cluster is a fault.
async fn measure(arguments: &Arguments, setup: Setup, folder: &Path) -> Result<Results> {
    let (mut results, footprint) = measure_on_cluster(arguments, setup, folder).await?;
    let leaks = footprint.leaks();
    if !leaks.is_empty() {
        results.faults.push(format!("the cluster left behind: {}", leaks.join(", ")));
    }
    Ok(results)
}

/// Runs the suite on a cluster; returns the results, and the footprint of the ended cluster.
async fn measure_on_cluster(arguments: &Arguments, setup: Setup, folder: &Path) -> Result<(Results, Footprint)> {
    let cluster = RealCluster::start(setup, |step| println!("{step}")).await?;
    if arguments.metrics {
        metrics::start(&cluster).await?;
        println!("metrics-server serves metrics");
    }
    let choice = suite::Choice {
        focus: &arguments.focus,
        skip: &arguments.skip,
        procs: arguments.procs,
        minutes: arguments.timeout,
    };
    let results = suite::run(&cluster, &choice, folder).await?;
    Ok((results, cluster.footprint()?))
}
