//! Many running pods: the cost of a manager without work, and the time from its start to its first action.
//!
//! The bench creates the pods once, in their final state; then the managers run one after the other on the same API
//! server, each with a new Lease.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control_plane::{ControlPlane, Identity, Options};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::api::{self, Patch, Progress};
use super::kubelets::Kubelets;
use super::measure::{Measurement, Scenario};
use super::subject::{Binaries, ManagerProcess, Mode, Subject, WORKLOADS, all_controllers};
use super::volumes::objects;
use super::workload::App;

/// Number of pods of each Deployment.
const REPLICAS: u32 = 50;

/// Number of namespaces of the Deployments.
const NAMESPACES: u32 = 10;

/// Number of nodes of the pods.
const NODES: u32 = 100;

/// The field managers of a pod: of its spec and of its status.
const MANAGER: &str = "kube-controller-manager";
const KUBELET: &str = "kubelet";

/// The namespace of the ReplicaSet that waits for its pod.
const WAITING: &str = "waiting";

/// Maximum time until the first pod is created.
const DEADLINE: Duration = Duration::from_secs(180);

/// Interval at which the manager's process is checked until the first pod is created.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

type Events<'a> = BoxStream<'a, kube::Result<WatchEvent<Pod>>>;

/// A control plane with many pods.
pub struct ManyPods {
    cluster: ControlPlane,
    client: Client,
    starts: u32,
    _kubelets: Kubelets,
}

/// The controllers that run. Each set has its scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerSet {
    /// The controllers of Deployments.
    Workloads,
    /// All.
    All,
    /// All; every second pod has a volume.
    Volumes,
}

impl ControllerSet {
    /// Returns its name in files.
    pub fn name(self) -> &'static str {
        match self {
            ControllerSet::Workloads => "crowd",
            ControllerSet::All => "all",
            ControllerSet::Volumes => "all-claims",
        }
    }

    /// Returns its scenarios: a start, and the time after it.
    pub fn scenarios(self) -> [Scenario; 2] {
        match self {
            ControllerSet::Workloads => [Scenario::ColdStart, Scenario::Memory],
            ControllerSet::All => [Scenario::AllColdStart, Scenario::AllMemory],
            ControllerSet::Volumes => [Scenario::AllClaimsColdStart, Scenario::AllClaimsMemory],
        }
    }

    fn flags(self, cluster: &ControlPlane) -> Vec<String> {
        match self {
            ControllerSet::Workloads => vec![WORKLOADS.to_owned()],
            ControllerSet::All | ControllerSet::Volumes => all_controllers(cluster),
        }
    }
}

impl ManyPods {
    /// Starts a control plane and fills it with `pods` pods, rounded up to whole Deployments. Every second pod has a
    /// volume if `with_volumes`.
    pub async fn create(pods: u32, with_volumes: bool) -> Result<Self> {
        let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        let namespaces = (0..NAMESPACES).map(namespace).chain([WAITING.to_owned()]);
        api::create_namespaces(&client, namespaces).await?;

        let kubelets = Kubelets::start(&client, NODES).await?;
        let start = Instant::now();
        let apps: Vec<App> = (0..pods.div_ceil(REPLICAS)).map(app).collect();
        eprintln!("  creating {} Deployments with {} pods", apps.len(), apps.len() as u32 * REPLICAS);
        let sets = api::each("Deployments created", apps.iter(), async |app| workload(&client, app).await).await?;
        let numbers = 0..apps.len() as u32 * REPLICAS;
        if with_volumes {
            attach_volumes(&client, &apps).await?;
        }
        api::each("pods created", numbers, async |number| {
            let index = (number / REPLICAS) as usize;
            let claim = Some(objects::claim_name(number)).filter(|_| with_volumes && has_volume(number));
            pod(&client, &apps[index], number, &sets[index], claim.as_deref()).await
        })
        .await?;
        eprintln!("  all objects exist after {:.0} s", start.elapsed().as_secs_f64());
        let bed = Self { cluster, client, starts: 0, _kubelets: kubelets };
        bed.describe_and_warm_up(&apps[0])?;
        Ok(bed)
    }

    /// Prints the size of a pod, and lists every pod once: the API server's cache is filled before the first manager
    /// starts, as before the second one.
    fn describe_and_warm_up(&self, app: &App) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", app.namespace, app.pod_name(0));
        let bytes = self.cluster.kubectl(&["get", "--raw", &path])?.len();
        eprintln!("  a pod is {bytes} bytes of JSON");
        self.cluster.kubectl(&["get", "--raw", "/api/v1/pods?resourceVersion=0"])?;
        Ok(())
    }

    /// Runs a manager once, so that the initial work in a new cluster (certificates for namespaces, nodes' ranges) is
    /// not measured for the first manager only.
    pub async fn reach_steady_state(&self, binaries: &Binaries, about: (Subject, Mode)) -> Result<()> {
        eprintln!("  running the initial work of all controllers");
        let manager =
            ManagerProcess::start(&self.cluster, binaries, about.0, about.1, &ControllerSet::All.flags(&self.cluster))?;
        let at_rest = async {
            manager.until_leader(&self.client).await?;
            manager.until_quiet().await
        };
        let result = at_rest.await;
        let ended = manager.end(&self.client).await;
        result.and(ended)
    }

    /// Starts a manager, measures a cold start and the idle time after it, and ends the manager; its log is copied to
    /// `log`.
    pub async fn measure(
        &mut self,
        binaries: &Binaries,
        about: (Subject, Mode),
        controllers: ControllerSet,
        idle: Duration,
        log: &Path,
    ) -> Result<Vec<Measurement>> {
        self.starts += 1;
        let app = App { namespace: WAITING.into(), name: format!("waiting-{}", self.starts), replicas: 1 };
        let collection = format!("/apis/apps/v1/namespaces/{WAITING}/replicasets");
        api::create(&self.client, &collection, "bench", &app.replica_set_alone()).await?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), WAITING);
        let version = pods.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
        let mut events = pods.watch(&WatchParams::default(), &version).await?.boxed();

        let manager =
            ManagerProcess::start(&self.cluster, binaries, about.0, about.1, &controllers.flags(&self.cluster))?;
        let measured = run_scenario(&manager, about, controllers, &mut events, idle).await;
        let kept = manager.keep_log(log);
        let ended = manager.end(&self.client).await;
        // The objects are deleted even after a failure: the next manager must find neither the ReplicaSet nor its pod.
        api::delete(&self.client, &format!("{collection}/{}", app.replica_set())).await?;
        for pod in pods.list(&ListParams::default()).await?.items {
            let name = pod.metadata.name.unwrap_or_default();
            api::delete(&self.client, &format!("/api/v1/namespaces/{WAITING}/pods/{name}")).await?;
        }
        let measured = measured?;
        ended?;
        kept?;
        Ok(measured)
    }
}

async fn run_scenario(
    manager: &ManagerProcess<'_>,
    (subject, mode): (Subject, Mode),
    controllers: ControllerSet,
    events: &mut Events<'_>,
    idle: Duration,
) -> Result<Vec<Measurement>> {
    let [cold_start, memory] = controllers.scenarios();
    until_pod(manager, events).await?;
    let seconds = manager.started.elapsed().as_secs_f64();
    let to = manager.mark()?;
    let requests = manager.requests_since(&manager.initial)?;
    let start = Measurement::new((subject, mode, cold_start), Some(seconds), (&manager.initial, &to), requests);

    manager.until_quiet().await?;
    eprintln!("  idle period of {} s, to measure memory", idle.as_secs());
    let from = manager.mark()?;
    sleep(idle).await;
    let to = manager.mark()?;
    let requests = manager.requests_since(&from)?;
    Ok(vec![start, Measurement::new((subject, mode, memory), None, (&from, &to), requests)])
}

/// Waits until a manager creates a pod.
async fn until_pod(manager: &ManagerProcess<'_>, events: &mut Events<'_>) -> Result<()> {
    eprintln!("  cold-start: until the first pod is created");
    let mut progress = Progress::new();
    loop {
        match timeout(SAMPLE_INTERVAL, events.try_next()).await {
            Ok(event) => match event.context("watch for the first pod")? {
                Some(WatchEvent::Added(_)) => return Ok(()),
                Some(WatchEvent::Error(status)) => bail!("the watch for the first pod failed: {status:?}"),
                Some(_) => {}
                None => bail!("the API server ended the watch for the first pod: run again"),
            },
            Err(_) => {
                manager.check()?;
                let elapsed = manager.started.elapsed();
                if elapsed > DEADLINE {
                    bail!(
                        "no pod was created in {} s; the manager's last lines:\n{}",
                        DEADLINE.as_secs(),
                        manager.last_lines()
                    );
                }
                progress.report(|| format!("{:.0} s: waiting for the first pod", elapsed.as_secs_f64()));
            }
        }
    }
}

fn namespace(index: u32) -> String {
    format!("crowd-{index}")
}

fn app(index: u32) -> App {
    App { namespace: namespace(index % NAMESPACES), name: format!("app-{index}"), replicas: REPLICAS }
}

/// Creates a Deployment and its ReplicaSet with their status; returns the ReplicaSet's uid.
async fn workload(client: &Client, app: &App) -> Result<String> {
    let base = format!("/apis/apps/v1/namespaces/{}", app.namespace);
    let (deployments, sets) = (format!("{base}/deployments"), format!("{base}/replicasets"));
    let deployment = api::create(client, &deployments, "bench", &app.finished_deployment()).await?;
    let set = api::create(client, &sets, MANAGER, &app.finished_replica_set(&deployment)).await?;
    let status = format!("{sets}/{}/status", app.replica_set());
    api::patch(client, &status, MANAGER, Patch::Merge, &app.replica_set_status()).await?;
    let status = format!("{deployments}/{}/status", app.name);
    api::patch(client, &status, MANAGER, Patch::Merge, &app.deployment_status()).await?;
    Ok(set)
}

/// Returns true if the pod with this index has a volume, in a cluster with volumes: every second pod of each node has
/// one.
fn has_volume(number: u32) -> bool {
    (number / NODES).is_multiple_of(2)
}

fn node(number: u32) -> String {
    format!("node-{}", number % NODES)
}

/// Creates bound claims and attached volumes for the pods that have one, and reports them in the nodes' statuses.
async fn attach_volumes(client: &Client, apps: &[App]) -> Result<()> {
    objects::create_class(client).await?;
    let nodes: Vec<String> = (0..NODES).map(node).collect();
    api::each("drivers registered", nodes.iter(), async |node| objects::create_csi_node(client, node).await).await?;
    let all: Vec<u32> = (0..apps.len() as u32 * REPLICAS).filter(|number| has_volume(*number)).collect();
    api::each("attached volumes created", all.iter(), async |number| {
        let (claim, namespace) = (objects::claim_name(*number), &apps[(number / REPLICAS) as usize].namespace);
        objects::create_bound(client, namespace, &claim).await?;
        objects::create_attached(client, &claim, &node(*number)).await
    })
    .await?;
    api::each("nodes' volumes reported", 0..NODES, async |index| {
        let of_node = all.iter().filter(|number| *number % NODES == index);
        let names = of_node.map(|number| objects::unique_name(&objects::volume_name(&objects::claim_name(*number))));
        let names: Vec<String> = names.collect();
        let attached: Vec<_> = names.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
        let status = json!({ "status": { "volumesAttached": attached, "volumesInUse": names } });
        let path = format!("/api/v1/nodes/{}/status", node(index));
        api::patch(client, &path, KUBELET, Patch::Merge, &status).await
    })
    .await?;
    Ok(())
}

/// Creates a running pod, with a volume of `claim` if one is given.
async fn pod(client: &Client, app: &App, number: u32, set: &str, claim: Option<&str>) -> Result<()> {
    let collection = format!("/api/v1/namespaces/{}/pods", app.namespace);
    let index = number % REPLICAS;
    let mut pod = app.pod(index, &node(number), set);
    if let Some(claim) = claim {
        objects::mount(&mut pod, claim);
    }
    api::create(client, &collection, MANAGER, &pod).await?;
    let status = format!("{collection}/{}/status", app.pod_name(index));
    api::patch(client, &status, KUBELET, Patch::Merge, &app.pod_status(number)).await
}
