//! Nodes whose leases are renewed without any other change, as in an idle cluster.

use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt, stream};
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::api::{self, Patch};

/// Interval at which a kubelet renews its lease.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// The lease duration, in seconds.
const LEASE_SECONDS: u32 = 40;

/// Maximum number of parallel renewals.
const PARALLEL: usize = 16;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Simulated kubelets, which run until this value is dropped.
pub struct Kubelets {
    renewing: JoinHandle<()>,
}

impl Kubelets {
    /// Creates Ready nodes, `node-0` and so on, and starts to renew their leases, one after the other at a steady rate.
    pub async fn start(client: &Client, nodes: u32) -> Result<Self> {
        api::each("nodes created", 0..nodes, async |number| register(client, &name(number)).await).await?;
        let client = client.clone();
        let mut ticks = interval(RENEW_INTERVAL / nodes.max(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let numbers = stream::unfold((ticks, 0), move |(mut ticks, number)| async move {
            ticks.tick().await;
            Some((number, (ticks, (number + 1) % nodes.max(1))))
        });
        let renewals = numbers.for_each_concurrent(PARALLEL, move |number| {
            let client = client.clone();
            async move {
                let lease = format!("{LEASES}/{}", name(number));
                let renewed = json!({ "spec": { "renewTime": now() } });
                // A failed renewal is ignored: the next one follows in time, as with real kubelets.
                let _ = api::patch(&client, &lease, "kubelet", Patch::Merge, &renewed).await;
            }
        });
        Ok(Self { renewing: tokio::spawn(renewals) })
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

fn name(number: u32) -> String {
    format!("node-{number}")
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Creates a node, removes the taint that admission adds, and creates its lease.
async fn register(client: &Client, name: &str) -> Result<()> {
    let uid = api::create(client, "/api/v1/nodes", "kubelet", &node(name)).await?;
    let no_taints = json!({ "spec": { "taints": null } });
    api::patch(client, &format!("/api/v1/nodes/{name}"), "kubelet", Patch::Merge, &no_taints).await?;
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid });
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": name, "namespace": "kube-node-lease", "ownerReferences": [owner] },
        "spec": { "holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now() },
    });
    api::create(client, LEASES, "kubelet", &lease).await.map(drop)
}

/// Returns a node as its kubelet registers it.
fn node(name: &str) -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let condition = |kind: &str, status: &str, reason: &str| json!({ "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now });
    let resources = json!({ "cpu": "16", "memory": "64Gi", "ephemeral-storage": "200Gi", "pods": "1000" });
    let images: Vec<Value> = (0..20)
        .map(|image| {
            let name = format!("registry.example.com/shop/app-{image}");
            json!({ "names": [format!("{name}@sha256:{image:064x}"), format!("{name}:v1.4.0")], "sizeBytes": 90_000_000 })
        })
        .collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/hostname": name, "topology.kubernetes.io/zone": "zone-0" },
            "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
        },
        "status": {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }, { "type": "Hostname", "address": name }],
            "images": images,
        },
    })
}
