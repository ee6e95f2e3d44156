//! Nodes on AWS: the data of their instances, the number of calls, and that only a missing instance deletes a Node.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Call, Faults, QUIET, Space, during, eventually};
use jiff::SignedDuration;
use kube::api::ListParams;
use moto::{Effect, Fault, Machine};
use serde_json::json;

use crate::bed::{AwsBed, UNINITIALIZED, labels, taints};

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

pub async fn nodes_get_the_data_of_their_instances(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let machines = bed.moto.run(3).await?;
    let _manager = bed.ccm(&["--node-status-update-frequency=1s"]).await?;
    for (machine, more) in machines.iter().zip([
        json!({}),
        // Labels of other clients; they stay.
        json!({"metadata": {"labels": {"topology.k8s.aws/zone-id": "own"}}, "spec": {"taints": [
            {"key": UNINITIALIZED, "effect": "NoSchedule"}, {"key": "other", "effect": "NoExecute"},
        ]}}),
        // A kubelet that knows its provider ID.
        json!({"spec": {"providerID": machines[2].provider_id()}}),
    ]) {
        bed.register(machine, more).await?;
    }
    for machine in &machines {
        bed.initialised(machine).await?;
    }
    let zone = labels(&bed.initialised(&machines[0]).await?).remove("topology.k8s.aws/zone-id");
    ensure!(zone.as_deref().is_some_and(|zone| zone.starts_with("euw1-az")), "the zone's id is {zone:?}");
    let second = bed.initialised(&machines[1]).await?;
    ensure!(labels(&second)["topology.k8s.aws/zone-id"] == "own" && taints(&second).contains(&"other"), "{second:?}");

    // moto has no data about the network's topology: that costs a call or two, and no Node waits.
    let asked = bed.moto.proxy.calls_of("DescribeInstanceTopology");
    ensure!((1..=3).contains(&asked), "the topology was asked for {asked} times");
    let zones = bed.moto.proxy.calls_of("DescribeAvailabilityZones");
    // Again with a delayed first response.
    ensure!((1..=2).contains(&zones), "the zones were asked for {zones} times");
    ensure!(bed.moto.proxy.changes() == 0, "{:?}", bed.moto.proxy.calls());
    Ok(())
}

pub async fn one_bad_id_does_not_split_the_batch_into_single_calls(_: Space) -> Result<()> {
    const NODES: usize = 40;
    let bed = AwsBed::start().await?;
    let machines = bed.moto.run(NODES).await?;
    for machine in &machines {
        bed.register(machine, json!({"spec": {"providerID": machine.provider_id()}})).await?;
    }
    bed.cloud.register("never-was", json!({"spec": {"providerID": "aws:///eu-west-1a/i-0000000000000000a"}})).await?;
    bed.cloud.register("misspelt", json!({"spec": {"providerID": "aws:///eu-west-1a/i-what"}})).await?;
    bed.cloud.register("elsewhere", json!({"spec": {"providerID": "gce://project/zone/vm"}})).await?;
    let _manager = bed.ccm(&["--controllers=cloud-node"]).await?;
    for machine in &machines {
        bed.initialised(machine).await?;
    }
    let calls = bed.moto.proxy.calls_of("DescribeInstances");
    ensure!(calls <= 24, "{calls} calls for {NODES} nodes and three that are none");
    for name in ["never-was", "misspelt", "elsewhere"] {
        ensure!(taints(&bed.cloud.nodes().get(name).await?).contains(&UNINITIALIZED), "{name} was initialised");
    }
    Ok(())
}

/// Initialises nodes despite a fault, which must have occurred.
async fn through(bed: &AwsBed, what: &str, fault: Fault) -> Result<()> {
    bed.moto.proxy.arm(fault);
    let manager = bed.ccm(&[]).await?;
    let begun = Instant::now();
    for machine in bed.nodes(3).await? {
        bed.initialised(&machine).await.with_context(|| what.to_owned())?;
    }
    println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    ensure!(bed.moto.proxy.struck() > 0, "{what}: it did not strike, and proves nothing");
    bed.moto.proxy.disarm();
    manager.stop().await?;
    Ok(())
}

pub async fn nodes_are_initialised_despite_faults(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let some = |action: &str, effect: Effect| Fault { times: Some(3), ..Fault::first(action, effect) };
    let denied = || Effect::refused("UnauthorizedOperation", "You are not authorized to perform this operation.");
    for (what, fault) in [
        ("throttled", some("DescribeInstances", Effect::Throttle { retry_after: None })),
        ("throttled with a time", some("DescribeInstances", Effect::Throttle { retry_after: Some(1) })),
        ("an outage", some("DescribeInstances", Effect::Outage)),
        ("answers are lost", some("DescribeInstances", Effect::ResponseLost)),
        ("denied for a while", some("DescribeInstances", denied())),
        ("no first call", some("DescribeVpcs", Effect::Outage)),
        ("no zones", Fault::always("DescribeAvailabilityZones", Effect::Outage)),
        ("no right to the topology", Fault::always("DescribeInstanceTopology", denied())),
        ("the topology is slow", Fault::always("DescribeInstanceTopology", Effect::Slow(Duration::from_secs(60)))),
    ] {
        through(&bed, what, fault).await?;
    }
    Ok(())
}

pub async fn node_waits_for_an_instance_that_is_not_visible_yet(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let machine = &bed.moto.run(1).await?[0];
    bed.moto.proxy.hide(&machine.id, u64::MAX);
    // A Node with its real age.
    let _manager = bed.ccm_at(&Faults::default(), &[], SignedDuration::ZERO).await?;
    bed.register(machine, json!({"spec": {"providerID": machine.provider_id()}})).await?;
    bed.cloud.set_ready_condition(&machine.name, "False").await?;
    during(3 * QUIET, "the node waits", || async {
        let node = bed.cloud.nodes().get(&machine.name).await?;
        ensure!(taints(&node).contains(&UNINITIALIZED), "it was initialised by what is not shown");
        Ok(())
    })
    .await?;
    ensure!(bed.moto.proxy.calls_of("DescribeInstances") > 1, "nobody asked: this proves nothing");
    bed.moto.proxy.hide(&machine.id, 0);
    bed.initialised(machine).await.map(drop)
}

async fn shut_down(bed: &AwsBed, machine: &Machine, wanted: bool) -> Result<()> {
    eventually(format!("{} has the shutdown taint: {wanted}", machine.name), || async {
        let node = bed.cloud.nodes().get(&machine.name).await?;
        ensure!(taints(&node).contains(&SHUTDOWN) == wanted, "{:?}", taints(&node));
        Ok(())
    })
    .await
}

pub async fn nodes_follow_stopped_started_and_terminated_instances(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let _manager = bed.ccm(&[]).await?;
    let machines = bed.nodes(3).await?;
    for machine in &machines {
        bed.initialised(machine).await?;
        bed.cloud.set_ready_condition(&machine.name, "True").await?;
    }
    let [stops, goes, stays] = &machines[..] else { unreachable!("three were made") };
    bed.moto.stop(&stops.id).await?;
    bed.cloud.set_ready_condition(&stops.name, "Unknown").await?;
    shut_down(&bed, stops, true).await?;
    bed.moto.resume(&stops.id).await?;
    bed.cloud.set_ready_condition(&stops.name, "True").await?;
    shut_down(&bed, stops, false).await?;

    // While AWS does not respond, no Node is deleted.
    bed.moto.proxy.arm(Fault::always("DescribeInstances", Effect::Throttle { retry_after: None }));
    bed.moto.terminate(&goes.id).await?;
    for machine in [goes, stays] {
        bed.cloud.set_ready_condition(&machine.name, "Unknown").await?;
    }
    during(2 * QUIET, "nobody goes while AWS does not answer", || async {
        let count = bed.cloud.nodes().list(&ListParams::default()).await?.items.len();
        ensure!(count == 3, "{count} are left");
        Ok(())
    })
    .await?;
    ensure!(bed.moto.proxy.struck() > 0, "nobody asked: this proves nothing");
    bed.moto.proxy.disarm();
    eventually("the Node of the machine that is gone goes", || async {
        ensure!(bed.cloud.nodes().get_opt(&goes.name).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    during(QUIET, "the other stays", || async {
        bed.cloud.nodes().get(&stays.name).await.map(drop).map_err(Into::into)
    })
    .await
}

pub async fn three_hundred_nodes_are_initialised(_: Space) -> Result<()> {
    const NODES: usize = 300;
    let bed = AwsBed::start().await?;
    let machines = bed.nodes(NODES).await?;
    let (begun, faults) = (Instant::now(), Faults::default());
    let flags = ["--controllers=cloud-node", "--kube-api-qps=1000", "--kube-api-burst=1000"];
    let _manager = bed.ccm_at(&faults, &flags, SignedDuration::ZERO).await?;
    eventually("all are initialised", || async {
        let nodes = bed.cloud.nodes().list(&ListParams::default()).await?.items;
        let waiting = nodes.iter().filter(|node| taints(node).contains(&UNINITIALIZED)).count();
        ensure!(waiting == 0, "{waiting} wait");
        Ok(())
    })
    .await?;
    let (took, calls) = (begun.elapsed(), bed.moto.proxy.calls());
    println!("{NODES} nodes were initialised in {:.1} s with {calls:?}", took.as_secs_f64());
    let reads: u64 = calls.values().sum();
    ensure!(reads <= 40, "{reads} calls for {NODES} nodes: {calls:?}");
    let writes = faults.count(Call::is_object_write);
    ensure!(writes <= 2 * NODES, "{writes} writes for {NODES} nodes");
    bed.initialised(&machines[NODES / 2]).await.map(drop)
}
