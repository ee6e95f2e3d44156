//! Creations of load balancers: the number of reads, and changes by other clients. The details of a new load balancer
//! are not read until AWS has set it up.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Moto, Service};
use providers::Progress;

use crate::balancers::{AccountResources, delete, new_process, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// Services that are created together: each load balancer needs six changes, and each read serves several Services.
pub async fn creations_share_their_reads(_: Space) -> Result<()> {
    const SERVICES: u64 = 10;
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(2).await?);
    let balancers = new_process(&moto).await?;
    let specs: Vec<_> = (1..=10).map(|number| spec(number, &[])).collect();
    let begun = Instant::now();
    for one in &specs {
        balancers.starts_empty(&one.id);
        let ensured = balancers.ensure(one, &all).await?;
        ensure!(ensured.status.ingress.len() == 1, "{one:?} has no address yet: {ensured:?}");
    }
    for one in &specs {
        settle(&moto, &*balancers, one, &all).await?;
    }
    let (calls, changes) = (moto.proxy.calls(), moto.proxy.changes());
    // The two other changes create the shared security group and a rule for it.
    ensure!(changes == SERVICES * 6 + 2, "{changes} changes: {calls:?}");
    for action in ["DescribeTargetHealth", "DescribeListeners", "DescribeLoadBalancerAttributes", "DescribeTags"] {
        ensure!(moto.proxy.calls_of(action) == 0, "{action} was called: {calls:?}");
    }
    let listings = moto.proxy.calls_of("DescribeLoadBalancers");
    // A listing serves creations for ten seconds.
    let most = 4 + begun.elapsed().as_secs() / 10;
    ensure!(listings <= most, "{listings} listings: {calls:?}");
    // The check for drift reads everything.
    for one in &specs {
        balancers.ensure(one, &all).await?;
    }
    ensure!(moto.proxy.changes() == changes, "the creation was not complete: {:?}", moto.proxy.calls());
    for one in &specs {
        delete(&*balancers, &one.id).await?;
    }
    ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    Ok(())
}

/// Another client deletes the listener and sets an attribute during the creation. The provider finishes the creation
/// without deleting anything, and reverts both changes in the next check for drift.
pub async fn change_during_a_creation_is_reverted_by_the_next_check(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    moto.proxy.delay_provisioning(2);
    let one = spec(1, &[]);
    balancers.starts_empty(&one.id);
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
