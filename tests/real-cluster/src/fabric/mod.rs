//! Configures the cluster's router with the routes and load balancers of the mock cloud.
//!
//! Packets to a pod on another node, and packets to a load balancer, pass through the router. It has a route for each
//! pod range in the cloud, and one for each load balancer to those targets that are healthy. On a node, kube-proxy
//! takes over. The state of the cloud is in ccm: while ccm does not run, routes do not change. Each change of the
//! routes is recorded in a log.

mod cloud;
mod decide;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use tokio::task::{JoinHandle, JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::{http, network};
use cloud::Cloud;
use decide::{Check, Table};

/// Interval at which the cloud is read.
const PERIOD: Duration = Duration::from_millis(200);

/// Maximum duration of a health check. A node that exceeds it gets no traffic until it responds again.
const CHECK_DEADLINE: Duration = Duration::from_secs(3);

/// Keeps the router's routes equal to those of the mock cloud, until this value is dropped.
#[derive(Debug)]
pub struct Fabric {
    task: JoinHandle<()>,
}

impl Fabric {
    /// Starts the updates for the cloud at `server` and the router in a network namespace. `log` is the file of the
    /// log.
    pub fn start(server: SocketAddr, router: PathBuf, log: PathBuf) -> Self {
        let task = tokio::spawn(async move {
            let mut table = Table::new();
            let mut last_error = String::new();
            loop {
                let error = match synchronize(server, &router, &log, &mut table).await {
                    Ok(()) => String::new(),
                    Err(error) => format!("{error:#}"),
                };
                if error != last_error && !error.is_empty() {
                    eprintln!("cluster: routes of the cloud are not up to date: {error}");
                }
                last_error = error;
                sleep(PERIOD).await;
            }
        });
        Self { task }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn synchronize(server: SocketAddr, router: &Path, log: &Path, table: &mut Table) -> Result<()> {
    // Without a response nothing changes: ccm is not running yet, or is being replaced.
    let Ok(state) = http::get(server, "/state", CHECK_DEADLINE).await else { return Ok(()) };
    let cloud: Cloud = serde_json::from_str(&state).context("read the state of the mock cloud")?;
    let checks = decide::checks(&cloud);
    let healthy = healthy(checks.clone()).await;
    let desired = decide::routes(&cloud, |check| healthy.contains(&check));
    let commands = decide::changes(table, &desired);
    if !commands.is_empty() {
        let (router, applied) = (router.to_owned(), commands.clone());
        spawn_blocking(move || network::ip_in(&router, &applied)).await??;
        *table = desired;
        record(log, &commands, checks.difference(&healthy)).context("write the log of the routes")?;
    }
    Ok(())
}

/// Appends a change of the routes to the log, with the health checks that failed before it.
fn record<'a>(log: &Path, commands: &str, failed: impl Iterator<Item = &'a Check>) -> Result<()> {
    let failed: Vec<String> = failed.map(|(node, port)| format!("{node}:{port}")).collect();
    let mut file = OpenOptions::new().create(true).append(true).open(log)?;
    write!(file, "{} failed health checks: {failed:?}\n{commands}", Timestamp::now())?;
    Ok(())
}

/// Returns the successful checks.
async fn healthy(checks: BTreeSet<Check>) -> BTreeSet<Check> {
    let mut running = JoinSet::new();
    for (node, port) in checks {
        running.spawn(async move {
            let response = http::get((node, port).into(), "/healthz", CHECK_DEADLINE).await;
            response.is_ok().then_some((node, port))
        });
    }
    running.join_all().await.into_iter().flatten().collect()
}
