//! The scenario: its steps with a Deployment, one function each, and the order of all steps. A step may depend on
//! earlier ones.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::api::{Api, ListParams};

use super::cloud_steps;
use super::environment::{DemoEnvironment, MANAGER};
use super::pods::Pods;
use super::scenario::Step;
use super::volumes;

/// The Deployment of the scenario.
pub const DEPLOYMENT: &str = "web";

const NAMESPACE: &str = "default";
const LABEL: &str = "app=web";
const REPLICAS: usize = 3;
/// Minimum number of available pods: `maxUnavailable` is 0.
const MIN_AVAILABLE: usize = REPLICAS;
/// Maximum number of requested pods: `maxSurge` is 1.
const MAX_PODS: i32 = REPLICAS as i32 + 1;

const FIRST: &str = "nginx:1.28";
const SECOND: &str = "nginx:1.29";
const THIRD: &str = "nginx:1.30";

/// Seconds that a new pod must be Ready for in [`crash`]: the rollout is slow enough to be interrupted halfway.
const MIN_READY_SECONDS: i64 = 3;

const MANIFEST: &str = "apiVersion: apps/v1
kind: Deployment
metadata: { name: web, labels: { app: web } }
spec:
  replicas: 3
  selector: { matchLabels: { app: web } }
  strategy: { rollingUpdate: { maxUnavailable: 0, maxSurge: 1 } }
  template:
    metadata: { labels: { app: web } }
    spec:
      containers:
      - { name: nginx, image: 'nginx:1.28', ports: [{ containerPort: 80 }] }
";

/// The steps, in order.
pub const SCENARIO: &[Step] = &[
    cloud_steps::JOIN,
    Step {
        title: "A Deployment with three replicas is created",
        deadline: Duration::from_secs(60),
        run: |environment| create_deployment(environment).boxed(),
    },
    Step {
        title: "A deleted pod is replaced",
        deadline: Duration::from_secs(30),
        run: |environment| delete_pod(environment).boxed(),
    },
    Step {
        title: "A rolling update completes",
        deadline: Duration::from_secs(60),
        run: |environment| update(environment).boxed(),
    },
    Step {
        title: "The update is undone",
        deadline: Duration::from_secs(60),
        run: |environment| undo(environment).boxed(),
    },
    Step {
        title: "The manager is killed in the middle of a rolling update, and started again",
        deadline: Duration::from_secs(120),
        run: |environment| crash(environment).boxed(),
    },
    volumes::VOLUMES,
    cloud_steps::BALANCE,
    cloud_steps::LEAVE,
];

async fn create_deployment(environment: &DemoEnvironment) -> Result<String> {
    let mut pods = Pods::follow(environment, NAMESPACE, LABEL, 0).await?;
    for line in MANIFEST.lines() {
        environment.console.line(&format!("      {line}"));
    }
    environment.kubectl_with_input(&["apply", "--filename=-"], MANIFEST).await?;
    pods.until(|count| count.is_all(FIRST, REPLICAS)).await?;
    rolled_out(environment).await?;
    Ok(format!("{REPLICAS} of {REPLICAS} pods are available"))
}

async fn delete_pod(environment: &DemoEnvironment) -> Result<String> {
    let mut pods = Pods::follow(environment, NAMESPACE, LABEL, 0).await?;
    let before: Vec<String> = pods.names().into_iter().map(String::from).collect();
    let deleted = before.first().context("there is no pod to delete")?;
    environment.kubectl(&["delete", "pod", deleted, "--wait=false"]).await?;
    pods.until(|count| count.available < REPLICAS).await.context("wait for the pod's deletion")?;
    pods.until(|count| count.is_all(FIRST, REPLICAS)).await?;
    let new: Vec<_> = pods.names().into_iter().filter(|name| !before.iter().any(|old| old == name)).collect();
    ensure!(new.len() == 1, "one pod was deleted, but the new ones are: {new:?}");
    let others = before.iter().skip(1).filter(|name| pods.names().contains(&name.as_str())).count();
    ensure!(others == REPLICAS - 1, "only {others} of the other {} pods still exist", REPLICAS - 1);
    Ok(format!("{} replaces {deleted}; the other pods were not changed", new[0]))
}

async fn update(environment: &DemoEnvironment) -> Result<String> {
    let mut pods = Pods::follow(environment, NAMESPACE, LABEL, 0).await?;
    set_image(environment, SECOND).await?;
    pods.until(|count| count.is_all(SECOND, REPLICAS)).await?;
    rolled_out(environment).await?;
    pods.check_limits(MIN_AVAILABLE, MAX_PODS)
}

async fn undo(environment: &DemoEnvironment) -> Result<String> {
    let mut pods = Pods::follow(environment, NAMESPACE, LABEL, 0).await?;
    environment.kubectl(&["rollout", "undo", &resource()]).await?;
    pods.until(|count| count.is_all(FIRST, REPLICAS)).await?;
    rolled_out(environment).await?;
    let sets = replica_sets(environment).await?;
    ensure!(sets.len() == 2, "the first ReplicaSet should be used again, but there are {}", sets.len());
    let kept = pods.check_limits(MIN_AVAILABLE, MAX_PODS)?;
    Ok(format!("the pods run {FIRST} again, in its old ReplicaSet; {kept}"))
}

async fn crash(environment: &DemoEnvironment) -> Result<String> {
    let patch = format!(r#"--patch={{"spec":{{"minReadySeconds":{MIN_READY_SECONDS}}}}}"#);
    environment.kubectl(&["patch", &resource(), &patch]).await?;
    rolled_out(environment).await?;
    // Pods that were just created have not been ready for that long yet.
    let mut pods = Pods::follow(environment, NAMESPACE, LABEL, MIN_READY_SECONDS).await?;
    pods.until(|count| count.is_all(FIRST, REPLICAS)).await?;

    let mut pods = Pods::follow(environment, NAMESPACE, LABEL, MIN_READY_SECONDS).await?;
    set_image(environment, THIRD).await?;
    pods.until(|count| count.images.contains_key(THIRD)).await?;
    environment.kill_manager()?;
    environment.console.command(&format!("kill -9 {MANAGER}"));
    let halfway = pods.count();
    ensure!(halfway.images.contains_key(FIRST), "the update was complete before the manager was killed: {halfway}");
    environment.report_event(&format!("killed while the update was half done; {halfway}"));

    environment.start_manager()?;
    environment.report_event(
        "the new process waits until the Lease of the killed one has expired, for slightly more than 15 s at most",
    );
    pods.until(|count| count.is_all(THIRD, REPLICAS)).await?;
    rolled_out(environment).await?;
    let sets = replica_sets(environment).await?;
    let in_use: Vec<_> = sets.iter().filter(|(_, replicas)| *replicas > 0).collect();
    ensure!(in_use.len() == 1, "one ReplicaSet should have pods, but these have: {in_use:?}");
    ensure!(sets.len() == 3, "three templates were used, but there are {} ReplicaSets: {sets:?}", sets.len());
    let kept = pods.check_limits(MIN_AVAILABLE, MAX_PODS)?;
    Ok(format!("the update was completed; {kept}"))
}

fn resource() -> String {
    format!("deployment/{DEPLOYMENT}")
}

async fn set_image(environment: &DemoEnvironment, image: &str) -> Result<()> {
    environment.kubectl(&["set", "image", &resource(), &format!("nginx={image}")]).await?;
    Ok(())
}

/// Waits until kubectl finds the rollout complete in the Deployment's status.
async fn rolled_out(environment: &DemoEnvironment) -> Result<()> {
    let output = environment.kubectl(&["rollout", "status", &resource()]).await?;
    environment.report_event(output.lines().last().unwrap_or("kubectl printed nothing"));
    Ok(())
}

/// Returns the names of the Deployment's ReplicaSets, with their desired replicas.
async fn replica_sets(environment: &DemoEnvironment) -> Result<Vec<(String, i32)>> {
    let api: Api<ReplicaSet> = Api::namespaced(environment.client.clone(), NAMESPACE);
    let sets = api.list(&ListParams::default().labels(LABEL)).await.context("list ReplicaSets")?;
    let replicas = |set: &ReplicaSet| set.spec.replicas.unwrap_or(1);
    Ok(sets.iter().map(|set| (set.metadata.name.clone().unwrap_or_default(), replicas(set))).collect())
}
