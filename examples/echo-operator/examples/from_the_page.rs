//! An operator: an EchoConfig becomes servers that all respond with one message.

use std::io::IsTerminal;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use runtime::client::ConnectOptions;
use runtime::sdk::{Context, Controller, Error, Operator, Outcome, Prepared, Settings, terminated};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Desired state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EchoSpec {
    message: String,
    replicas: i32,
    port: i32,
}

/// Observed state.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EchoStatus {
    ready_replicas: i32,
}

runtime::custom_resource! {
    /// A message and its servers.
    pub EchoConfig { spec: EchoSpec, status: EchoStatus }
    namespaced "echoconfigs" in "examples.dev/v1"
}

fn deployment(name: &str, spec: &EchoSpec) -> Result<Deployment, Error> {
    let container = json!({
        "name": "echo",
        "image": "hashicorp/http-echo:1.0",
        "args": ["-listen=:8080", format!("-text={}", spec.message)],
    });
    let object = json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
        },
    });
    serde_json::from_value(object).map_err(Error::other)
}

fn service(name: &str, spec: &EchoSpec) -> Result<Service, Error> {
    let object = json!({
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": spec.port, "targetPort": 8080, "protocol": "TCP"}]},
    });
    serde_json::from_value(object).map_err(Error::other)
}

async fn reconcile(ctx: Context<EchoConfig>) -> Result<Outcome, Error> {
    let servers = ctx.apply(&deployment(ctx.name(), &ctx.object.spec)?).await?;
    ctx.apply(&service(ctx.name(), &ctx.object.spec)?).await?;
    let ready_replicas = servers.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    ctx.set_status(&EchoStatus { ready_replicas }).await?;
    Ok(Outcome::Done)
}

/// Returns the controller.
pub fn controller() -> Prepared {
    Controller::for_::<EchoConfig>("echo").owns::<Deployment>().owns::<Service>().reconcile(reconcile)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_ansi(std::io::stdout().is_terminal()).init();
    let kubeconfig = std::env::var_os("KUBECONFIG").map(Into::into);
    let connection = ConnectOptions { kubeconfig, ..ConnectOptions::default() };
    let settings = Settings { connection, ..Settings::default() };
    Operator::new("echo-operator").with(controller()).run(settings, terminated()).await?;
    Ok(())
}
