//! Other owners in an account: resources of the AWS Load Balancer Controller and of other Services are neither changed
//! nor deleted. Also the rules and permissions that load balancers need.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Moto, Service};
use providers::{EndpointTarget, LoadBalancerSpec, Targets};

use crate::balancers::{
    AccountResources, create_as_cloud_provider_aws, delete, new_process, settle, spec, targets, texts,
};
use crate::bed::CLUSTER;

/// The description of the controller's rules in nodes' security groups.
const DESCRIPTION: &str = "elbv2.k8s.aws/targetGroupBinding=shared";

/// Creates the controller's resources for a Service, with its tags: load balancer, target group and security group.
async fn stack_of_the_controller(moto: &Moto, service: &str) -> Result<[String; 3]> {
    let (stack, subnet) = (format!("default/{service}"), &moto.network.subnets[0]);
    let tags = [
        ("Tags.member.1.Key", "elbv2.k8s.aws/cluster"),
        ("Tags.member.1.Value", CLUSTER),
        ("Tags.member.2.Key", "service.k8s.aws/stack"),
        ("Tags.member.2.Value", &stack),
        ("Tags.member.3.Key", "service.k8s.aws/resource"),
        ("Tags.member.3.Value", "LoadBalancer"),
    ];
    let elb = async |action: &str, more: &[(&str, &str)], element: &str| -> Result<String> {
        let response = moto.aws.call(Service::Elb, action, &[more, &tags[..]].concat()).await?;
        texts(&response, element).into_iter().next().with_context(|| format!("the response to {action} is {response}"))
    };
    let group = [
        ("GroupName", "k8s-default-web1-0123456789"),
        ("GroupDescription", "[k8s] Managed SecurityGroup for LoadBalancer"),
        ("VpcId", &*moto.network.vpc),
        ("TagSpecification.1.ResourceType", "security-group"),
        ("TagSpecification.1.Tag.1.Key", "elbv2.k8s.aws/cluster"),
        ("TagSpecification.1.Tag.1.Value", CLUSTER),
        ("TagSpecification.1.Tag.2.Key", "service.k8s.aws/stack"),
        ("TagSpecification.1.Tag.2.Value", &*stack),
    ];
    let group = moto.aws.ec2("CreateSecurityGroup", &group, "groupId").await?.remove(0);
    let balancer = [("Name", "k8s-default-web1-abcdef0123"), ("Type", "network"), ("Scheme", "internal")];
    let more = [("SubnetMappings.member.1.SubnetId", &**subnet), ("SecurityGroups.member.1", &*group)];
    let balancer = elb("CreateLoadBalancer", &[&balancer[..], &more].concat(), "LoadBalancerArn").await?;
    let targets = [("Name", "k8s-default-web1-9876543210"), ("Protocol", "TCP"), ("Port", "80")];
    let more = [("VpcId", &*moto.network.vpc), ("TargetType", "ip")];
    let targets = elb("CreateTargetGroup", &[&targets[..], &more].concat(), "TargetGroupArn").await?;
    Ok([balancer, targets, group])
}

/// The controller serves a Service that has cloud-provider-aws's finalizer: the cleanup by this provider deletes
/// nothing.
pub async fn stack_of_the_controller_survives_the_cleanup_of_its_service(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let one = spec(1, &[("type", "external"), ("nlb-target-type", "ip")]);
    let created = stack_of_the_controller(&moto, &one.id.name).await?;
    let balancers = new_process(&moto).await?;
    let before = moto.proxy.changes();
    delete(&*balancers, &one.id).await?;
    ensure!(moto.proxy.changes() == before, "something was changed: {:?}", moto.proxy.calls());
    let resources = AccountResources::read(&moto).await?;
    let is_kept = resources.balancers == [created[0].clone()] && resources.target_groups == [created[1].clone()];
    ensure!(is_kept && resources.security_groups.contains(&created[2]), "{resources:?}");
    ensure!(balancers.list_owned().await?.is_empty(), "the stack is listed as leaked");
    Ok(())
}

/// Returns the name of a Service's security group, which is the same in cloud-provider-aws, the AWS Load Balancer
/// Controller and this provider.
async fn name_of_security_group(one: &LoadBalancerSpec) -> Result<String> {
    let moto = Moto::start(CLUSTER).await?;
    settle(&moto, &*new_process(&moto).await?, one, &targets(&moto.run(1).await?)).await?;
    let filter = [("Filter.1.Name", "tag:kubernetes.io/service-uid"), ("Filter.1.Value.1", &*one.id.uid)];
    Ok(moto.aws.ec2("DescribeSecurityGroups", &filter, "groupName").await?.remove(0))
}

/// With `NLBSecurityGroupMode = Managed`, cloud-provider-aws makes a security group that has only the cluster's tag.
/// The group is deleted with its load balancer, whether both were adopted before or not.
pub async fn security_group_of_cloud_provider_aws_is_deleted_with_its_load_balancer(_: Space) -> Result<()> {
    let one = spec(1, &[]);
    let name = name_of_security_group(&one).await?;
    let tag = format!("kubernetes.io/cluster/{CLUSTER}");
    for is_adopted in [true, false] {
        let moto = Moto::start(CLUSTER).await?;
        let instances = moto.run(2).await?;
        let group = [
            ("GroupName", &*name),
            ("GroupDescription", "[k8s] Managed SecurityGroup for LoadBalancer"),
            ("VpcId", &*moto.network.vpc),
            ("TagSpecification.1.ResourceType", "security-group"),
            ("TagSpecification.1.Tag.1.Key", &*tag),
            ("TagSpecification.1.Tag.1.Value", "owned"),
        ];
        let group = moto.aws.ec2("CreateSecurityGroup", &group, "groupId").await?.remove(0);
        let attached = [("SecurityGroups.member.1", &*group)];
        create_as_cloud_provider_aws(&moto, &one, &instances[0], &attached).await?;
        let balancers = new_process(&moto).await?;
        if is_adopted {
            settle(&moto, &*balancers, &one, &targets(&instances)).await?;
            let adopted = AccountResources::with_tag(&moto, &one.id.uid).await?;
            ensure!(adopted.contains(&group), "{adopted:?} do not contain {group}");
        }
        delete(&*balancers, &one.id).await?;
        let left = moto.aws.ec2("DescribeSecurityGroups", &[], "groupId").await?;
        ensure!(!left.contains(&group), "{group} is not deleted; adopted: {is_adopted}");
        ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    }
    Ok(())
}

/// Neither security groups nor the rules in the nodes' group have the tags and descriptions by which the AWS Load
/// Balancer Controller finds resources to delete.
pub async fn node_rules_have_no_tags_or_descriptions_of_the_aws_load_balancer_controller(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let balancers = new_process(&moto).await?;
    let (one, all) = (spec(1, &[]), targets(&moto.run(1).await?));
    settle(&moto, &*balancers, &one, &all).await?;
    let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &*moto.network.group)];
    let rules = moto.aws.call(Service::Ec2, "DescribeSecurityGroupRules", &filter).await?;
    ensure!(!rules.contains(DESCRIPTION), "{rules}");
    let filter = [("Filter.1.Name", "tag-key"), ("Filter.1.Value.1", "elbv2.k8s.aws/cluster")];
    let groups = moto.aws.ec2("DescribeSecurityGroups", &filter, "groupId").await?;
    ensure!(groups.is_empty(), "the controller would delete {groups:?}");

    // A rule that another client revokes is added again, with a warning.
    let ids = texts(&rules, "securityGroupRuleId");
    for id in &ids {
        let one = [("GroupId", &*moto.network.group), ("SecurityGroupRuleId.1", id)];
        moto.aws.call(Service::Ec2, "RevokeSecurityGroupIngress", &one).await.ok();
    }
    let after_revoke = AccountResources::read(&moto).await?;
    ensure!(after_revoke.node_rules == 0, "{after_revoke:?}");
    // Listings of the last seconds are reused, so this takes a while.
    let mut warnings = Vec::new();
    let is_restored = || async { Ok::<_, anyhow::Error>(AccountResources::read(&moto).await?.node_rules == 1) };
    let deadline = std::time::Instant::now() + cluster_tests::DEADLINE;
    while !is_restored().await? {
        ensure!(std::time::Instant::now() < deadline, "the rule was not added again");
        warnings = balancers.ensure(&one, &all).await?.warnings;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    ensure!(warnings.len() == 1 && warnings[0].contains(&moto.network.group), "{warnings:?}");
    delete(&*balancers, &one.id).await
}

/// AWS responds to a creation with another Service's load balancer, which has the requested name: `ensure` fails, and
/// that load balancer is kept.
pub async fn load_balancer_of_the_same_name_stays_with_its_service(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let names = [("name", "public"), ("disable-nlb-sg", "true")];
    let (first, second) = (spec(1, &names), spec(2, &names));
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &first, &all).await?;
    let before = AccountResources::read(&moto).await?;
    let error =
        balancers.ensure(&second, &all).await.err().context("the load balancer of the other Service was adopted")?;
    ensure!(error.to_string().contains(&format!("belongs to Service default/{}", first.id.name)), "{error}");
    delete(&*balancers, &second.id).await?;
    let after = AccountResources::read(&moto).await?;
    ensure!(after.balancers == before.balancers && after.target_groups == before.target_groups, "{before:?} {after:?}");
    settle(&moto, &*balancers, &first, &all).await?;
    delete(&*balancers, &first.id).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

fn endpoints(port_name: &str, of: &[(u8, u16)]) -> Targets {
    let endpoint = |(last, port): &(u8, u16)| EndpointTarget {
        port_name: port_name.into(),
        address: [10, 0, 16, *last].into(),
        port: *port,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    };
    Targets { endpoints: of.iter().map(endpoint).collect::<Vec<_>>().into(), ..Targets::default() }
}

/// Returns the ports that the nodes' group allows.
async fn open_ports(moto: &Moto) -> Result<Vec<String>> {
    let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &*moto.network.group)];
    let rules = moto.aws.call(Service::Ec2, "DescribeSecurityGroupRules", &filter).await?;
    let incoming = rules.split("<item>").filter(|rule| rule.contains("<isEgress>false"));
    let port = |rule: &str, tag: &str| texts(rule, tag).into_iter().next().unwrap_or_default();
    let mut ports: Vec<String> =
        incoming.map(|rule| format!("{}-{}", port(rule, "fromPort"), port(rule, "toPort"))).collect();
    ports.sort();
    Ok(ports)
}

/// Pods that are created later, and ports that change in a rollout, are reachable.
pub async fn firewall_follows_targets(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let nodes = targets(&moto.run(1).await?).nodes;
    let one = spec(1, &[("nlb-target-type", "ip")]);
    let name = one.ports[0].name.clone();
    let with = |of: &[(u8, u16)]| Targets { nodes: nodes.clone(), ..endpoints(&name, of) };
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &with(&[])).await?;
    ensure!(open_ports(&moto).await?.is_empty(), "rules exist without a pod: {:?}", open_ports(&moto).await?);
    balancers.set_targets(&one, &with(&[(9, 8080)])).await?;
    ensure!(open_ports(&moto).await? == ["8080-8080"], "the first pod: {:?}", open_ports(&moto).await?);
    balancers.set_targets(&one, &with(&[(9, 8080), (10, 9090)])).await?;
    ensure!(
        open_ports(&moto).await? == ["8080-8080", "9090-9090"],
        "after another port: {:?}",
        open_ports(&moto).await?
    );
    delete(&*balancers, &one.id).await
}

/// Targets follow pods while AWS refuses another change.
pub async fn targets_follow_while_another_change_is_refused(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let one = spec(1, &[("nlb-target-type", "ip")]);
    let name = one.ports[0].name.clone();
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &endpoints(&name, &[(9, 8080)])).await?;
    let refused = moto::Effect::refused("InvalidConfigurationRequest", "no");
    moto.proxy.arm(moto::Fault::always("ModifyLoadBalancerAttributes", refused));
    let cross_zone = ("service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled", "true");
    let mut two = LoadBalancerSpec { ..one.clone() };
    two.annotations.insert(cross_zone.0.into(), cross_zone.1.into());
    for pods in [&[(10, 8080)][..], &[(11, 8080), (12, 8080)]] {
        ensure!(balancers.ensure(&two, &endpoints(&name, pods)).await.is_err(), "nothing was refused");
        let group = AccountResources::read(&moto).await?.target_groups.remove(0);
        let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", &group)]).await?;
        let mut ids = texts(&health, "Id");
        ids.sort();
        let expected: Vec<String> = pods.iter().map(|(last, _)| format!("10.0.16.{last}")).collect();
        ensure!(ids == expected, "{ids:?}, not {expected:?}");
    }
    moto.proxy.disarm();
    delete(&*balancers, &one.id).await
}

/// A load balancer is created, changed and deleted with only the rights of the published policy, and only the tags that
/// docs/aws.md requires.
pub async fn published_policy_is_enough(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let balancers = new_process(&moto).await?;
    let one = spec(1, &[]);
    settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
    balancers.set_targets(&one, &targets(&instances)).await?;
    let mut two = spec(1, &[("additional-resource-tags", "team=blue"), ("cross-zone-load-balancing-enabled", "true")]);
    two.id = one.id.clone();
    two.ports.push(crate::balancers::port(443));
    settle(&moto, &*balancers, &two, &targets(&instances)).await?;
    settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
    delete(&*balancers, &one.id).await?;
    let denied = moto.proxy.denied();
    ensure!(denied.is_empty(), "{denied:?}");
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// The nodes' only security group has no tag, so its rules must not be changed: `ensure` returns a warning, and still
/// creates the load balancer.
pub async fn untagged_security_group_of_nodes_is_only_a_warning(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    let untag = [("ResourceId.1", &*moto.network.group), ("Tag.1.Key", &key)];
    moto.aws.call(Service::Ec2, "DeleteTags", &untag).await?;
    moto.proxy.ignore_reachability("the policy does not allow rules in the nodes' group");
    moto.proxy.expect_denials("the nodes' group lacks the tag");
    let balancers = new_process(&moto).await?;
    let one = spec(1, &[]);
    let ensured = balancers.ensure(&one, &targets(&instances)).await?;
    let warnings = ensured.warnings.join("; ");
    ensure!(warnings.contains(&moto.network.group) && warnings.contains(&key), "{warnings:?}");
    settle(&moto, &*balancers, &one, &targets(&instances)).await?;
    delete(&*balancers, &one.id).await
}
