//! Nodes on AWS: initialization from their instances, the number of calls, and deletion after their instances.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Call, Faults, QUIET, Space, during, eventually};
use jiff::SignedDuration;
use kube::api::ListParams;
use moto::{Effect, Fault, Instance};
use serde_json::json;

use crate::bed::{AwsBed, UNINITIALIZED, labels, taints};

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

pub async fn nodes_get_the_data_of_their_instances(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let instances = bed.moto.run(3).await?;
    let _manager = bed.ccm(&["--node-status-update-frequency=1s"]).await?;
    let started = Instant::now();
    for (instance, more) in instances.iter().zip([
        json!({}),
        // Labels of other clients; they stay.
        json!({"metadata": {"labels": {"topology.k8s.aws/zone-id": "own"}}, "spec": {"taints": [
            {"key": UNINITIALIZED, "effect": "NoSchedule"}, {"key": "other", "effect": "NoExecute"},
        ]}}),
        // The kubelet sets the provider ID.
        json!({"spec": {"providerID": instances[2].provider_id()}}),
    ]) {
        bed.register(instance, more).await?;
    }
    for instance in &instances {
        bed.until_initialized(instance).await?;
    }
    let zone = labels(&bed.until_initialized(&instances[0]).await?).remove("topology.k8s.aws/zone-id");
    ensure!(zone.as_deref().is_some_and(|zone| zone.starts_with("euw1-az")), "the zone's id is {zone:?}");
    let second = bed.until_initialized(&instances[1]).await?;
    ensure!(labels(&second)["topology.k8s.aws/zone-id"] == "own" && taints(&second).contains(&"other"), "{second:?}");

    // moto has no topology data: the provider makes a few calls, and no Node is delayed. Until the first response,
    // which may be slow, each update of the nodes reads the topology, too.
    let topology_reads = bed.moto.proxy.calls_of("DescribeInstanceTopology");
    let updates = started.elapsed().as_secs();
    ensure!((1..=3 + updates).contains(&topology_reads), "{topology_reads} reads of the topology, {updates} updates");
    let zone_reads = bed.moto.proxy.calls_of("DescribeAvailabilityZones");
    // Two reads if the first response is slow.
    ensure!((1..=2).contains(&zone_reads), "{zone_reads} reads of the zones");
    ensure!(bed.moto.proxy.changes() == 0, "{:?}", bed.moto.proxy.calls());
    Ok(())
}

pub async fn bad_ids_do_not_split_the_batch_into_single_calls(_: Space) -> Result<()> {
    const NODES: usize = 40;
    let bed = AwsBed::start().await?;
    let instances = bed.moto.run(NODES).await?;
    for instance in &instances {
        bed.register(instance, json!({"spec": {"providerID": instance.provider_id()}})).await?;
    }
    bed.cloud.register("no-instance", json!({"spec": {"providerID": "aws:///eu-west-1a/i-0000000000000000a"}})).await?;
    bed.cloud.register("misspelt", json!({"spec": {"providerID": "aws:///eu-west-1a/i-what"}})).await?;
    bed.cloud.register("elsewhere", json!({"spec": {"providerID": "gce://project/zone/vm"}})).await?;
    let started = Instant::now();
    let _manager = bed.ccm(&["--controllers=cloud-node"]).await?;
    for instance in &instances {
        bed.until_initialized(instance).await?;
    }
    let calls = bed.moto.proxy.calls_of("DescribeInstances");
    // Instances are requested together, one call after a window of 50 ms; on a slow machine, few are in one window.
    let windows = u64::try_from(started.elapsed().as_millis() / 50)?;
    ensure!(calls <= 24 + windows / 5, "{calls} calls for {NODES} nodes and three without an instance");
    for name in ["no-instance", "misspelt", "elsewhere"] {
        ensure!(taints(&bed.cloud.nodes().get(name).await?).contains(&UNINITIALIZED), "{name} was initialized");
    }
    Ok(())
}

/// Initializes nodes despite a fault, which must have occurred.
async fn initialize_despite(bed: &AwsBed, what: &str, fault: Fault) -> Result<()> {
    bed.moto.proxy.arm(fault);
    let manager = bed.ccm(&[]).await?;
    let started = Instant::now();
    for instance in bed.nodes(3).await? {
        bed.until_initialized(&instance).await.with_context(|| what.to_owned())?;
    }
    println!("{what}: {:.1} s", started.elapsed().as_secs_f64());
    ensure!(bed.moto.proxy.faults_applied() > 0, "{what}: no call had the fault");
    bed.moto.proxy.disarm();
    manager.stop().await?;
    Ok(())
}

pub async fn nodes_are_initialized_despite_faults(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let some = |action: &str, effect: Effect| Fault { times: Some(3), ..Fault::first(action, effect) };
    let denied = || Effect::refused("UnauthorizedOperation", "You are not authorized to perform this operation.");
    for (what, fault) in [
        ("throttled", some("DescribeInstances", Effect::Throttle { retry_after: None })),
        ("throttled with a delay", some("DescribeInstances", Effect::Throttle { retry_after: Some(1) })),
        ("an outage", some("DescribeInstances", Effect::Outage)),
        ("responses are lost", some("DescribeInstances", Effect::ResponseLost)),
        ("denied for a while", some("DescribeInstances", denied())),
        ("the first call fails", some("DescribeVpcs", Effect::Outage)),
        ("no zones", Fault::always("DescribeAvailabilityZones", Effect::Outage)),
        ("no permission for the topology", Fault::always("DescribeInstanceTopology", denied())),
        ("the topology is slow", Fault::always("DescribeInstanceTopology", Effect::Slow(Duration::from_secs(60)))),
    ] {
        initialize_despite(&bed, what, fault).await?;
    }
    Ok(())
}

pub async fn node_waits_for_an_instance_that_is_not_visible_yet(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let instance = &bed.moto.run(1).await?[0];
    bed.moto.proxy.hide(&instance.id, u64::MAX);
    // By the clock of `AwsBed::ccm` the Node would be an hour old, and the instance of such a Node counts as missing.
    let _manager = bed.ccm_at(&Faults::default(), &[], SignedDuration::ZERO).await?;
    bed.register(instance, json!({"spec": {"providerID": instance.provider_id()}})).await?;
    bed.cloud.set_ready_condition(&instance.name, "False").await?;
    during(3 * QUIET, "the node is not initialized", || async {
        let node = bed.cloud.nodes().get(&instance.name).await?;
        ensure!(taints(&node).contains(&UNINITIALIZED), "initialized without an instance");
        Ok(())
    })
    .await?;
    ensure!(bed.moto.proxy.calls_of("DescribeInstances") > 1, "the instance was not read");
    bed.moto.proxy.hide(&instance.id, 0);
    bed.until_initialized(instance).await.map(drop)
}

async fn until_shutdown_taint(bed: &AwsBed, instance: &Instance, wanted: bool) -> Result<()> {
    eventually(format!("{} has the shutdown taint: {wanted}", instance.name), || async {
        let node = bed.cloud.nodes().get(&instance.name).await?;
        ensure!(taints(&node).contains(&SHUTDOWN) == wanted, "{:?}", taints(&node));
        Ok(())
    })
    .await
}

pub async fn nodes_follow_stopped_started_and_terminated_instances(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let _manager = bed.ccm(&[]).await?;
    let instances = bed.nodes(3).await?;
    for instance in &instances {
        bed.until_initialized(instance).await?;
        bed.cloud.set_ready_condition(&instance.name, "True").await?;
    }
    let [stopped, terminated, running] = &instances[..] else { unreachable!("three were made") };
    bed.moto.stop(&stopped.id).await?;
    bed.cloud.set_ready_condition(&stopped.name, "Unknown").await?;
    until_shutdown_taint(&bed, stopped, true).await?;
    bed.moto.resume(&stopped.id).await?;
    bed.cloud.set_ready_condition(&stopped.name, "True").await?;
    until_shutdown_taint(&bed, stopped, false).await?;

    // While AWS throttles the reads, no Node is deleted.
    bed.moto.proxy.arm(Fault::always("DescribeInstances", Effect::Throttle { retry_after: None }));
    bed.moto.terminate(&terminated.id).await?;
    for instance in [terminated, running] {
        bed.cloud.set_ready_condition(&instance.name, "Unknown").await?;
    }
    during(2 * QUIET, "no Node is deleted while AWS throttles the reads", || async {
        let count = bed.cloud.nodes().list(&ListParams::default()).await?.items.len();
        ensure!(count == 3, "{count} Nodes exist, not 3");
        Ok(())
    })
    .await?;
    ensure!(bed.moto.proxy.faults_applied() > 0, "no call had the fault");
    bed.moto.proxy.disarm();
    eventually("the Node of the terminated instance is deleted", || async {
        ensure!(bed.cloud.nodes().get_opt(&terminated.name).await?.is_none(), "the Node exists");
        Ok(())
    })
    .await?;
    during(QUIET, "the other Node is kept", || async {
        bed.cloud.nodes().get(&running.name).await.map(drop).map_err(Into::into)
    })
    .await
}

pub async fn three_hundred_nodes_are_initialized(_: Space) -> Result<()> {
    const NODES: usize = 300;
    let bed = AwsBed::start().await?;
    let instances = bed.nodes(NODES).await?;
    let (started, faults) = (Instant::now(), Faults::default());
    let flags = ["--controllers=cloud-node", "--kube-api-qps=1000", "--kube-api-burst=1000"];
    let _manager = bed.ccm_at(&faults, &flags, SignedDuration::ZERO).await?;
    eventually("all Nodes are initialized", || async {
        let nodes = bed.cloud.nodes().list(&ListParams::default()).await?.items;
        let waiting = nodes.iter().filter(|node| taints(node).contains(&UNINITIALIZED)).count();
        ensure!(waiting == 0, "{waiting} Nodes are not initialized");
        Ok(())
    })
    .await?;
    let (took, calls) = (started.elapsed(), bed.moto.proxy.calls());
    println!("{NODES} nodes were initialized in {:.1} s with {calls:?}", took.as_secs_f64());
    let reads: u64 = calls.values().sum();
    // Instances are requested together, one call after a window of 50 ms; on a slow machine, few are in one window.
    let windows = u64::try_from(took.as_millis() / 50)?;
    ensure!(reads <= 40 + windows / 2, "{reads} calls for {NODES} nodes in {took:?}: {calls:?}");
    let writes = faults.count(Call::is_object_write);
    ensure!(writes <= 2 * NODES, "{writes} writes for {NODES} nodes");
    bed.until_initialized(&instances[NODES / 2]).await.map(drop)
}
