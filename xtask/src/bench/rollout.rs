//! One manager on a fresh control plane: idle, then Deployments are created and updated, then idle again.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::json;
use tokio::time::sleep;

use super::api::{self, POLL_INTERVAL, Patch, Progress};
use super::measure::{Measurement, Scenario};
use super::subject::{Binaries, ManagerProcess, Mode, Subject, WORKLOADS};
use super::workload::App;

/// The namespace of everything that is created.
const NAMESPACE: &str = "bench";

/// Number of fake nodes.
const NODES: u32 = 10;

/// Maximum duration of a rollout.
const DEADLINE: Duration = Duration::from_secs(600);

/// Numbers of objects, and times.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Deployments.
    pub deployments: u32,
    /// Pods of each Deployment.
    pub replicas: u32,
    /// Duration of scenarios without work.
    pub idle: Duration,
}

/// Measures the `wanted` scenarios on a separate control plane; the manager's log is copied to `log`.
pub async fn measure(
    binaries: &Binaries,
    (subject, mode): (Subject, Mode),
    size: Size,
    wanted: &[Scenario],
    log: &Path,
) -> Result<Vec<Measurement>> {
    let cluster = ControlPlane::start(Options { nodes: NODES, audit: true, ..Options::default() }).await?;
    let client = cluster.client(Identity::Admin).await?;
    api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
    let manager = ManagerProcess::start(&cluster, binaries, subject, mode, &[WORKLOADS])?;
    let measured = Bench { client, manager: &manager, subject, mode, size }.scenarios(wanted).await;
    manager.keep_log(log)?;
    measured
}

struct Bench<'a> {
    client: Client,
    manager: &'a ManagerProcess<'a>,
    subject: Subject,
    mode: Mode,
    size: Size,
}

impl Bench<'_> {
    async fn scenarios(&self, selected: &[Scenario]) -> Result<Vec<Measurement>> {
        self.manager.until_leader(&self.client).await?;
        self.manager.until_quiet().await?;
        let is_selected = |scenario| selected.contains(&scenario);
        let mut measured = Vec::new();
        if is_selected(Scenario::IdleEmpty) {
            measured.push(self.idle(Scenario::IdleEmpty).await?);
        }
        if [Scenario::Create, Scenario::Update, Scenario::Idle].into_iter().any(is_selected) {
            measured.push(self.create().await?);
        }
        if is_selected(Scenario::Update) {
            measured.push(self.update().await?);
        }
        if is_selected(Scenario::Idle) {
            measured.push(self.idle(Scenario::Idle).await?);
        }
        measured.retain(|measurement| is_selected(measurement.scenario));
        Ok(measured)
    }

    async fn idle(&self, scenario: Scenario) -> Result<Measurement> {
        eprintln!("  {}: idle period of {} s", scenario.name(), self.size.idle.as_secs());
        let from = self.manager.mark()?;
        sleep(self.size.idle).await;
        let to = self.manager.mark()?;
        let about = (self.subject, self.mode, scenario);
        Ok(Measurement::new(about, None, (&from, &to), self.manager.requests_since(&from)?))
    }

    async fn create(&self) -> Result<Measurement> {
        let collection = deployments();
        self.run_scenario(Scenario::Create, self.apps(), async |app| {
            api::create(&self.client, &collection, "bench", &app.deployment()).await.map(drop)
        })
        .await
    }

    async fn update(&self) -> Result<Measurement> {
        let collection = deployments();
        self.run_scenario(Scenario::Update, self.apps(), async |app| {
            let containers = json!([{ "name": "main", "image": app.image("v1.5.0") }]);
            let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
            api::patch(&self.client, &format!("{collection}/{}", app.name), "bench", Patch::Strategic, &patch).await
        })
        .await
    }

    /// Runs the scenario. The wall time lasts from the first request of the bench to the final state; CPU and requests
    /// are counted until the manager is quiet.
    async fn run_scenario(
        &self,
        scenario: Scenario,
        apps: Vec<App>,
        change: impl AsyncFn(App) -> Result<()>,
    ) -> Result<Measurement> {
        let Size { deployments, replicas, .. } = self.size;
        eprintln!("  {}: {deployments} Deployments of {replicas} pods", scenario.name());
        let from = self.manager.mark()?;
        let start = Instant::now();
        api::each("Deployments sent", apps.into_iter(), change).await?;
        self.until_complete(start).await?;
        let wall = start.elapsed().as_secs_f64();
        self.manager.until_quiet().await?;
        let to = self.manager.mark()?;
        let about = (self.subject, self.mode, scenario);
        Ok(Measurement::new(about, Some(wall), (&from, &to), self.manager.requests_since(&from)?))
    }

    async fn until_complete(&self, start: Instant) -> Result<()> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), NAMESPACE);
        let cached = ListParams::default().match_any();
        let mut progress = Progress::new();
        loop {
            let deployments = api.list(&cached).await?.items;
            let complete = deployments.iter().filter(|deployment| is_complete(deployment)).count();
            if complete == self.size.deployments as usize {
                return Ok(());
            }
            self.manager.check()?;
            let line = || {
                let ready = |deployment: &Deployment| deployment.status.as_ref().and_then(|s| s.ready_replicas);
                let ready: i32 = deployments.iter().filter_map(ready).sum();
                format!(
                    "{:.0} s: {complete} of {} Deployments complete, {ready} pods ready",
                    start.elapsed().as_secs_f64(),
                    self.size.deployments
                )
            };
            ensure!(
                start.elapsed() < DEADLINE,
                "given up after {}; the manager's last lines:\n{}",
                line(),
                self.manager.last_lines()
            );
            progress.report(line);
            sleep(POLL_INTERVAL).await;
        }
    }

    fn apps(&self) -> Vec<App> {
        let app =
            |index| App { namespace: NAMESPACE.into(), name: format!("app-{index}"), replicas: self.size.replicas };
        (0..self.size.deployments).map(app).collect()
    }
}

fn deployments() -> String {
    format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments")
}

/// Returns true if all pods have the newest template and are available.
fn is_complete(deployment: &Deployment) -> bool {
    let Some(status) = &deployment.status else { return false };
    let spec = &deployment.spec;
    let counts = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
    status.observed_generation >= deployment.metadata.generation && counts.iter().all(|count| *count == spec.replicas)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deployment_is_complete_when_observed_updated_and_available_without_old_pods() {
        let deployment = |generation: i64, replicas: i32, updated: i32, available: i32| -> Deployment {
            serde_json::from_value(json!({
                "metadata": { "generation": generation },
                "spec": { "replicas": 3, "selector": {}, "template": {} },
                "status": {
                    "observedGeneration": 2, "replicas": replicas, "updatedReplicas": updated,
                    "readyReplicas": available, "availableReplicas": available,
                },
            }))
            .unwrap()
        };
        assert!(is_complete(&deployment(2, 3, 3, 3)));
        assert!(!is_complete(&deployment(3, 3, 3, 3)), "the change is not observed yet");
        assert!(!is_complete(&deployment(2, 4, 3, 3)), "an old pod exists");
        assert!(!is_complete(&deployment(2, 3, 2, 3)), "one is not updated");
        assert!(!is_complete(&deployment(2, 3, 3, 2)), "one is not available");
    }
}
