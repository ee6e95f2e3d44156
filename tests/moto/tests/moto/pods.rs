//! Pods whose network interfaces are not their nodes' first ones: custom networking, prefixes of addresses, security
//! groups for pods, and Fargate. The security groups of the interfaces are opened to load balancers with `ip` targets.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Instance, Moto, Service};
use providers::{EndpointTarget, ErrorKind, LoadBalancerSpec, NodeTarget, PodRef, Targets};

use crate::balancers::{AccountResources, delete, new_process, settle, spec, targets};
use crate::bed::CLUSTER;

/// A range of addresses for pods, next to the range of the nodes.
const POD_RANGE: &str = "100.64.0.0/16";

/// Creates a subnet for pods, in a separate range of the network.
async fn subnet_of_pods(moto: &Moto) -> Result<String> {
    let range = [("VpcId", &*moto.network.vpc), ("CidrBlock", POD_RANGE)];
    moto.aws.call(Service::Ec2, "AssociateVpcCidrBlock", &range).await?;
    let subnet = [("VpcId", &*moto.network.vpc), ("CidrBlock", "100.64.0.0/20"), ("AvailabilityZone", "eu-west-1a")];
    moto.aws.ec2("CreateSubnet", &subnet, "subnetId").await?.into_iter().next().context("no subnet")
}

/// Creates a security group, with the cluster's tag or without it.
async fn security_group(moto: &Moto, name: &str, tagged: bool) -> Result<String> {
    let tag = format!("kubernetes.io/cluster/{CLUSTER}");
    let group = [("GroupName", name), ("GroupDescription", "of pods"), ("VpcId", &*moto.network.vpc)];
    let tags = [
        ("TagSpecification.1.ResourceType", "security-group"),
        ("TagSpecification.1.Tag.1.Key", &*tag),
        ("TagSpecification.1.Tag.1.Value", "owned"),
    ];
    let parameters = if tagged { [&group[..], &tags].concat() } else { group.into() };
    moto.aws.ec2("CreateSecurityGroup", &parameters, "groupId").await?.into_iter().next().context("no group")
}

/// Creates a network interface with these groups and this address.
async fn interface(moto: &Moto, subnet: &str, groups: &[&str], address: &str) -> Result<String> {
    let names: Vec<String> = (1..=groups.len()).map(|number| format!("SecurityGroupId.{number}")).collect();
    let mut parameters = vec![("SubnetId", subnet), ("PrivateIpAddress", address)];
    parameters.extend(names.iter().map(String::as_str).zip(groups.iter().copied()));
    let made = moto.aws.ec2("CreateNetworkInterface", &parameters, "networkInterfaceId").await?;
    made.into_iter().next().context("no interface")
}

/// Attaches a network interface to an instance, next to its first one.
async fn attach(moto: &Moto, interface: &str, instance: &Instance) -> Result<()> {
    let attachment = [("NetworkInterfaceId", interface), ("InstanceId", &*instance.id), ("DeviceIndex", "1")];
    moto.aws.call(Service::Ec2, "AttachNetworkInterface", &attachment).await.map(drop)
}

/// Returns a pod on the node of an instance, with its address.
fn pod(address: [u8; 4], instance: &Instance, uid: &str) -> EndpointTarget {
    EndpointTarget {
        port_name: "p80".into(),
        address: address.into(),
        port: 8080,
        node: Some(instance.name.clone()),
        provider_id: Some(instance.provider_id()),
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: Some(PodRef { namespace: "default".into(), name: "web".into(), uid: uid.into() }),
    }
}

fn of_pods() -> LoadBalancerSpec {
    spec(1, &[("nlb-target-type", "ip")])
}

/// Returns the port ranges that a security group allows, as `<from>-<to>`.
async fn open_port_ranges(moto: &Moto, group: &str) -> Result<Vec<String>> {
    let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", group)];
    let rules = moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &filter, "securityGroupRuleSet").await?;
    let ingress = rules.iter().filter(|rule| rule.text("isEgress") == "false");
    Ok(ingress.map(|rule| format!("{}-{}", rule.text("fromPort"), rule.text("toPort"))).collect())
}

async fn check_all_reached(moto: &Moto, when: &str) -> Result<()> {
    let unreached = moto.proxy.unreached(None).await?;
    ensure!(unreached.is_empty(), "{when}, {unreached:?} are not reached");
    ensure!(moto.proxy.gaps().is_empty(), "{when}: {:?}", moto.proxy.gaps());
    Ok(())
}

/// Pods have secondary addresses of a further interface of their node, in another subnet and with another security
/// group (an ENIConfig). The load balancer exists before the first pods, and some pods use the host's network.
pub async fn pods_with_custom_networking_are_reached(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (subnet, group) = (subnet_of_pods(&moto).await?, security_group(&moto, "eni-config", true).await?);
    for (instance, (first, second)) in
        instances.iter().zip([("100.64.0.10", "100.64.0.11"), ("100.64.0.20", "100.64.0.21")])
    {
        let further = interface(&moto, &subnet, &[&group], first).await?;
        let more = [("NetworkInterfaceId", &*further), ("PrivateIpAddress.1", second)];
        moto.aws.call(Service::Ec2, "AssignPrivateIpAddresses", &more).await?;
        attach(&moto, &further, instance).await?;
    }
    let nodes = targets(&instances).nodes;
    let with =
        |pods: Vec<EndpointTarget>| Targets { endpoints: pods.into(), nodes: nodes.clone(), ..Targets::default() };
    let (one, balancers) = (of_pods(), new_process(&moto).await?);
    settle(&moto, &*balancers, &one, &with(Vec::new())).await?;
    ensure!(
        open_port_ranges(&moto, &group).await?.is_empty(),
        "rules exist without a pod: {:?}",
        open_port_ranges(&moto, &group).await?
    );
    let host: std::net::Ipv4Addr = instances[0].address.parse()?;
    let pods = [
        pod([100, 64, 0, 11], &instances[0], "a"),
        pod([100, 64, 0, 21], &instances[1], "b"),
        pod(host.octets(), &instances[0], "c"),
    ];
    for count in [1, 3, 2] {
        balancers.set_targets(&one, &with(pods[..count].to_vec())).await?;
        check_all_reached(&moto, &format!("with {count} pods")).await?;
    }
    ensure!(open_port_ranges(&moto, &group).await? == ["8080-8080"], "{:?}", open_port_ranges(&moto, &group).await?);
    delete(&*balancers, &one.id).await?;
    ensure!(
        open_port_ranges(&moto, &group).await?.is_empty(),
        "rules are left: {:?}",
        open_port_ranges(&moto, &group).await?
    );
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    Ok(())
}

/// With prefix delegation, no interface lists the pods' addresses: they are in a prefix of a further interface of the
/// node. The node is excluded from load balancers, or is deleted, so it is not a target itself.
pub async fn pods_behind_prefixes_of_addresses_are_reached(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let (subnet, group) = (subnet_of_pods(&moto).await?, security_group(&moto, "eni-config", true).await?);
    let further = interface(&moto, &subnet, &[&group], "100.64.0.10").await?;
    attach(&moto, &further, &instances[0]).await?;
    let prefix = [("NetworkInterfaceId", &*further), ("Ipv4Prefix.1", "100.64.1.16/28")];
    moto.aws.call(Service::Ec2, "AssignPrivateIpAddresses", &prefix).await?;
    let with = |last: u8, uid: &str| {
        let pods = [pod([100, 64, 1, last], &instances[0], uid)];
        Targets { endpoints: pods.into(), ..Targets::default() }
    };
    let (one, balancers) = (of_pods(), new_process(&moto).await?);
    settle(&moto, &*balancers, &one, &with(17, "a")).await?;
    check_all_reached(&moto, "after the creation").await?;
    // The node gets another prefix, for later pods.
    let prefix = [("NetworkInterfaceId", &*further), ("Ipv4Prefix.1", "100.64.1.32/28")];
    moto.aws.call(Service::Ec2, "AssignPrivateIpAddresses", &prefix).await?;
    balancers.set_targets(&one, &with(40, "b")).await?;
    check_all_reached(&moto, "with another prefix").await?;
    ensure!(open_port_ranges(&moto, &group).await? == ["8080-8080"], "{:?}", open_port_ranges(&moto, &group).await?);
    delete(&*balancers, &one.id).await?;
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// The interface of a new pod becomes visible later than the pod. The pod is reached soon after that. Addresses of
/// other networks are never looked up.
pub async fn pod_is_reached_soon_after_its_interface_is_visible(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let group = security_group(&moto, "branch", true).await?;
    let nodes = targets(&instances).nodes;
    let with =
        |pods: Vec<EndpointTarget>| Targets { endpoints: pods.into(), nodes: nodes.clone(), ..Targets::default() };
    let (one, balancers) = (of_pods(), new_process(&moto).await?);
    settle(&moto, &*balancers, &one, &with(Vec::new())).await?;
    moto.proxy.ignore_reachability("the interface of the pod is not visible at first");
    let before = moto.proxy.calls_of("DescribeNetworkInterfaces");
    balancers.set_targets(&one, &with(vec![pod([192, 168, 7, 7], &instances[0], "peer")])).await?;
    let lookups = moto.proxy.calls_of("DescribeNetworkInterfaces") - before;
    ensure!(lookups == 0, "an address of another network is looked up");

    let new = with(vec![pod([10, 0, 16, 200], &instances[0], "a")]);
    let error = balancers.set_targets(&one, &new).await.err().context("the pod is not waited for")?;
    ensure!(error.kind == ErrorKind::Transient && error.message.contains("10.0.16.200"), "{error}");
    interface(&moto, &moto.network.subnets[0], &[&group], "10.0.16.200").await?;
    settle(&moto, &*balancers, &one, &new).await?;
    ensure!(open_port_ranges(&moto, &group).await? == ["8080-8080"], "{:?}", open_port_ranges(&moto, &group).await?);

    // For this pod, no interface appears: the load balancer settles without it.
    settle(&moto, &*balancers, &one, &with(vec![pod([10, 0, 16, 201], &instances[0], "b")])).await?;
    delete(&*balancers, &one.id).await
}

/// A pod with security groups of its own has the groups of its SecurityGroupPolicy. The tagged one is opened; without a
/// tagged one, a warning names the pod's address and the tag.
pub async fn pod_with_several_security_groups_is_reached_by_the_tagged_one(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let subnet = &moto.network.subnets[0];
    let tagged = security_group(&moto, "tagged", true).await?;
    let others = [security_group(&moto, "database", false).await?, security_group(&moto, "cache", false).await?];
    interface(&moto, subnet, &[&others[0], &tagged], "10.0.16.200").await?;
    interface(&moto, subnet, &[&others[0], &others[1]], "10.0.16.201").await?;
    let nodes = targets(&instances).nodes;
    let with = |last: u8| {
        let pods = [pod([10, 0, 16, last], &instances[0], "a")];
        Targets { endpoints: pods.into(), nodes: nodes.clone(), ..Targets::default() }
    };
    let (one, balancers) = (of_pods(), new_process(&moto).await?);
    settle(&moto, &*balancers, &one, &with(200)).await?;
    check_all_reached(&moto, "behind the tagged group").await?;
    ensure!(open_port_ranges(&moto, &tagged).await? == ["8080-8080"], "{:?}", open_port_ranges(&moto, &tagged).await?);
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());

    moto.proxy.ignore_reachability("ccm does not choose between two groups without the tag");
    let ensured = balancers.ensure(&one, &with(201)).await?;
    let warnings = ensured.warnings.join("; ");
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    ensure!(warnings.contains("10.0.16.201") && warnings.contains(&key), "{warnings:?}");
    for group in &others {
        ensure!(
            open_port_ranges(&moto, group).await?.is_empty(),
            "{group} was opened: {:?}",
            open_port_ranges(&moto, group).await?
        );
    }
    delete(&*balancers, &one.id).await
}

/// A later pod gets the address of a deleted one, but on another interface: the security group of that interface is
/// opened although the address was just looked up.
pub async fn later_pod_with_the_same_address_is_reached(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let subnet = &moto.network.subnets[0];
    let [first, second] = [security_group(&moto, "first", true).await?, security_group(&moto, "second", true).await?];
    let branch = interface(&moto, subnet, &[&first], "10.0.16.200").await?;
    let nodes = targets(&instances).nodes;
    let with = |uids: &[&str]| {
        let pods: Vec<_> = uids.iter().map(|uid| pod([10, 0, 16, 200], &instances[0], uid)).collect();
        Targets { endpoints: pods.into(), nodes: nodes.clone(), ..Targets::default() }
    };
    let (one, balancers) = (of_pods(), new_process(&moto).await?);
    settle(&moto, &*balancers, &one, &with(&["a"])).await?;
    check_all_reached(&moto, "the first pod").await?;
    balancers.set_targets(&one, &with(&[])).await?;
    moto.aws.call(Service::Ec2, "DeleteNetworkInterface", &[("NetworkInterfaceId", &branch)]).await?;
    interface(&moto, subnet, &[&second], "10.0.16.200").await?;
    balancers.set_targets(&one, &with(&["b"])).await?;
    check_all_reached(&moto, "the second pod").await?;
    ensure!(open_port_ranges(&moto, &second).await? == ["8080-8080"], "{:?}", open_port_ranges(&moto, &second).await?);
    delete(&*balancers, &one.id).await
}

/// Each pod on Fargate has a node and an interface of its own, with the cluster's security group; the node is not an
/// instance.
pub async fn pods_on_fargate_are_reached(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let group = security_group(&moto, "eks-cluster-sg", true).await?;
    interface(&moto, &moto.network.subnets[0], &[&group], "10.0.16.200").await?;
    let fargate = "fargate-ip-10-0-16-200.eu-west-1.compute.internal";
    let node = NodeTarget {
        name: fargate.into(),
        provider_id: Some(format!("aws:///eu-west-1a/0123456789-abcdef0123456789/{fargate}")),
        labels: [("eks.amazonaws.com/compute-type".to_owned(), "fargate".to_owned())].into(),
        ..NodeTarget::default()
    };
    let mut nodes = targets(&instances).nodes.to_vec();
    let pods = [EndpointTarget {
        node: Some(fargate.into()),
        provider_id: node.provider_id.clone(),
        ..pod([10, 0, 16, 200], &instances[0], "a")
    }];
    nodes.insert(0, node);
    let all = Targets { nodes: nodes.into(), endpoints: pods.into(), ..Targets::default() };
    let (one, balancers) = (of_pods(), new_process(&moto).await?);
    settle(&moto, &*balancers, &one, &all).await?;
    check_all_reached(&moto, "on Fargate").await?;
    ensure!(open_port_ranges(&moto, &group).await? == ["8080-8080"], "{:?}", open_port_ranges(&moto, &group).await?);
    delete(&*balancers, &one.id).await?;
    ensure!(
        open_port_ranges(&moto, &group).await?.is_empty(),
        "rules are left: {:?}",
        open_port_ranges(&moto, &group).await?
    );

    // With instance targets, only instances are registered.
    let two = spec(2, &[]);
    settle(&moto, &*balancers, &two, &all).await?;
    let target_group = AccountResources::read(&moto).await?.target_groups.remove(0);
    let of_group = [("TargetGroupArn", &*target_group)];
    let health = moto.aws.list(Service::Elb, "DescribeTargetHealth", &of_group, "TargetHealthDescriptions").await?;
    let ids: Vec<&str> = health.iter().map(|one| one.text("Target/Id")).collect();
    ensure!(ids == [&*instances[0].id], "{ids:?}");
    delete(&*balancers, &two.id).await?;
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}
