//! `cargo xtask conformance`: upstream's conformance suite on a real cluster, for our manager and for upstream's.

mod report;
mod suite;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use real_cluster::images::suite as suite_images;
use real_cluster::programs::Programs;
use real_cluster::{Footprint, RealCluster, requirements};
use rustix::fs::{FlockOperation, flock};

use crate::cluster::{self, Manager};
use crate::root;
use report::Results;

/// Run upstream's conformance suite on a real cluster, for our manager and for upstream's, and compare.
///
/// Each manager gets a cluster of its own, one after the other. The specs are those of upstream's e2e.test with
/// `[Conformance]` and without `[Serial]` in their names, unless chosen otherwise. The report (Markdown, the logs and
/// JSON of the suite) is written to a folder, whose path is printed. Fails if a spec passes with upstream's manager and
/// not with ours, if the suite did not run to its end, or if no spec ran; without upstream's manager, if any spec fails.
///
/// Requirements: those of `cargo xtask cluster`, and the Debian packages debootstrap, busybox-static and bash-static, with
/// which the images of the suite are built. A full run takes about 15 minutes for each manager on an idle machine.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask conformance                                     # both managers, all parallel conformance specs
  cargo xtask conformance --manager ours --focus 'Deployment.*Conformance'
  cargo xtask conformance --focus '\\[sig-apps\\]' --skip '\\[Slow\\]|\\[Serial\\]'")]
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

    /// Minutes after which the suite is ended
    #[arg(long, default_value_t = 60, value_name = "MINUTES")]
    timeout: u32,

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
    let programs = Programs::locate()?;
    let missing = [requirements::building_for_conformance(&programs), suite_images::missing(&programs)].concat();
    if !root::is_root() {
        return build_and_continue_as_root(&arguments, missing);
    }
    cluster::check_machine(missing)?;
    programs.build()?;
    programs.build_conformance()?;
    suite_images::file(&programs)?;
    let folder = arguments.report.clone().unwrap_or_else(|| crate::cargo::workspace().join("target/conformance"));
    let folder = std::path::absolute(&folder).with_context(|| format!("resolve {}", folder.display()))?;
    let _lock = lock(&folder)?;
    let measured = measure_all(&arguments, &folder);
    // The folder also belongs to the user if a run has failed.
    root::give_to_user(&folder)?;
    let faults = report::faults(&measured?);
    ensure!(faults.is_empty(), "the run does not show conformance:\n- {}", faults.join("\n- "));
    Ok(())
}

/// Runs the suite for each manager, writes the report and prints it; returns the results by manager.
fn measure_all(arguments: &Arguments, folder: &Path) -> Result<Vec<(String, Results)>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let mut all = Vec::new();
    for manager in &arguments.manager {
        println!("==> {manager}");
        let own = folder.join(manager.to_string().replace('/', "_"));
        std::fs::create_dir_all(&own).with_context(|| format!("make {}", own.display()))?;
        let (results, footprint) = runtime.block_on(measure(arguments, manager, &own))?;
        let leaks = footprint.leaks();
        ensure!(leaks.is_empty(), "the cluster left behind: {}", leaks.join(", "));
        println!("{manager}: {}", results.summary());
        all.push((manager.to_string(), results));
    }
    let text = report::markdown(&all);
    let path = folder.join("report.md");
    std::fs::write(&path, &text).with_context(|| format!("write {}", path.display()))?;
    print!("\n{text}\nThe report is {}\n", path.display());
    Ok(all)
}

/// Builds all programs as the user, and starts this command again as root. `missing` is what the machine lacks.
fn build_and_continue_as_root(arguments: &Arguments, missing: Vec<String>) -> Result<()> {
    let programs = cluster::build_as_user(missing)?;
    programs.build_conformance()?;
    let cloud_manager = cluster::cloud_program(arguments.cloud_manager.as_deref(), !arguments.debug)?;
    let mut binaries = vec![("ccm", cloud_manager)];
    for manager in &arguments.manager {
        match manager {
            Manager::Ours if arguments.kcm.is_some() => {}
            Manager::Ours => binaries.push(("kcm", manager.program(!arguments.debug)?)),
            Manager::Upstream | Manager::Path(_) => drop(manager.program(false)?),
        }
    }
    let binaries: Vec<(&str, &Path)> = binaries.iter().map(|(package, path)| (*package, path.as_path())).collect();
    root::restart(&binaries)
}

/// Locks the folder of the report for this process.
fn lock(folder: &Path) -> Result<File> {
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let file = File::open(folder).with_context(|| format!("open {}", folder.display()))?;
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    locked.ok().with_context(|| {
        format!("another run writes its report to {}: choose another folder with --report", folder.display())
    })?;
    Ok(file)
}

/// Runs the suite on a cluster of its own. Returns the cluster's footprint too, once it has ended.
async fn measure(arguments: &Arguments, manager: &Manager, folder: &Path) -> Result<(Results, Footprint)> {
    let program = match (manager, &arguments.kcm) {
        (Manager::Ours, Some(path)) => &Manager::Path(path.clone()),
        _ => manager,
    };
    let mut setup = cluster::setup(2, program, arguments.cloud_manager.as_deref(), !arguments.debug)?;
    setup.images.push(suite_images::FILE.to_owned());
    let cluster = RealCluster::start(setup, |step| println!("{step}")).await?;
    let choice = suite::Choice {
        focus: &arguments.focus,
        skip: &arguments.skip,
        procs: arguments.procs,
        minutes: arguments.timeout,
    };
    let results = suite::run(&cluster, &choice, folder).await?;
    Ok((results, cluster.footprint()?))
}
