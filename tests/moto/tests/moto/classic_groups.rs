//! Classic Load Balancers of cloud-provider-aws with security groups that users made: which group nodes are opened to,
//! and the rules that stay. All tests use only the permissions of the published policy.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use cluster_tests::Space;
use moto::{Element, Instance, Moto, Service};
use providers::{LoadBalancerSpec, Progress};

use crate::balancers::{PREFIX, delete, new_process, targets};
use crate::bed::CLUSTER;
use crate::classic::{create_classic, create_with_groups, hostname, ids, open_nodes, registered_instances, untyped};
use crate::reach::start_in_another_group;

/// Creates a security group as a user does.
async fn users_group(moto: &Moto, name: &str) -> Result<String> {
    let group = [("GroupName", name), ("GroupDescription", "by hand"), ("VpcId", &*moto.network.vpc)];
    Ok(moto.aws.ec2("CreateSecurityGroup", &group, "groupId").await?.remove(0))
}

/// Adds a rule to the nodes' group as a user does.
async fn allow(moto: &Moto, source: &str, port: &str) -> Result<()> {
    let rule = [
        ("GroupId", &*moto.network.group),
        ("IpPermissions.1.IpProtocol", "tcp"),
        ("IpPermissions.1.FromPort", port),
        ("IpPermissions.1.ToPort", port),
        ("IpPermissions.1.Groups.1.GroupId", source),
    ];
    moto.aws.call(Service::Ec2, "AuthorizeSecurityGroupIngress", &rule).await.map(drop)
}

/// Returns the rules for a security group, each with the group that has it, the protocol, and the first port.
async fn rules_for(moto: &Moto, source: &str) -> Result<BTreeSet<[String; 3]>> {
    let rules = moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &[], "securityGroupRuleSet").await?;
    let referenced = |rule: &Element| rule.text("referencedGroupInfo/groupId") == source;
    let named = rules.iter().filter(|rule| referenced(rule));
    Ok(named.map(|rule| ["groupId", "ipProtocol", "fromPort"].map(|field| rule.text(field).to_owned())).collect())
}

/// Two Services have the same security group, which a user made. The groups of new nodes are opened to it. Only with the
/// second load balancer, the rule of cloud-provider-aws is revoked; those of the user stay as they are.
pub async fn rules_for_the_users_security_group_are_revoked_with_the_last_load_balancer(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let group = users_group(&moto, "users").await?;
    let (one, two) = (untyped(1, &[("security-groups", &group)]), untyped(2, &[("security-groups", &group)]));
    open_nodes(&moto, &group).await?;
    for port in ["22", "29999"] {
        allow(&moto, &group, port).await?;
    }
    let by_hand = ["22", "29999"].map(|port| [moto.network.group.clone(), "tcp".to_owned(), port.to_owned()]);
    for service in [&one, &two] {
        create_with_groups(&moto, &service.id, (CLUSTER, &[&group]), &instances[0]).await?;
    }
    let balancers = new_process(&moto).await?;
    for service in [&one, &two] {
        balancers.ensure(service, &targets(&instances)).await?;
    }
    let registered = registered_instances(&moto, &two.id).await?;
    ensure!(registered == ids(&[&instances[..], &instances].concat()), "not registered with both: {registered:?}");
    let before = rules_for(&moto, &group).await?;
    // The range of node ports, and the port of the health check.
    let opened = before.iter().filter(|[opened, ..]| *opened != moto.network.group).count();
    ensure!(opened == 2 && before.len() == 5, "the new node's group is not opened: {before:?}");

    delete(&*balancers, &one.id).await?;
    ensure!(rules_for(&moto, &group).await? == before, "{:?}", rules_for(&moto, &group).await?);
    // Another process knows only what AWS returns.
    delete(&*new_process(&moto).await?, &two.id).await?;
    // moto returns no descriptions of rules for groups, so the rules of `ccm` are not recognized.
    let mut after = rules_for(&moto, &group).await?;
    after.retain(|[opened, ..]| *opened == moto.network.group);
    ensure!(after == by_hand.into(), "{after:?}");
    let groups = moto.aws.ec2("DescribeSecurityGroups", &[], "groupId").await?;
    ensure!(groups.contains(&group), "the user's group was deleted");
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// AWS returns the additional security group of a user before the one that cloud-provider-aws made: nodes are opened
/// only to the latter. An annotation that lists several groups determines their order, too.
pub async fn nodes_are_opened_to_the_security_group_that_cloud_provider_aws_chooses(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let (first, second) = (users_group(&moto, "first").await?, users_group(&moto, "second").await?);
    let extra = untyped(1, &[("extra-security-groups", &first)]);
    let made = create_classic(&moto, &extra.id, CLUSTER, &instances[0]).await?;
    let name = extra.id.default_name();
    let order =
        [("LoadBalancerName", &*name), ("SecurityGroups.member.1", &*first), ("SecurityGroups.member.2", &*made)];
    moto.aws.call(Service::Classic, "ApplySecurityGroupsToLoadBalancer", &order).await?;
    let listed = untyped(2, &[("security-groups", &format!("{second},{first}"))]);
    create_with_groups(&moto, &listed.id, (CLUSTER, &[&first, &second]), &instances[0]).await?;
    let balancers = new_process(&moto).await?;
    for (service, source) in [(&extra, &made), (&listed, &second)] {
        balancers.ensure(service, &targets(&instances)).await?;
        let opened = rules_for(&moto, source).await?;
        ensure!(opened.iter().any(|[opened, ..]| *opened != moto.network.group), "{source}: {opened:?}");
    }
    ensure!(rules_for(&moto, &first).await?.is_empty(), "first: {:?}", rules_for(&moto, &first).await?);
    for service in [&extra, &listed] {
        delete(&*balancers, &service.id).await?;
    }
    ensure!(rules_for(&moto, &made).await?.is_empty(), "{:?}", rules_for(&moto, &made).await?);
    Ok(())
}

/// The move of a Service is cancelled before the Network Load Balancer has a healthy target. No security group shows
/// that the Service has a Classic Load Balancer, whose address it keeps; also after a restart.
pub async fn cancelled_move_keeps_the_load_balancer_with_the_users_security_group(_: Space) -> Result<()> {
    for kind in ["", "nlb"] {
        let moto = Moto::start(CLUSTER).await?;
        let instances: Vec<Instance> = moto.run(2).await?;
        let group = users_group(&moto, "users").await?;
        let mut moving = untyped(1, &[("replace-classic", "3600")]);
        if !kind.is_empty() {
            moving.annotations.insert(format!("{PREFIX}type"), kind.into());
        }
        open_nodes(&moto, &group).await?;
        create_with_groups(&moto, &moving.id, (CLUSTER, &[&group]), &instances[0]).await?;
        instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, true));
        let balancers = new_process(&moto).await?;
        let old = hostname(&balancers.ensure(&moving, &targets(&instances[..1])).await?)?;
        let mut annotations = moving.annotations.clone();
        annotations.remove(&format!("{PREFIX}replace-classic"));
        let cancelled = LoadBalancerSpec { annotations, ..moving.clone() };
        for process in [balancers, new_process(&moto).await?] {
            let ensured = process.ensure(&cancelled, &targets(&instances)).await?;
            ensure!(hostname(&ensured)? == old && ensured.progress != Progress::Settled, "{kind}: {ensured:?}");
            let registered = registered_instances(&moto, &moving.id).await?;
            ensure!(registered == ids(&instances), "{kind}: {registered:?}");
        }
        instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, false));
        let next = new_process(&moto).await?;
        delete(&*next, &cancelled.id).await?;
        ensure!(registered_instances(&moto, &moving.id).await?.is_none(), "{kind}: the load balancer exists");
        ensure!(rules_for(&moto, &group).await?.is_empty(), "{kind}: {:?}", rules_for(&moto, &group).await?);
    }
    Ok(())
}
