//! Workloads of every kind: StatefulSets, DaemonSets, Jobs, CronJobs, autoscalers and budgets are created together,
//! then StatefulSets and DaemonSets are updated, under one manager on a fresh control plane.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use control_plane::metrics::Metrics;
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{DaemonSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::api::{self, Patch, Progress};
use super::measure::{Measurement, Scenario};
use super::subject::{ALL_WORKLOADS, Binaries, ManagerProcess, Mode, Subject};
use super::workload::App;

const NAMESPACE: &str = "bench";

/// The interval at which the objects are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Maximum duration of the creation, and of the update.
const DEADLINE: Duration = Duration::from_secs(900);

/// The reported memory usage of each pod: half of its request, and twice the target of its autoscaler.
const MEMORY_USED: &str = "64Mi";

/// The number of pods to which an autoscaler scales one pod.
const SCALED_TO: i32 = 2;

/// Number of objects of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    stateful_sets: u32,
    /// Pods of each StatefulSet.
    ordinals: u32,
    daemon_sets: u32,
    nodes: u32,
    jobs: u32,
    /// Pods of each Job.
    completions: u32,
    /// CronJobs, each with one missed run.
    cron_jobs: u32,
    /// Autoscalers, each with its own ReplicationController as its target.
    autoscalers: u32,
    /// Budgets: the first ones are for the StatefulSets, the others for the ReplicationControllers.
    budgets: u32,
}

impl Size {
    /// The size for which goals are set.
    pub const WHOLE: Self = Self {
        stateful_sets: 20,
        ordinals: 10,
        daemon_sets: 10,
        nodes: 40,
        jobs: 200,
        completions: 10,
        cron_jobs: 100,
        autoscalers: 200,
        budgets: 100,
    };

    /// Divides the numbers of objects and nodes by `fewer`; workloads keep their numbers of pods.
    pub fn part(self, fewer: u32) -> Self {
        let part = |count: u32| count.div_ceil(fewer);
        Self {
            stateful_sets: part(self.stateful_sets),
            daemon_sets: part(self.daemon_sets),
            nodes: part(self.nodes),
            jobs: part(self.jobs),
            cron_jobs: part(self.cron_jobs),
            autoscalers: part(self.autoscalers),
            budgets: part(self.budgets),
            ..self
        }
    }
}

/// Measures on a separate control plane; the manager's log is copied to `log`.
pub async fn measure(
    binaries: &Binaries,
    (subject, mode): (Subject, Mode),
    size: Size,
    log: &Path,
) -> Result<Measurement> {
    let cluster = ControlPlane::start(Options { nodes: size.nodes, audit: true, ..Options::default() }).await?;
    let client = cluster.client(Identity::Admin).await?;
    api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
    Metrics::serve(&cluster).await?.set(NAMESPACE, "memory", MEMORY_USED);
    let manager = ManagerProcess::start(&cluster, binaries, subject, mode, &[ALL_WORKLOADS])?;
    let measured =
        MixedScenario { client, manager: &manager, size }.run_scenario((subject, mode, Scenario::Mixed)).await;
    let kept = manager.keep_log(log);
    let measured = measured?;
    kept?;
    Ok(measured)
}

struct MixedScenario<'a> {
    client: Client,
    manager: &'a ManagerProcess<'a>,
    size: Size,
}

impl MixedScenario<'_> {
    /// Runs the scenario. The wall time lasts from the first creation to the end of the updates; CPU and requests are
    /// counted until the manager writes nothing.
    async fn run_scenario(&self, about: (Subject, Mode, Scenario)) -> Result<Measurement> {
        self.manager.until_leader(&self.client).await?;
        self.manager.until_at_rest().await?;
        eprintln!("  {}: {:?}", Scenario::Mixed.name(), self.size);
        let from = self.manager.mark()?;
        let start = Instant::now();
        self.create().await?;
        self.until_complete("created").await?;
        self.update().await?;
        self.until_complete("updated").await?;
        let wall = start.elapsed().as_secs_f64();
        self.manager.until_at_rest().await?;
        let to = self.manager.mark()?;
        Ok(Measurement::new(about, Some(wall), (&from, &to), self.manager.requests_since(&from)?))
    }

    async fn create(&self) -> Result<()> {
        let objects = objects(self.size);
        api::each("objects created", objects.iter(), async |(collection, object)| {
            api::create(&self.client, &collection_path(collection), "bench", object).await.map(drop)
        })
        .await?;
        // A CronJob whose last scheduled time is long ago starts one missed run as soon as it is no longer suspended.
        let cron_jobs = 0..self.size.cron_jobs;
        api::each("CronJobs resumed", cron_jobs, async |index| {
            let path = format!("{}/{}", collection_path(CRON_JOBS), app("cron", index, 1).name);
            let last = json!({ "status": { "lastScheduleTime": "2025-06-01T00:00:00Z" } });
            api::patch(&self.client, &format!("{path}/status"), "bench", Patch::Merge, &last).await?;
            api::patch(&self.client, &path, "bench", Patch::Merge, &json!({ "spec": { "suspend": false } })).await
        })
        .await?;
        Ok(())
    }

    /// Changes the image of every StatefulSet and DaemonSet.
    async fn update(&self) -> Result<()> {
        let sets = (0..self.size.stateful_sets).map(|index| (STATEFUL_SETS, app("state", index, 1)));
        let daemons = (0..self.size.daemon_sets).map(|index| (DAEMON_SETS, app("agent", index, 1)));
        let all: Vec<_> = sets.chain(daemons).collect();
        api::each("updates sent", all.iter(), async |(collection, app)| {
            let containers = json!([{ "name": "main", "image": app.image("v1.5.0") }]);
            let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
            let path = format!("{}/{}", collection_path(collection), app.name);
            api::patch(&self.client, &path, "bench", Patch::Strategic, &patch).await
        })
        .await?;
        Ok(())
    }

    async fn until_complete(&self, what: &str) -> Result<()> {
        let (start, mut progress) = (Instant::now(), Progress::new());
        let Size { ordinals, nodes, .. } = self.size;
        loop {
            let (sets, daemons, jobs, cron_jobs, controllers, budgets) = tokio::try_join!(
                self.missing(self.size.stateful_sets, |set| is_stateful_set_complete(set, ordinals as i32)),
                self.missing(self.size.daemon_sets, |set| is_daemon_set_complete(set, nodes as i32)),
                self.missing(self.size.jobs + self.size.cron_jobs, is_job_complete),
                self.missing(self.size.cron_jobs, is_cron_job_done),
                self.missing(self.size.autoscalers, is_scaled),
                self.missing(self.size.budgets, is_counted),
            )?;
            if [sets, daemons, jobs, cron_jobs, controllers, budgets] == [0; 6] {
                return Ok(());
            }
            self.manager.check()?;
            let line = || {
                format!(
                    "{:.0} s: not {what} yet: {sets} StatefulSets, {daemons} DaemonSets, {jobs} Jobs, \
                     {cron_jobs} CronJobs, {controllers} scaled ReplicationControllers, {budgets} budgets",
                    start.elapsed().as_secs_f64()
                )
            };
            let last_lines = || self.manager.last_lines();
            ensure!(
                start.elapsed() < DEADLINE,
                "given up after {}; the manager's last lines:\n{}",
                line(),
                last_lines()
            );
            progress.report(line);
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns the number of the `expected` objects of a kind that are incomplete or missing.
    async fn missing<K>(&self, expected: u32, is_complete: impl Fn(&K) -> bool) -> Result<usize>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let all = Api::<K>::namespaced(self.client.clone(), NAMESPACE).list(&ListParams::default().match_any()).await?;
        let complete = all.items.iter().filter(|object| is_complete(object)).count();
        Ok((expected as usize).saturating_sub(complete))
    }
}

const STATEFUL_SETS: &str = "apis/apps/v1 statefulsets";
const DAEMON_SETS: &str = "apis/apps/v1 daemonsets";
const JOBS: &str = "apis/batch/v1 jobs";
const CRON_JOBS: &str = "apis/batch/v1 cronjobs";
const CONTROLLERS: &str = "api/v1 replicationcontrollers";
const AUTOSCALERS: &str = "apis/autoscaling/v2 horizontalpodautoscalers";
const BUDGETS: &str = "apis/policy/v1 poddisruptionbudgets";

/// Returns the path of a collection of the namespace.
fn collection_path(collection: &str) -> String {
    let (api, resource) = collection.split_once(' ').unwrap_or_default();
    format!("/{api}/namespaces/{NAMESPACE}/{resource}")
}

fn app(kind: &str, index: u32, replicas: u32) -> App {
    App { namespace: NAMESPACE.into(), name: format!("{kind}-{index}"), replicas }
}

/// Returns all objects to create, each with its collection.
fn objects(size: Size) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    let budgeted = |index: u32| match index.checked_sub(size.stateful_sets) {
        None => app("state", index, 1),
        Some(index) => app("scaled", index, 1),
    };
    all.extend((0..size.budgets).map(|index| (BUDGETS, budget(&budgeted(index)))));
    all.extend((0..size.autoscalers).map(|index| (CONTROLLERS, controller(&app("scaled", index, 1)))));
    all.extend((0..size.autoscalers).map(|index| (AUTOSCALERS, autoscaler(&app("scaled", index, 1)))));
    all.extend((0..size.stateful_sets).map(|index| (STATEFUL_SETS, stateful_set(&app("state", index, size.ordinals)))));
    all.extend((0..size.daemon_sets).map(|index| (DAEMON_SETS, daemon_set(&app("agent", index, 1)))));
    all.extend((0..size.jobs).map(|index| (JOBS, job(&app("job", index, size.completions)))));
    all.extend((0..size.cron_jobs).map(|index| (CRON_JOBS, cron_job(&app("cron", index, 1)))));
    all
}

fn template(app: &App) -> Value {
    json!({ "metadata": { "labels": app.labels(), "annotations": app.annotations() }, "spec": app.pod_spec() })
}

fn object(version: &str, kind: &str, app: &App, spec: Value) -> Value {
    let metadata = json!({ "name": app.name, "namespace": app.namespace, "labels": app.labels() });
    json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec })
}

fn stateful_set(app: &App) -> Value {
    let spec = json!({
        "replicas": app.replicas, "serviceName": app.name, "selector": { "matchLabels": app.selector() },
        "template": template(app),
    });
    object("apps/v1", "StatefulSet", app, spec)
}

fn daemon_set(app: &App) -> Value {
    let spec = json!({
        "selector": { "matchLabels": app.selector() }, "template": template(app),
        "updateStrategy": { "rollingUpdate": { "maxUnavailable": "25%" } },
    });
    object("apps/v1", "DaemonSet", app, spec)
}

fn job_spec(app: &App) -> Value {
    let mut template = template(app);
    template["spec"]["restartPolicy"] = "Never".into();
    json!({ "completions": app.replicas, "parallelism": app.replicas, "template": template })
}

fn job(app: &App) -> Value {
    object("batch/v1", "Job", app, job_spec(app))
}

/// Returns a suspended CronJob with a yearly schedule.
fn cron_job(app: &App) -> Value {
    let spec = json!({ "schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": { "spec": job_spec(app) } });
    object("batch/v1", "CronJob", app, spec)
}

fn controller(app: &App) -> Value {
    let spec = json!({ "replicas": app.replicas, "selector": app.selector(), "template": template(app) });
    object("v1", "ReplicationController", app, spec)
}

fn autoscaler(app: &App) -> Value {
    let target = json!({ "type": "Utilization", "averageUtilization": 25 });
    let spec = json!({
        "minReplicas": 1, "maxReplicas": SCALED_TO,
        "scaleTargetRef": { "apiVersion": "v1", "kind": "ReplicationController", "name": app.name },
        "metrics": [{ "type": "Resource", "resource": { "name": "memory", "target": target } }],
    });
    object("autoscaling/v2", "HorizontalPodAutoscaler", app, spec)
}

fn budget(app: &App) -> Value {
    let spec = json!({ "maxUnavailable": 1, "selector": { "matchLabels": app.selector() } });
    object("policy/v1", "PodDisruptionBudget", app, spec)
}

fn is_stateful_set_complete(set: &StatefulSet, replicas: i32) -> bool {
    let (Some(status), generation) = (&set.status, set.metadata.generation) else { return false };
    let counts = [status.updated_replicas, status.ready_replicas, status.available_replicas];
    status.observed_generation >= generation
        && status.replicas == replicas
        && counts.iter().all(|count| *count == Some(replicas))
        && status.current_revision == status.update_revision
}

fn is_daemon_set_complete(set: &DaemonSet, nodes: i32) -> bool {
    let (Some(status), generation) = (&set.status, set.metadata.generation) else { return false };
    let counts = [status.updated_number_scheduled, status.number_available, Some(status.number_ready)];
    status.observed_generation >= generation
        && status.desired_number_scheduled == nodes
        && counts.iter().all(|count| *count == Some(nodes))
}

fn is_job_complete(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
}

fn is_cron_job_done(cron_job: &CronJob) -> bool {
    let Some(status) = &cron_job.status else { return false };
    status.last_successful_time.is_some() && status.active.as_ref().is_none_or(Vec::is_empty)
}

fn is_scaled(controller: &ReplicationController) -> bool {
    let Some(status) = &controller.status else { return false };
    let counts = [Some(status.replicas), status.ready_replicas, status.available_replicas];
    counts.iter().all(|count| *count == Some(SCALED_TO))
}

fn is_counted(budget: &PodDisruptionBudget) -> bool {
    let Some(status) = &budget.status else { return false };
    status.expected_pods.is_some_and(|expected| expected > 1) && status.current_healthy == status.expected_pods
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_has_objects_of_every_kind() {
        let part = Size::WHOLE.part(20);
        assert_eq!((part.stateful_sets, part.daemon_sets, part.jobs, part.ordinals), (1, 1, 10, 10));
        let objects = objects(part);
        assert_eq!(objects.len(), 1 + 1 + 10 + 5 + 2 * 10 + 5);
        let of = |kind: &str| objects.iter().filter(|(_, object)| object["kind"] == kind).count();
        assert_eq!((of("PodDisruptionBudget"), of("HorizontalPodAutoscaler"), of("CronJob")), (5, 10, 5));
        assert_eq!(collection_path(JOBS), "/apis/batch/v1/namespaces/bench/jobs");
    }

    #[test]
    fn objects_are_complete_when_their_status_matches_the_current_spec() {
        let stateful = |generation: i64, updated: i32| -> StatefulSet {
            serde_json::from_value(json!({
                "metadata": { "generation": generation },
                "spec": { "selector": {}, "template": {}, "serviceName": "a" },
                "status": {
                    "observedGeneration": 2, "replicas": 3, "updatedReplicas": updated, "readyReplicas": 3,
                    "availableReplicas": 3, "currentRevision": "a", "updateRevision": "a",
                },
            }))
            .unwrap()
        };
        assert!(is_stateful_set_complete(&stateful(2, 3), 3));
        assert!(!is_stateful_set_complete(&stateful(3, 3), 3), "the change is not observed yet");
        assert!(!is_stateful_set_complete(&stateful(2, 2), 3), "one is not updated");
        let budget = |expected: i32, healthy: i32| -> PodDisruptionBudget {
            serde_json::from_value(json!({ "status": {
                "expectedPods": expected, "currentHealthy": healthy, "desiredHealthy": 1, "disruptionsAllowed": 0,
            } }))
            .unwrap()
        };
        assert!(is_counted(&budget(2, 2)));
        assert!(!is_counted(&budget(2, 1)) && !is_counted(&budget(0, 0)));
    }
}
