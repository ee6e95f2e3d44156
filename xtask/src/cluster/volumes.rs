//! The life of volumes on real nodes: provisioned, mounted, expanded online, moved to another node, and deleted. Then
//! the volumes of a StatefulSet during a rolling update.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control_plane::Identity;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use real_cluster::storage::Storage;
use real_cluster::{RealCluster, images, node_name};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The name of the claim, and of the StatefulSet.
const NAME: &str = "data";

/// The file that pods write, and its content, as in agnhost's test of mounts.
const FILE: &str = "/data/file";
const CONTENT: &str = "mount-tester new file\n";

/// The port of the server in each pod.
const PORT: u16 = 8080;

const REPLICAS: i32 = 2;

/// Interval at which objects are read.
const PERIOD: Duration = Duration::from_millis(50);

/// The use of the file by a pod's first container.
#[derive(Clone, Copy, Debug)]
enum Use {
    /// The container creates the file.
    Write,
    /// The file must exist.
    Read,
}

/// Runs the scenario. Each step takes at most `deadline`; `report` gets a line for each.
pub async fn run(cluster: &RealCluster, deadline: Duration, report: impl Fn(&str)) -> Result<()> {
    let client = cluster.control_plane().client(Identity::Admin).await?;
    let storage = cluster.storage().context("the cluster has no volumes")?;
    let volumes = Volumes { storage, client, deadline };
    let volume = volumes.create().await?;
    report("a volume was provisioned, attached, mounted and written");
    volumes.expand().await?;
    report("the volume was expanded while a pod used it");
    volumes.change_node().await?;
    report("the volume was moved to another node with its data");
    volumes.delete().await?;
    check_order(&volumes.history(&volume)?, &volume)?;
    report("the volume was deleted");
    volumes.update_stateful_set().await?;
    report("a StatefulSet with claims was updated and deleted");
    let violations = storage.driver().violations()?;
    ensure!(violations.is_empty(), "requests that would damage data: {violations:?}");
    Ok(())
}

/// Fails unless the driver's actions are the expected ones in their order: two nodes never have the volume at the same
/// time.
fn check_order(history: &[String], volume: &str) -> Result<()> {
    let (first, second) = (node_name(1), node_name(2));
    let on = |verb: &str, node: &str| format!("{verb} {volume} {node}");
    let expected = [
        format!("create {volume} {}", 1 << 30),
        on("attach", &first),
        on("mount", &first),
        format!("expand {volume} {}", 2_u64 << 30),
        on("grow", &first),
        on("unmount", &first),
        on("detach", &first),
        on("attach", &second),
        on("mount", &second),
        on("unmount", &second),
        on("detach", &second),
        format!("delete {volume}"),
    ];
    ensure!(history == expected, "the driver's actions were {history:#?}, and not {expected:#?}");
    Ok(())
}

struct Volumes<'a> {
    storage: &'a Storage,
    client: Client,
    deadline: Duration,
}

impl Volumes<'_> {
    /// Creates a claim and a pod that writes to its volume. Returns the volume's name.
    async fn create(&self) -> Result<String> {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": { "name": NAME }, "spec": claim_spec("1Gi"),
        }))?;
        self.claims().create(&PostParams::default(), &claim).await.context("create the claim")?;
        self.create_pod("first", 1, Use::Write).await?;
        self.until_running("first").await?;
        self.check_content("first").await?;
        let claim = self.claims().get(NAME).await.context("get the claim")?;
        claim.spec.and_then(|spec| spec.volume_name).context("the claim of a running pod is not bound")
    }

    /// Doubles the volume while the pod uses it.
    async fn expand(&self) -> Result<()> {
        let before = self.pods().get("first").await.context("get the pod")?;
        let patch = json!({ "spec": claim_spec("2Gi") });
        let parameters = PatchParams::default();
        self.claims().patch(NAME, &parameters, &Patch::Merge(patch)).await.context("expand the claim")?;
        self.until("the claim is expanded", async || {
            let status = self.claims().get(NAME).await?.status.unwrap_or_default();
            let size = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
            let is_done = size.is_some_and(|size| size.0 == "2Gi")
                && status.conditions.iter().flatten().all(reports_no_expansion);
            Ok((is_done, status))
        })
        .await?;
        let after = self.pods().get("first").await.context("get the pod")?;
        ensure!(before.metadata.uid == after.metadata.uid && is_running(&after), "the pod was replaced");
        Ok(())
    }

    /// Starts a pod on another node before the first one is deleted, so the new pod has to wait for the volume.
    async fn change_node(&self) -> Result<()> {
        self.create_pod("second", 2, Use::Read).await?;
        self.until("the second pod has a node", async || {
            let pod = self.pods().get("second").await?;
            let is_scheduled = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            Ok((is_scheduled, pod.status))
        })
        .await?;
        self.pods().delete("first", &DeleteParams::default()).await.context("delete the first pod")?;
        self.until_running("second").await?;
        self.check_content("second").await
    }

    /// Deletes the pod and the claim, and waits until the volume no longer exists anywhere.
    async fn delete(&self) -> Result<()> {
        self.pods().delete("second", &DeleteParams::default()).await.context("delete the second pod")?;
        self.claims().delete(NAME, &DeleteParams::default()).await.context("delete the claim")?;
        self.until_none().await
    }

    /// Creates a StatefulSet whose pods write a file, updates the pods, which then have to find the file, and deletes
    /// the StatefulSet with its claims.
    async fn update_stateful_set(&self) -> Result<()> {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": { "name": NAME },
            "spec": {
                "replicas": REPLICAS,
                "serviceName": NAME,
                "podManagementPolicy": "Parallel",
                "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Delete" },
                "selector": { "matchLabels": { "app": NAME } },
                "template": { "metadata": { "labels": { "app": NAME } }, "spec": pod_spec(Use::Write) },
                "volumeClaimTemplates": [{ "metadata": { "name": NAME }, "spec": claim_spec("1Gi") }],
            },
        }))?;
        let sets = self.sets();
        sets.create(&PostParams::default(), &set).await.context("create the StatefulSet")?;
        self.until_updated().await?;
        ensure!(self.storage.volumes()?.len() == 2, "not one volume for each pod: {:?}", self.storage.volumes()?);
        let patch = json!({ "spec": { "template": { "spec": { "initContainers": [first_container(Use::Read)] } } } });
        sets.patch(NAME, &PatchParams::default(), &Patch::Strategic(patch)).await.context("update the StatefulSet")?;
        self.until_updated().await?;
        for number in 0..REPLICAS {
            self.check_content(&format!("{NAME}-{number}")).await?;
        }
        sets.delete(NAME, &DeleteParams::foreground()).await.context("delete the StatefulSet")?;
        self.until_none().await
    }

    async fn until_updated(&self) -> Result<()> {
        self.until("the StatefulSet is updated", async || {
            let set = self.sets().get(NAME).await?;
            Ok((is_updated(&set), set.status))
        })
        .await
    }

    /// Waits until no volume exists: in the driver, in the API, or attached.
    async fn until_none(&self) -> Result<()> {
        let count = async |kind: &str| match kind {
            "claims" => number(&self.claims()).await,
            "volumes" => number(&Api::<PersistentVolume>::all(self.client.clone())).await,
            _ => number(&Api::<VolumeAttachment>::all(self.client.clone())).await,
        };
        self.until("nothing is left of the volumes", async || {
            let left = (count("claims").await?, count("volumes").await?, count("attachments").await?);
            let stored = self.storage.volumes()?;
            Ok((left == (0, 0, 0) && stored.is_empty(), (left, stored)))
        })
        .await
    }

    async fn create_pod(&self, name: &str, node: u8, file: Use) -> Result<()> {
        let mut spec = pod_spec(file);
        spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node_name(node) });
        spec["volumes"] = json!([{ "name": NAME, "persistentVolumeClaim": { "claimName": NAME } }]);
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        self.pods().create(&PostParams::default(), &pod).await.with_context(|| format!("create the pod {name}"))?;
        Ok(())
    }

    async fn until_running(&self, name: &str) -> Result<()> {
        self.until(&format!("the pod {name} runs"), async || {
            let pod = self.pods().get(name).await?;
            Ok((is_running(&pod), pod.status))
        })
        .await
    }

    /// Waits until the pod's server responds with the content of the file.
    async fn check_content(&self, pod: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/default/pods/{pod}:{PORT}/proxy{FILE}");
        self.until(&format!("the pod {pod} serves the file"), async || {
            let request = http::Request::get(&path).body(Vec::new())?;
            let content = self.client.request_text(request).await.map_err(|error| error.to_string());
            Ok((content.as_deref() == Ok(CONTENT), content))
        })
        .await
    }

    /// Waits until `state` returns true; the error has its last state.
    async fn until<S: Debug>(&self, what: &str, state: impl AsyncFn() -> Result<(bool, S)>) -> Result<()> {
        let end = Instant::now() + self.deadline;
        loop {
            let (is_reached, last) = state().await.with_context(|| format!("wait until {what}"))?;
            if is_reached {
                return Ok(());
            }
            if Instant::now() > end {
                let history = self.storage.driver().history()?;
                bail!("not within {} s: {what}; {last:?}; the driver's actions: {history:#?}", self.deadline.as_secs());
            }
            sleep(PERIOD).await;
        }
    }

    /// Returns the driver's actions on a volume, without repeated calls.
    fn history(&self, volume: &str) -> Result<Vec<String>> {
        let mut history = self.storage.driver().history()?;
        history.retain(|action| action.split(' ').nth(1) == Some(volume));
        history.dedup();
        Ok(history)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::default_namespaced(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    fn sets(&self) -> Api<StatefulSet> {
        Api::default_namespaced(self.client.clone())
    }
}

async fn number<K>(api: &Api<K>) -> Result<usize>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    Ok(api.list(&ListParams::default()).await?.items.len())
}

fn claim_spec(size: &str) -> Value {
    json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": size } } })
}

/// Returns the spec of a pod that uses the file, and then serves it.
fn pod_spec(file: Use) -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "initContainers": [first_container(file)],
        "containers": [{
            "name": "server",
            "image": images::AGNHOST,
            "imagePullPolicy": "IfNotPresent",
            "command": ["/agnhost", "test-webserver", format!("--port={PORT}")],
            "volumeMounts": [{ "name": NAME, "mountPath": "/data" }],
        }],
    })
}

fn first_container(file: Use) -> Value {
    let flag = match file {
        Use::Write => "new_file_0644",
        Use::Read => "file_content",
    };
    json!({
        "name": "file",
        "image": images::AGNHOST,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/agnhost", "mounttest", format!("--{flag}={FILE}")],
        "volumeMounts": [{ "name": NAME, "mountPath": "/data" }],
    })
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Running")
        && status.iter().flat_map(|status| status.container_statuses.iter().flatten()).all(|container| container.ready)
}

/// Returns true unless a claim's condition reports a running expansion.
fn reports_no_expansion(condition: &k8s_openapi::api::core::v1::PersistentVolumeClaimCondition) -> bool {
    !matches!(condition.type_.as_str(), "Resizing" | "FileSystemResizePending")
}

/// Returns true if all pods of a StatefulSet have the current template and are ready.
fn is_updated(set: &StatefulSet) -> bool {
    let Some(status) = &set.status else { return false };
    status.observed_generation >= set.metadata.generation
        && status.current_revision == status.update_revision
        && status.updated_replicas == Some(REPLICAS)
        && status.ready_replicas == Some(REPLICAS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_refused_when_a_node_attaches_before_the_other_detaches() {
        let action = |text: &str| text.replace('V', "pvc-1");
        let texts = [
            "create V 1073741824",
            "attach V node-1",
            "mount V node-1",
            "expand V 2147483648",
            "grow V node-1",
            "unmount V node-1",
            "detach V node-1",
            "attach V node-2",
            "mount V node-2",
            "unmount V node-2",
            "detach V node-2",
            "delete V",
        ];
        let mut history: Vec<String> = texts.map(action).into();
        check_order(&history, "pvc-1").unwrap();
        history.swap(6, 7);
        assert!(check_order(&history, "pvc-1").is_err());
    }
}
