//! Changes by other clients while AWS works on a new load balancer, whose details are not read until then.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Moto, Service};
use providers::Progress;

use crate::balancers::{AccountResources, delete, new_process, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// Another client deletes the listener and sets an attribute during the creation, which ends without a deletion. The next
/// check for drift reverts both.
pub async fn change_during_a_creation_is_reverted_by_the_next_check(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    moto.proxy.delay_provisioning(2);
    let one = spec(1, &[]);
    let ensured = balancers.ensure(&one, &all).await?;
    ensure!(matches!(ensured.progress, Progress::After(_)), "{ensured:?}");
    let balancer = AccountResources::read(&moto).await?.balancers.into_iter().next().context("no load balancer")?;
    let listeners = async || {
        let listed = moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", &*balancer)]).await?;
        anyhow::Ok(texts(&listed, "ListenerArn"))
    };
    let listener = listeners().await?.into_iter().next().context("no listener")?;
    moto.aws.call(Service::Elb, "DeleteListener", &[("ListenerArn", &*listener)]).await?;
    let cross_zone = "load_balancing.cross_zone.enabled";
    let attribute = [
        ("LoadBalancerArn", &*balancer),
        ("Attributes.member.1.Key", cross_zone),
        ("Attributes.member.1.Value", "true"),
    ];
    moto.aws.call(Service::Elb, "ModifyLoadBalancerAttributes", &attribute).await?;

    settle(&moto, &*balancers, &one, &all).await?;
    let deletions = moto.proxy.calls().into_iter().filter(|(action, _)| action.starts_with("Delete")).count();
    ensure!(deletions == 0, "{:?}", moto.proxy.calls());
    let ensured = balancers.ensure(&one, &all).await?;
    let reported = ensured.warnings.join("; ");
    ensure!(listeners().await?.len() == 1, "no listener: {reported}");
    ensure!(reported.contains(cross_zone), "{reported}");
    delete(&*balancers, &one.id).await?;
    ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    Ok(())
}
