//! Clusters with many custom kinds, on an API server with its default flags: 100 streams on each connection.
//!
//! The kinds are created while a manager leads, whose Lease is observed throughout. Rollouts before and after the
//! creation are compared. Then a second manager starts while all kinds exist.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::programs::{KCM, Process, command};
use cluster_tests::{Space, during, eventually};
use control_plane::{ControlPlane, CustomKind, Identity};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use runtime::lock::lock;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::serving::bare_control_plane;

const GROUP: &str = "many.example.com";

/// Maximum time between renewals: the leader ends its term after ten seconds without one.
const LATE_RENEWAL: Duration = Duration::from_secs(6);

/// Time between two reads of the Lease.
const LEASE_READ_INTERVAL: Duration = Duration::from_millis(250);

/// Time for which the Lease is observed after everything else.
const OBSERVED: Duration = Duration::from_secs(15);

/// Streams that the API server allows on a connection by default. The watches of built-in kinds need about as many.
const STREAMS: usize = 100;

/// Maximum number of connections for other purposes: short requests of each identity, the Lease, and long lists.
const OTHER_CONNECTIONS: usize = 6;

/// Maximum ratio of a rollout's duration to the duration without custom kinds; [`ROLLOUT_SLACK`] is added.
const ROLLOUT_FACTOR: u32 = 3;
const ROLLOUT_SLACK: Duration = Duration::from_secs(5);

/// Pods of the Deployment that is rolled out.
const REPLICAS: usize = 3;

fn documents(values: impl Iterator<Item = Value>) -> String {
    values.fold(String::new(), |mut all, value| {
        let _ = writeln!(all, "---\n{value}");
        all
    })
}

fn definition(number: usize) -> Value {
    CustomKind::new(GROUP, format!("Kind{number}")).definition()
}

/// Returns an object whose owner does not exist: it is deleted once its kind is watched.
fn garbage(number: usize) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": format!("Kind{number}"),
        "metadata": {"name": "garbage", "namespace": "default", "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "missing", "uid": "6f1f6c0e-0000-4000-8000-000000000001",
        }]},
    })
}

/// Creates an object of each kind. `kubectl` would read the schema of all kinds for each of them, which takes minutes.
async fn create_garbage(client: &Client, count: usize) -> Result<()> {
    for number in 0..count {
        let path = format!("/apis/{GROUP}/v1/namespaces/default/kind{number}s");
        eventually(format!("garbage of kind {number} is created"), || async {
            let body = garbage(number).to_string().into_bytes();
            let request = http::Request::post(&*path).header("content-type", "application/json").body(body)?;
            client.request::<Value>(request).await?;
            Ok(())
        })
        .await?;
    }
    Ok(())
}

async fn until_served(client: &Client, count: usize) -> Result<()> {
    eventually(format!("{count} kinds are served"), || async {
        let list: Value = client.request(http::Request::get(format!("/apis/{GROUP}/v1")).body(Vec::new())?).await?;
        let served = list["resources"].as_array().map_or(0, Vec::len);
        ensure!(served == count, "{served} are served");
        Ok(())
    })
    .await
}

/// Waits until the manager has deleted an object of each kind, for which it has to watch all of them.
async fn until_watched(client: &Client, count: usize) -> Result<()> {
    for number in 0..count {
        eventually(format!("garbage of kind {number} is deleted"), || async {
            let path = format!("/apis/{GROUP}/v1/namespaces/default/kind{number}s");
            let list: Value = client.request(http::Request::get(path).body(Vec::new())?).await?;
            ensure!(list["items"].as_array().is_some_and(Vec::is_empty), "it exists");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn start(cluster: &ControlPlane, name: &str) -> Result<Process> {
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
    let flags = [
        format!("--kubeconfig={}", kubeconfig.display()),
        "--use-service-account-credentials".to_owned(),
        format!("--service-account-private-key-file={}", cluster.service_account_key().display()),
    ];
    Process::start(cluster, name, &command(cluster, KCM)?, &flags)
}

/// Replaces all pods of a Deployment. Returns the time until the pods of this version exist, and no others.
async fn roll(cluster: &ControlPlane, client: &Client, version: &str) -> Result<Duration> {
    // No kubelet makes these pods ready: a rolling update would never end.
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}}, "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": {"app": "web", "version": version}},
                "spec": {"containers": [{"name": "c", "image": "c"}]},
            },
        },
    });
    cluster.kubectl_with_input(&["apply", "-f", "-"], &deployment.to_string())?;
    let start = Instant::now();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    eventually(format!("the Deployment has its pods of version {version}"), || async {
        let count =
            async |selector: &str| anyhow::Ok(pods.list(&ListParams::default().labels(selector)).await?.items.len());
        let (all, new) = (count("app=web").await?, count(&format!("app=web,version={version}")).await?);
        ensure!((all, new) == (REPLICAS, REPLICAS), "{new} of {all} pods are new");
        Ok(())
    })
    .await?;
    Ok(start.elapsed())
}

/// Rolls out some versions. Returns the median of the durations: the machine may be paused during one.
async fn rollouts(cluster: &ControlPlane, client: &Client, versions: [&str; 3]) -> Result<Duration> {
    let mut durations = Vec::new();
    for version in versions {
        durations.push(roll(cluster, client, version).await?);
    }
    durations.sort_unstable();
    Ok(durations[durations.len() / 2])
}

/// Renewals of the manager's Lease that were observed.
#[derive(Debug, Default)]
struct Renewals {
    holder: Option<String>,
    count: usize,
    renewed: Option<Timestamp>,
    longest_gap: Duration,
    /// The time of the last read.
    read: Option<Timestamp>,
}

impl Renewals {
    /// Records the Lease as it was read. Fails if another process holds it, or it was not renewed in time.
    fn record(&mut self, lease: Lease) -> Result<()> {
        let spec = lease.spec.context("no spec")?;
        let (holder, renewed) = (spec.holder_identity.context("no holder")?, spec.renew_time.context("no renewal")?.0);
        ensure!(!holder.is_empty(), "it was released");
        let first = self.holder.get_or_insert_with(|| holder.clone());
        ensure!(*first == holder, "{holder} follows {first}");
        if self.renewed != Some(renewed) {
            self.count += 1;
        }
        // Until the next renewal, the age of the last one is the gap so far.
        let now = Timestamp::now();
        let gap = now.duration_since(renewed).unsigned_abs();
        self.renewed = Some(renewed);
        self.longest_gap = self.longest_gap.max(gap);
        // While this process or the API server is paused, the manager cannot renew the Lease either.
        let paused = self.read.replace(now).map_or(Duration::ZERO, |read| now.duration_since(read).unsigned_abs());
        ensure!(gap < LATE_RENEWAL + paused, "renewed {gap:?} ago, and the last read {paused:?} ago");
        Ok(())
    }
}

/// A task that reads the Lease continually.
struct LeaseObserver {
    task: JoinHandle<()>,
    seen: Arc<Mutex<(Renewals, Option<anyhow::Error>)>>,
}

impl LeaseObserver {
    /// Starts once a process leads.
    async fn start(client: &Client) -> Result<Self> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
        let read = move || {
            let leases = leases.clone();
            async move { anyhow::Ok(leases.get("kube-controller-manager").await?) }
        };
        eventually("a manager leads", || async { Renewals::default().record(read().await?) }).await?;
        let seen = Arc::<Mutex<(Renewals, Option<anyhow::Error>)>>::default();
        let recorded = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                // A failed read is no failure of the manager; the next successful read reveals a missed renewal.
                if let Ok(lease) = read().await {
                    let (renewals, first_failure) = &mut *lock(&recorded);
                    if let Err(failure) = renewals.record(lease) {
                        first_failure.get_or_insert(failure);
                    }
                }
                sleep(LEASE_READ_INTERVAL).await;
            }
        });
        Ok(Self { task, seen })
    }

    /// Fails if the Lease was not renewed in time since the start.
    fn check(&self) -> Result<()> {
        let (renewals, failure) = &*lock(&self.seen);
        ensure!(failure.is_none(), "the Lease was lost or late: {failure:?}; {renewals:?}");
        Ok(())
    }

    /// Ends the observation. Returns the number of renewals and the longest time between two of them.
    fn finish(self) -> Result<(usize, Duration)> {
        self.check()?;
        self.task.abort();
        let (renewals, _) = &*lock(&self.seen);
        Ok((renewals.count, renewals.longest_gap))
    }
}

/// Checks that the watches use several connections, each of which carries many of them.
fn watches_share_few_connections(cluster: &ControlPlane, manager: &Process, kinds: usize) -> Result<()> {
    let port = cluster.server().rsplit_once(':').context("no port")?.1.parse()?;
    let connections = manager.connections_to(port)?;
    let min = kinds.div_ceil(STREAMS) + 1;
    let max = (kinds + STREAMS).div_ceil(STREAMS) + OTHER_CONNECTIONS;
    ensure!((min..=max).contains(&connections), "{connections} connections instead of {min} to {max}");
    println!("{kinds} custom kinds: {connections} connections");
    Ok(())
}

/// Creates all kinds while the manager leads, and checks its Lease, its rollouts and its connections. Returns the
/// duration of a rollout without the kinds.
async fn create_kinds_while_a_manager_leads(
    cluster: &ControlPlane,
    client: &Client,
    manager: &Process,
    count: usize,
) -> Result<Duration> {
    let observer = LeaseObserver::start(client).await?;
    let usual = rollouts(cluster, client, ["a1", "a2", "a3"]).await?;
    cluster.kubectl_with_input(&["create", "-f", "-"], &documents((0..count).map(definition)))?;
    until_served(client, count).await?;
    create_garbage(client, count).await?;
    until_watched(client, count).await?;
    let with_kinds = rollouts(cluster, client, ["b1", "b2", "b3"]).await?;
    println!("{count} custom kinds: a rollout takes {with_kinds:?} with them, {usual:?} without");
    ensure!(
        with_kinds <= usual * ROLLOUT_FACTOR + ROLLOUT_SLACK,
        "a rollout takes {with_kinds:?}, {usual:?} without the kinds"
    );
    watches_share_few_connections(cluster, manager, count)?;
    during(OBSERVED, "the Lease is renewed in time", || async { observer.check() }).await?;
    let (renewals, gap) = observer.finish()?;
    println!("{count} custom kinds: {renewals} renewals, at most {gap:?} apart");
    ensure!(renewals > 5, "only {renewals} renewals");
    Ok(usual)
}

/// Checks the same for a manager that has started while all kinds exist. `usual` is the duration of a rollout without
/// the kinds.
async fn start_a_manager_with_existing_kinds(
    cluster: &ControlPlane,
    client: &Client,
    manager: &Process,
    (count, usual): (usize, Duration),
) -> Result<()> {
    // The Lease of the first manager was released.
    let observer = LeaseObserver::start(client).await?;
    roll(cluster, client, "c1").await?;
    create_garbage(client, count).await?;
    until_watched(client, count).await?;
    let with_kinds = rollouts(cluster, client, ["d1", "d2", "d3"]).await?;
    println!("{count} custom kinds: a rollout takes {with_kinds:?} after a start with them");
    ensure!(
        with_kinds <= usual * ROLLOUT_FACTOR + ROLLOUT_SLACK,
        "a rollout takes {with_kinds:?}, {usual:?} without the kinds"
    );
    watches_share_few_connections(cluster, manager, count)?;
    during(OBSERVED, "the Lease is renewed in time", || async { observer.check() }).await?;
    let (renewals, gap) = observer.finish()?;
    println!("{count} custom kinds: {renewals} renewals after the start, at most {gap:?} apart");
    Ok(())
}

async fn works_with_kinds(count: usize) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let client = cluster.client(Identity::Admin).await?;
    let end_of_log = |manager: &Process| {
        let log = manager.log(&cluster).unwrap_or_default();
        log.lines().rev().take(30).map(|line| format!("{line}\n")).collect::<String>()
    };
    let manager = start(&cluster, "kcm-many-kinds")?;
    let usual = create_kinds_while_a_manager_leads(&cluster, &client, &manager, count).await;
    let usual = usual.with_context(|| end_of_log(&manager))?;
    println!("{count} custom kinds: {} KiB resident", manager.resident_kib()?);
    manager.stop(&cluster).await?;
    let manager = start(&cluster, "kcm-started-with-kinds")?;
    let works = start_a_manager_with_existing_kinds(&cluster, &client, &manager, (count, usual)).await;
    works.with_context(|| end_of_log(&manager))?;
    println!("{count} custom kinds: {} KiB resident after a start with them", manager.resident_kib()?);
    manager.stop(&cluster).await
}

/// More kinds than streams on one connection.
pub async fn leader_works_with_150_custom_kinds(_: Space) -> Result<()> {
    works_with_kinds(150).await
}

/// The number of kinds of large platforms; prints the memory, the gaps between renewals and the rollouts.
pub async fn leader_works_with_500_custom_kinds(_: Space) -> Result<()> {
    works_with_kinds(500).await
}
