//! The two managers, started with the same controllers, identity and limits; and a running manager with its usage and
//! requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use control_plane::audit::Counts;
use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::time::sleep;

use super::api::{self, POLL_INTERVAL, Progress};
use super::requests::{Tally, is_quiet, tally};
use crate::process::{Usage, usage};

/// The name of the manager's process in its control plane.
const MANAGER: &str = "manager";

/// Maximum time until a manager becomes the leader.
const LEADER_DEADLINE: Duration = Duration::from_secs(60);

/// Time without requests after which a manager counts as quiet: longer than the delays between the writes of a
/// scenario, so that all its effects are counted.
const SILENCE: Duration = Duration::from_secs(12);

/// Time without writes after which controllers that poll count as being at rest: longer than their periods.
const REST: Duration = Duration::from_secs(20);

/// Maximum time until a manager is quiet or at rest.
const SILENCE_DEADLINE: Duration = Duration::from_secs(120);

/// One of the two managers that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Subject {
    /// This project's kcm.
    Ours,
    /// Upstream's kube-controller-manager.
    Upstream,
}

/// The limits that both managers run under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Mode {
    /// `--kube-api-qps=2000 --kube-api-burst=4000`: what the managers can do
    Raised,
    /// Default flags: what most clusters run
    Default,
}

impl Subject {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Ours => "ours",
            Subject::Upstream => "upstream",
        }
    }
}

impl Mode {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Raised => "raised",
            Mode::Default => "default",
        }
    }

    /// Returns its flags.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Raised => &["--kube-api-qps=2000", "--kube-api-burst=4000"],
            Mode::Default => &[],
        }
    }
}

/// Flags of both managers in every mode, in addition to the kubeconfig. Neither serves HTTPS, which is not compared.
pub const FLAGS: [&str; 2] = ["--use-service-account-credentials=true", "--secure-port=0"];

/// The controllers of Deployments, and those that they need.
pub const WORKLOADS: &str = "--controllers=deployment,replicaset,serviceaccount,nodelifecycle";

/// The controllers of EndpointSlices and Endpoints.
pub const ENDPOINTS: &str = "--controllers=endpointslice,endpoint";

/// The controllers of workloads of every kind, of autoscalers and of disruption budgets.
pub const ALL_WORKLOADS: &str = "--controllers=statefulset-controller,daemonset-controller,job-controller,\
    cronjob-controller,ttl-after-finished-controller,replicationcontroller-controller,\
    horizontal-pod-autoscaler-controller,disruption-controller,serviceaccount-controller,node-lifecycle-controller";

/// The controller of autoscalers alone.
pub const AUTOSCALING: &str = "--controllers=horizontal-pod-autoscaler-controller";

/// The controller of namespaces, with the garbage collector, which runs in every cluster and watches every kind.
pub const NAMESPACES: &str = "--controllers=namespace,garbagecollector";

/// The garbage collector.
pub const GARBAGE: &str = "--controllers=garbagecollector";

/// The controllers of nodes.
pub const NODES: &str = "--controllers=nodelifecycle,taint-eviction-controller,ttl";

/// The controllers of volumes.
pub const VOLUMES: &str = "--controllers=persistentvolume-binder-controller,\
    persistentvolume-attach-detach-controller,persistentvolume-expander-controller,\
    persistentvolume-protection-controller,persistentvolumeclaim-protection-controller,ephemeral-volume-controller";

/// The generated list of controllers.
const PAGE: &str = include_str!("../../../docs/status.md");

/// Returns the flags for all complete controllers that are on by default, with the files that some of them need.
pub fn all_controllers(cluster: &ControlPlane) -> Vec<String> {
    let file = |name: &str, path: PathBuf| format!("--{name}={}", path.display());
    vec![
        format!("--controllers={}", complete_controllers(PAGE).join(",")),
        file("service-account-private-key-file", cluster.service_account_key()),
        file("root-ca-file", cluster.ca_certificate()),
        file("cluster-signing-cert-file", cluster.ca_certificate()),
        file("cluster-signing-key-file", cluster.ca_key()),
        "--allocate-node-cidrs=true".into(),
        "--cluster-cidr=10.64.0.0/10".into(),
    ]
}

/// Returns the names of the complete controllers that are on by default, from a table with the columns name, alias,
/// default and state.
fn complete_controllers(table: &str) -> Vec<&str> {
    let rows = table.lines().skip_while(|line| !line.starts_with("| controller |"));
    let rows = rows.skip(2).map_while(|line| line.strip_prefix("| "));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let complete_controllers = cells.filter_map(|cells| match cells[..] {
        [name, _, "on", state, ..] if state.starts_with("complete") => Some(name),
        _ => None,
    });
    complete_controllers.collect()
}

/// The managers' binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// This project's.
    pub ours: PathBuf,
    /// Upstream's.
    pub upstream: PathBuf,
}

impl Binaries {
    fn of(&self, subject: Subject) -> &Path {
        match subject {
            Subject::Ours => &self.ours,
            Subject::Upstream => &self.upstream,
        }
    }
}

/// A running manager.
pub struct ManagerProcess<'a> {
    cluster: &'a ControlPlane,
    id: u32,
    /// The time just before the manager was executed.
    pub started: Instant,
    /// The start of the process.
    pub initial: Checkpoint,
}

/// A point in time: the end of the audit log, and the usage of the manager until then.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoint {
    position: u64,
    /// CPU and memory until then.
    pub usage: Usage,
}

impl<'a> ManagerProcess<'a> {
    /// Executes a manager with flags that choose controllers, in a control plane without another manager.
    pub fn start(
        cluster: &'a ControlPlane,
        binaries: &Binaries,
        subject: Subject,
        mode: Mode,
        controller_flags: &[impl AsRef<str>],
    ) -> Result<Self> {
        let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let flags = FLAGS.iter().chain(mode.flags()).map(ToString::to_string);
        let flags = flags.chain(controller_flags.iter().map(|flag| flag.as_ref().to_owned())).chain([kubeconfig]);
        let no_usage = Usage { cpu: 0.0, resident: 0.0, peak: 0.0 };
        let initial = Checkpoint { position: cluster.audit_position()?, usage: no_usage };
        let started = Instant::now();
        let id = cluster.run(MANAGER, binaries.of(subject), &flags.collect::<Vec<_>>())?;
        Ok(Self { cluster, id, started, initial })
    }

    /// Waits until the manager holds the Lease.
    pub async fn until_leader(&self, client: &Client) -> Result<()> {
        let holder = |lease: Option<Lease>| lease?.spec?.holder_identity.filter(|holder| !holder.is_empty());
        let mut progress = Progress::new();
        while holder(leases(client).get_opt(LEASE).await?).is_none() {
            self.check()?;
            ensure!(
                self.started.elapsed() < LEADER_DEADLINE,
                "the manager did not become the leader in {} s; its last lines:\n{}",
                LEADER_DEADLINE.as_secs(),
                self.last_lines()
            );
            progress.report(|| "waiting for the manager to become the leader".into());
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until the manager has sent no requests for [`SILENCE`], except for its Lease and for discovery.
    pub async fn until_quiet(&self) -> Result<()> {
        self.until("quiet", SILENCE, is_quiet).await
    }

    /// Waits until the manager has written nothing for [`REST`]; it may read.
    pub async fn until_at_rest(&self) -> Result<()> {
        self.until("at rest", REST, |counts| tally(counts).writes == 0).await
    }

    async fn until(&self, what: &str, time: Duration, is_reached: impl Fn(&Counts) -> bool) -> Result<()> {
        let deadline = Instant::now() + SILENCE_DEADLINE;
        let mut progress = Progress::new();
        loop {
            let before = self.cluster.audit_position()?;
            sleep(time).await;
            self.check()?;
            let counts = self.cluster.audit_counts(before)?;
            if is_reached(&counts) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the manager is not {what} after {} s: in the last {} s it requested {:?}",
                    SILENCE_DEADLINE.as_secs(),
                    time.as_secs(),
                    tally(&counts).kinds
                );
            }
            progress.report(|| format!("waiting for the manager to be {what}"));
        }
    }

    /// Returns the current point in time.
    pub fn mark(&self) -> Result<Checkpoint> {
        Ok(Checkpoint { position: self.cluster.audit_position()?, usage: usage(self.id)? })
    }

    /// Returns its requests since a point in time.
    pub fn requests_since(&self, mark: &Checkpoint) -> Result<Tally> {
        Ok(tally(&self.cluster.audit_counts(mark.position)?))
    }

    /// Fails if a process has exited, with the end of its log.
    pub fn check(&self) -> Result<()> {
        self.cluster.check()
    }

    /// Returns the end of its log.
    pub fn last_lines(&self) -> String {
        let log = fs::read_to_string(self.cluster.log(MANAGER)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// Copies its log.
    pub fn keep_log(&self, path: &Path) -> Result<()> {
        fs::copy(self.cluster.log(MANAGER), path).with_context(|| format!("write {}", path.display()))?;
        Ok(())
    }

    /// Kills the manager and deletes its Lease and its log, so that the next manager need not wait.
    pub async fn end(self, client: &Client) -> Result<()> {
        self.cluster.kill(MANAGER)?;
        fs::remove_file(self.cluster.log(MANAGER)).context("remove the manager's log")?;
        api::delete(client, &format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LEASE}")).await
    }
}

const LEASE: &str = "kube-controller-manager";

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), "kube-system")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_controllers_are_those_of_the_first_table_that_are_complete_and_on() {
        let table = "words\n\n| controller | alias | by default | state |\n| --- | --- | --- | --- |
| a-controller | a | on | complete |\n| b-controller | | off | complete |
| c-controller | | on | missing |\n| d-controller |  | on | complete, but for x |\n\n| e | e | on | complete |";
        assert_eq!(complete_controllers(table), ["a-controller", "d-controller"]);
        let all = complete_controllers(PAGE);
        assert!(all.contains(&"garbage-collector-controller") && all.contains(&"ttl-controller"), "{all:?}");
        assert!(!all.contains(&"cloud-node-controller"), "{all:?}");
    }
}
