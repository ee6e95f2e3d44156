//! Changes under the KubeVirt provider: another selection of targets, a takeover from cloud-provider-kubevirt, and a
//! wrong namespace in the configuration.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::kubevirt::{Infrastructure, Tenant};
use cluster_tests::{Space, eventually};
use control_plane::Identity;
use k8s_openapi::api::core::v1::{Endpoints, Service};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use provider_kubevirt::Targets as TargetSelection;
use providers::{
    CloudProvider, Ensured, InstanceRef, InstanceState, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget,
    Port, Progress, Protocol, TargetPort, Targets, TrafficPolicy,
};
use serde_json::json;

/// Label with the writer of a slice.
const WRITER: &str = "endpointslice.kubernetes.io/managed-by";

/// The controller of slices of Services with a selector.
const SELECTOR_WRITER: &str = "endpointslice-controller.k8s.io";

fn spec(tenant: &Tenant) -> LoadBalancerSpec {
    let id = LoadBalancerId {
        cluster: tenant.cluster.clone(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "01234567-89ab-4def-8123-456789abcdef".into(),
    };
    let port = Port {
        name: "http".into(),
        protocol: Protocol::Tcp,
        app_protocol: None,
        port: 80,
        node_port: Some(30080),
        target_port: TargetPort::Number(8080),
    };
    LoadBalancerSpec::new(id, vec![port])
}

fn nodes(names: &[&str]) -> Targets {
    let node = |name: &&str| NodeTarget {
        name: (*name).into(),
        provider_id: Some(format!("kubevirt://{name}")),
        ..NodeTarget::default()
    };
    Targets::nodes(names.iter().map(node).collect::<Vec<_>>())
}

fn balancers(provider: &Arc<dyn CloudProvider>) -> Result<Arc<dyn LoadBalancers>> {
    provider.load_balancers().context("no load balancers")
}

async fn settle(provider: &Arc<dyn CloudProvider>, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured> {
    let balancers = balancers(provider)?;
    eventually("the load balancer is settled", || async {
        let ensured = balancers.ensure(spec, targets).await?;
        ensure!(ensured.progress == Progress::Settled, "{ensured:?}");
        Ok(ensured)
    })
    .await
}

async fn only_service(tenant: &Tenant) -> Result<Service> {
    let mut services = tenant.services().list(&ListParams::default()).await?.items;
    ensure!(services.len() == 1, "{} Services", services.len());
    services.pop().context("no Service")
}

async fn is_selecting(tenant: &Tenant) -> Result<bool> {
    let selector = only_service(tenant).await?.spec.and_then(|spec| spec.selector).unwrap_or_default();
    Ok(!selector.is_empty())
}

/// Returns the number of EndpointSlices of the selecting controller and of others.
async fn slices(tenant: &Tenant) -> Result<(usize, usize)> {
    let slices = tenant.slices().list(&ListParams::default()).await?.items;
    let selected = slices.iter().filter(|slice| {
        let writer = slice.metadata.labels.as_ref().and_then(|labels| labels.get(WRITER));
        writer.is_some_and(|writer| writer == SELECTOR_WRITER)
    });
    let selected = selected.count();
    Ok((selected, slices.len() - selected))
}

/// Lists a virtual machine as the infrastructure cluster's controllers do for a Service with a selector.
async fn select(tenant: &Tenant, address: &str) -> Result<()> {
    let name = only_service(tenant).await?.metadata.name.context("no name")?;
    let slice = json!({
        "metadata": {
            "generateName": format!("{name}-"),
            "labels": {"kubernetes.io/service-name": name, WRITER: SELECTOR_WRITER},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        "ports": [{"name": "http", "protocol": "TCP", "port": 30080}],
    });
    tenant.slices().create(&PostParams::default(), &serde_json::from_value(slice)?).await?;
    let endpoints: Api<Endpoints> = Api::namespaced(tenant.infrastructure.client(), &tenant.namespace);
    if endpoints.get_opt(&name).await?.is_none() {
        let object = json!({"metadata": {"name": name}, "subsets": []});
        endpoints.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    }
    Ok(())
}

pub async fn selection_of_targets_is_changed_without_a_gap(_: Space) -> Result<()> {
    let tenant = Infrastructure::start().await?.tenant("tenant").await?;
    let address = tenant.start_machine("vm-1").await?;
    let (spec, targets) = (spec(&tenant), nodes(&["vm-1"]));
    let selecting = tenant.provider(TargetSelection::Selector)?;
    let listing = tenant.provider(TargetSelection::Nodes)?;
    let first = settle(&selecting, &spec, &targets).await?;
    ensure!(is_selecting(&tenant).await?, "the Service has no selector");
    select(&tenant, &address).await?;

    let second = settle(&listing, &spec, &targets).await?;
    ensure!(first.status == second.status, "the address changed: {first:?}, {second:?}");
    ensure!(!is_selecting(&tenant).await? && slices(&tenant).await? == (0, 1), "{:?}", slices(&tenant).await?);
    let endpoints: Api<Endpoints> = Api::namespaced(tenant.infrastructure.client(), &tenant.namespace);
    let left = endpoints.list(&ListParams::default()).await?.items;
    ensure!(left.is_empty(), "Endpoints are left, which would be mirrored: {left:?}");

    // An invalid Service keeps its slices: endpoints are not watched while targets are selected.
    let local = LoadBalancerSpec { external_traffic_policy: TrafficPolicy::Local, ..spec.clone() };
    balancers(&selecting)?.follow_targets(&local, &targets).await?;
    ensure!(slices(&tenant).await? == (0, 1), "{:?}", slices(&tenant).await?);

    // The listed targets stay until the selected ones exist.
    let waiting = balancers(&selecting)?.ensure(&spec, &targets).await?;
    ensure!(matches!(waiting.progress, Progress::After(wait) if wait > Duration::ZERO), "{waiting:?}");
    ensure!(is_selecting(&tenant).await? && slices(&tenant).await? == (0, 1), "{:?}", slices(&tenant).await?);
    select(&tenant, &address).await?;
    settle(&selecting, &spec, &targets).await?;
    ensure!(slices(&tenant).await? == (1, 0), "{:?}", slices(&tenant).await?);
    Ok(())
}

pub async fn service_of_cloud_provider_kubevirt_is_taken_over(_: Space) -> Result<()> {
    let tenant = Infrastructure::start().await?.tenant("tenant").await?;
    let provider = tenant.provider(TargetSelection::Selector)?;
    let (spec, balancers) = (spec(&tenant), balancers(&provider)?);
    settle(&provider, &spec, &Targets::default()).await?;
    // A Service that cloud-provider-kubevirt created has no uid label, and no record of copied annotations.
    let name = spec.id.default_name();
    let without = json!({"metadata": {
        "labels": {"kubewright/tenant-service-uid": null},
        "annotations": {"kubewright/copied-annotations": null},
    }});
    tenant.services().patch(&name, &PatchParams::default(), &Patch::Merge(&without)).await?;
    let owned = balancers.list_owned().await?;
    let [one] = &owned[..] else { anyhow::bail!("expected one load balancer: {owned:?}") };
    ensure!(!one.certain && balancers.may_be_owned_by(one, &spec.id), "{one:?}");
    let other = LoadBalancerId { uid: "ffffffff-89ab-4def-8123-456789abcdef".into(), ..spec.id.clone() };
    ensure!(!balancers.may_be_owned_by(one, &other), "{one:?}");

    settle(&provider, &spec, &Targets::default()).await?;
    ensure!(tenant.created(&spec.id.uid).await? == [name], "the Service does not have the uid label");
    let owned = balancers.list_owned().await?;
    ensure!(owned.len() == 1 && owned[0].certain && owned[0].id == spec.id, "{owned:?}");
    Ok(())
}

pub async fn missing_namespace_deletes_no_node(_: Space) -> Result<()> {
    let tenant = Infrastructure::start().await?.tenant("tenant").await?;
    let admin = tenant.infrastructure.cloud.bed.cluster.kubeconfig(Identity::Admin)?;
    let wrong = tenant.provider_in("tenent", TargetSelection::Selector, admin)?;
    let error = wrong.initialize().await.err().context("a namespace that does not exist was accepted")?;
    ensure!(error.message.contains("\"tenent\"") && error.message.contains("correct namespace"), "{error}");
    let requested = [InstanceRef::named("vm-1").with_provider_id("kubevirt://vm-1")];
    let states = wrong.instances().context("no instances")?.describe(&requested).await;
    ensure!(matches!(&states[..], [InstanceState::Unknown(_)]), "{states:?}");
    // In the right namespace, the same empty list proves that the instance does not exist.
    let states =
        tenant.provider(TargetSelection::Selector)?.instances().context("no instances")?.describe(&requested).await;
    ensure!(states == [InstanceState::Gone], "{states:?}");
    Ok(())
}
