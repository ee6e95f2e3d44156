//! cloud-node-controller with the mock cloud: initialization of new nodes, even after faults, and its cost.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cluster_tests::{
    Call, CloudBed, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually, restart_after_crashes,
    write_failures,
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use provider_mock::{Effect as CloudEffect, Fault, InstanceConfig, Operation, Pattern};
use providers::{Address, AddressKind};
use serde_json::{Value, json};

use crate::robustness::invariants::until_quiet;

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

fn label<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the keys of the node's taints.
fn taints(node: &Node) -> Vec<&str> {
    node.spec.iter().flat_map(|spec| &spec.taints).flatten().map(|taint| taint.key.as_str()).collect()
}

fn addresses(node: &Node) -> Vec<(String, String)> {
    let addresses = node.status.iter().flat_map(|status| &status.addresses).flatten();
    addresses.map(|own| (own.type_.clone(), own.address.clone())).collect()
}

fn address(kind: AddressKind, text: &str) -> Address {
    Address { kind, address: text.into() }
}

/// Waits until a node has all fields of its instance, and no longer the taint `uninitialized`.
pub async fn until_initialized(cloud: &CloudBed, name: &str) -> Result<Node> {
    eventually(format!("{name} is initialized"), || async {
        let node = cloud.nodes().get(name).await?;
        ensure!(!taints(&node).contains(&UNINITIALIZED), "taints: {:?}", taints(&node));
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
        ensure!(id.as_deref() == Some(&format!("mock://mock-1/{name}")), "provider id: {id:?}");
        for (key, value) in [
            ("topology.kubernetes.io/region", "mock-1"),
            ("failure-domain.beta.kubernetes.io/region", "mock-1"),
            ("node.kubernetes.io/instance-type", "mock.small"),
            ("beta.kubernetes.io/instance-type", "mock.small"),
        ] {
            ensure!(label(&node, key) == Some(value), "{key}: {:?}", label(&node, key));
        }
        let zone = label(&node, "topology.kubernetes.io/zone").context("no zone")?;
        ensure!(zone.starts_with("mock-1") && label(&node, "failure-domain.beta.kubernetes.io/zone") == Some(zone));
        ensure!(!addresses(&node).is_empty(), "no addresses");
        Ok(node)
    })
    .await
}

async fn synced_event(cloud: &CloudBed, name: &str) -> Result<()> {
    eventually(format!("an event about {name}"), || async {
        let events = cloud.events(name).await?;
        ensure!(
            events.get("cloud-node-controller Normal Synced Node synced successfully") == Some(&1),
            "events: {events:?}"
        );
        Ok(())
    })
    .await
}

/// An instance has labels of the provider and several addresses of one type, and its Node a taint of another
/// controller.
async fn node_gets_all_data_with_two_writes(cloud: &CloudBed, faults: &Faults) -> Result<()> {
    cloud.cloud.add_instance(&InstanceConfig {
        addresses: vec![
            address(AddressKind::InternalIP, "10.0.0.1"),
            address(AddressKind::InternalIP, "fd00::1"),
            address(AddressKind::ExternalIP, "1.1.1.1"),
        ],
        labels: [("acme.com/rack", "7"), ("taken", "cloud"), ("kubernetes.io/no", "1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..InstanceConfig::named("full")
    });
    let other = json!({"key": "other", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"});
    let waiting = json!({"key": UNINITIALIZED, "effect": "NoExecute"});
    let more = json!({"metadata": {"labels": {"taken": "own"}}, "spec": {"taints": [waiting, other]}});
    cloud.register("full", more).await?;
    let node = until_initialized(cloud, "full").await?;
    ensure!(taints(&node).contains(&"other"), "taints: {:?}", taints(&node));
    let kept = node.spec.iter().flat_map(|spec| &spec.taints).flatten().find(|taint| taint.key == "other");
    ensure!(serde_json::to_value(kept)? == other, "a taint of another controller was changed: {kept:?}");
    ensure!(label(&node, "acme.com/rack") == Some("7") && label(&node, "taken") == Some("own"));
    ensure!(label(&node, "kubernetes.io/no").is_none());
    let expected = [("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"), ("ExternalIP", "1.1.1.1")]
        .map(|(kind, text)| (kind.to_owned(), text.to_owned()));
    ensure!(addresses(&node) == expected, "addresses: {:?}", addresses(&node));
    synced_event(cloud, "full").await?;
    let writes = faults.count(Call::is_object_write);
    ensure!(writes == 2, "an initialization takes two writes, not {writes}: {:?}", faults.requests());
    Ok(())
}

/// A Node has a configured IP that its instance lacks; then the IP is corrected.
async fn node_waits_for_its_configured_address(cloud: &CloudBed) -> Result<()> {
    cloud.cloud.add_instance(&InstanceConfig {
        addresses: vec![address(AddressKind::InternalIP, "10.0.0.2"), address(AddressKind::InternalIP, "10.0.0.3")],
        ..InstanceConfig::named("configured")
    });
    let configured = |ip: &str| json!({"metadata": {"annotations": {"alpha.kubernetes.io/provided-node-ip": ip}}});
    cloud.register("configured", configured("10.0.0.9")).await?;
    eventually("the mistake is reported", || async {
        let events = cloud.events("configured").await?;
        ensure!(events.keys().any(|event| event.contains("InvalidProvidedNodeIP")), "events: {events:?}");
        Ok(())
    })
    .await?;
    ensure!(taints(&cloud.nodes().get("configured").await?).contains(&UNINITIALIZED));
    cloud.edit("configured", configured("10.0.0.3")).await?;
    let node = until_initialized(cloud, "configured").await?;
    ensure!(addresses(&node) == [("InternalIP".to_owned(), "10.0.0.3".to_owned())], "{:?}", addresses(&node));
    Ok(())
}

/// The instance of a Node is created later: until then, the Node keeps its taint, and few calls are sent.
async fn node_waits_for_its_instance(cloud: &CloudBed) -> Result<()> {
    let (before, begun) = (cloud.cloud.calls(Operation::DescribeInstance).calls, Instant::now());
    cloud.register("early", json!({})).await?;
    during(QUIET, "the node keeps its taint", || async {
        ensure!(taints(&cloud.nodes().get("early").await?).contains(&UNINITIALIZED));
        Ok(())
    })
    .await?;
    let calls = cloud.cloud.calls(Operation::DescribeInstance).calls - before;
    // The backoff allows at most two calls a second; updates of addresses and readiness add one call a second for each
    // of three nodes.
    let max = 25 + 5 * begun.elapsed().as_secs();
    ensure!(calls < max, "{calls} calls for an instance that does not exist");
    cloud.cloud.add_instance(&InstanceConfig::named("early"));
    until_initialized(cloud, "early").await?;
    Ok(())
}

/// A changed topology label is restored from its beta label, and new addresses of the cloud are applied.
async fn changes_are_applied_to_an_initialized_node(cloud: &CloudBed) -> Result<()> {
    cloud.edit("full", json!({"metadata": {"labels": {"topology.kubernetes.io/region": "elsewhere"}}})).await?;
    until_initialized(cloud, "full").await?;
    cloud.cloud.add_instance(&InstanceConfig {
        addresses: vec![address(AddressKind::InternalIP, "10.0.0.1"), address(AddressKind::InternalIP, "fd00::2")],
        ..InstanceConfig::named("full")
    });
    eventually("the node has the new addresses", || async {
        let has = addresses(&cloud.nodes().get("full").await?);
        ensure!(has.len() == 2 && has[1].1 == "fd00::2", "addresses: {has:?}");
        Ok(())
    })
    .await
}

pub async fn new_nodes_are_initialized(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    let faults = Faults::default();
    // The manager gets the real ages of nodes: a node whose instance appears late must not be deleted.
    let flags = ["--node-status-update-frequency=1s"];
    let manager = cloud.start_ccm_later(&faults, &flags, SignedDuration::ZERO).await?;
    node_gets_all_data_with_two_writes(&cloud, &faults).await?;
    node_waits_for_its_configured_address(&cloud).await?;
    node_waits_for_its_instance(&cloud).await?;
    changes_are_applied_to_an_initialized_node(&cloud).await?;
    until_quiet(&faults).await?;
    let refused: Vec<_> =
        faults.requests().into_iter().filter(|request| matches!(request.status, Some(401 | 403))).collect();
    ensure!(refused.is_empty(), "refused: {refused:?}");

    // Another manager writes nothing.
    manager.stop().await?;
    let after = Faults::default();
    let _manager = cloud.start_ccm(&after, &flags).await?;
    after.until_watching(&["nodes"]).await?;
    during(QUIET, "no work remains", || async {
        ensure!(after.writes() == 0, "{:?}", after.requests());
        Ok(())
    })
    .await
}

/// Initializes a node despite a fault of the API server.
async fn initialize_despite_fault(cloud: &CloudBed, name: &str, rule: Rule) -> Result<()> {
    let faults = Faults::script([rule]);
    cloud.register_instance(name).await?;
    tokio::select! {
        node = until_initialized(cloud, name) => drop(node?),
        ended = restart_after_crashes(&faults, || cloud.start_ccm(&faults, &[])) => ended?,
    }
    ensure!(faults.unmet() == 0, "the fault did not occur: the run tests nothing");
    Ok(())
}

/// Initializes a node despite a temporary fault of the cloud.
async fn initialize_despite_cloud_fault(cloud: &CloudBed, name: &str, fault: Fault) -> Result<()> {
    let faults = Faults::default();
    cloud.cloud.add_fault(fault)?;
    let _manager = cloud.start_ccm(&faults, &[]).await?;
    cloud.register_instance(name).await?;
    until_initialized(cloud, name).await?;
    let fired: u64 = cloud.cloud.snapshot().faults.iter().map(|fault| fault.fired).sum();
    ensure!(fired > 0, "the fault did not occur: the run tests nothing");
    cloud.cloud.clear_faults();
    Ok(())
}

/// Initializes a node although the first manager crashes during a call to the cloud.
async fn initialize_despite_crash(cloud: &CloudBed, name: &str, nth: u64) -> Result<()> {
    let operation = Pattern::One(Operation::DescribeInstance);
    cloud.cloud.add_fault(Fault::at(operation, nth, CloudEffect::Latency { millis: 3_600_000 }).about(name))?;
    let manager = cloud.start_ccm(&Faults::default(), &[]).await?;
    cloud.register_instance(name).await?;
    eventually("the call is in progress", || async {
        let fired = cloud.cloud.snapshot().faults.iter().any(|fault| fault.fired > 0);
        ensure!(fired, "the call has not begun");
        Ok(())
    })
    .await?;
    manager.crash().await;
    cloud.cloud.clear_faults();
    let _manager = cloud.start_ccm(&Faults::default(), &[]).await?;
    until_initialized(cloud, name).await?;
    Ok(())
}

pub async fn nodes_are_initialized_after_any_fault(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    let mut count = 0;
    let mut next = || {
        count += 1;
        format!("node-{count}")
    };
    for write in ["nodes/status", "nodes"] {
        let crashes =
            [("crash after it", Effect::CrashAfter), ("crash before its response", Effect::CrashBeforeResponse)];
        for (how, effect) in crashes.into_iter().chain(write_failures()) {
            let rule = Rule::on(Verb::Patch, write, effect);
            initialize_despite_fault(&cloud, &next(), rule).await.with_context(|| format!("{write}: {how}"))?;
        }
    }
    let throttle = |after_millis| CloudEffect::Throttle { after_millis };
    for (how, effect) in [
        ("throttled", throttle(None)),
        ("throttled with a delay", throttle(Some(300))),
        ("quota", CloudEffect::Quota),
        ("denied", CloudEffect::Denied),
        ("conflict", CloudEffect::Conflict),
        ("transient", CloudEffect::Transient),
        ("slow", CloudEffect::Latency { millis: 500 }),
    ] {
        for operation in [Operation::DescribeInstances, Operation::DescribeInstance] {
            let fault = Fault { times: Some(2), ..Fault::always(Pattern::One(operation), effect) };
            initialize_despite_cloud_fault(&cloud, &next(), fault)
                .await
                .with_context(|| format!("{how} at {operation:?}"))?;
        }
    }
    initialize_despite_crash(&cloud, &next(), 1).await.context("crash in the first call")?;

    // After any fault, the nodes are complete, and each event was recorded at most once.
    for node in cloud.nodes().list(&ListParams::default()).await?.items {
        let name = node.metadata.name.context("no name")?;
        until_initialized(&cloud, &name).await?;
        let events = cloud.events(&name).await?;
        ensure!(events.values().all(|count| *count == 1), "events about {name}: {events:?}");
    }
    Ok(())
}

pub async fn five_hundred_nodes_are_initialized(_: Space) -> Result<()> {
    const NODES: usize = 500;
    let cloud = CloudBed::start().await?;
    let names: Vec<String> = (0..NODES).map(|number| format!("many-{number}")).collect();
    for some in names.chunks(50) {
        let registered = some.iter().map(|name| cloud.register_instance(name));
        futures::future::try_join_all(registered).await?;
    }
    let begun = Instant::now();
    let faults = Faults::default();
    let flags = ["--controllers=cloud-node", "--kube-api-qps=1000", "--kube-api-burst=1000"];
    let _manager: Manager = cloud.start_ccm(&faults, &flags).await?;
    eventually("all nodes are initialized", || async {
        let nodes = cloud.nodes().list(&ListParams::default()).await?.items;
        let waiting = nodes.iter().filter(|node| taints(node).contains(&UNINITIALIZED)).count();
        ensure!(waiting == 0, "{waiting} wait");
        Ok(())
    })
    .await?;
    let took = begun.elapsed();
    let calls = cloud.cloud.calls(Operation::DescribeInstances).calls;
    println!("{NODES} nodes were initialized in {:.1} s with {calls} calls to the cloud", took.as_secs_f64());
    // Instances are requested together, one call after a window of 50 ms; on a slow machine, few are in one window.
    let windows = u64::try_from(took.as_millis() / 50)?;
    ensure!(calls <= 60 + windows / 2, "{calls} calls to the cloud for {NODES} nodes in {took:?}");
    let writes = faults.count(Call::is_object_write);
    ensure!(writes <= 2 * NODES, "{writes} writes for {NODES} nodes");
    let node: Value = serde_json::to_value(until_initialized(&cloud, &names[NODES / 2]).await?)?;
    ensure!(node["status"]["addresses"].is_array(), "{node}");
    Ok(())
}
