//! Routes on AWS: created, kept, moved and removed, in every table, despite faults.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cluster_tests::{Space, during, eventually};
use kube::api::DeleteParams;
use moto::{Effect, Fault, Instance, Service};
use serde_json::json;

use crate::bed::{AwsBed, network};

const FLAGS: [&str; 4] = [
    "--controllers=cloud-node,route",
    "--configure-cloud-routes=true",
    "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
    "--route-reconciliation-period=1s",
];

/// Returns the pod networks of a node by its number.
fn networks(number: usize) -> [String; 2] {
    [format!("10.244.{number}.0/24"), format!("fd00:10:244:{number}::/64")]
}

async fn register(bed: &AwsBed, instance: &Instance, number: usize) -> Result<()> {
    let cidrs = networks(number);
    let spec = json!({"podCIDR": cidrs[0], "podCIDRs": cidrs, "providerID": instance.provider_id()});
    bed.register(instance, json!({"spec": spec})).await.map(drop)
}

/// Returns the expected routes of a table.
fn expected(nodes: &[(&Instance, usize)]) -> Vec<(String, String)> {
    let routes = nodes
        .iter()
        .flat_map(|(instance, number)| networks(*number).map(|network_cidr| (network_cidr, instance.id.clone())));
    let mut routes: Vec<_> = routes.collect();
    routes.sort();
    routes
}

async fn table_has(bed: &AwsBed, table: &str, nodes: &[(&Instance, usize)]) -> Result<()> {
    let expected = expected(nodes);
    eventually(format!("the table has the routes of {} nodes", nodes.len()), || async {
        let routes = bed.moto.routes(table).await?;
        ensure!(routes == expected, "{routes:?} instead of {expected:?}");
        Ok(())
    })
    .await
}

async fn until_condition(bed: &AwsBed, instance: &Instance, status: &str, reason: &str) -> Result<()> {
    eventually(format!("{} has the condition {reason}", instance.name), || async {
        let condition = network(&bed.cloud.nodes().get(&instance.name).await?)?;
        ensure!(condition == (status.to_owned(), reason.to_owned()), "{condition:?}");
        Ok(())
    })
    .await
}

pub async fn routes_are_added_and_removed_with_nodes(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let _manager = bed.ccm(&FLAGS).await?;
    let instances = bed.moto.run(4).await?;
    let [one, two, three, four] = &instances[..] else { unreachable!("four were made") };
    for (number, instance) in (1..).zip([one, two, three]) {
        register(&bed, instance, number).await?;
    }
    let table = &bed.moto.network.table;
    table_has(&bed, table, &[(one, 1), (two, 2), (three, 3)]).await?;
    for instance in [one, two, three] {
        until_condition(&bed, instance, "False", "RouteCreated").await?;
        let parameters = [("InstanceId", &*instance.id), ("Attribute", "sourceDestCheck")];
        let checks = bed.moto.aws.call(Service::Ec2, "DescribeInstanceAttribute", &parameters).await?;
        ensure!(checks.contains("<value>false</value>"), "{} does not forward: {checks}", instance.name);
    }
    let check_changes = bed.moto.proxy.calls_of("ModifyInstanceAttribute");
    ensure!(check_changes == 3, "the check was changed {check_changes} times for 3 instances");

    // Without changes: one read for each pass.
    let begun = Instant::now();
    let (changes, reads) = (bed.moto.proxy.changes(), bed.moto.proxy.calls_of("DescribeRouteTables"));
    during(Duration::from_secs(5), "passes without a difference change nothing", || async {
        ensure!(bed.moto.proxy.changes() == changes, "{:?}", bed.moto.proxy.calls());
        Ok(())
    })
    .await?;
    eventually("another pass reads the table", || async {
        ensure!(bed.moto.proxy.calls_of("DescribeRouteTables") > reads, "no read of the table");
        Ok(())
    })
    .await?;
    let (passes, took) = (bed.moto.proxy.calls_of("DescribeRouteTables") - reads, begun.elapsed());
    ensure!(passes <= 2 + took.as_secs(), "{passes} reads of the table in {took:?}");

    // A node is deleted. Another node's instance is terminated; each route to that instance is moved to its successor
    // in one step.
    bed.cloud.nodes().delete(&one.name, &DeleteParams::default()).await?;
    table_has(&bed, table, &[(two, 2), (three, 3)]).await?;
    bed.moto.terminate(&three.id).await?;
    bed.cloud.nodes().delete(&three.name, &DeleteParams::default()).await?;
    register(&bed, four, 3).await?;
    table_has(&bed, table, &[(two, 2), (four, 3)]).await?;
    until_condition(&bed, four, "False", "RouteCreated").await
}

pub async fn every_table_gets_its_routes(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let other = bed.moto.add_table().await?;
    let _manager = bed.ccm(&FLAGS).await?;
    let instances = bed.moto.run(2).await?;
    let (one, two) = (&instances[0], &instances[1]);
    register(&bed, one, 1).await?;
    register(&bed, two, 2).await?;
    for table in [&bed.moto.network.table, &other] {
        table_has(&bed, table, &[(one, 1), (two, 2)]).await?;
    }
    // A table that was created later, and one that lost a route: their routes are added.
    let third = bed.moto.add_table().await?;
    table_has(&bed, &third, &[(one, 1), (two, 2)]).await?;
    let network_cidr = networks(1)[0].clone();
    let parameters = [("RouteTableId", &*other), ("DestinationCidrBlock", &network_cidr)];
    bed.moto.aws.call(Service::Ec2, "DeleteRoute", &parameters).await?;
    table_has(&bed, &other, &[(one, 1), (two, 2)]).await?;
    bed.cloud.nodes().delete(&one.name, &DeleteParams::default()).await?;
    for table in [&bed.moto.network.table, &other, &third] {
        table_has(&bed, table, &[(two, 2)]).await?;
    }
    Ok(())
}

pub async fn routes_are_created_despite_faults(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let manager = bed.ccm(&FLAGS).await?;
    let instances = bed.moto.run(7).await?;
    let table = &bed.moto.network.table;
    let mut nodes: Vec<(&Instance, usize)> = Vec::new();
    let throttle = Effect::Throttle { retry_after: Some(1) };
    for ((number, instance), fault) in (1..).zip(&instances).zip([
        Fault::first("CreateRoute", Effect::ResponseLost),
        Fault::first("CreateRoute", Effect::Outage),
        Fault::first("ModifyInstanceAttribute", throttle),
        Fault::first("DescribeRouteTables", Effect::Outage),
        Fault::first("DescribeInstances", Effect::Outage),
        Fault { times: Some(8), ..Fault::first("DescribeRouteTables", Effect::ResponseLost) },
    ]) {
        let what = format!("{fault:?}");
        bed.moto.proxy.arm(fault);
        register(&bed, instance, number).await?;
        nodes.push((instance, number));
        table_has(&bed, table, &nodes).await?;
        until_condition(&bed, instance, "False", "RouteCreated").await?;
        ensure!(bed.moto.proxy.faults_applied() > 0, "{what}: no call had the fault");
        bed.moto.proxy.disarm();
    }
    // A full table is an error with the fix, and the routes of other nodes are not affected.
    let full = Effect::refused("RouteLimitExceeded", "The maximum number of routes has been reached.");
    bed.moto.proxy.arm(Fault::always("CreateRoute", full));
    let (last, number) = (&instances[6], 7);
    register(&bed, last, number).await?;
    until_condition(&bed, last, "True", "NoRouteCreated").await?;
    eventually("the quota is reported", || async {
        let events = bed.cloud.events(&last.name).await?;
        let is_quota_event =
            |event: &&String| event.contains("FailedToCreateRoute") && event.contains("Routes per route table");
        ensure!(events.keys().any(|event| is_quota_event(&event)), "{events:?}");
        Ok(())
    })
    .await?;
    table_has(&bed, table, &nodes).await?;
    bed.moto.proxy.disarm();
    manager.stop().await?;
    let _manager = bed.ccm(&FLAGS).await?;
    nodes.push((last, number));
    table_has(&bed, table, &nodes).await
}
