//! Claims that are provisioned and bound, volumes that are attached and moved with their pods, and idle bound claims.

mod attach;
mod attacher;
mod follow;
mod kubelets;
mod lanes;
pub mod objects;
mod provision;
mod rest;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tokio::time::sleep;

use super::api::{POLL_INTERVAL, Progress};
use super::measure::{Measurement, Scenario};
use super::subject::{Binaries, ManagerProcess, Mode, Subject, VOLUMES};
pub use rest::ClaimsAtRest;

/// The namespace of all claims and pods.
const NAMESPACE: &str = "bench";

/// The number of parallel requests of the provisioner and the attacher.
const PARALLEL: usize = 24;

/// In volumes-move, each pod takes longer: the number of pods is the number of claims divided by this one.
const MOVED_PART: u32 = 10;

/// Maximum duration of a step.
const DEADLINE: Duration = Duration::from_secs(900);

/// The scenarios of volumes in which each manager has a separate control plane.
pub const WITH_NEW_CLUSTERS: [Scenario; 3] =
    [Scenario::VolumesProvision, Scenario::VolumesAttach, Scenario::VolumesMove];

/// Numbers of objects.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Claims that are provisioned, and pods with a volume.
    pub claims: u32,
    /// The nodes that the pods are spread over.
    pub nodes: u32,
}

/// Measures one of [`WITH_NEW_CLUSTERS`]; the manager's log is copied to `log`.
pub async fn measure(
    binaries: &Binaries,
    about: (Subject, Mode),
    scenario: Scenario,
    size: Size,
    log: &Path,
) -> Result<Measurement> {
    match scenario {
        Scenario::VolumesProvision => provision::measure(binaries, about, size.claims, log).await,
        Scenario::VolumesAttach => {
            let size = attach::Size { pods: size.claims, nodes: size.nodes };
            attach::measure(binaries, about, (scenario, size), log).await
        }
        Scenario::VolumesMove => {
            let size = attach::Size { pods: size.claims / MOVED_PART, nodes: size.nodes };
            attach::measure(binaries, about, (scenario, size), log).await
        }
        other => bail!("{} has a control plane that managers share", other.name()),
    }
}

/// Waits until a state is reached.
async fn until(manager: &ManagerProcess<'_>, describe: impl Fn() -> String, reached: impl Fn() -> bool) -> Result<()> {
    let (start, mut progress) = (Instant::now(), Progress::new());
    while !reached() {
        manager.check()?;
        ensure!(
            start.elapsed() < DEADLINE,
            "timed out: {}; the manager's last lines:\n{}",
            describe(),
            manager.last_lines()
        );
        progress.report(|| format!("{:.0} s: {}", start.elapsed().as_secs_f64(), describe()));
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
