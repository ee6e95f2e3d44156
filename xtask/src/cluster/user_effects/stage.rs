//! The scenarios on a cluster: servers behind a load balancer, clients, and a manager that is disturbed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use control_plane::Identity;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use real_cluster::load::Load;
use real_cluster::{ManagerProgram, RealCluster, images};
use tokio::time::{Instant, sleep};

use super::super::web::{PATH, Web};
use super::change::{Change, Disturbance};
use super::effects::UserEffects;

/// The number of servers in all scenarios except the one that scales them.
const SERVERS: u32 = 20;

/// The number of servers after scaling up.
const SCALE: u32 = 50;

/// The number of clients, each of which sends a request every [`PERIOD`].
const CLIENTS: u32 = 10;
const PERIOD: Duration = Duration::from_millis(50);

/// Maximum duration of a request; one that takes longer counts as failed.
const REQUEST_DEADLINE: Duration = Duration::from_secs(2);

/// Maximum duration of any step.
const DEADLINE: Duration = Duration::from_secs(600);

/// Time without failed requests after which failures count as over.
const QUIET: Duration = Duration::from_secs(10);

/// Time after the end of the last server of the previous version in which requests to it would fail. It is longer than
/// such a request takes.
const AFTER_LAST_SERVER: Duration = Duration::from_secs(3);

/// The node that fails.
const VICTIM: u8 = 2;

/// A cluster with servers and clients.
pub struct Stage<'a> {
    cluster: &'a RealCluster,
    leases: Api<Lease>,
    web: Web,
    /// Requests of clients, from the first scenario that needs them.
    load: Option<Load>,
    /// The manager that is measured.
    own: ManagerProgram,
    other: ManagerProgram,
    /// The number of rolling updates so far.
    updates: usize,
}

impl<'a> Stage<'a> {
    /// Creates the servers' objects on a cluster whose manager is measured. `other` replaces it in some scenarios.
    pub async fn set(cluster: &'a RealCluster, other: &Path) -> Result<Self> {
        let (own, other) = (cluster.current_manager(), cluster.add_manager(other)?);
        let leases = Api::namespaced(cluster.control_plane().client(Identity::Admin).await?, "kube-system");
        let web = Web::create(cluster.control_plane(), 0).await?;
        web.wait_for_rollout(DEADLINE).await?;
        Ok(Self { cluster, leases, web, load: None, own, other, updates: 0 })
    }

    /// Runs a scenario; afterwards, restores the manager if it was replaced, and the node if it failed.
    pub async fn run_scenario(&mut self, change: Change, disturbance: Disturbance) -> Result<UserEffects> {
        match change {
            Change::Scale => self.scale_servers(0).await?,
            Change::Update | Change::NodeFailure => self.serve().await?,
        }
        let start = Instant::now();
        let (changed, disturbed) = tokio::join!(self.change(change, start), self.disturb(change, disturbance));
        let took = changed?;
        disturbed?;
        let effects = self.effects(start, took);
        self.print_failures(start);
        if change == Change::Update {
            self.updates += 1;
        }
        if disturbance == Disturbance::Replace {
            self.restore_manager().await.context("restore the manager")?;
        }
        if change == Change::NodeFailure {
            self.restore_node().await.context("restore the node")?;
        }
        Ok(effects)
    }

    /// Makes a change and waits until the servers have the desired state. Returns the time from `start`.
    async fn change(&self, change: Change, start: Instant) -> Result<Duration> {
        match change {
            Change::Scale => {
                self.web.scale(SCALE).await?;
                self.web.wait_for_rollout(DEADLINE).await?;
                Ok(start.elapsed())
            }
            Change::Update => {
                let image = if self.updates.is_multiple_of(2) { images::AGNHOST } else { images::AGNHOST_OLD };
                self.web.update(image).await?;
                self.web.wait_for_rollout(DEADLINE).await?;
                let took = start.elapsed();
                // The last servers of the previous version still respond. Requests fail if those servers end before
                // clients use other ones.
                self.web.wait_for_pods(SERVERS, DEADLINE).await?;
                sleep(AFTER_LAST_SERVER).await;
                self.wait_for_quiet(start).await?;
                Ok(took)
            }
            Change::NodeFailure => {
                self.cluster.kill_node(VICTIM)?;
                self.web.wait_for_evacuation(&real_cluster::node_name(VICTIM), SERVERS, DEADLINE).await?;
                let took = start.elapsed();
                self.wait_for_quiet(start).await?;
                Ok(took)
            }
        }
    }

    async fn disturb(&self, change: Change, disturbance: Disturbance) -> Result<()> {
        if disturbance != Disturbance::None {
            sleep(change.delay_to_disturbance()).await;
        }
        match disturbance {
            Disturbance::None => Ok(()),
            Disturbance::Kill => self.cluster.kill_manager(&self.own),
            Disturbance::Replace => self.cluster.replace_manager(&self.other).await,
        }
    }

    fn effects(&self, start: Instant, took: Duration) -> UserEffects {
        let (requests, failed) = self.load.as_ref().map_or((0, 0), |load| load.count_since(start));
        let last = self.load.as_ref().and_then(|load| load.last_failure_since(start));
        let failures_lasted = last.map_or(Duration::ZERO, |last| last.duration_since(start));
        UserEffects { took, requests, failed, failures_lasted, load: load_average() }
    }

    /// Prints the failed requests since the change, by their errors.
    fn print_failures(&self, start: Instant) {
        for failure in self.load.iter().flat_map(|load| load.failures_since(start)) {
            println!("  {failure}");
        }
    }

    /// Waits until the usual number of servers responds to clients.
    async fn serve(&mut self) -> Result<()> {
        self.scale_servers(SERVERS).await?;
        let server = self.web.wait_for_response(DEADLINE).await?;
        let load = self.load.get_or_insert_with(|| Load::start(server, PATH, CLIENTS, PERIOD, REQUEST_DEADLINE));
        let start = Instant::now();
        sleep(Duration::from_secs(2)).await;
        let (requests, _) = load.count_since(start);
        ensure!(requests > 0, "no request completed in 2 s");
        self.wait_for_quiet(start).await
    }

    async fn scale_servers(&self, number: u32) -> Result<()> {
        self.web.scale(number).await?;
        self.web.wait_for_rollout(DEADLINE).await?;
        self.web.wait_for_pods(number, DEADLINE).await
    }

    /// Waits until no request has failed for [`QUIET`].
    async fn wait_for_quiet(&self, start: Instant) -> Result<()> {
        let Some(load) = &self.load else { return Ok(()) };
        while load.last_failure_since(start).is_some_and(|last| last.elapsed() < QUIET) {
            ensure!(start.elapsed() < DEADLINE, "requests still fail after {} s", DEADLINE.as_secs());
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Starts the measured manager again, and waits until it is leader.
    async fn restore_manager(&self) -> Result<()> {
        let before = self.leader().await?;
        self.cluster.replace_manager(&self.own).await?;
        let start = Instant::now();
        loop {
            let leader = self.leader().await?;
            if leader.is_some() && leader != before {
                return Ok(());
            }
            ensure!(start.elapsed() < DEADLINE, "no other leader than {before:?} in {} s", DEADLINE.as_secs());
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the identity of the leading manager.
    async fn leader(&self) -> Result<Option<String>> {
        let lease = self.leases.get_opt("kube-controller-manager").await.context("get the manager's Lease")?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity).filter(|holder| !holder.is_empty()))
    }

    /// Starts the failed node again, and deletes the servers, so that new ones are spread over all nodes.
    async fn restore_node(&self) -> Result<()> {
        self.cluster.start_node(VICTIM)?;
        self.cluster.wait_for_nodes().await?;
        self.scale_servers(0).await
    }
}

/// Returns the load average of the machine over the last minute, or 0 if the kernel does not report it.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}
