//! Operations of docs/takeover.md: all commands of the page that replace upstream's manager on a node, and that revert
//! to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cluster_tests::programs::KUBERNETES;
use cluster_tests::{Bed, Space, StaticPods, eventually};
use control_plane::assets::Program;
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio::task::block_in_place;

const PAGE: &str = include_str!("../../../../../docs/takeover.md");
const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

/// The manifest that kubeadm 1.37 writes for a cluster with a pod network.
const KUBEADM: &str = include_str!("../../../data/kube-controller-manager.yaml");
const MANIFEST: &str = "kube-controller-manager.yaml";

/// A node on which the commands run.
struct Node<'a> {
    bed: &'a Bed,
    pods: StaticPods<'a>,
    /// The working directory of the commands.
    folder: PathBuf,
}

impl<'a> Node<'a> {
    /// Creates a control plane node as after kubeadm, without a running manager.
    fn new(bed: &'a Bed) -> Result<Self> {
        let cluster = &bed.cluster;
        for identity in [Identity::Admin, Identity::ControllerManager] {
            cluster.kubeconfig(identity)?;
        }
        let pods = StaticPods::new(cluster)?;
        let folder = cluster.folder().join("home");
        fs::create_dir(&folder)?;
        std::os::unix::fs::symlink(DEPLOY, folder.join("deploy"))?;
        Ok(Self { bed, pods, folder })
    }

    /// Runs commands, in which [`KUBERNETES`] is the control plane's folder; returns their output.
    fn run_commands(&self, commands: &str) -> Result<String> {
        let cluster = &self.bed.cluster;
        let commands = commands.replace(KUBERNETES, &cluster.folder().display().to_string());
        let kubectl = cluster.assets().path(Program::Kubectl)?.parent().context("kubectl is in no folder")?;
        let path = format!("{}:{}", kubectl.display(), std::env::var("PATH")?);
        let mut shell = Command::new("sh");
        shell.args(["-eu", "-c", &commands]).current_dir(&self.folder).env("PATH", path).env("HOME", &self.folder);
        let output = block_in_place(|| shell.output())?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{commands}\n({}): {stderr}", output.status);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs the commands of a section; after each block, the kubelet applies changed manifests. Returns the output.
    async fn run_section(&mut self, heading: &str) -> Result<String> {
        let blocks = blocks(PAGE, heading);
        ensure!(!blocks.is_empty(), "no commands under '{heading}'");
        let mut printed = String::new();
        for block in blocks {
            let output = self.run_commands(&block);
            printed += &output.with_context(|| format!("under '{heading}'"))?;
            self.pods.sync().await?;
        }
        Ok(printed)
    }

    /// Waits until a leader other than `before` exists, and returns it.
    async fn led_by_another(&self, lease: &str, before: &str) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.bed.client.clone(), "kube-system");
        eventually(format!("{lease} has another holder than {before:?}"), || async {
            let holder = leases.get(lease).await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            ensure!(!holder.is_empty() && holder != before, "{holder:?} holds it");
            Ok(holder)
        })
        .await
    }

    /// Runs the page's checks for our manager or upstream's: it leads, and no pod is lost.
    async fn checks(&mut self, ours: bool) -> Result<()> {
        let printed = self.run_section("Check").await?;
        ensure!(printed.contains("became leader"), "no event of an election: {printed}");
        let deleted = self.run_commands("comm -23 pods.before pods.after")?;
        ensure!(deleted.is_empty(), "pods were deleted:\n{deleted}");
        let token = fs::read_to_string(self.folder.join("token"))?;
        let process = self.pods.process(MANIFEST)?;
        let metrics = process.get("/metrics", Some(token.trim_end())).await?;
        ensure!(metrics.contains("\nleader_election_master_status{name=\"kube-controller-manager\"} 1"), "{metrics}");
        ensure!(
            metrics.contains("\ncontrollers_reconciles_total") == ours,
            "controllers_reconciles_total is served: {}, by our manager: {ours}",
            !ours
        );
        Ok(())
    }
}

/// Returns the shell commands under a heading of a page.
fn blocks(page: &str, heading: &str) -> Vec<String> {
    let (mut under, mut block, mut blocks) = (false, None::<String>, Vec::new());
    for line in page.lines() {
        match (&mut block, line) {
            (Some(_), "```") => blocks.extend(block.take()),
            (Some(block), line) => *block += &format!("{line}\n"),
            (None, "```sh") if under => block = Some(String::new()),
            (None, line) => {
                if let Some(title) = line.strip_prefix("## ") {
                    under = title == heading;
                }
            }
        }
    }
    blocks
}

/// Returns pods of all namespaces, by uid and name.
async fn all_pods(bed: &Bed) -> Result<BTreeSet<String>> {
    let pods: Api<Pod> = Api::all(bed.client.clone());
    let names = |pod: Pod| format!("{:?} {:?}", pod.metadata.uid, pod.metadata.name);
    Ok(pods.list(&ListParams::default()).await?.items.into_iter().map(names).collect())
}

const WORKLOADS: &str = r"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: 'example.com/web:1'}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: store, namespace: shop}
spec:
  replicas: 2
  serviceName: store
  selector: {matchLabels: {app: store}}
  template:
    metadata: {labels: {app: store}}
    spec: {containers: [{name: main, image: 'example.com/store:1'}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: shop}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: main, image: 'example.com/agent:1'}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: once, namespace: shop}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: 'example.com/once:1'}]}
";

/// A patch that adds the condition that `kcm` gives to a StatefulSet with a blocked rollout.
const BLOCKED: &str = r#"{"status": {"conditions": [{"type": "RolloutBlocked", "status": "True"}]}}"#;

/// Creates workloads, and waits until they are complete.
fn workloads(cluster: &ControlPlane) -> Result<()> {
    block_in_place(|| cluster.kubectl_with_input(&["apply", "-f", "-"], WORKLOADS))?;
    for workload in ["deployment/web", "statefulset/store", "daemonset/agent"] {
        in_shop(cluster, &["rollout", "status", workload, "--timeout=180s"])?;
    }
    in_shop(cluster, &["wait", "--for=condition=Complete", "job/once", "--timeout=180s"])
}

/// Runs kubectl in the namespace of the workloads.
fn in_shop(cluster: &ControlPlane, arguments: &[&str]) -> Result<()> {
    let arguments = [&["--namespace=shop"], arguments].concat();
    block_in_place(|| cluster.kubectl(&arguments)).map(drop)
}

async fn bed() -> Result<Bed> {
    Bed::without_accounts(Options { nodes: 2, ..Options::default() }).await
}

/// A takeover from upstream's manager to ours and back; then both run with a part of the controllers each, and back
/// again. All use kubeadm's command line.
pub async fn takeover_page_works_in_both_directions(_: Space) -> Result<()> {
    let bed = bed().await?;
    let mut node = Node::new(&bed)?;
    fs::write(node.pods.folder().join(MANIFEST), KUBEADM)?;
    node.pods.sync().await?;
    let upstream = node.led_by_another("kube-controller-manager", "").await?;
    workloads(&bed.cluster)?;
    let before = all_pods(&bed).await?;

    let printed = node.run_section("Before").await?;
    ensure!(printed.contains(&upstream), "{upstream} leads, and the page shows {printed}");
    let printed = node.run_section("Take over").await?;
    ensure!(printed.contains("localhost/kcm:"), "the difference is {printed}");
    let ours = node.led_by_another("kube-controller-manager", &upstream).await?;
    node.checks(true).await.context("under ours")?;
    ensure!(all_pods(&bed).await? == before, "pods changed under our manager");

    node.run_section("Go back").await?;
    let upstream = node.led_by_another("kube-controller-manager", &ours).await?;
    node.checks(false).await.context("under upstream's again")?;
    ensure!(all_pods(&bed).await? == before, "pods changed under upstream's manager");
    in_shop(&bed.cluster, &["patch", "statefulset/store", "--subresource=status", "--patch", BLOCKED])?;
    node.run_section("Go back").await?;
    let store =
        block_in_place(|| bed.cluster.kubectl(&["--namespace=shop", "get", "statefulset/store", "--output=json"]))?;
    ensure!(store.contains("availableReplicas") && !store.contains("RolloutBlocked"), "{store}");

    let [part, start, look, end, back] =
        blocks(PAGE, "Share the work").try_into().ok().context("not five blocks of commands")?;
    node.run_commands(&part)?;
    node.pods.sync().await?;
    node.led_by_another("kube-controller-manager", &upstream).await.context("no new leader with fewer controllers")?;
    node.run_commands(&start)?;
    node.pods.sync().await?;
    let ours = node.led_by_another("kcm", "").await?;
    let printed = node.run_commands(&look)?;
    ensure!(printed.contains(&ours), "{ours} holds kcm, and the page shows {printed}");
    in_shop(&bed.cluster, &["scale", "deployment/web", "--replicas=5"])?;
    in_shop(&bed.cluster, &["rollout", "status", "deployment/web", "--timeout=180s"])?;
    for step in [end, back] {
        node.run_commands(&step)?;
        node.pods.sync().await?;
    }
    ensure!(all_pods(&bed).await?.is_superset(&before), "pods were deleted while the work was shared");
    Ok(())
}

/// kcm runs with the command name, the flags and the probes of kubeadm's manifest, and releases its Lease at the end.
pub async fn kubeadms_command_line_runs_unchanged(_: Space) -> Result<()> {
    let bed = bed().await?;
    let mut node = Node::new(&bed)?;
    fs::write(node.folder.join("kube-controller-manager.yaml.upstream"), KUBEADM)?;
    node.run_section("Take over").await?;
    node.led_by_another("kube-controller-manager", "").await?;
    workloads(&bed.cluster)?;
    node.run_commands("touch pods.before")?;
    node.checks(true).await?;

    let log = node.pods.process(MANIFEST)?.log(&bed.cluster)?;
    ensure!(log.contains("starting kcm") && !log.contains(" ERROR "), "{log}");
    fs::remove_file(node.pods.folder().join(MANIFEST))?;
    node.pods.sync().await?;
    let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-system");
    let spec = leases.get("kube-controller-manager").await?.spec.context("a Lease without a spec")?;
    ensure!(spec.holder_identity.as_deref() == Some(""), "{:?} still holds it", spec.holder_identity);
    Ok(())
}
