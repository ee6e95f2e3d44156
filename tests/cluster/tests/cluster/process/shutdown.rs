//! The end of a process: running work is finished, unless a second signal arrives.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cluster_tests::programs::{KCM, Process, command};
use cluster_tests::{Space, during};
use control_plane::{ControlPlane, Identity};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::serving::bare_control_plane;

/// Time for which the API server waits for the webhook, in seconds: the longest possible.
const WEBHOOK_TIMEOUT: i32 = 30;
/// Maximum time until the first request reaches the webhook.
const HANGS_WITHIN: Duration = Duration::from_secs(60);
/// Time for which a process with hanging work is observed after the first signal.
const OBSERVED: Duration = Duration::from_secs(3);
/// Maximum time between the second signal and the end of the process; the webhook would end the work later.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// Registers a webhook for new pods at this port.
fn register(cluster: &ControlPlane, port: u16) -> Result<()> {
    let authority = BASE64.encode(std::fs::read(cluster.ca_certificate())?);
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hangs"},
        "webhooks": [{
            "name": "hangs.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "timeoutSeconds": WEBHOOK_TIMEOUT,
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": authority},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }],
    });
    cluster.kubectl_with_input(&["apply", "-f", "-"], &webhook.to_string()).map(drop)
}

/// A manager that would wait for its work without limit ends at the second signal.
pub async fn second_signal_ends_a_process_whose_work_hangs(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    // Accepts connections and never responds.
    let webhook = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    register(&cluster, webhook.local_addr()?.port())?;
    let flags = [
        format!("--kubeconfig={}", cluster.kubeconfig(Identity::ControllerManager)?.display()),
        "--use-service-account-credentials".to_owned(),
        "--controllers=replicaset-controller,serviceaccount-controller".to_owned(),
        "--controller-shutdown-timeout=0".to_owned(),
    ];
    let manager = Process::start(&cluster, "kcm-hangs", &command(&cluster, KCM)?, &flags)?;
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "c"}]},
        }},
    });
    cluster.kubectl_with_input(&["apply", "-f", "-"], &set.to_string())?;
    let request = timeout(HANGS_WITHIN, webhook.accept()).await.context("no request reaches the webhook")?;
    let _open = request?;

    manager.terminate()?;
    during(OBSERVED, "running work is finished", || async {
        ensure!(manager.is_running(), "it has ended: {}", manager.log(&cluster)?);
        Ok(())
    })
    .await?;
    manager.terminate()?;
    let ended = async {
        while manager.is_running() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(ENDS_WITHIN, ended).await.context("the manager does not end at the second signal")?;
    let log = manager.log(&cluster)?;
    ensure!(log.contains("second signal"), "{log}");
    cluster.kill(&manager.name)
}
