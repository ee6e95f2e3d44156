//! Reachability: security groups allow the traffic of each target that should serve, after any change.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Instance, Moto, Policy, Service};
use providers::{EndpointTarget, ErrorKind, LoadBalancerId, LoadBalancerSpec, Port, Progress, Protocol, Targets};

use crate::balancers::{AccountResources, PREFIX, delete, new_process, port, settle, spec, targets, texts};
use crate::bed::{CLUSTER, POLICY};
use crate::classic::{create_classic, untyped};

/// Starts an instance of another node group: it has a security group of its own, with the cluster's tag.
pub async fn start_in_another_group(moto: &Moto) -> Result<Instance> {
    start_in_group(moto, "other-nodes").await
}

/// Starts an instance with a new security group of this name, as above.
async fn start_in_group(moto: &Moto, name: &str) -> Result<Instance> {
    let (tag, network) = (format!("kubernetes.io/cluster/{CLUSTER}"), &moto.network);
    let group = [
        ("GroupName", name),
        ("GroupDescription", "other nodes"),
        ("VpcId", &*network.vpc),
        ("TagSpecification.1.ResourceType", "security-group"),
        ("TagSpecification.1.Tag.1.Key", &*tag),
        ("TagSpecification.1.Tag.1.Value", "owned"),
    ];
    let group = moto.aws.ec2("CreateSecurityGroup", &group, "groupId").await?.remove(0);
    let instance = [
        ("ImageId", "ami-12345678"),
        ("InstanceType", "m5.large"),
        ("MinCount", "1"),
        ("MaxCount", "1"),
        ("SubnetId", &*network.subnets[0]),
        ("SecurityGroupId.1", &*group),
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", &*tag),
        ("TagSpecification.1.Tag.1.Value", "owned"),
    ];
    let id = moto.aws.ec2("RunInstances", &instance, "instanceId").await?.into_iter().next().context("no instance")?;
    Ok(Instance { id, zone: "eu-west-1a".into(), name: "other".into(), address: String::new() })
}

/// Nodes with another security group join; ports, node ports and probes change. At each moment, every registered target
/// that was reached before is still reached.
pub async fn every_target_is_reached_without_a_gap(_: Space) -> Result<()> {
    reached_without_a_gap(&[]).await
}

/// As the test above, with rules for clients and subnets in the nodes' groups, as cloud-provider-aws creates them.
pub async fn targets_without_the_shared_group_are_reached_without_a_gap(_: Space) -> Result<()> {
    reached_without_a_gap(&[("disable-nlb-sg", "true")]).await
}

async fn reached_without_a_gap(annotations: &[(&str, &str)]) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(2).await?;
    instances.push(start_in_another_group(&moto).await?);
    let balancers = new_process(&moto).await?;
    let one = spec(1, annotations);
    settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
    balancers.set_targets(&one, &targets(&instances)).await?;

    let mut dns = port(53);
    dns.protocol = Protocol::Udp;
    let moved = Port { node_port: Some(31_999), ..port(80) };
    let probed = ("service.beta.kubernetes.io/aws-load-balancer-healthcheck-port".to_owned(), "10256".to_owned());
    for (what, ports, annotation) in [
        ("another port", vec![port(80), port(443)], None),
        ("a port for UDP", vec![port(80), port(443), dns], None),
        ("another node port", vec![moved.clone(), port(443)], None),
        ("another port of health checks", vec![moved], Some(probed)),
    ] {
        let mut changed = LoadBalancerSpec { ports, ..one.clone() };
        changed.annotations.extend(annotation);
        settle(&moto, &*balancers, &changed, &targets(&instances)).await.context(what)?;
        let unreached = moto.proxy.unreached(None).await?;
        ensure!(unreached.is_empty(), "{what}: {unreached:?} are not reached");
        ensure!(moto.proxy.gaps().is_empty(), "{what}: {:?}", moto.proxy.gaps());
    }
    balancers.set_targets(&one, &targets(&instances[2..])).await.ok();
    settle(&moto, &*balancers, &one, &targets(&instances[2..])).await?;
    ensure!(moto.proxy.unreached(None).await?.is_empty() && moto.proxy.gaps().is_empty(), "{:?}", moto.proxy.gaps());
    delete(&*balancers, &one.id).await?;
    ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    Ok(())
}

/// Returns all rules of this provider for nodes.
async fn rules_of_nodes(moto: &Moto) -> Result<BTreeSet<Vec<String>>> {
    let rules = moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &[], "securityGroupRuleSet").await?;
    let fields = ["groupId", "ipProtocol", "fromPort", "toPort", "cidrIpv4", "description"];
    let own = rules.iter().filter(|rule| rule.text("description").starts_with("kubernetes.io/rule/"));
    Ok(own.map(|rule| fields.map(|field| rule.text(field).to_owned()).into()).collect())
}

/// A node of another node group joins while the Service is invalid after a restart, or while AWS refuses a change: its
/// security group is opened, too. The clients stay those of the last valid request.
pub async fn new_nodes_are_reached_while_their_service_is_invalid_or_refused(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    for annotations in [&[][..], &[("disable-nlb-sg", "true")]] {
        for is_invalid in [true, false] {
            let at = format!("{annotations:?}, invalid: {is_invalid}");
            let one = LoadBalancerSpec { source_ranges: vec!["192.0.2.0/24".parse()?], ..spec(1, annotations) };
            settle(&moto, &*new_process(&moto).await?, &one, &targets(&instances[..1])).await?;
            let next = new_process(&moto).await?;
            let mut changed = one.clone();
            if is_invalid {
                changed.annotations.insert(format!("{PREFIX}scheme"), "public".into());
                changed.source_ranges.clear();
                next.follow_targets(&changed, &targets(&instances)).await.with_context(|| at.clone())?;
            } else {
                // There is no such subnet: `ensure` fails, and only updates the existing load balancer's targets.
                changed.annotations.insert(format!("{PREFIX}subnets"), "subnet-none".into());
                let refused = next.ensure(&changed, &targets(&instances)).await;
                ensure!(refused.is_err(), "{at}: {refused:?}");
            }
            let unreached = moto.proxy.unreached(None).await?;
            ensure!(unreached.is_empty(), "{at}: {unreached:?} are not reached");
            ensure!(moto.proxy.gaps().is_empty(), "{at}: {:?}", moto.proxy.gaps());
            let opened = rules_of_nodes(&moto).await?;
            settle(&moto, &*next, &one, &targets(&instances)).await.with_context(|| at.clone())?;
            let settled = rules_of_nodes(&moto).await?;
            ensure!(opened == settled, "{at}: {opened:?} is not what the valid Service has: {settled:?}");
            delete(&*next, &one.id).await.with_context(|| at.clone())?;
            ensure!(
                AccountResources::read(&moto).await?.is_empty(),
                "{at}: {:?}",
                AccountResources::read(&moto).await?
            );
        }
    }
    Ok(())
}

/// Creates a load balancer as a user does, with a security group that no other group is opened to. Returns its ARN.
async fn create_closed_as_user(moto: &Moto, name: &str) -> Result<String> {
    let (tag, network) = (format!("kubernetes.io/cluster/{CLUSTER}"), &moto.network);
    let group = [("GroupName", name), ("GroupDescription", name), ("VpcId", &*network.vpc)];
    let group = moto.aws.ec2("CreateSecurityGroup", &group, "groupId").await?.remove(0);
    let balancer = [
        ("Name", name),
        ("Type", "network"),
        ("Scheme", "internal"),
        ("Subnets.member.1", &*network.subnets[0]),
        ("SecurityGroups.member.1", &*group),
        ("Tags.member.1.Key", &*tag),
        ("Tags.member.1.Value", "shared"),
    ];
    let made = moto.aws.call(Service::Elb, "CreateLoadBalancer", &balancer).await?;
    texts(&made, "LoadBalancerArn").pop().context("no load balancer")
}

/// A Service moves to a load balancer of its user, who has not opened the nodes to it. Until the user does, the
/// Service's own load balancer serves, also with a node of another node group that joins.
pub async fn new_nodes_are_reached_until_the_load_balancer_of_the_user_serves(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let users = create_closed_as_user(&moto, "users").await?;
    let (balancers, own) = (new_process(&moto).await?, spec(1, &[("scheme", "internal")]));
    let name = settle(&moto, &*balancers, &own, &targets(&instances[..1])).await?;
    let moved = LoadBalancerSpec { id: own.id.clone(), ..spec(1, &[("arn", &users)]) };
    for nodes in [&instances[..1], &instances[..]] {
        let ensured = balancers.ensure(&moved, &targets(nodes)).await?;
        ensure!(ensured.progress != Progress::Settled, "the old load balancer was deleted: {ensured:?}");
        let unreached = moto.proxy.unreached(Some(&name)).await?;
        ensure!(unreached.is_empty(), "{} nodes: {unreached:?} are not reached", nodes.len());
    }
    moto.proxy.open_by_hand(["users".to_owned()].into());
    settle(&moto, &*balancers, &moved, &targets(&instances)).await?;
    delete(&*balancers, &own.id).await
}

/// A load balancer without security groups is replaced by one with the shared group, which is being provisioned. Nodes
/// of other node groups join, also while AWS refuses a further change: both load balancers reach them.
pub async fn new_nodes_are_reached_by_both_load_balancers_during_a_replacement(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    for name in ["second-nodes", "third-nodes"] {
        instances.push(start_in_group(&moto, name).await?);
    }
    let old = spec(1, &[("scheme", "internal"), ("disable-nlb-sg", "true")]);
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &old, &targets(&instances[..1])).await?;
    moto.proxy.delay_provisioning(1_000_000);
    let new = LoadBalancerSpec { id: old.id.clone(), ..spec(1, &[("scheme", "internet-facing")]) };
    let mut refused = new.clone();
    // There is no such subnet: `ensure` fails, and only updates the existing load balancer's targets.
    refused.annotations.insert(format!("{PREFIX}subnets"), "subnet-none".into());
    for (wanted, nodes) in [(&new, &instances[..1]), (&new, &instances[..2]), (&refused, &instances[..])] {
        let ensured = balancers.ensure(wanted, &targets(nodes)).await;
        let is_waiting = ensured.as_ref().is_ok_and(|ensured| ensured.progress != Progress::Settled);
        ensure!(is_waiting == std::ptr::eq(wanted, &new), "{} nodes: {ensured:?}", nodes.len());
        let unreached = moto.proxy.unreached(None).await?;
        ensure!(unreached.is_empty(), "{} nodes: {unreached:?} are not reached", nodes.len());
    }
    moto.proxy.delay_provisioning(0);
    settle(&moto, &*balancers, &new, &targets(&instances)).await?;
    delete(&*balancers, &old.id).await
}

/// AWS refuses to open the security group of a new node, or the group was replaced, while the Service is invalid after
/// a restart. Targets follow nevertheless, and the first call that AWS allows opens the group. The caller repeats the
/// call: for the replaced group because of an error, for the refusal because of the result, which names the group.
pub async fn refused_opening_is_repeated_while_the_service_is_invalid(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let all = targets(&instances);
    for annotations in [&[][..], &[("disable-nlb-sg", "true")]] {
        for (code, expected) in
            [("RulesPerSecurityGroupLimitExceeded", None), ("InvalidGroup.NotFound", Some(ErrorKind::Conflict))]
        {
            let at = format!("{annotations:?}, {code}");
            let one = spec(1, annotations);
            settle(&moto, &*new_process(&moto).await?, &one, &targets(&instances[..1])).await?;
            let next = new_process(&moto).await?;
            let mut invalid = one.clone();
            invalid.annotations.insert(format!("{PREFIX}scheme"), "public".into());
            moto.proxy.arm(Fault::always("AuthorizeSecurityGroupIngress", Effect::refused(code, "as scripted")));
            for _ in 0..2 {
                let followed = next.follow_targets(&invalid, &all).await;
                let kind = followed.as_ref().err().map(|error| error.kind);
                ensure!(kind == expected, "{at}: {followed:?}");
                let refused = followed.ok().and_then(|followed| followed.refused).map(|error| error.message);
                let is_named = refused.as_ref().is_some_and(|text| text.contains("sg-") && text.contains(code));
                ensure!(is_named == expected.is_none(), "{at}: the caller reports {refused:?}");
                let unreached = moto.proxy.unreached(None).await?;
                ensure!(unreached == [format!("{}:30080", instances[1].id)], "{at}: registered: {unreached:?}");
            }
            moto.proxy.disarm();
            let followed = next.follow_targets(&invalid, &all).await.with_context(|| at.clone())?;
            ensure!(followed.refused.is_none(), "{at}: {followed:?}");
            let unreached = moto.proxy.unreached(None).await?;
            ensure!(unreached.is_empty(), "{at}: {unreached:?} are not reached");
            delete(&*next, &one.id).await.with_context(|| at.clone())?;
        }
    }
    Ok(())
}

/// Two load balancers without security groups need the same rule for health checks of nodes, which EC2 stores once. The
/// load balancer that the rule names is deleted, once by the process that created both, and once by another process
/// that has not read them yet.
pub async fn rule_of_two_load_balancers_stays_while_one_needs_it(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(2).await?);
    let dns = |number: usize, node_port: u16| {
        let udp = Port { protocol: Protocol::Udp, node_port: Some(node_port), ..port(53) };
        LoadBalancerSpec { ports: vec![udp], ..spec(number, &[("disable-nlb-sg", "true")]) }
    };
    for another_process in [false, true] {
        let balancers = new_process(&moto).await?;
        let (first, second) = (dns(1, 30_053), dns(2, 31_053));
        settle(&moto, &*balancers, &first, &all).await?;
        settle(&moto, &*balancers, &second, &all).await?;
        let balancers = if another_process { new_process(&moto).await? } else { balancers };
        delete(&*balancers, &first.id).await?;
        let unreached = moto.proxy.unreached(None).await?;
        ensure!(unreached.is_empty(), "another process {another_process}: {unreached:?} are not reached");
        ensure!(moto.proxy.gaps().is_empty(), "another process {another_process}: {:?}", moto.proxy.gaps());
        settle(&moto, &*balancers, &second, &all).await?;
        let owned = balancers.list_owned().await?;
        ensure!(owned.len() == 1 && owned[0].id == second.id, "a rule names a deleted load balancer: {owned:?}");
        delete(&*balancers, &second.id).await?;
        ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    }
    Ok(())
}

/// Removes the cluster's tag from a security group.
async fn untag(moto: &Moto, group: &str) -> Result<()> {
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    moto.aws.call(Service::Ec2, "DeleteTags", &[("ResourceId.1", group), ("Tag.1.Key", &key)]).await.map(drop)
}

/// Returns the descriptions of the incoming rules of a security group.
async fn descriptions(moto: &Moto, group: &str) -> Result<Vec<String>> {
    let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", group)];
    let rules = moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &filter, "securityGroupRuleSet").await?;
    let incoming = rules.iter().filter(|rule| rule.text("isEgress") == "false");
    let mut found: Vec<String> = incoming.map(|rule| rule.text("description").to_owned()).collect();
    found.sort();
    Ok(found)
}

/// Adds a rule of another client.
async fn add_rule(moto: &Moto, group: &str, port: &str, description: &str) -> Result<()> {
    let rule = [
        ("GroupId", group),
        ("IpPermissions.1.IpProtocol", "tcp"),
        ("IpPermissions.1.FromPort", port),
        ("IpPermissions.1.ToPort", port),
        ("IpPermissions.1.IpRanges.1.CidrIp", "203.0.113.0/24"),
        ("IpPermissions.1.IpRanges.1.Description", description),
    ];
    moto.aws.call(Service::Ec2, "AuthorizeSecurityGroupIngress", &rule).await.map(drop)
}

/// Allows changes of rules in all security groups, as an operator may.
const RULES_ANYWHERE: &str = r#"{"Statement": [{"Effect": "Allow", "Resource": "*", "Action":
    ["ec2:AuthorizeSecurityGroupIngress", "ec2:ModifySecurityGroupRules", "ec2:RevokeSecurityGroupIngress"]}]}"#;

/// The only security groups of instances have no tag. Their rules are revoked when the last node with the group is
/// removed, or the load balancer is deleted, even if another process created them. Rules of other clients stay.
pub async fn rules_in_groups_without_the_tag_are_revoked(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let start = async || {
        let balancers = new_process(&moto).await?;
        // This policy replaces the published one, which each new process gets.
        moto.proxy.enforce(Policy::parse(&[POLICY, RULES_ANYWHERE], &[("CLUSTER", CLUSTER)])?);
        anyhow::Ok(balancers)
    };
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let of_instance = [("InstanceId.1", &*instances[1].id)];
    let described = moto.aws.call(Service::Ec2, "DescribeInstances", &of_instance).await?;
    let second = texts(&described, "groupId").into_iter().next().context("no group")?;
    let groups = [moto.network.group.clone(), second];
    for group in &groups {
        untag(&moto, group).await?;
        add_rule(&moto, group, "22", "by hand").await?;
        add_rule(&moto, group, "80", "kubernetes.io/rule/nlb/client=another").await?;
    }
    let foreign = descriptions(&moto, &groups[0]).await?;
    let one = spec(1, &[("disable-nlb-sg", "true")]);
    for another_process in [false, true] {
        let mut balancers = start().await?;
        settle(&moto, &*balancers, &one, &targets(&instances)).await?;
        for group in &groups {
            ensure!(descriptions(&moto, group).await?.len() > foreign.len(), "{group} is not opened");
        }
        if another_process {
            balancers = start().await?;
        }
        settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
        let left = descriptions(&moto, &groups[1]).await?;
        ensure!(left == foreign, "another process {another_process}: without a node, {left:?}");
        if another_process {
            balancers = start().await?;
        }
        delete(&*balancers, &one.id).await?;
        for group in &groups {
            let left = descriptions(&moto, group).await?;
            ensure!(left == foreign, "another process {another_process}: without the load balancer, {left:?}");
        }
    }
    Ok(())
}

/// Creates a load balancer with the name of a Service's load balancer, as a copy of the cluster would. Adds a rule for
/// it to the nodes' group. Returns the description of the rule.
async fn copy_of(moto: &Moto, id: &LoadBalancerId, port: &str) -> Result<String> {
    let (name, subnet) = (id.default_name(), &moto.network.subnets[0]);
    let copy = [
        ("Name", &*name),
        ("Type", "network"),
        ("Scheme", "internal"),
        ("Subnets.member.1", &**subnet),
        ("Tags.member.1.Key", "kubernetes.io/cluster/copy"),
        ("Tags.member.1.Value", "owned"),
    ];
    moto.aws.call(Service::Elb, "CreateLoadBalancer", &copy).await?;
    let description = format!("kubernetes.io/rule/nlb/client={name}");
    add_rule(moto, &moto.network.group, port, &description).await?;
    Ok(description)
}

/// A load balancer with the name of a Service's load balancer belongs to a copy of the cluster: its rules stay when the
/// Service is deleted.
pub async fn rules_of_a_load_balancer_of_the_same_name_stay(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let one = spec(1, &[("disable-nlb-sg", "true")]);
    let description = copy_of(&moto, &one.id, "30080").await?;
    let balancers = new_process(&moto).await?;
    delete(&*balancers, &one.id).await?;
    let left = descriptions(&moto, &moto.network.group).await?;
    ensure!(left == [description], "{left:?}");
    Ok(())
}

/// A Service has a load balancer with a name of the user's choice, and a copy of the cluster one with the generated
/// name: neither removes rules of the other. The Service's rules are revoked when it is deleted, even by another
/// process.
pub async fn rules_of_a_chosen_name_are_revoked_next_to_a_copy_of_the_cluster(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for (another_process, port) in [(false, "30081"), (true, "30082")] {
        let name = format!("mine-{port}");
        let one = spec(1, &[("disable-nlb-sg", "true"), ("name", &name)]);
        let before = descriptions(&moto, &moto.network.group).await?;
        let description = copy_of(&moto, &one.id, port).await?;
        let mut balancers = new_process(&moto).await?;
        settle(&moto, &*balancers, &one, &all).await?;
        let opened = descriptions(&moto, &moto.network.group).await?;
        ensure!(opened.contains(&description), "another process {another_process}: the copy lost its rule: {opened:?}");
        if another_process {
            balancers = new_process(&moto).await?;
        }
        delete(&*balancers, &one.id).await?;
        let mut left = descriptions(&moto, &moto.network.group).await?;
        left.retain(|rule| !before.contains(rule));
        ensure!(left == [description], "another process {another_process}: {left:?}");
        let owned = balancers.list_owned().await?;
        ensure!(owned.is_empty(), "{owned:?}");
    }
    Ok(())
}

/// Creates a security group of pods, and a network interface with it and this address.
async fn interface_of_pod(moto: &Moto, address: &str) -> Result<String> {
    let (tag, network) = (format!("kubernetes.io/cluster/{CLUSTER}"), &moto.network);
    let group = [
        ("GroupName", "pods"),
        ("GroupDescription", "pods"),
        ("VpcId", &*network.vpc),
        ("TagSpecification.1.ResourceType", "security-group"),
        ("TagSpecification.1.Tag.1.Key", &*tag),
        ("TagSpecification.1.Tag.1.Value", "owned"),
    ];
    let group = moto.aws.ec2("CreateSecurityGroup", &group, "groupId").await?.remove(0);
    let interface = [("SubnetId", &*network.subnets[0]), ("PrivateIpAddress", address), ("SecurityGroupId.1", &*group)];
    moto.aws.ec2("CreateNetworkInterface", &interface, "networkInterfaceId").await?;
    Ok(group)
}

/// A pod has a network interface with a security group of its own, as on Fargate: that group is opened, and closed when
/// the last load balancer is deleted.
pub async fn pod_with_its_own_security_group_is_reached(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let nodes = targets(&moto.run(1).await?).nodes;
    let group = interface_of_pod(&moto, "10.0.16.200").await?;
    let one = spec(1, &[("nlb-target-type", "ip")]);
    let pod = EndpointTarget {
        port_name: one.ports[0].name.clone(),
        address: [10, 0, 16, 200].into(),
        port: 8080,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    };
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &Targets { nodes: nodes.clone(), ..Targets::default() }).await?;
    balancers.set_targets(&one, &Targets { nodes, endpoints: [pod].into(), ..Targets::default() }).await?;
    let unreached = moto.proxy.unreached(None).await?;
    ensure!(unreached.is_empty(), "{unreached:?} are not reached");
    let rules = async || {
        let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &*group)];
        let egress = moto.aws.ec2("DescribeSecurityGroupRules", &filter, "isEgress").await?;
        anyhow::Ok(egress.iter().filter(|egress| *egress == "false").count())
    };
    ensure!(rules().await? == 1, "{} rules", rules().await?);
    delete(&*balancers, &one.id).await?;
    ensure!(rules().await? == 0, "{} rules are left", rules().await?);
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// A node with another security group joins after the takeover of a Classic Load Balancer, whose creator has opened only the
/// groups of earlier nodes.
pub async fn classic_load_balancer_reaches_a_node_with_another_group(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let one = untyped(1, &[]);
    create_classic(&moto, &one.id, CLUSTER, &instances[0]).await?;
    let balancers = new_process(&moto).await?;
    balancers.ensure(&one, &targets(&instances)).await?;
    let all = [instances, vec![start_in_another_group(&moto).await?]].concat();
    balancers.set_targets(&one, &targets(&all)).await?;
    let classic = moto.aws.call(Service::Classic, "DescribeLoadBalancers", &[]).await?;
    ensure!(texts(&classic, "InstanceId").len() == 2, "{classic}");
    ensure!(moto.proxy.unreached(None).await?.is_empty(), "{:?}", moto.proxy.unreached(None).await?);
    delete(&*balancers, &one.id).await
}

/// A test of the mock: a rule that another client revokes makes targets unreachable and unhealthy.
pub async fn target_behind_a_closed_group_is_unhealthy(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let balancers = new_process(&moto).await?;
    let one = spec(1, &[]);
    settle(&moto, &*balancers, &one, &targets(&instances)).await?;
    ensure!(moto.proxy.unreached(None).await?.is_empty(), "{:?}", moto.proxy.unreached(None).await?);
    let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &*moto.network.group)];
    let rules = moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &filter, "securityGroupRuleSet").await?;
    for rule in rules.iter().filter(|rule| rule.text("isEgress") == "false") {
        let id = rule.text("securityGroupRuleId");
        let one = [("GroupId", &*moto.network.group), ("SecurityGroupRuleId.1", id)];
        moto.aws.call(Service::Ec2, "RevokeSecurityGroupIngress", &one).await?;
    }
    let expected = format!("{}:30080", instances[0].id);
    ensure!(moto.proxy.unreached(None).await? == [expected.clone()], "{:?}", moto.proxy.unreached(None).await?);
    // Targets that are registered from now on are unhealthy.
    balancers.set_targets(&one, &targets(&[])).await?;
    balancers.set_targets(&one, &targets(&instances)).await?;
    let group = AccountResources::read(&moto).await?.target_groups.remove(0);
    let observed = balancers.observe(&one.id).await?;
    let providers::Observed::Present(balancer) = observed else { anyhow::bail!("there is no load balancer") };
    let health: Vec<_> = balancer.targets.iter().map(|target| target.health).collect();
    ensure!(health == [providers::Health::Unhealthy], "{group}: {health:?}");
    let from_moto = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", &group)]).await?;
    ensure!(texts(&from_moto, "State") == ["healthy"], "moto itself reports all targets as healthy: {from_moto}");
    delete(&*balancers, &one.id).await
}
