//! Services with pods whose readiness is changed by the bench, without kubelets.

use anyhow::Result;
use kube::Client;
use serde_json::json;

use super::api::{self, Patch};
use super::workload::App;

/// Number of nodes that the pods are bound to; no kubelet runs.
const NODES: u32 = 10;

/// Creates the nodes, in three zones.
pub async fn create_nodes(client: &Client) -> Result<()> {
    let node = async |number: u32| {
        let labels = json!({ "topology.kubernetes.io/zone": format!("zone-{}", number % 3) });
        let metadata = json!({ "name": format!("node-{number}"), "labels": labels });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        api::create(client, "/api/v1/nodes", "bench", &node).await
    };
    api::each("nodes created", 0..NODES, node).await.map(drop)
}

/// Creates the Service of an app.
pub async fn create_service(client: &Client, App { namespace, name, .. }: &App) -> Result<()> {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "selector": { "app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "Helm" },
            "ports": [{ "name": "http", "port": 80, "targetPort": "http" }],
        },
    });
    api::create(client, &format!("/api/v1/namespaces/{namespace}/services"), "bench", &service).await.map(drop)
}

/// Creates a ready pod of an app. `number` is unique among all pods of the cluster and below 65,536.
pub async fn create_pod(client: &Client, app: &App, index: u32, number: u32) -> Result<()> {
    let uid = "00000000-0000-4000-8000-000000000000";
    let pod = app.pod(index, &format!("node-{}", number % NODES), uid);
    let collection = format!("/api/v1/namespaces/{}/pods", app.namespace);
    api::create(client, &collection, "bench", &pod).await?;
    let status = format!("{collection}/{}/status", app.pod_name(index));
    api::patch(client, &status, "bench", Patch::Merge, &app.pod_status(number)).await
}

/// Changes the readiness of a pod, as its kubelet does.
pub async fn set_ready(client: &Client, namespace: &str, pod: &str, ready: bool) -> Result<()> {
    let status = if ready { "True" } else { "False" };
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = json!({ "type": "Ready", "status": status, "lastTransitionTime": now });
    let patch = json!({ "status": { "conditions": [condition] } });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/status");
    api::patch(client, &path, "bench", Patch::Strategic, &patch).await
}
