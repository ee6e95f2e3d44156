//! cloud-node-lifecycle-controller with the mock cloud: instances that are stopped, started and deleted, and errors of
//! the cloud.

use anyhow::{Result, ensure};
use cluster_tests::{
    Call, CloudBed, Effect, Faults, QUIET, Rule, Space, Verb, during, eventually, restart_after_crashes, write_failures,
};
use jiff::SignedDuration;
use kube::api::{Api, DeleteParams};
use provider_mock::{Effect as CloudEffect, Fault, InstanceConfig, Operation, Pattern};

use crate::cloud::node::until_initialized;

const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Waits until a node has the shutdown taint, or no longer has it.
pub async fn until_shutdown_taint(cloud: &CloudBed, name: &str, wanted: bool) -> Result<()> {
    eventually(format!("{name} has the shutdown taint: {wanted}"), || check_shutdown_taint(cloud, name, wanted)).await
}

async fn check_shutdown_taint(cloud: &CloudBed, name: &str, wanted: bool) -> Result<()> {
    let node = cloud.nodes().get(name).await?;
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let found: Vec<_> = taints.iter().filter(|taint| taint.key == SHUTDOWN).collect();
    ensure!(found.iter().all(|taint| taint.effect == "NoSchedule"), "{found:?}");
    ensure!((found.len() == 1) == wanted && found.len() < 2, "{taints:?}");
    Ok(())
}

pub async fn until_node_deleted(cloud: &CloudBed, name: &str) -> Result<()> {
    eventually(format!("{name} is deleted"), || async {
        ensure!(cloud.nodes().get_opt(name).await?.is_none());
        Ok(())
    })
    .await
}

async fn stays(cloud: &CloudBed, name: &str, why: &str) -> Result<()> {
    during(3 * QUIET, format!("{name} stays: {why}"), || async {
        ensure!(cloud.nodes().get_opt(name).await?.is_some());
        Ok(())
    })
    .await
}

async fn ready_node(cloud: &CloudBed, name: &str) -> Result<()> {
    cloud.register_instance(name).await?;
    until_initialized(cloud, name).await?;
    cloud.set_ready_condition(name, "True").await
}

pub async fn stopped_instances_are_tainted_and_deleted_ones_lose_their_nodes(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    let faults = Faults::default();
    let manager = cloud.start_ccm(&faults, &[]).await?;
    for name in ["a", "b", "ready"] {
        ready_node(&cloud, name).await?;
    }
    let (other, untouched) = (("other", "NoSchedule"), faults.count(Call::is_object_write));
    cloud.edit("a", serde_json::json!({"spec": {"taints": [{"key": other.0, "effect": other.1}]}})).await?;

    // An instance is stopped, and started again.
    cloud.cloud.stop_instance("a");
    during(QUIET, "a ready node is not changed", || async {
        ensure!(faults.count(Call::is_object_write) == untouched, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    cloud.set_ready_condition("a", "Unknown").await?;
    until_shutdown_taint(&cloud, "a", true).await?;
    cloud.cloud.start_instance("a");
    during(QUIET, "the taint stays until the node is ready", || check_shutdown_taint(&cloud, "a", true)).await?;
    cloud.set_ready_condition("a", "True").await?;
    until_shutdown_taint(&cloud, "a", false).await?;
    let taints = cloud.nodes().get("a").await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
    ensure!(taints.iter().any(|taint| taint.key == other.0), "a taint of another controller was removed: {taints:?}");

    // An instance is deleted.
    cloud.cloud.remove_instance("ready");
    cloud.cloud.remove_instance("b");
    cloud.set_ready_condition("b", "False").await?;
    until_node_deleted(&cloud, "b").await?;
    eventually("the deletion is reported", || async {
        let events = cloud.events("b").await?;
        let expected = "cloud-node-lifecycle-controller Normal DeletingNode Deleting node b because it does not exist in the cloud provider";
        ensure!(events.get(expected) == Some(&1), "events: {events:?}");
        Ok(())
    })
    .await?;
    stays(&cloud, "ready", "it is ready").await?;
    manager.stop().await?;

    // The node is deleted after any fault of its deletion.
    let crashes = [("crash after it", Effect::CrashAfter), ("crash before its response", Effect::CrashBeforeResponse)];
    for (number, (how, effect)) in crashes.into_iter().chain(write_failures()).enumerate() {
        let name = format!("fault-{number}");
        let faults = Faults::script([Rule::on(Verb::Delete, "nodes", effect)]);
        cloud.register_instance(&name).await?;
        cloud.cloud.remove_instance(&name);
        tokio::select! {
            deleted = until_node_deleted(&cloud, &name) => deleted.map_err(|error| error.context(how))?,
            ended = restart_after_crashes(&faults, || cloud.start_ccm(&faults, &[])) => ended?,
        }
        ensure!(faults.unmet() == 0, "{how}: the fault did not occur: the run tests nothing");
    }
    Ok(())
}

pub async fn node_is_deleted_only_when_its_instance_does_not_exist(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    {
        let _manager = cloud.start_ccm(&Faults::default(), &[]).await?;
        ready_node(&cloud, "a").await?;
        cloud.cloud.remove_instance("a");
        for (how, effect) in [
            ("throttled", CloudEffect::Throttle { after_millis: Some(100) }),
            ("denied", CloudEffect::Denied),
            ("quota", CloudEffect::Quota),
            ("conflict", CloudEffect::Conflict),
            ("transient", CloudEffect::Transient),
        ] {
            cloud.cloud.add_fault(Fault::always(Pattern::One(Operation::DescribeInstances), effect))?;
            cloud.set_ready_condition("a", "False").await?;
            stays(&cloud, "a", how).await?;
            cloud.set_ready_condition("a", "True").await?;
            cloud.cloud.clear_faults();
        }

        // Half of the calls fail, at random: an error neither confirms nor refutes the absence.
        let fault = Fault { probability: Some(0.5), ..Fault::always(Pattern::Any, CloudEffect::Transient) };
        cloud.cloud.add_fault(fault)?;
        cloud.set_ready_condition("a", "False").await?;
        until_node_deleted(&cloud, "a").await?;
        cloud.cloud.clear_faults();

        // The cloud returns the instance again before its absence is confirmed.
        ready_node(&cloud, "b").await?;
        cloud.cloud.remove_instance("b");
        // After the first read, each read fails until the instance exists again.
        let always = Fault::always(Pattern::One(Operation::DescribeInstance), CloudEffect::Transient);
        cloud.cloud.add_fault(Fault { nth: Some(2), times: Some(1_000), ..always })?;
        let before = cloud.cloud.calls(Operation::DescribeInstance).calls;
        cloud.set_ready_condition("b", "False").await?;
        eventually("the instance was read once", || async {
            ensure!(cloud.cloud.calls(Operation::DescribeInstance).calls > before);
            Ok(())
        })
        .await?;
        cloud.cloud.add_instance(&InstanceConfig::named("b"));
        cloud.cloud.clear_faults();
        stays(&cloud, "b", "its instance exists again").await?;

        // A provider ID of another cloud is not evidence.
        cloud.register("foreign", serde_json::json!({"spec": {"providerID": "acme://1", "taints": null}})).await?;
        stays(&cloud, "foreign", "its instance belongs to another cloud").await?;
    }

    // A new node: the cloud may not return its instance yet.
    let faults = Faults::default();
    let _manager = cloud.start_ccm_later(&faults, &[], SignedDuration::ZERO).await?;
    cloud.register("young", serde_json::json!({})).await?;
    stays(&cloud, "young", "the node is new").await?;
    ensure!(faults.count(|call| call.verb == Verb::Delete) == 0, "{:?}", faults.requests());
    let nodes: Api<k8s_openapi::api::core::v1::Node> = cloud.nodes();
    nodes.delete("young", &DeleteParams::default()).await?;
    Ok(())
}
