//! Guarantees of a control plane: it is isolated, enforces RBAC, runs scripted pods, and is removed with its owner.

#![allow(clippy::disallowed_methods, reason = "tests change things as users do, without a controller's identity")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, Identity, Options, behaviour};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

const DEADLINE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn two_control_planes_work_concurrently() -> Result<()> {
    let options = || Options { nodes: 2, audit: true, ..Options::default() };
    let (left, right) = tokio::try_join!(ControlPlane::start(options()), ControlPlane::start(options()))?;
    ensure!(left.server() != right.server());
    ensure!(left.folder() != right.folder());

    left.kubectl(&["create", "namespace", "only-left"])?;
    let namespaces: Api<Namespace> = Api::all(right.client(Identity::Admin).await?);
    ensure!(namespaces.get_opt("only-left").await?.is_none(), "the two share a store");

    let version = left.kubectl(&["version"])?;
    ensure!(version.matches("v1.37.0").count() == 2, "client and server differ: {version}");

    manager_has_the_rights_of_its_role_only(&left).await?;
    pods_follow_their_script(&right).await?;

    let folders = [left.folder().to_owned(), right.folder().to_owned()];
    for folder in &folders {
        ensure!(!processes_of(folder)?.is_empty(), "no process found while the control plane runs");
    }
    drop((left, right));
    folders.iter().try_for_each(|folder| check_removed(folder))
}

async fn manager_has_the_rights_of_its_role_only(cluster: &ControlPlane) -> Result<()> {
    let client = cluster.client(Identity::ControllerManager).await?;
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), "default");
    sets.list(&ListParams::default()).await.context("list ReplicaSets with the role of the manager")?;

    let before = cluster.audit_position()?;
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let refused = pods.create(&PostParams::default(), &pod("forbidden", None)?).await;
    let code = match refused {
        Err(kube::Error::Api(status)) => status.code,
        other => anyhow::bail!("its role may not create pods, but: {other:?}"),
    };
    ensure!(code == 403, "refused with {code}");

    let counts = cluster.audit_counts(before)?;
    let lines: Vec<_> = counts
        .iter()
        .map(|(request, count)| {
            format!("{} {} {} {} x{count}", request.user, request.verb, request.resource, request.code)
        })
        .collect();
    ensure!(lines == ["system:kube-controller-manager create pods 403 x1"], "counted: {lines:?}");
    Ok(())
}

async fn pods_follow_their_script(cluster: &ControlPlane) -> Result<()> {
    // Pods need the default service account, and no manager creates it here.
    cluster.kubectl(&["create", "serviceaccount", "default"])?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(Identity::Admin).await?, "default");
    // name, behaviour, expected phase and readiness
    let cases = [
        ("plain", None, "Running true"),
        ("ready", Some(behaviour::READY), "Running true"),
        ("unready", Some(behaviour::UNREADY), "Running false"),
        ("fail", Some(behaviour::FAIL), "Failed false"),
        ("succeed", Some(behaviour::SUCCEED), "Succeeded false"),
        ("terminating", Some(behaviour::TERMINATING), "Running true"),
        ("pending", Some(behaviour::PENDING), "Pending false"),
        ("evicted", Some(behaviour::EVICTED), "Failed false"),
        ("flap", Some(behaviour::FLAP), "Running false"),
    ];
    for (name, behaviour_name, _) in cases {
        pods.create(&PostParams::default(), &pod(name, behaviour_name)?).await?;
    }
    for (name, _, expected) in cases {
        until(&pods, name, expected, |pod| pod.is_some_and(|pod| is_bound(pod) && state(pod) == expected)).await?;
    }
    let plain = pods.get_status("plain").await?.status.context("no status")?;
    ensure!(plain.pod_ip.is_some_and(|ip| ip.starts_with("10.128.")), "no address of the pods' range");
    let failed = pods.get("fail").await?;
    ensure!(exit_code(&failed) == Some(7), "ended with {:?}", exit_code(&failed));

    cluster.kubectl(&["annotate", "pod", "unready", "--overwrite", "test.kcm/behaviour=ready"])?;
    until(&pods, "unready", "Ready again", |pod| pod.is_some_and(|pod| state(pod) == "Running true")).await?;

    cluster.kubectl(&["patch", "pod", "ready", "-p", r#"{"metadata":{"finalizers":["test.kcm/hold"]}}"#])?;
    for expected in ["Running true", "Running false"] {
        until(&pods, "flap", expected, |pod| pod.is_some_and(|pod| state(pod) == expected)).await?;
    }
    let evicted = pods.get("evicted").await?.status.context("no status")?;
    ensure!(evicted.reason.as_deref() == Some("Evicted"), "{evicted:?}");
    let target = evicted.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget");
    ensure!(target.is_some_and(|target| target.reason.as_deref() == Some("TerminationByKubelet")), "{evicted:?}");

    kubelets_remove_only_deleted_pods(cluster, &pods, &cases.map(|(name, ..)| name)).await
}

/// Checks that fake kubelets may remove a pod only while it is being deleted. Deletes all pods.
async fn kubelets_remove_only_deleted_pods(cluster: &ControlPlane, pods: &Api<Pod>, names: &[&str]) -> Result<()> {
    let kubelets = Identity::User { name: "kwok".into(), groups: vec!["system:masters".into()] };
    let by_kubelets: Api<Pod> = Api::namespaced(cluster.client(kubelets).await?, "default");
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let deadline = Instant::now() + DEADLINE;
    while by_kubelets.delete("plain", &dry_run).await.is_ok() {
        ensure!(Instant::now() < deadline, "fake kubelets may remove a pod that is not being deleted");
        sleep(Duration::from_millis(100)).await;
    }
    for name in names {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    by_kubelets.delete("terminating", &dry_run).await.context("fake kubelets cannot remove a deleted pod")?;
    for name in ["plain", "unready", "fail", "succeed", "pending", "evicted", "flap"] {
        until(pods, name, "deleted", |pod| pod.is_none()).await?;
    }
    until(pods, "ready", "Failed and kept by its finalizer", |pod| pod.is_some_and(|pod| state(pod) == "Failed false"))
        .await?;
    let terminating = pods.get("terminating").await?;
    ensure!(state(&terminating) == "Running true" && terminating.metadata.deletion_timestamp.is_some());
    Ok(())
}

#[tokio::test]
async fn panic_of_the_owner_ends_the_control_plane() -> Result<()> {
    let cluster = ControlPlane::start(without_nodes()).await?;
    let folder = cluster.folder().to_owned();
    let owner = tokio::spawn(async move {
        assert_eq!(cluster.server(), "", "a panic on purpose");
    });
    ensure!(owner.await.is_err_and(|error| error.is_panic()));
    check_removed(&folder)
}

#[tokio::test]
async fn failed_start_shows_the_last_output() -> Result<()> {
    let options = Options { extra_apiserver_flags: vec!["--no-such-flag=1".into()], ..without_nodes() };
    let error = ControlPlane::start(options).await.err().context("it started with a flag that does not exist")?;
    let text = format!("{error:#}");
    ensure!(text.contains("kube-apiserver exited unexpectedly"), "{text}");
    ensure!(text.contains("unknown flag: --no-such-flag"), "{text}");
    ensure!(text.contains("the control plane did not start; set KEEP_CONTROL_PLANE=1 to keep its logs"), "{text}");
    Ok(())
}

#[tokio::test]
async fn processes_and_folder_are_removed_when_the_owner_is_killed() -> Result<()> {
    let mut owner = Command::new(std::env::current_exe()?)
        .args(["--exact", "owner_that_waits_to_be_killed", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(owner.stdout.take().context("no output")?);
    let folder = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(PathBuf::from(line.split_once("folder: ")?.1)))
        .context("the owner did not start a control plane")?;
    ensure!(!processes_of(&folder)?.is_empty());
    owner.kill()?;
    owner.wait()?;
    let deadline = Instant::now() + DEADLINE;
    while let Err(error) = check_removed(&folder) {
        ensure!(Instant::now() < deadline, "{error:#}");
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "run by processes_and_folder_are_removed_when_the_owner_is_killed"]
async fn owner_that_waits_to_be_killed() -> Result<()> {
    let cluster = ControlPlane::start(without_nodes()).await?;
    println!("\nfolder: {}", cluster.folder().display());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Returns the options of a control plane with etcd and an API server only.
fn without_nodes() -> Options {
    Options { kwok: false, scheduler: false, ..Options::default() }
}

fn pod(name: &str, behaviour_name: Option<&str>) -> Result<Pod> {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name, "annotations": { behaviour::EXIT_CODE: "7" } },
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "containers": [{ "name": "main", "image": "example.com/image" }],
        },
    }))?;
    if let (Some(behaviour_name), Some(annotations)) = (behaviour_name, &mut pod.metadata.annotations) {
        annotations.insert(behaviour::BEHAVIOUR.into(), behaviour_name.into());
    }
    Ok(pod)
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// Returns the phase, and whether the pod is Ready.
fn state(pod: &Pod) -> String {
    let status = pod.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    format!("{} {ready}", status.phase.unwrap_or_default())
}

fn exit_code(pod: &Pod) -> Option<i32> {
    let container = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(container.state.as_ref()?.terminated.as_ref()?.exit_code)
}

async fn until(pods: &Api<Pod>, name: &str, what: &str, reached: impl Fn(Option<&Pod>) -> bool) -> Result<()> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let pod = pods.get_opt(name).await?;
        if reached(pod.as_ref()) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the pod {name} is not {what}: {pod:#?}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn check_removed(folder: &Path) -> Result<()> {
    ensure!(!folder.exists(), "{} still exists", folder.display());
    let processes = processes_of(folder)?;
    ensure!(processes.is_empty(), "processes of {} still run: {processes:?}", folder.display());
    Ok(())
}

/// Returns the command lines of the running processes that name a folder.
fn processes_of(folder: &Path) -> Result<Vec<String>> {
    let output = Command::new("ps").args(["-A", "-ww", "-o", "args="]).output().context("run ps")?;
    ensure!(output.status.success(), "ps failed");
    let folder = folder.to_str().context("not UTF-8")?;
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(lines.lines().filter(|line| line.contains(folder)).map(String::from).collect())
}
