//! service-lb-controller and node-route-controller with the mock cloud and a real API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Call, CloudBed, Faults, QUIET, Space, during, eventually};
use k8s_openapi::api::core::v1::{Event, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use provider_mock::{Effect as CloudEffect, Fault, InstanceConfig, Operation, Pattern};
use serde_json::{Value, json};

use crate::robustness::invariants::until_constant;

const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const BALANCERS: [&str; 1] = ["--controllers=service"];

pub fn services(cloud: &CloudBed) -> Api<Service> {
    Api::namespaced(cloud.bed.client.clone(), "default")
}

pub async fn create(cloud: &CloudBed, name: &str) -> Result<()> {
    let service = json!({
        "metadata": {"name": name},
        "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"name": "http", "port": 80}]},
    });
    services(cloud).create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    Ok(())
}

pub async fn edit(cloud: &CloudBed, name: &str, patch: Value) -> Result<()> {
    services(cloud).patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
    Ok(())
}

fn has_finalizer(service: &Service) -> bool {
    service.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

fn addresses(service: &Service) -> Vec<String> {
    let balancer = service.status.iter().flat_map(|status| &status.load_balancer);
    balancer.flat_map(|status| status.ingress.iter().flatten()).filter_map(|ingress| ingress.ip.clone()).collect()
}

/// Waits until a Service has a load balancer with this many ports and targets, and its status has the addresses.
pub async fn until_balanced(cloud: &CloudBed, name: &str, ports: usize, targets: usize) -> Result<()> {
    eventually(format!("{name} has its load balancer"), || async {
        let service = services(cloud).get(name).await?;
        let snapshot = cloud.cloud.snapshot();
        let balancer =
            snapshot.balancers.iter().find(|balancer| balancer.id.name == name).context("no load balancer")?;
        ensure!(has_finalizer(&service), "no finalizer");
        ensure!(balancer.listeners.len() == ports, "ports: {:?}", balancer.listeners);
        ensure!(balancer.targets.len() == targets, "targets: {:?}", balancer.targets);
        let expected: Vec<_> = balancer.addresses.iter().map(ToString::to_string).collect();
        ensure!(addresses(&service) == expected, "{:?} is not {expected:?}", addresses(&service));
        Ok(())
    })
    .await
}

pub async fn until_service_deleted(cloud: &CloudBed, name: &str) -> Result<()> {
    eventually(format!("{name} is deleted"), || async {
        ensure!(services(cloud).get_opt(name).await?.is_none(), "the Service exists");
        ensure!(
            cloud.cloud.snapshot().balancers.iter().all(|balancer| balancer.id.name != name),
            "its load balancer exists"
        );
        Ok(())
    })
    .await
}

/// Returns the reasons of the events of a Service.
async fn reasons(cloud: &CloudBed, name: &str) -> Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(cloud.bed.client.clone(), "default");
    let events = events.list(&ListParams::default()).await?.items.into_iter();
    let about = events.filter(|event| event.involved_object.name.as_deref() == Some(name));
    Ok(about.filter_map(|event| event.reason).collect())
}

/// Creates a Service, adds a port, changes nodes, changes the type to ClusterIP and back, and deletes it.
pub async fn scenario(cloud: &CloudBed, name: &str) -> Result<()> {
    create(cloud, name).await?;
    until_balanced(cloud, name, 1, 2).await?;
    let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
    edit(cloud, name, json!({"spec": {"ports": ports}})).await?;
    until_balanced(cloud, name, 2, 2).await?;
    cloud
        .edit(
            "node-1",
            json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}}),
        )
        .await?;
    until_balanced(cloud, name, 2, 1).await?;
    cloud
        .edit(
            "node-1",
            json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": null}}}),
        )
        .await?;
    until_balanced(cloud, name, 2, 2).await?;
    edit(cloud, name, json!({"spec": {"type": "ClusterIP"}})).await?;
    eventually("the Service is released", || async {
        let service = services(cloud).get(name).await?;
        ensure!(!has_finalizer(&service) && addresses(&service).is_empty(), "{:?}", service.metadata.finalizers);
        ensure!(cloud.cloud.snapshot().balancers.is_empty());
        Ok(())
    })
    .await?;
    edit(cloud, name, json!({"spec": {"type": "LoadBalancer"}})).await?;
    until_balanced(cloud, name, 2, 2).await?;
    services(cloud).delete(name, &DeleteParams::default()).await?;
    until_service_deleted(cloud, name).await
}

/// Starts a control plane with two nodes and their instances.
async fn bed() -> Result<CloudBed> {
    let cloud = CloudBed::start().await?;
    for name in ["node-1", "node-2"] {
        let id = cloud.cloud.add_instance(&InstanceConfig::named(name));
        cloud.register(name, json!({"spec": {"providerID": id}})).await?;
    }
    Ok(cloud)
}

pub async fn load_balancer_is_created_changed_and_deleted(_: Space) -> Result<()> {
    let cloud = bed().await?;
    let faults = Faults::default();
    let _manager = cloud.start_ccm(&faults, &BALANCERS).await?;
    scenario(&cloud, "web").await?;
    eventually("all steps are reported", || async {
        let recorded = reasons(&cloud, "web").await?;
        for reason in [
            "EnsuringLoadBalancer",
            "EnsuredLoadBalancer",
            "UpdatedLoadBalancer",
            "DeletingLoadBalancer",
            "DeletedLoadBalancer",
        ] {
            ensure!(recorded.iter().any(|known| known == reason), "{reason} is not in {recorded:?}");
        }
        Ok(())
    })
    .await?;
    // Two writes of the finalizer, two of the status, one that removes both, and one at the deletion.
    let writes = faults.count(Call::is_object_write);
    ensure!(writes == 6, "{writes} writes: {:?}", faults.requests());
    let refused: Vec<_> =
        faults.requests().into_iter().filter(|request| matches!(request.status, Some(401 | 403))).collect();
    ensure!(refused.is_empty(), "refused: {refused:?}");
    // An invalid annotation is reported, and the existing load balancer is kept.
    create(&cloud, "odd").await?;
    until_balanced(&cloud, "odd", 1, 2).await?;
    edit(&cloud, "odd", json!({"metadata": {"annotations": {"mock.cloud/scheme": "inside"}}})).await?;
    eventually("the mistake is reported", || async {
        let recorded = reasons(&cloud, "odd").await?;
        ensure!(recorded.iter().any(|reason| reason == "SyncLoadBalancerFailed"), "{recorded:?}");
        Ok(())
    })
    .await?;
    let calls = cloud.cloud.snapshot().calls;
    during(QUIET, "the cloud is not called", || async {
        ensure!(cloud.cloud.snapshot().calls == calls);
        Ok(())
    })
    .await
}

pub async fn endpoints_are_targets(_: Space) -> Result<()> {
    let cloud = bed().await?;
    let faults = Faults::default();
    let _manager = cloud.start_ccm(&faults, &BALANCERS).await?;
    create(&cloud, "web").await?;
    edit(&cloud, "web", json!({"metadata": {"annotations": {"mock.cloud/targets": "endpoints"}}})).await?;
    until_balanced(&cloud, "web", 1, 0).await?;
    // A slice that no controller created: its endpoints count regardless of its creator.
    let slices: Api<EndpointSlice> = Api::namespaced(cloud.bed.client.clone(), "default");
    let endpoint =
        |last: u8, ready: bool| json!({"addresses": [format!("10.9.0.{last}")], "conditions": {"ready": ready}});
    let slice = json!({
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [endpoint(1, true), endpoint(2, true), endpoint(3, false)],
    });
    slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await?;
    until_balanced(&cloud, "web", 1, 2).await?;
    let patch = json!({"endpoints": [endpoint(1, true), endpoint(2, true), endpoint(3, true)]});
    slices.patch("web-1", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    until_balanced(&cloud, "web", 1, 3).await?;
    until_constant("calling the cloud", || cloud.cloud.snapshot().calls).await?;
    // With endpoints as targets, nodes are ignored.
    let calls = cloud.cloud.snapshot().calls;
    cloud
        .edit(
            "node-1",
            json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}}),
        )
        .await?;
    during(QUIET, "the cloud is not called", || async {
        ensure!(cloud.cloud.snapshot().calls == calls);
        Ok(())
    })
    .await?;
    slices.delete("web-1", &DeleteParams::default()).await?;
    until_balanced(&cloud, "web", 1, 0).await
}

/// Waits until the condition `NetworkUnavailable` of a node has a status and a reason.
async fn until_network_condition(cloud: &CloudBed, name: &str, status: &str, reason: &str) -> Result<()> {
    eventually(format!("{name} has the condition {reason}"), || async {
        let node = cloud.nodes().get(name).await?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| condition.type_ == "NetworkUnavailable");
        let condition = condition.context("no condition")?;
        ensure!((condition.status.as_str(), condition.reason.as_deref()) == (status, Some(reason)), "{condition:?}");
        Ok(())
    })
    .await
}

pub async fn nodes_get_their_routes(_: Space) -> Result<()> {
    let cloud = bed().await?;
    let faults = Faults::default();
    let flags = [
        "--controllers=route",
        "--configure-cloud-routes=true",
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
        "--route-reconciliation-period=1s",
    ];
    let _manager = cloud.start_ccm(&faults, &flags).await?;
    let has_condition = |name, status, reason| until_network_condition(&cloud, name, status, reason);
    let failing = Fault::always(Pattern::One(Operation::SetRoute), CloudEffect::Transient).about("10.244.2.0/24");
    cloud.cloud.add_fault(failing)?;
    cloud
        .edit(
            "node-1",
            json!({"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64"]}}),
        )
        .await?;
    cloud.edit("node-2", json!({"spec": {"podCIDR": "10.244.2.0/24", "podCIDRs": ["10.244.2.0/24"]}})).await?;
    has_condition("node-1", "False", "RouteCreated").await?;
    has_condition("node-2", "True", "NoRouteCreated").await?;
    eventually("the failure is reported", || async {
        let events = cloud.events("node-2").await?;
        ensure!(
            events.keys().any(|event| event.starts_with("route_controller Warning FailedToCreateRoute")),
            "{events:?}"
        );
        Ok(())
    })
    .await?;
    let failures = cloud.cloud.snapshot().faults.iter().map(|fault| fault.fired).sum::<u64>();
    cloud.cloud.clear_faults();
    has_condition("node-2", "False", "RouteCreated").await?;
    ensure!(failures > 0, "no call failed");
    let calls = cloud.cloud.calls(Operation::SetRoute).calls;
    ensure!(cloud.cloud.snapshot().routes.len() == 3, "{:?}", cloud.cloud.snapshot().routes);
    let writes = faults.count(Call::is_object_write);
    ensure!(writes == 3, "{writes} writes: {:?}", faults.requests());
    during(Duration::from_secs(3), "passes without work write nothing", || async {
        ensure!(faults.count(Call::is_object_write) == writes && cloud.cloud.calls(Operation::SetRoute).calls == calls);
        Ok(())
    })
    .await?;
    cloud.nodes().delete("node-2", &DeleteParams::default()).await?;
    eventually("its route is removed", || async {
        ensure!(cloud.cloud.snapshot().routes.len() == 2, "{:?}", cloud.cloud.snapshot().routes);
        Ok(())
    })
    .await
}

pub async fn annotations_of_the_provider_are_written_and_removed(_: Space) -> Result<()> {
    const NAME: &str = "status.mock.cloud/balancer";
    let cloud = CloudBed::start().await?;
    let manager = cloud.start_ccm(&Faults::default(), &BALANCERS).await?;
    create(&cloud, "web").await?;
    until_balanced(&cloud, "web", 1, 0).await?;
    edit(&cloud, "web", json!({"metadata": {"annotations": {"mock.cloud/report": "true"}}})).await?;
    let written = async || {
        let annotations = services(&cloud).get("web").await?.metadata.annotations.unwrap_or_default();
        anyhow::Ok(annotations.get(NAME).cloned())
    };
    eventually("the annotation has the load balancer's name", || async {
        let expected = cloud.cloud.snapshot().balancers.first().map(|balancer| balancer.id.default_name());
        let written = written().await?;
        ensure!(written.is_some() && written == expected, "{written:?} is not {expected:?}");
        Ok(())
    })
    .await?;
    edit(&cloud, "web", json!({"metadata": {"annotations": {NAME: "odd"}}})).await?;
    eventually("the annotation is repaired", || async {
        ensure!(written().await?.is_some_and(|value| value != "odd"), "the annotation was not repaired");
        Ok(())
    })
    .await?;
    edit(&cloud, "web", json!({"spec": {"type": "ClusterIP"}})).await?;
    eventually("the annotation is removed with the load balancer", || async {
        let service = services(&cloud).get("web").await?;
        ensure!(!has_finalizer(&service) && written().await?.is_none(), "{:?}", service.metadata);
        Ok(())
    })
    .await?;
    manager.crash().await;
    Ok(())
}
