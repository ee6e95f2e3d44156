//! Metrics of pods and nodes for autoscalers: upstream's metrics-server in a pod, and the programs of upstream's
//! resource consumer, which specs of autoscaling load.

use anyhow::{Context, Result};

use crate::cluster::RealCluster;
use crate::parts::Parts;

const MANIFEST: &str = include_str!("../manifests/metrics.yaml");

/// All inputs of the programs' builds.
const SOURCES: [&str; 5] = [
    include_str!("../go/metrics/go.mod"),
    include_str!("../go/metrics/go.sum"),
    include_str!("../go/metrics/stress/main.go"),
    include_str!("../go/kubernetes/go.mod"),
    include_str!("../go/kubernetes/go.sum"),
];

pub(crate) const SERVER: &str = "metrics-server";
pub(crate) const CONSUMER: &str = "consumer";
pub(crate) const CONSUME_CPU: &str = "consume-cpu";
pub(crate) const STRESS: &str = "stress";

/// The programs of the images.
pub(crate) const PARTS: Parts = Parts {
    sources: &SOURCES,
    parts: &[
        (SERVER, "metrics", "sigs.k8s.io/metrics-server/cmd/metrics-server"),
        (CONSUMER, "kubernetes", "k8s.io/kubernetes/test/images/resource-consumer"),
        (CONSUME_CPU, "kubernetes", "k8s.io/kubernetes/test/images/resource-consumer/consume-cpu"),
        (STRESS, "metrics", "./stress"),
    ],
};

/// Starts metrics-server in a cluster, whose nodes need the image (`images::suite::metrics`), and waits until the API
/// server serves `metrics.k8s.io`.
///
/// # Errors
/// When the API server refuses an object, or the group is not served within three minutes.
pub async fn start(cluster: &RealCluster) -> Result<()> {
    cluster.control_plane().kubectl_with_input(&["apply", "--filename=-"], MANIFEST)?;
    let arguments = ["wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", "--timeout=180s"];
    cluster.kubectl(&arguments).await.context("wait for metrics-server")
}
