//! A manager and an API server with every alpha and beta gate on.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster_tests::objects::template;
use cluster_tests::{Bed, Faults, Manager, Space, eventually};
use control_plane::Options;
use k8s_openapi::api::apps::v1::Deployment;
use runtime::manager::ExitReason;
use serde_json::json;

const GATES: &str = "--feature-gates=AllAlpha=true,AllBeta=true";

pub async fn manager_works_with_every_gate_on(_: Space) -> Result<()> {
    let flags = [GATES, "--runtime-config=api/all=true"].map(str::to_owned).to_vec();
    let bed = Arc::new(
        Bed::without_accounts(Options { nodes: 1, extra_apiserver_flags: flags, ..Options::default() }).await?,
    );
    let space = bed.space("gates").await?;
    // Every gate, with the election that the API server coordinates.
    let flags = [GATES, "--leader-elect=true", "--leader-elect-resource-namespace=kube-system"];
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &flags).await?;
    let labels = json!({"app": "web"});
    space
        .create::<Deployment>(json!({
            "metadata": {"name": "web"},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template("web", "example.com/image:1", &json!({}))},
        }))
        .await?;
    eventually("the Deployment is available", || async {
        let status = space.get::<Deployment>("web").await?.status.unwrap_or_default();
        ensure!(status.available_replicas == Some(2), "{status:?}");
        Ok(())
    })
    .await?;
    let metadata = json!({"name": "group", "namespace": space.namespace});
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata,
        "spec": {"schedulingPolicy": {"basic": {}}},
    });
    let request = json!({
        "apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest",
        "metadata": {"name": "request"}, "spec": {"driver": "gpu.example.com"},
    });
    for object in [group, request] {
        bed.cluster.kubectl_with_input(&["create", "-f", "-"], &object.to_string())?;
    }
    space.kubectl(&["delete", "podgroup", "group", "--wait=false"]).await?;
    eventually("controllers behind gates work", || async {
        let group = space.kubectl(&["get", "podgroup", "group", "--ignore-not-found", "-o", "name"]).await?;
        let count = bed.cluster.kubectl(&[
            "get",
            "resourcepoolstatusrequest",
            "request",
            "-o",
            "jsonpath={.status.poolCount}",
        ])?;
        ensure!((&*group, &*count) == ("", "0"), "{group} {count}");
        Ok(())
    })
    .await?;
    let strategy = ["get", "lease", "kube-controller-manager", "-n", "kube-system", "-o", "jsonpath={.spec.strategy}"];
    let strategy = bed.cluster.kubectl(&strategy)?;
    ensure!(strategy == "OldestEmulationVersion", "{strategy}");
    ensure!(manager.stop().await? == ExitReason::Shutdown);
    Ok(())
}
