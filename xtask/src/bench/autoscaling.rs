//! Many autoscalers, each with its own metric and target. Measures the cost of their reconciles, and the time until all
//! have scaled after their metric doubles.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use control_plane::metrics::Metrics;
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::ReplicationController;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::json;
use tokio::time::sleep;

use super::api::{self, Patch, Progress};
use super::measure::{Measurement, Scenario};
use super::subject::{AUTOSCALING, Binaries, ManagerProcess, Mode, Subject};
use super::workload::App;

const NAMESPACE: &str = "bench";

/// The metric's name.
const METRIC: &str = "length";
/// Values of the metric that need one pod, and two.
const ONE: &str = "10";
const TWO: &str = "20";
/// Time without changes before the metric doubles: three periods of the autoscaler controller.
const IDLE: Duration = Duration::from_secs(45);

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const DEADLINE: Duration = Duration::from_secs(600);

/// Measures `count` autoscalers on a separate control plane; the manager's log is copied to `log`.
pub async fn measure(binaries: &Binaries, about: (Subject, Mode), count: u32, log: &Path) -> Result<Measurement> {
    let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
    let cluster = ControlPlane::start(options).await?;
    let client = cluster.client(Identity::Admin).await?;
    api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
    let metrics = Metrics::serve(&cluster).await?;
    metrics.set(NAMESPACE, METRIC, ONE);
    api::each("autoscalers created", 0..count, async |number| make(&client, number).await).await?;
    let manager = ManagerProcess::start(&cluster, binaries, about.0, about.1, &[AUTOSCALING])?;
    let measured = Fleet { client, manager: &manager, metrics: &metrics, count }.run_scenario(about).await;
    manager.keep_log(log)?;
    measured
}

/// Creates an autoscaler and its target. The pod of the target is not created: the target's status reports one pod.
async fn make(client: &Client, number: u32) -> Result<()> {
    let app = App { namespace: NAMESPACE.into(), name: format!("app-{number}"), replicas: 1 };
    let template = json!({ "metadata": { "labels": app.labels() }, "spec": app.pod_spec() });
    let target = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": { "name": app.name, "namespace": NAMESPACE },
        "spec": { "replicas": 1, "selector": app.selector(), "template": template },
    });
    let controllers = format!("/api/v1/namespaces/{NAMESPACE}/replicationcontrollers");
    api::create(client, &controllers, "bench", &target).await?;
    let status = json!({ "status": { "replicas": 1 } });
    api::patch(client, &format!("{controllers}/{}/status", app.name), "bench", Patch::Merge, &status).await?;
    let own = json!({ "name": METRIC, "selector": { "matchLabels": { "queue": app.name } } });
    let metric = json!({ "metric": own, "target": { "type": "AverageValue", "averageValue": ONE } });
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": app.name, "namespace": NAMESPACE },
        "spec": {
            "minReplicas": 1, "maxReplicas": 5, "metrics": [{ "type": "External", "external": metric }],
            "scaleTargetRef": { "apiVersion": "v1", "kind": "ReplicationController", "name": app.name },
        },
    });
    let autoscalers = format!("/apis/autoscaling/v2/namespaces/{NAMESPACE}/horizontalpodautoscalers");
    api::create(client, &autoscalers, "bench", &autoscaler).await.map(drop)
}

struct Fleet<'a> {
    client: Client,
    manager: &'a ManagerProcess<'a>,
    metrics: &'a Metrics,
    count: u32,
}

impl Fleet<'_> {
    /// Runs the scenario: a time without changes, then the scaling. The wall time is that of the scaling only.
    async fn run_scenario(&self, (subject, mode): (Subject, Mode)) -> Result<Measurement> {
        self.manager.until_leader(&self.client).await?;
        self.until("measured once", async || {
            let autoscalers: Api<HorizontalPodAutoscaler> = Api::namespaced(self.client.clone(), NAMESPACE);
            let all = autoscalers.list(&ListParams::default().match_any()).await?.items;
            Ok(all.iter().filter(|autoscaler| is_measured(autoscaler)).count())
        })
        .await?;
        self.manager.until_at_rest().await?;
        eprintln!("  {}: {} autoscalers", Scenario::Autoscaling.name(), self.count);
        let from = self.manager.mark()?;
        sleep(IDLE).await;
        let start = Instant::now();
        self.metrics.set(NAMESPACE, METRIC, TWO);
        self.until("scaled", async || {
            let targets: Api<ReplicationController> = Api::namespaced(self.client.clone(), NAMESPACE);
            let all = targets.list(&ListParams::default().match_any()).await?.items;
            Ok(all.iter().filter(|target| replicas(target) == Some(2)).count())
        })
        .await?;
        let wall = start.elapsed().as_secs_f64();
        let to = self.manager.mark()?;
        let about = (subject, mode, Scenario::Autoscaling);
        Ok(Measurement::new(about, Some(wall), (&from, &to), self.manager.requests_since(&from)?))
    }

    async fn until(&self, what: &str, count: impl AsyncFn() -> Result<usize>) -> Result<()> {
        let (start, mut progress) = (Instant::now(), Progress::new());
        loop {
            let done = count().await?;
            if done == self.count as usize {
                return Ok(());
            }
            self.manager.check()?;
            let line = || format!("{:.0} s: {done} of {} are {what}", start.elapsed().as_secs_f64(), self.count);
            ensure!(start.elapsed() < DEADLINE, "given up after {}:\n{}", line(), self.manager.last_lines());
            progress.report(line);
            sleep(POLL_INTERVAL).await;
        }
    }
}

fn is_measured(autoscaler: &HorizontalPodAutoscaler) -> bool {
    let conditions = autoscaler.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "ScalingActive" && condition.status == "True")
}

fn replicas(target: &ReplicationController) -> Option<i32> {
    target.spec.as_ref()?.replicas
}
