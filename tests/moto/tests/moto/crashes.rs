//! Processes that end during a creation: AWS does not list their last resource yet when the next process reads.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cluster_tests::{Space, eventually};
use moto::{Effect, Fault, Hold, Moto, Service};
use providers::{Ensured, LoadBalancerSpec, LoadBalancers, Progress, Targets};

use crate::balancers::{AccountResources, delete, is_retried, new_process, port, settle, spec, targets, texts};
use crate::bed::{CLUSTER, provider_with_visibility};

/// Number of changes that create a load balancer with one port, and the first security groups and rules of a cluster.
const CHANGES: u64 = 8;
/// Pause after a call that has to be repeated.
const RETRY: Duration = Duration::from_millis(100);
const CROSS_ZONE: &str = "load_balancing.cross_zone.enabled";

/// Runs a process that ends right after its `nth` change.
async fn crash_after_change(moto: &Moto, nth: u64, one: &LoadBalancerSpec, all: &Targets) -> Result<()> {
    let hold = Hold::default();
    moto.proxy.arm(Fault::nth("changes", nth, Effect::Held(hold.clone())));
    let process = new_process(moto).await?;
    let retried = async {
        loop {
            match process.ensure(one, all).await {
                // The last created resource is not visible yet.
                Err(error) if is_retried(&error) => tokio::time::sleep(RETRY).await,
                ensured => bail!("the creation ended before change {nth}: {ensured:?}"),
            }
        }
    };
    tokio::select! {
        ended = retried => ended?,
        reached = hold.reached() => reached?,
    }
    moto.proxy.disarm();
    hold.release();
    Ok(())
}

async fn check_no_resources(moto: &Moto) -> Result<()> {
    let resources = AccountResources::read(moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// The Service is deleted before the resource that was created last is visible to the next process.
pub async fn deletion_finds_what_an_earlier_process_created_last(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for nth in 1..=CHANGES {
        let delay = 1 + nth % 4;
        moto.proxy.delay_visibility(delay);
        let one = spec(1, &[]);
        crash_after_change(&moto, nth, &one, &all).await?;
        delete(&*new_process(&moto).await?, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{delay} reads after change {nth}"))?;
    }
    Ok(())
}

/// The Service is deleted after a response was lost, and before the resource is visible.
pub async fn deletion_finds_what_was_created_without_a_response(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for nth in 1..=CHANGES {
        moto.proxy.delay_visibility(4);
        let (process, one) = (new_process(&moto).await?, spec(1, &[]));
        process.starts_empty(&one.id);
        moto.proxy.arm(Fault::nth("changes", nth, Effect::ResponseLost));
        let error = process.ensure(&one, &all).await.err().with_context(|| format!("change {nth} was repeated"))?;
        moto.proxy.disarm();
        delete(&*process, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("after change {nth}: {error}"))?;
    }
    Ok(())
}

/// The Service has fewer ports when the next process brings it to its desired state, and is deleted immediately after
/// that. Before the deletion, the listings of the next process lack the target group that is no longer needed.
pub async fn deletion_finds_what_a_changed_service_no_longer_needs(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let one = spec(1, &[]);
    let two = LoadBalancerSpec { ports: vec![port(80), port(443)], ..one.clone() };
    // The deletion then reads no listings while it waits for network interfaces: they would find the target group.
    moto.proxy.keep_interfaces(0);
    let first = new_process(&moto).await?;
    settle(&moto, &*first, &one, &all).await?;
    let before = AccountResources::read(&moto).await?.target_groups;
    settle(&moto, &*first, &two, &all).await?;
    drop(first);
    let after = AccountResources::read(&moto).await?.target_groups;
    let former = after.iter().find(|group| !before.contains(group)).context("no second target group")?;

    moto.proxy.omit_from_lists(former, u64::MAX);
    let next = new_process(&moto).await?;
    settle(&moto, &*next, &one, &all).await?;
    ensure!(
        AccountResources::read(&moto).await?.target_groups.contains(former),
        "a target group is deleted that was not listed"
    );
    moto.proxy.omit_from_lists(former, 4);
    delete(&*next, &one.id).await?;
    check_no_resources(&moto).await
}

/// Calls `ensure` until the Service is settled.
async fn settled(balancers: &dyn LoadBalancers, one: &LoadBalancerSpec, all: &Targets) -> Result<Ensured> {
    eventually(format!("{} is settled", one.id), || async {
        let ensured = balancers.ensure(one, all).await?;
        ensure!(ensured.progress == Progress::Settled, "{ensured:?}");
        Ok(ensured)
    })
    .await
}

/// Calls `ensure` once, after the delay that the last one returned.
async fn ensure_after_delay(
    balancers: &dyn LoadBalancers,
    last: &Ensured,
    one: &LoadBalancerSpec,
    all: &Targets,
) -> Result<Ensured> {
    let due = Instant::now() + last.check_after.with_context(|| format!("no further check: {last:?}"))?;
    eventually("the further check is due", || async {
        ensure!(Instant::now() >= due, "in {:?}", due - Instant::now());
        Ok(())
    })
    .await?;
    Ok(balancers.ensure(one, all).await?)
}

/// The Service changes back before the next process starts, and that process's listings lack the target group that an
/// earlier process created last. It deletes the target group soon after AWS lists it, before the next check for drift.
/// If there is no such target group, the further check costs one listing, which is three reads.
pub async fn resource_of_an_earlier_process_is_deleted_once_it_is_visible(_: Space) -> Result<()> {
    const VISIBLE: Duration = Duration::from_secs(20);
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let one = spec(1, &[]);
    let two = LoadBalancerSpec { ports: vec![port(80), port(443)], ..one.clone() };
    let process = async || {
        let provider = provider_with_visibility(&moto, VISIBLE)?;
        provider.initialize().await?;
        provider.load_balancers().context("no load balancers")
    };
    let first = process().await?;
    first.starts_empty(&one.id);
    let ensured = settled(&*first, &one, &all).await?;
    ensure!(ensured.check_after.is_none(), "no earlier process has created anything: {ensured:?}");
    let before = AccountResources::read(&moto).await?.target_groups;
    settled(&*first, &two, &all).await?;
    drop(first);
    let after = AccountResources::read(&moto).await?.target_groups;
    let former = after.iter().find(|group| !before.contains(group)).context("no second target group")?;

    moto.proxy.omit_from_lists(former, u64::MAX);
    let next = process().await?;
    let ensured = settled(&*next, &one, &all).await?;
    ensure!(
        AccountResources::read(&moto).await?.target_groups.contains(former),
        "a target group is deleted that was not listed"
    );
    moto.proxy.omit_from_lists(former, 0);
    let ensured = ensure_after_delay(&*next, &ensured, &one, &all).await?;
    ensure!(AccountResources::read(&moto).await?.target_groups == before, "the former target group still exists");
    ensure!(ensured.check_after.is_none() && ensured.warnings.is_empty(), "{ensured:?}");
    drop(next);

    // Nothing has changed since: the further check costs three reads, which all Services share.
    let next = process().await?;
    let ensured = settled(&*next, &one, &all).await?;
    let (reads, changes) = (moto.proxy.calls().values().sum::<u64>(), moto.proxy.changes());
    let ensured = ensure_after_delay(&*next, &ensured, &one, &all).await?;
    ensure!(ensured.progress == Progress::Settled && ensured.check_after.is_none(), "{ensured:?}");
    let reads = moto.proxy.calls().values().sum::<u64>() - reads;
    ensure!((reads, moto.proxy.changes()) == (3, changes), "{reads} calls: {:?}", moto.proxy.calls());
    delete(&*next, &one.id).await?;
    check_no_resources(&moto).await
}

/// The response to the creation of a target group is lost, and the Service no longer needs that target group when
/// `ensure` is called again.
pub async fn deletion_finds_what_was_created_without_a_response_before_a_change(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let one = spec(1, &[]);
    let two = LoadBalancerSpec { ports: vec![port(80), port(443)], ..one.clone() };
    // The deletion then reads no listings while it waits for network interfaces: they would find the target group.
    moto.proxy.keep_interfaces(0);
    let process = new_process(&moto).await?;
    process.starts_empty(&one.id);
    settle(&moto, &*process, &one, &all).await?;
    let before = AccountResources::read(&moto).await?.target_groups;
    moto.proxy.arm(Fault::first("CreateTargetGroup", Effect::ResponseLost));
    let error = process.ensure(&two, &all).await.err().context("the response was not lost")?;
    moto.proxy.disarm();
    let after = AccountResources::read(&moto).await?.target_groups;
    let former = after.iter().find(|group| !before.contains(group)).context("the target group was not created")?;

    moto.proxy.omit_from_lists(former, u64::MAX);
    settle(&moto, &*process, &one, &all).await.with_context(|| error.to_string())?;
    moto.proxy.omit_from_lists(former, 4);
    delete(&*process, &one.id).await?;
    check_no_resources(&moto).await
}

/// A new Service is deleted while the load balancer of another one, which an earlier process created, is not visible
/// yet: the rules and the security group that both use stay.
pub async fn shared_group_stays_while_a_load_balancer_of_an_earlier_process_is_invisible(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let (old, new) = (spec(1, &[]), spec(2, &[]));
    settle(&moto, &*new_process(&moto).await?, &old, &all).await?;
    let expected = AccountResources::read(&moto).await?;

    let next = new_process(&moto).await?;
    moto.proxy.omit_from_lists(&expected.balancers[0], u64::MAX);
    next.starts_empty(&new.id);
    settle(&moto, &*next, &new, &all).await?;
    moto.proxy.omit_from_lists(&expected.balancers[0], 3);
    delete(&*next, &new.id).await?;
    let current = AccountResources::read(&moto).await?;
    ensure!(current == expected, "{current:?} instead of {expected:?}");
    delete(&*next, &old.id).await?;
    check_no_resources(&moto).await
}

/// The Service changes before the next process starts; AWS responds to a creation by the next process with the resource
/// that the earlier process created.
pub async fn creation_of_an_earlier_process_gets_the_current_settings(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (before, after) = (targets(&instances[..1]), targets(&instances[1..]));
    for delay in [1, 2, 4] {
        let attribute = format!("{CROSS_ZONE}=true");
        let annotations = [("disable-nlb-sg", "true"), ("attributes", &*attribute)];
        let two = LoadBalancerSpec { ports: vec![port(80), port(443)], ..spec(1, &annotations) };
        moto.proxy.delay_visibility(delay);
        new_process(&moto).await?.ensure(&two, &before).await?;

        let one = LoadBalancerSpec { id: two.id.clone(), ..spec(1, &annotations[..1]) };
        let next = new_process(&moto).await?;
        settle(&moto, &*next, &one, &after).await?;
        // A target group that appears later is deleted by the next check for drift.
        let current = eventually(format!("the former target group is deleted after {delay} reads"), || async {
            next.ensure(&one, &after).await?;
            let current = AccountResources::read(&moto).await?;
            ensure!(current.balancers.len() == 1 && current.target_groups.len() == 1, "{current:?}");
            Ok(current)
        })
        .await?;
        let of = [("LoadBalancerArn", &*current.balancers[0])];
        let listeners = moto.aws.call(Service::Elb, "DescribeListeners", &of).await?;
        ensure!(texts(&listeners, "Port") == ["80"], "{delay} reads: {listeners}");
        let attributes = moto.aws.list(Service::Elb, "DescribeLoadBalancerAttributes", &of, "Attributes").await?;
        let is_on = attributes.iter().any(|one| one.text("Key") == CROSS_ZONE && one.text("Value") == "true");
        ensure!(!is_on, "{delay} reads: {CROSS_ZONE} is that of the earlier process");
        let of = [("TargetGroupArn", &*current.target_groups[0])];
        let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &of).await?;
        ensure!(texts(&health, "Id") == [instances[1].id.clone()], "{delay} reads: {health}");
        delete(&*next, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{delay} reads"))?;
    }
    Ok(())
}
