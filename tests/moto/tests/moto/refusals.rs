//! Changes of targets and rules that AWS refuses, although the Service is valid.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Service};
use providers::{EndpointTarget, ErrorKind, Targets};

use crate::balancers::{AccountResources, delete, new_process, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// If the refusal were a terminal error, targets would not follow nodes and pods until a user changes the Service.
pub async fn refused_update_of_targets_is_retried(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (one, all, fewer) = (spec(1, &[]), targets(&instances), targets(&instances[..1]));
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &all).await?;
    for code in ["ValidationError", "InvalidTarget", "InvalidConfigurationRequest"] {
        balancers.set_targets(&one, &all).await?;
        moto.proxy.arm(Fault::first("DeregisterTargets", Effect::refused(code, "as scripted")));
        let error = balancers.set_targets(&one, &fewer).await.err().context("the update succeeded")?;
        ensure!(error.kind == ErrorKind::Transient, "{code} is reported as {error:?}, which is not retried");
        balancers.set_targets(&one, &fewer).await?;
        let groups = AccountResources::read(&moto).await?.target_groups;
        let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", &groups[0])]).await?;
        ensure!(texts(&health, "Id") == [instances[0].id.clone()], "after {code}: {health}");
        moto.proxy.disarm();
    }
    delete(&*balancers, &one.id).await
}

/// The security group of a node was replaced and deleted. Instances are cached for long; they are read again after the
/// error, so that the Services do not fail for that time.
pub async fn security_groups_of_nodes_are_read_again_after_one_was_deleted(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
    moto.proxy.arm(Fault::first("AuthorizeSecurityGroupIngress", Effect::refused("InvalidGroup.NotFound", "no")));
    let error = balancers.ensure(&one, &all).await.err().context("nothing was refused")?;
    ensure!(error.kind == ErrorKind::Conflict, "{error:?} is not retried soon");
    let reads = moto.proxy.calls_of("DescribeInstances");
    settle(&moto, &*balancers, &one, &all).await?;
    ensure!(moto.proxy.calls_of("DescribeInstances") > reads, "the groups of the instance were not read again");
    delete(&*balancers, &one.id).await
}

/// AWS accepts an address outside of the network only if the call names all zones.
pub async fn address_outside_of_the_network_is_named_with_all_zones(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[("nlb-target-type", "ip")]));
    let pod = |address: [u8; 4]| EndpointTarget {
        port_name: one.ports[0].name.clone(),
        address: address.into(),
        port: 8080,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    };
    let pods = |pods: Vec<EndpointTarget>| Targets { endpoints: pods.into(), ..Targets::default() };
    settle(&moto, &*balancers, &one, &pods(vec![pod([192, 168, 0, 7]), pod([10, 0, 16, 7])])).await?;
    balancers.set_targets(&one, &pods(Vec::new())).await?;
    for action in ["RegisterTargets", "DeregisterTargets"] {
        let requests = moto.proxy.requests(action);
        let zones = requests.iter().flatten().filter(|(name, _)| name.ends_with(".AvailabilityZone"));
        let zones: Vec<&str> = zones.map(|(_, zone)| zone.as_str()).collect();
        ensure!(zones == ["all"], "{action}: {zones:?} of {requests:?}");
    }
    delete(&*balancers, &one.id).await
}
