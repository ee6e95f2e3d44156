//! Load balancers that users made: Services add listeners and target groups to them, and change and delete nothing
//! else.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Service};
use providers::LoadBalancerSpec;

use crate::balancers::{AccountResources, delete, id, new_process, port, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// Creates a load balancer as a user does, with this value of the cluster's tag; returns its ARN.
pub async fn create_as_user(moto: &Moto, name: &str, tag: &str) -> Result<String> {
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    let parameters = [
        ("Name", name),
        ("Type", "network"),
        ("Scheme", "internal"),
        ("Subnets.member.1", &*moto.network.subnets[0]),
        ("Subnets.member.2", &*moto.network.subnets[1]),
        ("Tags.member.1.Key", &*key),
        ("Tags.member.1.Value", tag),
    ];
    let made = moto.aws.call(Service::Elb, "CreateLoadBalancer", &parameters).await?;
    texts(&made, "LoadBalancerArn").pop().context("no load balancer")
}

/// Adds a listener to a load balancer as a user does.
async fn add_listener_of_user(moto: &Moto, balancer: &str, port: &str) -> Result<()> {
    let group = [("Name", "users"), ("Protocol", "TCP"), ("Port", "1"), ("VpcId", &*moto.network.vpc)];
    let group = moto.aws.call(Service::Elb, "CreateTargetGroup", &group).await?;
    let group = texts(&group, "TargetGroupArn").pop().context("no target group")?;
    let listener = [
        ("LoadBalancerArn", balancer),
        ("Protocol", "TCP"),
        ("Port", port),
        ("DefaultActions.member.1.Type", "forward"),
        ("DefaultActions.member.1.TargetGroupArn", &*group),
    ];
    moto.aws.call(Service::Elb, "CreateListener", &listener).await.map(drop)
}

async fn ports(moto: &Moto, balancer: &str) -> Result<Vec<String>> {
    let listeners = moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", balancer)]).await?;
    let mut ports = texts(&listeners, "Port");
    // The actions of a listener also contain a port.
    ports.sort();
    ports.dedup();
    Ok(ports)
}

/// Returns the parts of a load balancer that must not change: its description, attributes and tags.
async fn description(moto: &Moto, balancer: &str) -> Result<[String; 3]> {
    let elb = async |action: &str, parameter: &str| -> Result<String> {
        let response = moto.aws.call(Service::Elb, action, &[(parameter, balancer)]).await?;
        // The id of the request is omitted.
        Ok(response.split("<ResponseMetadata>").next().unwrap_or_default().to_owned())
    };
    Ok([
        elb("DescribeLoadBalancers", "LoadBalancerArns.member.1").await?,
        elb("DescribeLoadBalancerAttributes", "LoadBalancerArn").await?,
        elb("DescribeTags", "ResourceArns.member.1").await?,
    ])
}

/// Returns the same Service on a user's load balancer.
fn on_load_balancer(one: &LoadBalancerSpec, balancer: &str) -> LoadBalancerSpec {
    LoadBalancerSpec { id: one.id.clone(), ..spec(1, &[("arn", balancer)]) }
}

/// Two Services and the user share one load balancer. The deletion of a Service has no effect on the others.
pub async fn services_share_a_load_balancer_of_a_user(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(2).await?);
    let users = create_as_user(&moto, "users", "shared").await?;
    add_listener_of_user(&moto, &users, "9000").await?;
    let (before, resources) = (description(&moto, &users).await?, AccountResources::read(&moto).await?);
    let balancers = new_process(&moto).await?;

    let one = spec(1, &[("arn", &users)]);
    let two = LoadBalancerSpec { id: id(2), ports: vec![port(443)], ..one.clone() };
    let name = settle(&moto, &*balancers, &one, &all).await?;
    settle(&moto, &*balancers, &two, &all).await?;
    ensure!(before[0].to_ascii_lowercase().contains(&name), "{name} is not the name of {}", before[0]);
    ensure!(ports(&moto, &users).await? == ["443", "80", "9000"], "{:?}", ports(&moto, &users).await?);
    ensure!(description(&moto, &users).await? == before, "{:?} was {before:?}", description(&moto, &users).await?);
    let unreached = moto.proxy.unreached(None).await?;
    ensure!(unreached.is_empty(), "{unreached:?} are not reached");

    // Ports of the user and of the other Service are taken.
    for taken in [9000, 443] {
        let wrong = LoadBalancerSpec { ports: vec![port(taken)], ..one.clone() };
        let error = balancers.ensure(&wrong, &all).await.err().context("a port of another owner was accepted")?;
        ensure!(error.message.contains("has a listener of another owner"), "{error}");
        ensure!(ports(&moto, &users).await? == ["443", "80", "9000"], "{:?}", ports(&moto, &users).await?);
    }
    delete(&*balancers, &one.id).await?;
    ensure!(ports(&moto, &users).await? == ["443", "9000"], "{:?}", ports(&moto, &users).await?);
    delete(&*new_process(&moto).await?, &two.id).await?;
    ensure!(
        AccountResources::read(&moto).await? == resources,
        "{:?} was {resources:?}",
        AccountResources::read(&moto).await?
    );
    ensure!(description(&moto, &users).await? == before, "{:?} was {before:?}", description(&moto, &users).await?);
    ensure!(moto.proxy.gaps().is_empty() && moto.proxy.denied().is_empty(), "{:?}", moto.proxy.gaps());
    Ok(())
}

/// Nothing is created if the cluster's tag of the load balancer does not have the value `shared`, if the load balancer
/// was created for a Service, or if it does not exist.
pub async fn load_balancer_of_a_user_needs_the_clusters_tag(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    let other = spec(2, &[]);
    settle(&moto, &*balancers, &other, &all).await?;
    let of_service = AccountResources::read(&moto).await?.balancers.remove(0);
    let owned = create_as_user(&moto, "owned", "owned").await?;
    let resources = AccountResources::read(&moto).await?;
    // The listing of the first process lacks the new load balancer.
    let next = new_process(&moto).await?;
    for (arn, fix) in [
        (&*of_service, "was made for a Service"),
        (&owned, "=shared on it"),
        (
            "arn:aws:elasticloadbalancing:eu-west-1:1:loadbalancer/net/none/1",
            "use the ARN of a Network Load Balancer in",
        ),
    ] {
        let error =
            next.ensure(&spec(1, &[("arn", arn)]), &all).await.err().context("the load balancer was accepted")?;
        ensure!(error.message.contains(fix), "{error}");
    }
    ensure!(AccountResources::read(&moto).await? == resources, "{:?}", AccountResources::read(&moto).await?);
    delete(&*balancers, &other.id).await
}

/// A Service moves from its own load balancer to a user's, to another user's, and back. The process crashes at the
/// first, third or sixth change.
pub async fn service_moves_to_a_load_balancer_of_a_user_and_back(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let (first, second) =
        (create_as_user(&moto, "first", "shared").await?, create_as_user(&moto, "second", "shared").await?);
    let empty = AccountResources::read(&moto).await?;
    let own = spec(1, &[("scheme", "internal")]);
    for nth in [1, 3, 6] {
        for wanted in [own.clone(), on_load_balancer(&own, &first), on_load_balancer(&own, &second), own.clone()] {
            moto.proxy.arm(Fault::nth("changes", nth, Effect::ResponseLost));
            drop(new_process(&moto).await?.ensure(&wanted, &all).await);
            moto.proxy.disarm();
            let next = new_process(&moto).await?;
            settle(&moto, &*next, &wanted, &all).await.with_context(|| format!("after change {nth}"))?;
            let listening: Vec<bool> =
                [!ports(&moto, &first).await?.is_empty(), !ports(&moto, &second).await?.is_empty()].into();
            let given = wanted.annotations.values().find(|value| value.starts_with("arn:"));
            let expected = [given == Some(&first), given == Some(&second)];
            ensure!(listening == expected, "after change {nth}: {listening:?}, not {expected:?}");
            let resources = AccountResources::read(&moto).await?;
            let count = if given.is_some() { 2 } else { 3 };
            let is_complete = resources.balancers.len() == count && resources.target_groups.len() == 1;
            ensure!(is_complete, "after change {nth}: {resources:?}");
        }
    }
    settle(&moto, &*new_process(&moto).await?, &on_load_balancer(&own, &first), &all).await?;
    moto.proxy.arm(Fault::nth("changes", 1, Effect::ResponseLost));
    drop(new_process(&moto).await?.delete(&own.id).await);
    moto.proxy.disarm();
    delete(&*new_process(&moto).await?, &own.id).await?;
    ensure!(AccountResources::read(&moto).await? == empty, "{:?}", AccountResources::read(&moto).await?);
    Ok(())
}
