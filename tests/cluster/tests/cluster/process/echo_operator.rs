//! The example operator together with kcm: an EchoConfig becomes pods, and manual changes are reverted.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Faults, Manager, Space, eventually};
use echo_operator::{DEFINITION, EchoConfig, EchoSpec, NAME, controller, is_ready};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::PostParams;
use runtime::client::{ConnectOptions, connect};
use runtime::election::ElectionConfig;
use runtime::manager::ManagerOptions;
use runtime::sdk::{ExitReason, Operator, served_content};
use serde_json::json;
use tokio::sync::oneshot;

const RIGHTS: &str = include_str!("../../../../../examples/echo-operator/deploy/rbac.yaml");

/// Applies the manifests of the definition and of the operator's account with its permissions; returns a kubeconfig of
/// the account.
async fn install(space: &Space) -> Result<PathBuf> {
    let bed = space.bed.clone();
    let token = tokio::task::spawn_blocking(move || {
        bed.cluster.kubectl_with_input(&["apply", "-f", "-"], DEFINITION)?;
        bed.cluster.kubectl_with_input(&["apply", "-f", "-"], RIGHTS)?;
        bed.cluster.kubectl(&["create", "token", NAME, "--namespace", NAME])
    });
    let cluster = &space.bed.cluster;
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": cluster.server(), "certificate-authority": cluster.ca_certificate(),
        }}],
        "users": [{"name": "u", "user": {"token": token.await??.trim_end()}}],
    });
    let file = cluster.folder().join("echo-operator.conf");
    fs::write(&file, text.to_string())?;
    Ok(file)
}

/// Waits until an EchoConfig is ready and all its pods have the message.
async fn until_ready_with(space: &Space, message: &str, replicas: usize) -> Result<EchoConfig> {
    eventually(format!("{replicas} pods have the message {message:?}"), || async {
        let echo: EchoConfig = space.get("echo").await?;
        let status = echo.status.clone().context("no status")?;
        ensure!(is_ready(&status) && Some(status.observed_generation) == echo.metadata.generation, "{status:?}");
        let pods: Vec<Pod> = space.pods("echo").await?;
        let message_of = |pod: &Pod| {
            let arguments = pod.spec.as_ref()?.containers.first()?.args.as_ref()?;
            arguments.iter().find_map(|argument| argument.strip_prefix("-text=").map(str::to_owned))
        };
        ensure!(pods.len() == replicas && pods.iter().all(|pod| message_of(pod).as_deref() == Some(message)));
        Ok(echo)
    })
    .await
}

pub async fn echo_operator_works_with_its_own_permissions(space: Space) -> Result<()> {
    let _kcm = Manager::start(&space, &Faults::default()).await?;
    let kubeconfig = install(&space).await?;
    let clients =
        Arc::new(connect(&ConnectOptions { kubeconfig: Some(kubeconfig), ..ConnectOptions::default() }).await?);
    let options = ManagerOptions {
        namespace: Some(space.namespace.clone()),
        election: Some(ElectionConfig::new(NAME, NAME, "test")),
        ..ManagerOptions::default()
    };
    let operator = Operator::new(NAME).with(controller()).manager(clients, options)?;
    let metrics = served_content(NAME, &operator).metrics;
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(operator.run(async { stopped.await.unwrap_or_default() }));

    let spec = EchoSpec { message: "hello".to_owned(), replicas: 2, port: 80 };
    let wanted = EchoConfig::new("echo", spec);
    eventually("the definition is served", || async {
        Ok(space.api::<EchoConfig>().create(&PostParams::default(), &wanted).await?)
    })
    .await?;
    let echo = until_ready_with(&space, "hello", 2).await?;
    for owners in [
        space.get::<Deployment>("echo").await?.metadata.owner_references,
        space.get::<Service>("echo").await?.metadata.owner_references,
    ] {
        let owners = owners.unwrap_or_default();
        ensure!(owners.len() == 1 && Some(&owners[0].uid) == echo.metadata.uid.as_ref(), "{owners:?}");
    }

    space.patch::<EchoConfig>("echo", json!({"spec": {"message": "goodbye", "replicas": 3}})).await?;
    until_ready_with(&space, "goodbye", 3).await?;

    space.delete::<Service>("echo").await?;
    eventually("the Service is recreated", || space.get::<Service>("echo")).await?;
    space.patch::<Deployment>("echo", json!({"spec": {"replicas": 1}})).await?;
    eventually("the number of replicas is restored", || async {
        let deployment: Deployment = space.get("echo").await?;
        ensure!(deployment.spec.replicas == Some(3));
        Ok(())
    })
    .await?;
    until_ready_with(&space, "goodbye", 3).await?;
    eventually("an event is recorded", || async {
        let events = space.events("echo").await?;
        ensure!(events.keys().any(|event| event.starts_with("Normal Ready ")), "{events:?}");
        Ok(())
    })
    .await?;

    let text = metrics.text();
    ensure!(text.contains("leader_election_master_status{name=\"echo-operator\"} 1"), "{text}");
    ensure!(text.contains("controllers_store_objects{resource=\"echoconfigs.examples.dev\"} 1"), "{text}");
    let _ = stop.send(());
    ensure!(running.await? == ExitReason::Shutdown);
    Ok(())
}
