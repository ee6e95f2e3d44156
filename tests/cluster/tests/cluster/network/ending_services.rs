//! Services that get no EndpointSlices, and slices that are deleted while their Service stays.

use anyhow::{Result, ensure};
use cluster_tests::objects::{deployment, names, with};
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use serde_json::{Value, json};

const FLAGS: &[&str] =
    &["--controllers=endpointslice-controller,endpoints-controller,deployment-controller,replicaset-controller"];
const HELD: &str = "example.com/held";

/// Returns a Service for the pods of the Deployment `web`.
fn service(name: &str, spec: Value) -> Value {
    let usual = json!({
        "metadata": {"name": name},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "web", "port": 80}]},
    });
    with(usual, json!({"spec": spec}))
}

/// Returns the slices of a Service that are not being deleted, with the number of their endpoints.
async fn slices(space: &Space, service: &str) -> Result<Vec<(String, usize)>> {
    let mut slices = space.list::<EndpointSlice>("").await?;
    slices.retain(|slice| {
        let of_service = slice.labels().get("kubernetes.io/service-name").is_some_and(|name| name == service);
        of_service && slice.metadata.deletion_timestamp.is_none()
    });
    Ok(slices.iter().map(|slice| (slice.name_any(), slice.endpoints.iter().flatten().count())).collect())
}

async fn until_endpoints(space: &Space, service: &str, count: usize) -> Result<String> {
    eventually(format!("{service} has {count} endpoints"), || async {
        let slices = slices(space, service).await?;
        ensure!(slices.len() == 1 && slices[0].1 == count, "{slices:?}");
        Ok(slices[0].0.clone())
    })
    .await
}

pub async fn external_names_and_services_without_selector_get_no_slices(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), FLAGS).await?;
    space.create::<Deployment>(deployment("web", 1)).await?;
    let external = json!({"type": "ExternalName", "externalName": "example.com"});
    space.create::<Service>(service("external", external.clone())).await?;
    let bare = with(external, json!({"selector": null, "ports": null}));
    space.create::<Service>(service("bare", bare)).await?;
    space.create::<Service>(service("unselective", json!({"selector": null}))).await?;
    // The slices of the last Service show that the other Services were processed.
    space.create::<Service>(service("plain", json!({}))).await?;
    until_endpoints(&space, "plain", 1).await?;
    during(QUIET, "there are no others", || async {
        let all = names(&space.list::<EndpointSlice>("").await?);
        ensure!(all.len() == 1, "{all:?}");
        let endpoints = names(&space.list::<Endpoints>("").await?);
        ensure!(endpoints == ["plain"], "{endpoints:?}");
        Ok(())
    })
    .await
}

pub async fn service_that_is_being_deleted_gets_no_new_slice(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), FLAGS).await?;
    space.create::<Deployment>(deployment("web", 1)).await?;
    let held = with(service("ending", json!({})), json!({"metadata": {"finalizers": [HELD]}}));
    space.create::<Service>(held).await?;
    space.create::<Service>(service("plain", json!({}))).await?;
    let slice = until_endpoints(&space, "ending", 1).await?;
    space.delete::<Service>("ending").await?;
    // The Service's existing slices still follow the pods.
    space.scale::<Deployment>("web", 2).await?;
    until_endpoints(&space, "ending", 2).await?;
    space.delete::<EndpointSlice>(&slice).await?;
    space.scale::<Deployment>("web", 1).await?;
    until_endpoints(&space, "plain", 1).await?;
    during(QUIET, "there is no slice", || async {
        let slices = slices(&space, "ending").await?;
        ensure!(slices.is_empty(), "{slices:?}");
        Ok(())
    })
    .await?;
    space.patch::<Service>("ending", json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

pub async fn slice_that_is_being_deleted_is_replaced(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), FLAGS).await?;
    space.create::<Deployment>(deployment("web", 1)).await?;
    space.create::<Service>(service("plain", json!({}))).await?;
    let first = until_endpoints(&space, "plain", 1).await?;
    space.patch::<EndpointSlice>(&first, json!({"metadata": {"finalizers": [HELD]}})).await?;
    space.delete::<EndpointSlice>(&first).await?;
    let second = until_endpoints(&space, "plain", 1).await?;
    ensure!(second != first);
    space.scale::<Deployment>("web", 2).await?;
    ensure!(until_endpoints(&space, "plain", 2).await? == second);
    let ending = space.get::<EndpointSlice>(&first).await?;
    ensure!(ending.endpoints.iter().flatten().count() == 1, "the slice was written again: {ending:?}");
    space.patch::<EndpointSlice>(&first, json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}
