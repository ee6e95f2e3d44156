//! The operator on a real API server: its manifests are valid, and its children are created, recreated and reported.

#![allow(clippy::disallowed_methods, reason = "tests act as users do, who have no Writer")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use control_plane::{ControlPlane, Identity, Options};
use echo_operator::{DEFINITION, EchoConfig, EchoSpec, NAME, controller, is_ready};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use runtime::client::{ConnectOptions, connect};
use runtime::election::ElectionConfig;
use runtime::manager::ManagerOptions;
use runtime::sdk::{Operator, served_content};
use serde_json::json;
use tokio::time::Instant;

async fn eventually<T, F: Future<Output = Result<T>>>(what: &str, read: impl Fn() -> F) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(180);
    loop {
        match read().await {
            Ok(state) => return Ok(state),
            Err(error) if Instant::now() > deadline => return Err(error).with_context(|| what.to_owned()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_are_created_recreated_and_reported() -> Result<()> {
    let cluster = ControlPlane::start(Options { kwok: false, scheduler: false, ..Options::default() }).await?;
    let client = cluster.client(Identity::Admin).await?;
    cluster.kubectl_with_input(&["apply", "-f", "-"], DEFINITION)?;
    cluster.kubectl_with_input(&["apply", "-f", "-"], include_str!("../deploy/rbac.yaml"))?;
    let connection =
        ConnectOptions { kubeconfig: Some(cluster.kubeconfig(Identity::Admin)?), ..ConnectOptions::default() };
    let options =
        ManagerOptions { election: Some(ElectionConfig::new("default", NAME, "test")), ..ManagerOptions::default() };
    let manager = Operator::new(NAME).with(controller()).manager(Arc::new(connect(&connection).await?), options)?;
    let metrics = served_content(NAME, &manager).metrics;
    let running = tokio::spawn(manager.run(std::future::pending()));

    let echoes: Api<EchoConfig> = Api::default_namespaced(client.clone());
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let services: Api<Service> = Api::default_namespaced(client);
    let desired = EchoConfig::new("echo", EchoSpec { message: "hello".to_owned(), replicas: 2, port: 80 });
    let created = eventually("the EchoConfig is created", || async {
        Ok(echoes.create(&PostParams::default(), &desired).await?)
    })
    .await?;
    eventually("the Service exists", || async { Ok(services.get("echo").await?) }).await?;
    let deployment = deployments.get("echo").await?;
    let owners = deployment.metadata.owner_references.unwrap_or_default();
    ensure!(owners.len() == 1 && Some(&owners[0].uid) == created.metadata.uid.as_ref(), "{owners:?}");

    // No controller runs Deployments here: the test marks this one as complete.
    let (change, generation) = (PatchParams::default(), deployment.metadata.generation);
    let complete =
        json!({"status": {"observedGeneration": generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2}});
    deployments.patch_status("echo", &change, &Patch::Merge(complete)).await?;
    eventually("the EchoConfig is ready", || async {
        let status = echoes.get("echo").await?.status.context("no status")?;
        ensure!(is_ready(&status) && status.ready_replicas == 2, "{status:?}");
        Ok(())
    })
    .await?;

    services.delete("echo", &DeleteParams::default()).await?;
    eventually("the Service is recreated", || async { Ok(services.get("echo").await?) }).await?;
    deployments.patch("echo", &change, &Patch::Merge(json!({"spec": {"replicas": 7}}))).await?;
    echoes.patch("echo", &change, &Patch::Merge(json!({"spec": {"message": "goodbye"}}))).await?;
    eventually("the edit is reverted, the message changed", || async {
        let deployment = serde_json::to_value(deployments.get("echo").await?)?;
        ensure!(deployment["spec"]["replicas"] == 2, "{deployment}");
        let arguments = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        ensure!(arguments[1] == "-text=goodbye", "{arguments}");
        let status = echoes.get("echo").await?.status.context("no status")?;
        ensure!(!is_ready(&status), "{status:?}");
        Ok(())
    })
    .await?;
    let text = metrics.text();
    ensure!(text.contains("leader_election_master_status{name=\"echo-operator\"} 1"), "{text}");
    running.abort();
    Ok(())
}
