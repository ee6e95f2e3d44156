//! A user with edit rights in one namespace tries to disturb the manager; another namespace is not affected.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, is_ready, template};
use cluster_tests::pace::{Pace, measure};
use cluster_tests::programs::{KCM, Process, command};
use cluster_tests::{Bed, Space, eventually};
use control_plane::{ControlPlane, Identity, Options, aggregated};
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Secret, ServiceAccount};
use kube::api::DeleteParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{Instant, sleep};

use super::bait::Bait;
use super::hostile_objects::{self as objects, FINALIZER, GROUP, OWNERS, STUCK};

const TENANT: &str = "mallory";
/// A text that only objects of the other namespace contain.
const SECRET: &str = "correct-horse-battery-staple";
/// Pods of the other namespace's Deployment.
const REPLICAS: i32 = 6;
/// Maximum ratio of a rollout's duration to the duration without the tenant; [`SLACK`] is added.
const FACTOR: u32 = 3;
const SLACK: Duration = Duration::from_secs(5);
/// Number of times that a rollout waits for new pods: a quarter of the pods may be unavailable, and a quarter may be
/// surplus.
const WAVES: u32 = 4;

/// Replaces [`SLACK`] while the tenant changes objects constantly: as in upstream, all namespaces share a controller's
/// rate limit of 20 requests per second.
const SLACK_OF_RATES: Duration = Duration::from_secs(20);
/// Maximum memory for the tenant's objects, in KiB: several times their size in the API server.
const MEMORY_KIB: u64 = 300 << 10;
/// Rollouts that are compared with those of upstream's manager.
const MEASURED_ROLLOUTS: u32 = 6;
/// Deployments of the tenant whose pods a quota refuses.
const REFUSED: usize = 20;

/// A cluster with a manager that has the default rate limits, the tenant's namespace, and another namespace with a
/// Deployment.
struct Stage {
    bed: Arc<Bed>,
    manager: Process,
    tenant: Space,
    other: Space,
    /// Objects of the other namespace that the tenant names.
    bait: Bait,
    /// The tenant's client.
    client: Client,
    /// Time of a rollout in the other namespace before the tenant begins.
    usual: Duration,
    /// Memory before the tenant begins.
    memory_kib: u64,
}

impl Stage {
    async fn set() -> Result<Self> {
        Self::with(|cluster| command(cluster, KCM)).await
    }

    /// Sets up the cluster with a manager whose program `program` returns.
    async fn with(program: impl FnOnce(&ControlPlane) -> Result<PathBuf>) -> Result<Self> {
        let options = Options { nodes: 4, audit: true, ..Options::default() };
        let bed = Arc::new(Bed::without_accounts(options).await?);
        let program = block_in_place(|| program(&bed.cluster))?;
        let manager = start(&bed.cluster, &program)?;
        let (tenant, other) = (bed.space("tenant").await?, bed.space("other").await?);
        for space in [&tenant, &other] {
            eventually("the default service account", || space.get::<ServiceAccount>("default")).await?;
        }
        other.create::<Secret>(json!({"metadata": {"name": "crown-jewels"}, "stringData": {"text": SECRET}})).await?;
        let bait = Bait::create(&other).await?;
        other.create::<Deployment>(deployment("web", REPLICAS)).await?;
        until_rolled_out(&other).await?;
        let usual = roll_out(&other, 2).await?.max(roll_out(&other, 3).await?);
        let client = tenants_client(&bed, &tenant).await?;
        let memory_kib = manager.resident_kib()?;
        Ok(Self { bed, manager, tenant, other, bait, client, usual, memory_kib })
    }

    /// Rolls out the other namespace's Deployment twice. Fails if a rollout takes much longer than usual.
    async fn roll_other(&self, when: &str, first: u32) -> Result<()> {
        self.roll_other_within(self.usual * FACTOR + SLACK, when, first).await
    }

    /// Like [`Stage::roll_other`], with another limit. For each wait of a rollout for new pods, the limit is extended
    /// by the time that a pod without a controller needs in the meantime.
    async fn roll_other_within(&self, allowed: Duration, when: &str, first: u32) -> Result<()> {
        for version in [first, first + 1] {
            let rolled = async { roll_out(&self.other, version).await.map(drop) };
            let pace = measure(rolled, || start_pod(&self.other)).await;
            let Pace { work: took, probe } = pace.with_context(|| format!("{when}: {}", self.log()))?;
            eprintln!("{when}: a rollout took {took:?}, usually {:?}; a pod took {probe:?}", self.usual);
            let costs = self.costs().await?;
            ensure!(
                took <= allowed + probe * WAVES,
                "{when}: a rollout took {took:?}, usually {:?}; a pod took {probe:?}; {costs}",
                self.usual
            );
        }
        Ok(())
    }

    /// Returns the manager's CPU seconds, and the seconds that it has spent on events by resource, on reconciles and in
    /// queues by controller, and on waits for the rate limit: the four largest sums of each. They show whether a late
    /// rollout was delayed by the manager or by the machine.
    async fn costs(&self) -> Result<String> {
        let metrics = self.manager.get("/metrics", None).await?;
        let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
        let longest = |family: &str, label: &str| {
            let sums = metrics.lines().filter(|line| line.starts_with(&format!("{family}_sum")));
            let mut sums: Vec<(f64, &str)> = sums
                .filter_map(|line| {
                    let name = line.split_once(&format!("{label}=\""))?.1.split_once('"')?.0;
                    Some((value(line)?, name))
                })
                .collect();
            sums.sort_by(|a, b| b.0.total_cmp(&a.0));
            sums.iter().take(4).map(|(sum, name)| format!("{name} {sum:.2}")).collect::<Vec<_>>().join(", ")
        };
        let cpu = metrics.lines().find(|line| line.starts_with("process_cpu_seconds_total"));
        let costs = format!(
            "CPU {:.1} s; events: {}; reconciles: {}; waits in queues: {}; waits for the rate limit: {}",
            cpu.and_then(value).unwrap_or_default(),
            longest("informer_processing_latency_seconds", "resource"),
            longest("workqueue_work_duration_seconds", "name"),
            longest("workqueue_queue_duration_seconds", "name"),
            longest("rest_client_rate_limiter_duration_seconds", "verb"),
        );
        eprintln!("{costs}");
        Ok(costs)
    }

    /// Returns the manager's CPU seconds since its start.
    async fn manager_cpu(&self) -> Result<f64> {
        cpu_seconds(&self.manager.get("/metrics", None).await?)
    }

    /// Returns the API server's CPU seconds since its start.
    async fn api_server_cpu(&self) -> Result<f64> {
        let client = self.bed.cluster.client(Identity::Admin).await?;
        cpu_seconds(&client.request_text(http::Request::get("/metrics").body(Vec::new())?).await?)
    }

    /// Fails if the process has ended, if a controller has panicked, or if the process uses too much memory.
    async fn check_process(&self) -> Result<()> {
        self.bed.cluster.check()?;
        let now = self.manager.resident_kib()?;
        eprintln!("memory: {} MiB, {} MiB before", now >> 10, self.memory_kib >> 10);
        ensure!(now <= self.memory_kib + MEMORY_KIB, "{now} KiB, {} KiB before", self.memory_kib);
        let metrics = self.manager.get("/metrics", None).await?;
        let panics = metrics.lines().filter(|line| line.contains("panic") && !line.starts_with('#'));
        let panics: Vec<&str> = panics.filter(|line| !line.ends_with(" 0") && !line.ends_with(" 0.0")).collect();
        ensure!(metrics.contains("outcome=\"panicked\"") && panics.is_empty(), "{panics:?}");
        Ok(())
    }

    /// Fails if the manager read an object of the other namespace that the tenant named, or reported one to the tenant.
    async fn nothing_is_disclosed(&self) -> Result<()> {
        let log = fs::read_to_string(self.bed.cluster.folder().join("audit.log"))?;
        for line in log.lines() {
            // The last line may be incomplete.
            let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
            let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let is_elsewhere = [&*self.other.namespace, "kube-system"].contains(&text("/objectRef/namespace"));
            let is_secret = text("/objectRef/resource") == "secrets" && !text("/objectRef/name").is_empty();
            let is_named = is_elsewhere && is_secret || self.bait.is_read(&event);
            ensure!(!is_named, "the manager requested {}", text("/requestURI"));
            let hostile = ["crown-jewels", "timeoutSeconds=99999999", "%2e%2e", "/../"];
            let uri = text("/requestURI");
            let is_tenants = text("/objectRef/namespace") == self.tenant.namespace;
            ensure!(is_tenants || !hostile.iter().any(|name| uri.contains(name)), "the manager requested {uri}");
        }
        let seen = self.tenant.kubectl(&["get", "events,configmaps,secrets,things", "-o", "json"]).await?;
        ensure!(!seen.contains(SECRET) && !self.log().contains(SECRET), "the secret is disclosed");
        let pods = self.other.pods("web").await?;
        let name = pods[0].metadata.name.clone().context("a pod without a name")?;
        ensure!(!seen.contains(&name), "{name} is named in the tenant's namespace");
        Ok(())
    }

    fn log(&self) -> String {
        let log = self.manager.log(&self.bed.cluster).unwrap_or_default();
        let panics = log.lines().filter(|line| line.contains("panicked")).take(5);
        let last: Vec<&str> = log.lines().rev().take(20).collect();
        panics.chain(last.into_iter().rev()).collect::<Vec<_>>().join("\n")
    }

    /// Creates an object as the tenant. A refusal by the API server is not a failure.
    async fn attempt(&self, version: &str, plural: &str, body: String) -> Result<bool> {
        let root = if version.contains('/') { "/apis" } else { "/api" };
        let path = format!("{root}/{version}/namespaces/{}/{plural}", self.tenant.namespace);
        let request = http::Request::post(path).header("content-type", "application/json").body(body.into_bytes())?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) => {
                eprintln!("{plural}: refused: {}", status.message.chars().take(200).collect::<String>());
                Ok(false)
            }
            // The response cannot be parsed if it is nested too deeply; the object exists.
            Err(kube::Error::SerdeError(_)) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the CPU seconds of a process from its metrics.
fn cpu_seconds(metrics: &str) -> Result<f64> {
    let line = metrics.lines().find(|line| line.starts_with("process_cpu_seconds_total"));
    let (_, value) = line.and_then(|line| line.rsplit_once(' ')).context("no CPU time in the metrics")?;
    Ok(value.parse()?)
}

/// Starts all controllers with their default limits, and with kubeadm's root certificates and key for service accounts.
fn start(cluster: &ControlPlane, program: &Path) -> Result<Process> {
    let flags = [
        // Without an election, the manager works immediately: with all gates on, the election by the API server takes
        // about eight seconds.
        "--leader-elect=false".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig(Identity::ControllerManager)?.display()),
        "--use-service-account-credentials".to_owned(),
        "--root-ca-file=/etc/kubernetes/pki/ca.crt".to_owned(),
        "--service-account-private-key-file=/etc/kubernetes/pki/sa.key".to_owned(),
        "--authorization-always-allow-paths=/metrics,/healthz".to_owned(),
    ];
    Process::start(cluster, "kcm-hostile", program, &flags)
}

/// Returns a client of a user with the role `edit` in the tenant's namespace, and with all rights on a custom kind of
/// its own.
async fn tenants_client(bed: &Arc<Bed>, tenant: &Space) -> Result<Client> {
    let namespace = &tenant.namespace;
    let rights = [
        objects::definition(),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "edit", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "things", "namespace": namespace},
            "rules": [{"apiGroups": [GROUP], "resources": ["*"], "verbs": ["*"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "things", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "things"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}],
        }),
    ];
    let text: Vec<String> = rights.iter().map(Value::to_string).collect();
    block_in_place(|| bed.cluster.kubectl_with_input(&["apply", "-f", "-"], &text.join("\n---\n")))?;
    let kubeconfig = Kubeconfig::read_from(bed.cluster.kubeconfig(Identity::Admin)?)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config.auth_info.impersonate = Some(TENANT.to_owned());
    config.default_retry = false;
    let client = Client::try_from(config)?;
    for path in [
        format!("/api/v1/namespaces/{namespace}/configmaps"),
        format!("/apis/{GROUP}/v1/namespaces/{namespace}/things"),
    ] {
        eventually("the tenant has its rights", || async {
            client.request::<Value>(http::Request::get(&*path).body(Vec::new())?).await.map(drop).map_err(Into::into)
        })
        .await?;
    }
    Ok(client)
}

/// Rolls out another image of `web`. Returns the duration.
async fn roll_out(space: &Space, version: u32) -> Result<Duration> {
    let began = Instant::now();
    let image = format!("example.com/image:{version}");
    space.patch::<Deployment>("web", json!({"spec": {"template": template("web", &image, &json!({}))}})).await?;
    until_rolled_out(space).await?;
    Ok(began.elapsed())
}

/// Creates a pod without a controller, waits until it is ready, and deletes it.
async fn start_pod(space: &Space) -> Result<()> {
    let mut object = cluster_tests::objects::pod("", "probe");
    object["metadata"]["name"] = Value::Null;
    object["metadata"]["generateName"] = "probe-".into();
    let name = space.create::<Pod>(object).await?.metadata.name.context("a pod without a name")?;
    eventually("the pod is ready", || async {
        let pod: Pod = space.get(&name).await?;
        ensure!(is_ready(&pod), "{:?}", pod.status);
        Ok(())
    })
    .await?;
    space.api::<Pod>().delete(&name, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

async fn until_rolled_out(space: &Space) -> Result<()> {
    eventually("web is rolled out", || async {
        let found: Deployment = space.get("web").await?;
        let status = found.status.context("no status")?;
        ensure!(status.observed_generation == found.metadata.generation, "not observed: {status:?}");
        let counts = [status.updated_replicas, status.available_replicas, status.replicas];
        ensure!(counts == [Some(REPLICAS); 3], "{status:?}");
        Ok(())
    })
    .await
}

/// Creates all hostile objects as the tenant.
async fn create_hostile_objects(stage: &Stage) -> Result<()> {
    // Without this quota, the largest of the tenant's workloads would fill the test's API server with pods.
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "20", "count/jobs.batch": "20"}}});
    stage.tenant.create::<ResourceQuota>(quota).await?;
    eventually("the quota has a status", || async {
        let quota: ResourceQuota = stage.tenant.get("few").await?;
        ensure!(quota.status.and_then(|status| status.used).is_some_and(|used| !used.is_empty()));
        Ok(())
    })
    .await?;
    let all = [objects::all(&stage.other.namespace), stage.bait.references()].concat();
    let count = all.len();
    let mut accepted = 0;
    for batch in all.chunks(8) {
        let attempts = batch.iter().map(|(version, plural, object)| stage.attempt(version, plural, object.to_string()));
        accepted += try_join_all(attempts).await?.into_iter().filter(|is_created| *is_created).count();
    }
    ensure!(accepted + 15 > count, "the API server accepted only {accepted} of {count} objects");
    let owners = ["get", "configmap", "many-owners", "-o", "jsonpath={.metadata.ownerReferences[*].name}"];
    let owners = stage.tenant.kubectl(&owners).await?;
    ensure!(owners.split_whitespace().count() == OWNERS, "the object with many owners is not created");
    stage.attempt("tenant.example.com/v1", "things", objects::nested()).await.map(drop)
}

/// Objects with extreme sizes, depths and counts, odd names, ownership loops and finalizers.
pub async fn hostile_objects_do_not_delay_other_namespaces(_: Space) -> Result<()> {
    let stage = Stage::set().await?;
    create_hostile_objects(&stage).await?;
    stage.roll_other("hostile objects are created", 10).await?;
    stage.check_process().await?;

    delete_owner_loop(&stage).await?;
    stage.tenant.kubectl(&["delete", "configmaps", "--all", "--wait=false"]).await?;
    stage.roll_other("objects with finalizers are deleted", 20).await?;
    eventually("all objects but those with the finalizer are deleted", || async {
        let left = stage.tenant.kubectl(&["get", "configmaps", "-o", "name"]).await?;
        let others = left.lines().filter(|line| !line.contains("stuck-") && !line.contains("kube-root-ca.crt"));
        let others: Vec<&str> = others.collect();
        ensure!(others.is_empty(), "{others:?}");
        ensure!(
            left.lines().filter(|line| line.contains("stuck-")).count() == STUCK,
            "objects with the finalizer were deleted"
        );
        Ok(())
    })
    .await?;
    stage.check_process().await?;
    stage.nothing_is_disclosed().await?;

    // The deletion of the namespace waits for the objects with the finalizer.
    stage.tenant.kubectl(&["delete", "namespace", &stage.tenant.namespace, "--wait=false"]).await?;
    stage.roll_other("the tenant's namespace is deleted", 30).await?;
    stage.check_process().await?;
    stage.manager.stop(&stage.bed.cluster).await
}

/// Rollouts of the other namespace right after hostile objects were created, and the CPU time of the creation and the
/// rollouts.
struct AmongHostileObjects {
    usual: Duration,
    slowest: Duration,
    manager_cpu: f64,
    api_server_cpu: f64,
}

impl AmongHostileObjects {
    /// Measures a manager, by its program.
    async fn measure(program: impl FnOnce(&ControlPlane) -> Result<PathBuf>) -> Result<Self> {
        let stage = Stage::with(program).await?;
        let (manager, api_server) = (stage.manager_cpu().await?, stage.api_server_cpu().await?);
        create_hostile_objects(&stage).await?;
        let mut slowest = Duration::ZERO;
        for version in 10..10 + MEASURED_ROLLOUTS {
            slowest = slowest.max(roll_out(&stage.other, version).await.with_context(|| stage.log())?);
        }
        let measured = Self {
            usual: stage.usual,
            slowest,
            manager_cpu: stage.manager_cpu().await? - manager,
            api_server_cpu: stage.api_server_cpu().await? - api_server,
        };
        stage.manager.stop(&stage.bed.cluster).await?;
        Ok(measured)
    }
}

/// Compares rollouts of the other namespace among huge objects with those under upstream's manager: the API server
/// causes the delay that both have in common. Ignored by default: it needs upstream's manager.
pub async fn hostile_objects_delay_rollouts_no_more_than_with_upstreams_manager(_: Space) -> Result<()> {
    let ours = AmongHostileObjects::measure(|cluster| command(cluster, KCM)).await?;
    let theirs = AmongHostileObjects::measure(|cluster| cluster.assets().upstream_manager()).await?;
    for (manager, measured) in [("this manager", &ours), ("upstream's manager", &theirs)] {
        let AmongHostileObjects { usual, slowest, manager_cpu, api_server_cpu } = measured;
        println!(
            "{manager}: a rollout takes up to {slowest:?}, usually {usual:?}; CPU {manager_cpu:.1} s, of the API server \
             {api_server_cpu:.1} s"
        );
    }
    let allowed = theirs.slowest * 2 + Duration::from_secs(1);
    ensure!(
        ours.slowest <= allowed,
        "a rollout takes {:?}, {:?} with upstream's manager",
        ours.slowest,
        theirs.slowest
    );
    Ok(())
}

/// Creates owners that own each other and themselves, and deletes one of them in the foreground.
async fn delete_owner_loop(stage: &Stage) -> Result<()> {
    let mut uids = Vec::new();
    for name in ["loop-0", "loop-1", "loop-2"] {
        stage.tenant.kubectl(&["create", "configmap", name]).await?;
        uids.push(stage.tenant.kubectl(&["get", "configmap", name, "-o", "jsonpath={.metadata.uid}"]).await?);
    }
    for (at, owner) in [(0, 1), (1, 2), (2, 0)] {
        let reference = |number: usize| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("loop-{number}"), "uid": uids[number],
                "blockOwnerDeletion": true})
        };
        let patch = json!({"metadata": {"ownerReferences": [reference(owner), reference(at)]}}).to_string();
        stage.tenant.kubectl(&["patch", "configmap", &format!("loop-{at}"), "--type=merge", "-p", &patch]).await?;
    }
    stage.tenant.kubectl(&["delete", "configmap", "loop-0", "--cascade=foreground", "--wait=false"]).await?;
    eventually("the loop is deleted", || async {
        let left = stage.tenant.kubectl(&["get", "configmaps", "-o", "name"]).await?;
        ensure!(!left.contains("loop-"), "{left}");
        Ok(())
    })
    .await
    .with_context(|| {
        format!("objects of an ownership loop are not deleted, although none has the finalizer {FINALIZER}")
    })
}

/// Rates: many workloads whose pods a quota refuses, and objects that change constantly.
pub async fn hostile_rates_do_not_delay_other_namespaces(_: Space) -> Result<()> {
    let stage = Stage::set().await?;
    stage.tenant.create::<ResourceQuota>(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "5"}}})).await?;
    for number in 0..REFUSED {
        stage.tenant.create::<Deployment>(deployment(&format!("refused-{number}"), 50)).await?;
    }
    stage.roll_other("pods are refused", 5).await?;
    let writers: Vec<Writes> = (0..4).map(|writer| Writes::start(&stage, writer)).collect();
    let allowed = stage.usual * FACTOR + SLACK_OF_RATES;
    stage.roll_other_within(allowed, "pods are refused and objects change", 10).await?;
    stage.roll_other_within(allowed, "pods are refused and objects change for a long time", 20).await?;
    let writes: usize = writers.iter().map(Writes::count).sum();
    drop(writers);
    eprintln!("the tenant wrote {writes} times");
    ensure!(writes > 100, "the tenant wrote only {writes} times");
    stage.check_process().await?;
    stage.nothing_is_disclosed().await?;
    stage.manager.stop(&stage.bed.cluster).await
}

/// A task that repeatedly changes a Deployment, until it is dropped.
struct Writes {
    task: JoinHandle<()>,
    count: Arc<std::sync::atomic::AtomicUsize>,
}

impl Writes {
    fn start(stage: &Stage, writer: usize) -> Self {
        let count = Arc::<std::sync::atomic::AtomicUsize>::default();
        let (client, counted) = (stage.client.clone(), count.clone());
        let path = format!("/apis/apps/v1/namespaces/{}/deployments/refused-{writer}", stage.tenant.namespace);
        let task = tokio::spawn(async move {
            for number in 0_u64.. {
                let patch = json!({
                    "metadata": {"annotations": {"number": number.to_string()}},
                    "spec": {"replicas": 20 + number % 30, "template": {"metadata": {"annotations": {
                        "number": (number / 20).to_string(),
                    }}}},
                });
                let request = http::Request::patch(&*path)
                    .header("content-type", "application/merge-patch+json")
                    .body(patch.to_string().into_bytes());
                let Ok(request) = request else { return };
                if client.request::<Value>(request).await.is_ok() {
                    counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                sleep(Duration::from_millis(20)).await;
            }
        });
        Self { task, count }
    }

    fn count(&self) -> usize {
        self.count.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Aggregated APIs with lists that never end, never begin, fail, or are malformed.
pub async fn misbehaving_aggregated_apis_do_not_delay_others(_: Space) -> Result<()> {
    let stage = Stage::set().await?;
    aggregated::serve(&stage.bed.cluster).await?;
    // The rounds last long enough for the next discovery, for lists of the new kinds, and for their fallbacks.
    for round in 0..6 {
        stage.roll_other("aggregated APIs misbehave", 10 + 10 * round).await?;
        sleep(Duration::from_secs(5)).await;
    }
    stage.check_process().await?;
    // Owners and dependents are still found, also by a new manager.
    stage.manager.stop(&stage.bed.cluster).await?;
    let program = command(&stage.bed.cluster, KCM)?;
    let stage = Stage { manager: start(&stage.bed.cluster, &program)?, ..stage };
    stage.roll_other("a manager starts while aggregated APIs misbehave", 80).await?;
    stage.tenant.kubectl(&["create", "configmap", "owner"]).await?;
    let uid = stage.tenant.kubectl(&["get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}"]).await?;
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
    let dependent = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "dependent", "ownerReferences": owner}});
    stage.attempt("v1", "configmaps", dependent.to_string()).await?;
    stage.tenant.kubectl(&["delete", "configmap", "owner"]).await?;
    eventually("a dependent is deleted", || async {
        let left = stage.tenant.kubectl(&["get", "configmaps", "-o", "name"]).await?;
        ensure!(!left.contains("dependent"), "{left}");
        Ok(())
    })
    .await?;
    stage.check_process().await?;
    stage.manager.stop(&stage.bed.cluster).await
}
