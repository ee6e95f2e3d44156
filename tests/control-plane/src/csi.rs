//! CSI drivers for tests, each with the sidecars that run next to every CSI driver of a cluster: csi-provisioner,
//! csi-attacher and csi-resizer.
//!
//! The driver keeps its volumes in memory. It logs each creation, attachment, detachment, expansion and deletion.
//! Requests that would damage data, such as a second attachment of a single-node volume, are reported as violations.

use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::assets::{self, Program};
use crate::cluster::ControlPlane;
use crate::identity::Identity;
use crate::processes::Processes;

/// Maximum time until the driver listens on its socket.
const SOCKET_DEADLINE: Duration = Duration::from_secs(120);

/// The first word of an entry that reports a request that would damage data.
const VIOLATION: &str = "VIOLATION";

/// The controller service of a driver: a program, which listens on a socket.
#[derive(Clone, Debug)]
pub struct Service {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The socket of its CSI services.
    pub socket: PathBuf,
    /// The file with its actions. Each line is a date, a time, and an entry of [`Driver::history`].
    pub actions: PathBuf,
}

/// A running CSI driver with its sidecars. They run until this value is dropped, or the control plane ends.
pub struct Driver {
    name: String,
    actions: PathBuf,
    /// The processes of the control plane, unless it has ended.
    processes: Weak<Processes>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(processes) = self.processes.upgrade() {
            for program in process_names(&self.name) {
                // A program that was not started, or was stopped before, is not in the list of processes.
                let _ = processes.kill(&program);
            }
        }
    }
}

impl Driver {
    /// Starts a driver with this name, of at most 40 characters, and its sidecars. `flags` are the driver's own, such
    /// as `--detach-delay=3s`; `csi/driver/main.go` lists them.
    ///
    /// The first call on a machine may build the programs, for minutes.
    ///
    /// # Errors
    /// When a program cannot be built or started.
    pub async fn start(cluster: &ControlPlane, name: &str, flags: &[&str]) -> Result<Self> {
        let programs = spawn_blocking(assets::csi).await??;
        let socket = cluster.folder().join(format!("{name}.sock"));
        let mut arguments = vec![format!("--socket={}", socket.display()), format!("--name={name}")];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let actions = cluster.log(&process_name(Program::CsiDriver, name));
        let program = programs.path(Program::CsiDriver)?.to_owned();
        Self::start_service(cluster, name, Service { program, arguments, socket, actions }).await
    }

    /// Starts the controller service of a driver with this name, and its sidecars.
    ///
    /// # Errors
    /// Same as [`Driver::start`].
    pub async fn start_service(cluster: &ControlPlane, name: &str, service: Service) -> Result<Self> {
        let programs = spawn_blocking(assets::csi_sidecars).await??;
        // From here on, an error ends the processes that were started.
        let driver = Self { name: name.to_owned(), actions: service.actions, processes: cluster.processes() };
        cluster.run(&process_name(Program::CsiDriver, name), &service.program, &service.arguments)?;
        let deadline = Instant::now() + SOCKET_DEADLINE;
        while !service.socket.exists() {
            cluster.check()?;
            if Instant::now() > deadline {
                bail!("the CSI driver {name} has no socket after {} s", SOCKET_DEADLINE.as_secs());
            }
            sleep(Duration::from_millis(20)).await;
        }
        let kubeconfig = cluster.kubeconfig(Identity::Admin)?;
        for sidecar in assets::CSI_SIDECARS {
            let arguments = [
                format!("--kubeconfig={}", kubeconfig.display()),
                format!("--csi-address={}", service.socket.display()),
                "--kube-api-qps=200".to_owned(),
                "--kube-api-burst=400".to_owned(),
            ];
            cluster.run(&process_name(sidecar, name), programs.path(sidecar)?, &arguments)?;
        }
        Ok(driver)
    }

    /// Returns its name, the provisioner of its StorageClasses.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its actions in order, as `<verb> <volume> ...`: `create <volume> <bytes>`, `attach <volume> <node>`,
    /// `detach <volume> <node>`, `expand <volume> <bytes>`, `delete <volume>`, and violations. On real nodes also
    /// `mount`, `grow` and `unmount` with a volume and a node.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn history(&self) -> Result<Vec<String>> {
        let text = fs::read_to_string(&self.actions).with_context(|| format!("read the actions of {}", self.name))?;
        Ok(events(&text))
    }

    /// Returns requests that would have damaged data.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn violations(&self) -> Result<Vec<String>> {
        let history = self.history()?;
        Ok(history.into_iter().filter(|event| event.starts_with(VIOLATION)).collect())
    }

    /// Kills the driver and its sidecars, as dropping it does, but reports errors.
    ///
    /// # Errors
    /// When one of them cannot be killed.
    pub fn stop(self) -> Result<()> {
        let Some(processes) = self.processes.upgrade() else { return Ok(()) };
        process_names(&self.name).try_for_each(|program| processes.kill(&program))
    }
}

/// Returns the names of the processes of a driver.
fn process_names(driver: &str) -> impl Iterator<Item = String> {
    assets::CSI_SIDECARS.into_iter().chain([Program::CsiDriver]).map(move |program| process_name(program, driver))
}

/// Returns the name of a process that belongs to a driver.
fn process_name(program: Program, driver: &str) -> String {
    format!("{}-{driver}", program.file_name())
}

/// Returns the events in a driver's log, whose lines begin with a date and a time. The last line may be incomplete.
fn events(log: &str) -> Vec<String> {
    const VERBS: [&str; 9] = ["create", "attach", "mount", "grow", "unmount", "detach", "expand", "delete", VIOLATION];
    let complete = log.rfind('\n').map_or("", |end| &log[..end]);
    let event = |line: &str| {
        let text = line.splitn(3, ' ').nth(2)?;
        VERBS.contains(&text.split(' ').next()?).then(|| text.to_owned())
    };
    complete.lines().filter_map(event).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn dropped_driver_ends_its_processes() {
        let processes = Arc::new(Processes::new(false, None, None).expect("a folder"));
        let run = |name: &str| processes.start(name, Path::new("sleep"), &["600".to_owned()]).expect("sleep runs");
        process_names("mine").for_each(|name| _ = run(&name));
        process_names("other").for_each(|name| _ = run(&name));
        let driver = |name: &str| Driver {
            name: name.to_owned(),
            actions: PathBuf::new(),
            processes: Arc::downgrade(&processes),
        };
        drop(driver("mine"));
        for name in process_names("mine") {
            assert!(processes.release(&name).is_err(), "{name} runs");
        }
        driver("other").stop().expect("all of its processes run");
        let later = driver("later");
        drop(processes);
        drop(later);
    }

    #[test]
    fn events_are_whole_lines_that_begin_with_a_verb() {
        let log = "2026/11/22 17:00:00 mock.csi.k8s.io listens on csi.sock\n\
                   2026/11/22 17:00:01 create 1 1073741824\n\
                   something that the mock prints\n\
                   2026/11/22 17:00:02 attach 1 node-0\n\
                   2026/11/22 17:00:03 VIOLATION attach 1 node-1: it is attached to node-0\n\
                   2026/11/22 17:00:04 detach 1 no";
        let expected =
            ["create 1 1073741824", "attach 1 node-0", "VIOLATION attach 1 node-1: it is attached to node-0"];
        assert_eq!(events(log), expected);
        assert_eq!(events(""), Vec::<String>::new());
    }
}
