//! Leaked resources in AWS: found by tags and by names in rules, reported, and deleted if that is allowed.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Space, eventually};
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::api::{Api, PostParams};
use moto::Service;
use providers::LoadBalancerId;
use serde_json::json;

use crate::balancers::{AccountResources, PREFIX, fresh, service, settle, spec, targets, texts};
use crate::bed::{AwsBed, CLUSTER};

/// Creates a target group, like a process that crashed right after that.
async fn target_group(bed: &AwsBed, name: &str, tags: &[(&str, &str)]) -> Result<String> {
    let mut parameters = vec![
        ("Name".to_owned(), name.to_owned()),
        ("Protocol".to_owned(), "TCP".to_owned()),
        ("Port".to_owned(), "30080".to_owned()),
        ("VpcId".to_owned(), bed.moto.network.vpc.clone()),
        ("TargetType".to_owned(), "instance".to_owned()),
    ];
    for (number, (key, value)) in (1..).zip(tags) {
        parameters.push((format!("Tags.member.{number}.Key"), (*key).to_owned()));
        parameters.push((format!("Tags.member.{number}.Value"), (*value).to_owned()));
    }
    let parameters: Vec<(&str, &str)> = parameters.iter().map(|(key, value)| (&**key, &**value)).collect();
    let made = bed.moto.aws.call(Service::Elb, "CreateTargetGroup", &parameters).await?;
    texts(&made, "TargetGroupArn").into_iter().next().context("no target group")
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

/// A complete load balancer, an incomplete one, and rules, all of deleted Services: they are deleted. Resources that
/// have a Service, or may be another cluster's, stay.
pub async fn leaked_resources_are_reported_and_deleted(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let machines = bed.nodes(1).await?;
    let services: Api<KubeService> = Api::namespaced(bed.cloud.bed.client.clone(), "default");
    let annotations = json!({format!("{PREFIX}type"): "nlb"});
    let web = services.create(&PostParams::default(), &service("web", annotations)?).await?;
    let uid = web.metadata.uid.context("no uid")?;

    let left = spec(7, &[]);
    settle(&bed.moto, &*fresh(&bed.moto).await?, &left, &targets(&machines)).await?;
    let whole = AccountResources::read(&bed.moto).await?.balancers;
    let own = format!("kubernetes.io/cluster/{CLUSTER}");
    let gone = ("kubernetes.io/service-name", "default/gone");
    let half = target_group(&bed, "half", &[(&own, "owned"), gone]).await?;
    let another = target_group(&bed, "another", &[("kubernetes.io/cluster/another", "owned"), gone]).await?;
    let both =
        [(&*own, "owned"), ("kubernetes.io/cluster/another", "owned"), ("kubernetes.io/service-name", "default/x")];
    let both = target_group(&bed, "both", &both).await?;
    let standing = LoadBalancerId { cluster: CLUSTER.into(), namespace: "default".into(), name: "web".into(), uid };
    node_rule(&bed, "31001", "kubernetes.io/rule/nlb/client=a0123456789abcdef").await?;
    node_rule(&bed, "31002", &format!("kubernetes.io/rule/nlb/client={}", standing.default_name())).await?;
    node_rule(&bed, "31003", "by hand").await?;

    // Without the flag they are only reported.
    let flags = ["--controllers=cloud-node,service", "--load-balancer-audit-period=1s"];
    let manager = bed.ccm(&flags).await?;
    let told = async |name: &str, what: &str| {
        eventually(format!("{what} of {name} is told"), || async {
            let events = bed.cloud.events(name).await?;
            ensure!(events.keys().any(|event| event.contains(what)), "{events:?}");
            Ok(())
        })
        .await
    };
    told(&left.id.name, "Warning LeakedLoadBalancer the Service no longer exists, but the cloud has resources of it: ")
        .await?;
    told("gone", &half).await?;
    told("x", "delete it by hand if it is not needed").await?;
    told("a0123456789abcdef", &format!("{}/sgr-", bed.moto.network.group)).await?;
    let held = AccountResources::read(&bed.moto).await?;
    let stays = held.target_groups.contains(&half) && held.balancers.contains(&whole[0]);
    ensure!(stays, "it was deleted: {held:?}");
    manager.stop().await?;

    let _manager = bed.ccm(&[&flags[..], &["--collect-leaked-load-balancers"]].concat()).await?;
    eventually("what is left is gone", || async {
        let held = AccountResources::read(&bed.moto).await?;
        // One of the Service, those of other owners.
        ensure!(held.balancers.len() == 1 && held.target_groups.len() == 3, "{held:?}");
        // The Service's own group and the shared one; rules for the shared one, for the Service, and of another client.
        ensure!(held.security_groups.len() == 2 && held.node_rules == 3, "{held:?}");
        Ok(())
    })
    .await?;
    told(&left.id.name, "Normal LeakedLoadBalancerDeleted").await?;
    let held = AccountResources::read(&bed.moto).await?;
    ensure!([another, both].iter().all(|group| held.target_groups.contains(group)), "{held:?}");
    Ok(())
}
