//! Forward actions: a part of a load balancer's traffic is sent to another Service; no resource is leaked.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Space, eventually};
use k8s_openapi::api::core::v1::Service as KubeService;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use moto::{Effect, Fault, Moto, Service};
use providers::{IpFamily, LoadBalancerSpec, OtherService, Targets};
use serde_json::{Value, json};

use crate::balancers::{AccountResources, PREFIX, delete, new_process, port, service, settle, spec, targets, texts};
use crate::bed::{AwsBed, CLUSTER};

pub const ACTION: &str = "service.beta.kubernetes.io/actions.TCP-80";

/// Returns the annotation of a Service that sends its traffic to itself and to `green` with these weights.
pub fn action((own, green): (u16, u16), port: &Value) -> String {
    let green = json!({"serviceName": "green", "servicePort": port, "weight": green});
    json!({"type": "forward", "forwardConfig": {"baseServiceWeight": own, "targetGroups": [green]}}).to_string()
}

/// Returns the weights of the only listener, by target group.
async fn weights(moto: &Moto) -> Result<BTreeMap<String, String>> {
    let resources = AccountResources::read(moto).await?;
    let balancer = resources.balancers.first().context("no load balancer")?;
    let listeners = moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", balancer)]).await?;
    let config = texts(&listeners, "ForwardConfig").into_iter().next().unwrap_or_default();
    Ok(texts(&config, "TargetGroupArn").into_iter().zip(texts(&config, "Weight")).collect())
}

/// Returns the targets that are registered in a target group, by id and port.
async fn registered(moto: &Moto, group: &str) -> Result<BTreeSet<(String, String)>> {
    let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", group)]).await?;
    Ok(texts(&health, "Target").iter().flat_map(|one| texts(one, "Id").into_iter().zip(texts(one, "Port"))).collect())
}

/// Returns the target group of `green`, and the other one.
async fn groups(moto: &Moto) -> Result<(String, String)> {
    let resources = AccountResources::read(moto).await?;
    let (mut green, mut own) = (None, None);
    for arn in resources.target_groups {
        let tags = moto.aws.call(Service::Elb, "DescribeTags", &[("ResourceArns.member.1", &arn)]).await?;
        ensure!(tags.contains("kubernetes.io/service-uid"), "{arn} has no tag with its Service: {tags}");
        let place = if tags.contains("default/green:") { &mut green } else { &mut own };
        ensure!(place.replace(arn).is_none(), "a Service has two target groups");
    }
    Ok((green.context("no target group of green")?, own.context("no target group of the Service itself")?))
}

fn green_service(port: u16) -> Result<KubeService> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "green"},
        "spec": {"type": "NodePort", "selector": {"app": "green"},
            "ports": [{"name": "web", "port": port, "targetPort": 8080}]},
    }))?)
}

/// A cluster whose Service `blue` sends a part of its traffic to the Service `green`.
struct BlueGreen {
    bed: AwsBed,
    services: Api<KubeService>,
}

impl BlueGreen {
    async fn patch(&self, service: &str, patch: Value) -> Result<()> {
        self.services.patch(service, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Waits until Events of `blue` with this text were recorded this number of times.
    async fn until_reported(&self, text: &str, expected: i32) -> Result<()> {
        eventually(format!("{expected} Events contain {text:?}"), || async {
            let events = self.bed.cloud.events("blue").await?;
            let found = events.iter().filter(|(event, _)| event.contains(text));
            let count: i32 = found.map(|(_, times)| *times).sum();
            ensure!(count == expected, "{events:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the listener has the weights of `blue` and `green`, and each target group has this number of
    /// instances at its Service's node port. Returns the target group of `green`.
    async fn until_spread(&self, (of_blue, of_green): (&str, &str), instances: usize) -> Result<String> {
        let moto = &self.bed.moto;
        eventually(format!("traffic is spread {of_blue} to {of_green} over {instances} instances"), || async {
            let (green, own) = groups(moto).await?;
            let expected = [(green.clone(), of_green.to_owned()), (own.clone(), of_blue.to_owned())];
            let found = weights(moto).await?;
            ensure!(found == expected.into(), "{found:?}");
            for (group, name) in [(&green, "green"), (&own, "blue")] {
                let ports = self.services.get(name).await?.spec.and_then(|spec| spec.ports).context("no ports")?;
                let node_port = ports[0].node_port.context("no node port")?.to_string();
                let targets = registered(moto, group).await?;
                let is_complete = targets.len() == instances && targets.iter().all(|(_, port)| *port == node_port);
                ensure!(is_complete, "{name}, {node_port}: {targets:?}");
            }
            Ok(green)
        })
        .await
    }

    /// The node port of `green` changes, then its port: each time a new target group replaces the previous one.
    async fn change_ports_of_green(&self, first_group: &str) -> Result<()> {
        let ports = json!([{"name": "web", "port": 80, "targetPort": 8080, "nodePort": 32_123}]);
        self.patch("green", json!({"spec": {"ports": ports}})).await?;
        let second_group = self.until_spread(("90", "10"), 2).await?;
        ensure!(second_group != first_group, "the target group was not replaced");
        let ports = json!([{"name": "web", "port": 81, "targetPort": 8080}]);
        self.patch("green", json!({"spec": {"ports": ports}})).await?;
        eventually("another target group serves the other port", || async {
            let group = self.until_spread(("90", "10"), 2).await?;
            ensure!(group != second_group, "the target group is still the previous one");
            Ok(())
        })
        .await
    }

    /// `green` is deleted: an Event reports it, its target group stays, and new nodes are registered there. Then it is
    /// created again.
    async fn recreate_green(&self) -> Result<()> {
        self.services.delete("green", &DeleteParams::default()).await?;
        self.until_reported("create a Service green", 2).await?;
        let third = self.bed.nodes(1).await?.remove(0);
        eventually("both target groups have the third instance", || async {
            let (green, own) = groups(&self.bed.moto).await?;
            ensure!(weights(&self.bed.moto).await?.len() == 2, "the listener was changed");
            for group in [green, own] {
                let targets = registered(&self.bed.moto, &group).await?;
                ensure!(targets.len() == 3 && targets.iter().any(|(id, _)| *id == third.id), "{targets:?}");
            }
            Ok(())
        })
        .await?;
        self.services.create(&PostParams::default(), &green_service(80)?).await?;
        self.until_spread(("90", "10"), 3).await.map(drop)
    }

    /// Without the action, the target group of `green` is deleted. With it again, the deletion of `blue` leaks nothing.
    async fn remove_action_and_delete_blue(&self) -> Result<()> {
        self.patch("blue", json!({"metadata": {"annotations": {ACTION: null}}})).await?;
        eventually("only the target group of blue is left", || async {
            let resources = AccountResources::read(&self.bed.moto).await?;
            ensure!(resources.target_groups.len() == 1, "{resources:?}");
            Ok(())
        })
        .await?;
        self.patch("blue", json!({"metadata": {"annotations": {ACTION: action((1, 1), &json!(80))}}})).await?;
        self.until_spread(("1", "1"), 3).await?;
        self.services.delete("blue", &DeleteParams::default()).await?;
        eventually("all resources are deleted", || async {
            ensure!(self.services.get_opt("blue").await?.is_none(), "the Service still has its finalizer");
            let resources = AccountResources::read(&self.bed.moto).await?;
            ensure!(resources.is_empty(), "{resources:?}");
            Ok(())
        })
        .await?;
        ensure!(self.services.get_opt("green").await?.is_some(), "the other Service was deleted");
        Ok(())
    }
}

/// A user moves traffic to another Service: its weight is set, its node port changes, it is deleted and created again,
/// and everything is deleted.
pub async fn part_of_the_traffic_is_sent_to_another_service(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let _manager = bed.ccm(&["--controllers=cloud-node,service"]).await?;
    let instances = bed.nodes(2).await?;
    for instance in &instances {
        bed.until_initialized(instance).await?;
    }
    let services: Api<KubeService> = Api::namespaced(bed.cloud.bed.client.clone(), "default");
    let blue_green = BlueGreen { bed, services };
    let blue = json!({format!("{PREFIX}type"): "nlb", ACTION: action((90, 10), &json!("web"))});
    blue_green.services.create(&PostParams::default(), &service("blue", blue)?).await?;
    blue_green.until_reported("serviceName green\": create a Service green in namespace default", 1).await?;
    let resources = AccountResources::read(&blue_green.bed.moto).await?;
    ensure!(resources.is_empty(), "resources were created although the action is invalid: {resources:?}");

    blue_green.services.create(&PostParams::default(), &green_service(80)?).await?;
    let first_group = blue_green.until_spread(("90", "10"), 2).await?;
    blue_green.change_ports_of_green(&first_group).await?;
    blue_green.recreate_green().await?;
    blue_green.remove_action_and_delete_blue().await
}

/// Creates or replaces the EndpointSlice of a Service.
async fn apply_slice(slices: &Api<EndpointSlice>, service: &str, addresses: &[&str]) -> Result<()> {
    let endpoint = |address: &&str| json!({"addresses": [address], "conditions": {"ready": true}});
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
    });
    let apply = PatchParams::apply("test").force();
    slices.patch(&format!("{service}-1"), &apply, &Patch::Apply(&slice)).await?;
    Ok(())
}

/// Waits until the target groups of `blue` and `green` have these pods.
async fn until_pods(moto: &Moto, blue: &[&str], green: &[&str]) -> Result<()> {
    eventually(format!("blue has {blue:?} and green {green:?}"), || async {
        let (of_green, own) = groups(moto).await?;
        for (group, expected) in [(own, blue), (of_green, green)] {
            let pods: Vec<String> = registered(moto, &group).await?.into_iter().map(|(id, _)| id).collect();
            ensure!(pods == expected, "{pods:?}, not {expected:?}");
        }
        Ok(())
    })
    .await
}

/// If targets are pods, the pods of the other Service are registered.
pub async fn part_of_the_traffic_is_sent_to_pods_of_another_service(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let _manager = bed.ccm(&["--controllers=cloud-node,service"]).await?;
    let client = bed.cloud.bed.client.clone();
    let services: Api<KubeService> = Api::namespaced(client.clone(), "default");
    let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
    apply_slice(&slices, "blue", &["10.0.16.1"]).await?;
    apply_slice(&slices, "green", &["10.0.16.2"]).await?;
    let green = json!({
        "metadata": {"name": "green"},
        "spec": {"selector": {"app": "green"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    services.create(&PostParams::default(), &serde_json::from_value(green)?).await?;
    let annotations = json!({
        format!("{PREFIX}type"): "nlb",
        format!("{PREFIX}nlb-target-type"): "ip",
        ACTION: action((1, 1), &json!(80)),
    });
    services.create(&PostParams::default(), &service("blue", annotations)?).await?;
    until_pods(&bed.moto, &["10.0.16.1"], &["10.0.16.2"]).await?;
    eventually("the load balancer is in the desired state", || async {
        let events = bed.cloud.events("blue").await?;
        ensure!(events.keys().any(|event| event.contains("EnsuredLoadBalancer")), "{events:?}");
        Ok(())
    })
    .await?;
    let listeners = bed.moto.proxy.calls_of("DescribeListeners");
    apply_slice(&slices, "green", &["10.0.16.2", "10.0.16.3"]).await?;
    until_pods(&bed.moto, &["10.0.16.1"], &["10.0.16.2", "10.0.16.3"]).await?;
    apply_slice(&slices, "green", &[]).await?;
    until_pods(&bed.moto, &["10.0.16.1"], &[]).await?;
    ensure!(bed.moto.proxy.calls_of("DescribeListeners") == listeners, "a change of targets read the listeners");
    services.delete("blue", &DeleteParams::default()).await?;
    eventually("all resources are deleted", || async {
        let resources = AccountResources::read(&bed.moto).await?;
        ensure!(resources.is_empty(), "{resources:?}");
        Ok(())
    })
    .await
}

/// Returns the Service, with a forward action for this port of `green` if one is given.
fn with_green(plain: &LoadBalancerSpec, green: Option<u16>) -> LoadBalancerSpec {
    let mut spec = plain.clone();
    if let Some(number) = green {
        let green =
            OtherService { ports: vec![port(number)], ip_families: vec![IpFamily::IPv4], health_check_node_port: None };
        spec.others.insert("green".into(), green);
        spec.annotations.insert(ACTION.into(), action((9, 1), &json!(number)));
    }
    spec
}

pub async fn weighted_groups_change_despite_crashes(_: Space) -> Result<()> {
    change_weighted_groups(4).await
}

/// Runs only in `cargo xtask soak --only aws`.
pub async fn weighted_groups_change_despite_a_crash_at_any_call(_: Space) -> Result<()> {
    change_weighted_groups(1).await
}

/// Another Service gets a part of the traffic, then another port of that Service, then none, and everything is deleted.
/// In each run the process crashes at another change (every `step`th one), which AWS has executed or refused, and
/// another process finishes.
async fn change_weighted_groups(step: usize) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all: Targets = targets(&moto.run(2).await?);
    let plain = spec(1, &[]);
    settle(&moto, &*new_process(&moto).await?, &plain, &all).await?;
    for (round, effect) in [Effect::Outage, Effect::ResponseLost].into_iter().enumerate() {
        for nth in (1 + round as u64 % step as u64..).step_by(step) {
            moto.proxy.arm(Fault::nth("changes", nth, effect.clone()));
            for green in [Some(81), Some(82), None] {
                let wanted = with_green(&plain, green);
                // The first call may fail; the process crashes with it.
                drop(new_process(&moto).await?.ensure(&wanted, &all).await);
                settle(&moto, &*new_process(&moto).await?, &wanted, &all).await?;
                let at = format!("{effect:?} at change {nth}, {green:?}");
                if green.is_none() {
                    let resources = AccountResources::read(&moto).await?;
                    ensure!(resources.target_groups.len() == 1, "{at}: {resources:?}");
                    continue;
                }
                let (green, own) = groups(&moto).await.with_context(|| at.clone())?;
                let found = weights(&moto).await?;
                ensure!(found == [(green, "1".to_owned()), (own, "9".to_owned())].into(), "{at}: {found:?}");
            }
            let faults_applied = moto.proxy.faults_applied();
            moto.proxy.disarm();
            if faults_applied == 0 {
                ensure!(nth > 8, "only {nth} changes were made");
                break;
            }
        }
    }
    for nth in (1..).step_by(step) {
        settle(&moto, &*new_process(&moto).await?, &with_green(&plain, Some(81)), &all).await?;
        moto.proxy.arm(Fault::nth("changes", nth, Effect::Outage));
        drop(new_process(&moto).await?.delete(&plain.id).await);
        delete(&*new_process(&moto).await?, &plain.id).await?;
        let faults_applied = moto.proxy.faults_applied();
        moto.proxy.disarm();
        let resources = AccountResources::read(&moto).await?;
        ensure!(resources.is_empty(), "at change {nth} of the deletion: {resources:?}");
        if faults_applied == 0 {
            break;
        }
    }
    Ok(())
}
