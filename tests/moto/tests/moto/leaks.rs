//! Leaked resources in AWS: found by tags and by names in rules, reported, and deleted if that is allowed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cluster_tests::{Space, eventually};
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::api::{Api, PostParams};
use moto::{Moto, Service};
use providers::{Deletion, LoadBalancerId};
use serde_json::json;

use crate::balancers::{AccountResources, PREFIX, delete, new_process, service, settle, spec, targets, texts};
use crate::bed::{AwsBed, CLUSTER};

/// Creates a target group, like a process that crashed right after that.
async fn target_group(moto: &Moto, name: &str, tags: &[(&str, &str)]) -> Result<String> {
    let mut parameters = vec![
        ("Name".to_owned(), name.to_owned()),
        ("Protocol".to_owned(), "TCP".to_owned()),
        ("Port".to_owned(), "30080".to_owned()),
        ("VpcId".to_owned(), moto.network.vpc.clone()),
        ("TargetType".to_owned(), "instance".to_owned()),
    ];
    for (number, (key, value)) in (1..).zip(tags) {
        parameters.push((format!("Tags.member.{number}.Key"), (*key).to_owned()));
        parameters.push((format!("Tags.member.{number}.Value"), (*value).to_owned()));
    }
    let parameters: Vec<(&str, &str)> = parameters.iter().map(|(key, value)| (&**key, &**value)).collect();
    let created = moto.aws.call(Service::Elb, "CreateTargetGroup", &parameters).await?;
    texts(&created, "TargetGroupArn").into_iter().next().context("no target group")
}

/// Opens the nodes' group for a load balancer without security groups.
async fn node_rule(bed: &AwsBed, port: &str, description: &str) -> Result<()> {
    let parameters = [
        ("GroupId", &*bed.moto.network.group),
        ("IpPermissions.1.IpProtocol", "tcp"),
        ("IpPermissions.1.FromPort", port),
        ("IpPermissions.1.ToPort", port),
        ("IpPermissions.1.IpRanges.1.CidrIp", "0.0.0.0/0"),
        ("IpPermissions.1.IpRanges.1.Description", description),
    ];
    bed.moto.aws.call(Service::Ec2, "AuthorizeSecurityGroupIngress", &parameters).await.map(drop)
}

async fn until_event(bed: &AwsBed, name: &str, text: &str) -> Result<()> {
    eventually(format!("{name} has an Event with {text:?}"), || async {
        let events = bed.cloud.events(name).await?;
        ensure!(events.keys().any(|event| event.contains(text)), "{events:?}");
        Ok(())
    })
    .await
}

/// A complete load balancer, an incomplete one, and rules, all of deleted Services: they are deleted. Resources that
/// have a Service, or may be another cluster's, are kept.
pub async fn leaked_resources_are_reported_and_deleted(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let instances = bed.nodes(1).await?;
    let services: Api<KubeService> = Api::namespaced(bed.cloud.bed.client.clone(), "default");
    let annotations = json!({format!("{PREFIX}type"): "nlb"});
    let web = services.create(&PostParams::default(), &service("web", annotations)?).await?;
    let uid = web.metadata.uid.context("no uid")?;

    let leaked = spec(7, &[]);
    settle(&bed.moto, &*new_process(&bed.moto).await?, &leaked, &targets(&instances)).await?;
    let complete = AccountResources::read(&bed.moto).await?.balancers;
    let own = format!("kubernetes.io/cluster/{CLUSTER}");
    let deleted_service = ("kubernetes.io/service-name", "default/gone");
    let incomplete = target_group(&bed.moto, "half", &[(&own, "owned"), deleted_service]).await?;
    let another =
        target_group(&bed.moto, "another", &[("kubernetes.io/cluster/another", "owned"), deleted_service]).await?;
    let both =
        [(&*own, "owned"), ("kubernetes.io/cluster/another", "owned"), ("kubernetes.io/service-name", "default/x")];
    let both = target_group(&bed.moto, "both", &both).await?;
    let existing = LoadBalancerId { cluster: CLUSTER.into(), namespace: "default".into(), name: "web".into(), uid };
    node_rule(&bed, "31001", "kubernetes.io/rule/nlb/client=a0123456789abcdef").await?;
    node_rule(&bed, "31002", &format!("kubernetes.io/rule/nlb/client={}", existing.default_name())).await?;
    node_rule(&bed, "31003", "by hand").await?;

    // Without the flag they are only reported.
    let flags = ["--controllers=cloud-node,service", "--load-balancer-audit-period=1s"];
    let manager = bed.ccm(&flags).await?;
    until_event(
        &bed,
        &leaked.id.name,
        "Warning LeakedLoadBalancer the Service no longer exists, but the cloud still has its resources: ",
    )
    .await?;
    until_event(&bed, "gone", &incomplete).await?;
    until_event(&bed, "x", "delete them by hand if they are not needed").await?;
    until_event(&bed, "a0123456789abcdef", &format!("{}/sgr-", bed.moto.network.group)).await?;
    let resources = AccountResources::read(&bed.moto).await?;
    let is_kept = resources.target_groups.contains(&incomplete) && resources.balancers.contains(&complete[0]);
    ensure!(is_kept, "deleted without the flag: {resources:?}");
    manager.stop().await?;

    let _manager = bed.ccm(&[&flags[..], &["--collect-leaked-load-balancers"]].concat()).await?;
    eventually("leaked resources are deleted", || async {
        let resources = AccountResources::read(&bed.moto).await?;
        // These remain: the Service's load balancer and target group, and target groups of other clusters.
        ensure!(resources.balancers.len() == 1 && resources.target_groups.len() == 3, "{resources:?}");
        // These remain: the Service's security group and the shared one; rules for the shared one, for the Service, and
        // of another client.
        ensure!(resources.security_groups.len() == 2 && resources.node_rules == 3, "{resources:?}");
        Ok(())
    })
    .await?;
    until_event(&bed, &leaked.id.name, "Normal LeakedLoadBalancerDeleted").await?;
    let resources = AccountResources::read(&bed.moto).await?;
    ensure!([another, both].iter().all(|group| resources.target_groups.contains(group)), "{resources:?}");
    Ok(())
}

/// After the deletion of leaked resources that others do not use, the next call for another Service uses the last
/// listing.
///
/// Listings are reused for seconds only: if the machine pauses, the test makes another attempt.
pub async fn deletion_of_a_leak_keeps_the_listing(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    let one = spec(1, &[]);
    settle(&moto, &*balancers, &one, &all).await?;
    let own = format!("kubernetes.io/cluster/{CLUSTER}");
    let deadline = Instant::now() + Duration::from_secs(60);
    for number in 0.. {
        let tags = [(&*own, "owned"), ("kubernetes.io/service-name", "default/gone")];
        target_group(&moto, &format!("gone-{number}"), &tags).await?;
        let leaks = balancers.list_owned().await?;
        let leak = leaks.iter().find(|owned| owned.id.name == "gone").context("the leak is not listed")?;
        while balancers.collect(leak).await? != Deletion::Gone {}
        let listings = moto.proxy.calls_of("DescribeTargetGroups");
        balancers.ensure(&one, &all).await?;
        if moto.proxy.calls_of("DescribeTargetGroups") == listings {
            break;
        }
        if Instant::now() > deadline {
            bail!("each deletion of a leak was followed by another listing");
        }
    }
    delete(&*balancers, &one.id).await?;
    ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    Ok(())
}
