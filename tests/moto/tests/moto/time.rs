//! Delays and limits of AWS: resources that are visible late, load balancers whose setup is slow or fails, network
//! interfaces that exist after their load balancer, quotas, and pages. The provider creates each resource once, reports
//! a limit once, and leaks nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Quota, Service};
use providers::{
    Deletion, EndpointTarget, ErrorKind, IpNet, LoadBalancerSpec, LoadBalancers, Progress, TargetPort, Targets,
};

use crate::balancers::{AccountResources, delete, new_process, port, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// Numbers of reads that miss a created resource.
const DELAYS: [u64; 4] = [1, 2, 3, 5];

/// Returns a Service with two ports.
fn two_ports(number: usize) -> LoadBalancerSpec {
    LoadBalancerSpec { ports: vec![port(80), port(443)], ..spec(number, &[]) }
}

async fn check_exists_once(moto: &Moto, groups: usize) -> Result<()> {
    let resources = AccountResources::read(moto).await?;
    ensure!(resources.balancers.len() == 1 && resources.target_groups.len() == groups, "{resources:?}");
    ensure!(resources.security_groups.len() == 2, "{resources:?}");
    let listeners = [("LoadBalancerArn", &*resources.balancers[0])];
    let listeners = moto.aws.call(Service::Elb, "DescribeListeners", &listeners).await?;
    ensure!(texts(&listeners, "ListenerArn").len() == groups, "{listeners}");
    Ok(())
}

async fn check_no_resources(moto: &Moto) -> Result<()> {
    let resources = AccountResources::read(moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// One process creates, changes and deletes a load balancer that is missing from its first reads.
pub async fn load_balancer_is_created_once_when_it_is_visible_late(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(2).await?);
    for delay in DELAYS {
        moto.proxy.delay_visibility(delay);
        let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
        settle(&moto, &*balancers, &one, &all).await.with_context(|| format!("{delay} reads"))?;
        check_exists_once(&moto, 1).await.with_context(|| format!("{delay} reads"))?;
        let two = LoadBalancerSpec { id: one.id.clone(), ..two_ports(1) };
        settle(&moto, &*balancers, &two, &all).await.with_context(|| format!("{delay} reads"))?;
        check_exists_once(&moto, 2).await.with_context(|| format!("{delay} reads"))?;
        delete(&*balancers, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{delay} reads"))?;
    }
    Ok(())
}

/// Another process continues after one of the changes, and its first reads miss resources of the first process.
pub async fn another_process_continues_with_resources_that_are_visible_late(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(2).await?);
    for (delay, nth) in [(1, 2), (2, 3), (1, 4), (2, 5), (3, 6), (2, 8), (1, 30)] {
        moto.proxy.delay_visibility(delay);
        let one = two_ports(1);
        moto.proxy.arm(Fault::nth("changes", nth, Effect::ResponseLost));
        drop(new_process(&moto).await?.ensure(&one, &all).await);
        moto.proxy.disarm();
        let next = new_process(&moto).await?;
        settle(&moto, &*next, &one, &all).await.with_context(|| format!("{delay} reads after change {nth}"))?;
        check_exists_once(&moto, 2).await.with_context(|| format!("{delay} reads after change {nth}"))?;
        delete(&*next, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{delay} reads after change {nth}"))?;
    }
    Ok(())
}

/// Another process deletes resources of which only a part of the tags is visible.
pub async fn deletion_waits_for_tags_that_are_visible_late(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for (delay, nth) in [(1, 3), (1, 5), (2, 5), (2, 30)] {
        moto.proxy.delay_visibility(delay);
        let one = spec(1, &[]);
        moto.proxy.arm(Fault::nth("changes", nth, Effect::ResponseLost));
        drop(new_process(&moto).await?.ensure(&one, &all).await);
        moto.proxy.disarm();
        // After these reads, the load balancer is visible, but some or all of its tags are not.
        let next = new_process(&moto).await?;
        for _ in 0..delay {
            drop(next.list_owned().await);
        }
        delete(&*next, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{delay} reads after change {nth}"))?;
    }
    Ok(())
}

/// If the user chose the name, CreateLoadBalancer may return an existing load balancer of another owner. Its tags,
/// which become visible late, identify the owner.
pub async fn named_load_balancer_is_deleted_when_its_tags_are_visible_late(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for delay in DELAYS {
        moto.proxy.delay_visibility(delay);
        let (balancers, one) = (new_process(&moto).await?, spec(1, &[("name", "public")]));
        drop(balancers.ensure(&one, &all).await);
        delete(&*balancers, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{delay} reads, deleted immediately"))?;
        let one = spec(1, &[("name", "public")]);
        settle(&moto, &*balancers, &one, &all).await.with_context(|| format!("{delay} reads"))?;
        delete(&*balancers, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{delay} reads"))?;
    }
    Ok(())
}

/// The setup of a load balancer takes long, or fails; in this case it is created again, with pauses.
pub async fn failed_load_balancer_is_created_again(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    moto.proxy.delay_provisioning(1);
    moto.proxy.fail_setup(1);
    let one = spec(1, &[]);
    settle(&moto, &*balancers, &one, &all).await?;
    check_exists_once(&moto, 1).await?;
    let created = moto.proxy.calls_of("CreateLoadBalancer");
    ensure!(created == 2, "the load balancer was created {created} times");
    delete(&*balancers, &one.id).await?;
    check_no_resources(&moto).await?;

    // The setup fails each time: each `ensure` requests a pause, and the warning stays once it has appeared.
    moto.proxy.fail_setup(1000);
    let one = spec(1, &[]);
    let created = moto.proxy.calls_of("CreateLoadBalancer");
    let mut warned = false;
    let begun = Instant::now();
    for call in 0..20 {
        let ensured = balancers.ensure(&one, &all).await?;
        ensure!(matches!(ensured.progress, Progress::After(_)), "{ensured:?}");
        let warns = ensured.warnings.iter().any(|warning| warning.contains("AWS could not set up the load balancer"));
        ensure!(warns || !warned, "call {call}: the warning disappeared: {ensured:?}");
        warned |= warns;
    }
    ensure!(warned, "no warning");
    let created = moto.proxy.calls_of("CreateLoadBalancer") - created;
    // The pauses between creations double from two seconds.
    let pauses =
        (1_u64..).take_while(|pauses| Duration::from_secs((2 << pauses) - 2) <= begun.elapsed()).count() as u64;
    let most = (1 + pauses).max(3);
    ensure!((1..=most).contains(&created), "the load balancer was created {created} times by 20 calls in a row");
    moto.proxy.fail_setup(0);
    delete(&*balancers, &one.id).await?;
    check_no_resources(&moto).await
}

/// A deletion that waits for a resource in use returns an error after many reads.
pub async fn deletion_that_another_client_prevents_is_reported(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
    settle(&moto, &*balancers, &one, &all).await?;
    // After the cause is removed, AWS refuses nothing more.
    moto.proxy.keep_interfaces(0);
    let refused = Effect::refused("DependencyViolation", "resource sg-1 has a dependent object");
    moto.proxy.arm(Fault::always("DeleteSecurityGroup", refused));
    let mut reported = None;
    for call in 0..100 {
        match balancers.delete(&one.id).await {
            Err(error) => {
                reported = Some((call, error));
                break;
            }
            Ok(Deletion::InProgress(pause)) => ensure!(!pause.is_zero(), "call {call} requests no pause"),
            Ok(Deletion::Gone) => bail!("the load balancer is deleted"),
        }
    }
    let (call, error) = reported.context("no error")?;
    ensure!(call > 30, "AWS often takes longer than {call} reads");
    ensure!(error.kind == ErrorKind::Conflict && error.message.contains("has a dependent object; detach"), "{error:?}");
    moto.proxy.disarm();
    // The remaining steps are not reported as stuck, although the deletion has taken long.
    let next = balancers.delete(&one.id).await;
    ensure!(next.is_ok(), "after the cause was removed: {next:?}");
    delete(&*balancers, &one.id).await?;
    check_no_resources(&moto).await
}

/// Security groups are deleted once the network interfaces with them are.
pub async fn security_groups_are_deleted_after_network_interfaces(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for calls in [0, 1, 7] {
        moto.proxy.keep_interfaces(calls);
        let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
        settle(&moto, &*balancers, &one, &all).await?;
        delete(&*balancers, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{calls} calls"))?;
        // Another process finishes the deletion.
        let one = spec(2, &[]);
        settle(&moto, &*balancers, &one, &all).await?;
        drop(balancers.delete(&one.id).await);
        delete(&*new_process(&moto).await?, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{calls} calls, another process"))?;
    }
    Ok(())
}

/// An exceeded quota is an error that names it. Existing traffic continues, and once the quota is raised the load
/// balancer is completed.
pub async fn quota_is_reported_and_affects_nothing_else(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(3).await?;
    let (current, all) = (targets(&instances[..2]), targets(&instances));
    let ranges: Vec<IpNet> = (0..4).map(|part| IpNet::new_assert([192, 0, 2, part * 8].into(), 29)).collect();
    for (quota, limit, raised) in [
        (Quota::LoadBalancers, 0, 50),
        (Quota::TargetGroups, 1, 3000),
        (Quota::Listeners, 1, 50),
        (Quota::Rules, 3, 60),
    ] {
        let one = LoadBalancerSpec { source_ranges: ranges.clone(), ..two_ports(1) };
        let balancers = new_process(&moto).await?;
        moto.proxy.set_quota(quota, limit);
        let error =
            balancers.ensure(&one, &current).await.err().with_context(|| format!("{quota:?} was not exceeded"))?;
        ensure!(error.kind == ErrorKind::Quota && error.message.contains("request a higher quota"), "{error}");
        let is_named = ["security group k8s-default-web1-", "rules per security group"];
        let is_named = is_named.iter().all(|part| error.message.contains(part));
        ensure!(is_named == (quota == Quota::Rules), "the full security group is not named: {error}");
        // Targets of existing groups follow the nodes nevertheless.
        drop(balancers.ensure(&one, &all).await);
        for group in AccountResources::read(&moto).await?.target_groups {
            let health = [("TargetGroupArn", &*group)];
            let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &health).await?;
            ensure!([0, 3].contains(&texts(&health, "Id").len()), "{quota:?}: {health}");
        }
        moto.proxy.set_quota(quota, raised);
        settle(&moto, &*balancers, &one, &all).await.with_context(|| format!("{quota:?} raised"))?;
        delete(&*balancers, &one.id).await?;
        check_no_resources(&moto).await.with_context(|| format!("{quota:?}"))?;
    }
    Ok(())
}

/// Returns pods with these numbers.
fn pods(name: &str, numbers: std::ops::Range<u8>) -> Targets {
    let endpoint = |number: u8| EndpointTarget {
        port_name: name.into(),
        address: [10, 0, 200, number].into(),
        port: 8080,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    };
    Targets { endpoints: numbers.map(endpoint).collect::<Vec<_>>().into(), ..Targets::default() }
}

async fn addresses(moto: &Moto) -> Result<Vec<String>> {
    let group = AccountResources::read(moto).await?.target_groups.remove(0);
    let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", &group)]).await?;
    let mut ids = texts(&health, "Id");
    ids.sort();
    Ok(ids)
}

/// A target group is full, and all of its pods are replaced: the new ones take the places of the old ones. Pods beyond
/// the limit are an error, and those that fit get traffic.
pub async fn full_target_group_follows_its_pods(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    moto.proxy.set_quota(Quota::Targets, 6);
    let mut one = spec(1, &[("nlb-target-type", "ip")]);
    one.ports[0].target_port = TargetPort::Number(8080);
    let name = one.ports[0].name.clone();
    let expected = |numbers: std::ops::Range<u8>| numbers.map(|last| format!("10.0.200.{last}")).collect::<Vec<_>>();
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &pods(&name, 10..16)).await?;
    balancers.set_targets(&one, &pods(&name, 20..26)).await?;
    ensure!(addresses(&moto).await? == expected(20..26), "{:?}", addresses(&moto).await?);
    // The pods are replaced again, in a process without a cache.
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &pods(&name, 30..36)).await?;
    ensure!(addresses(&moto).await? == expected(30..36), "{:?}", addresses(&moto).await?);

    // Two do not fit.
    let error = balancers.set_targets(&one, &pods(&name, 40..48)).await.err().context("all pods were registered")?;
    ensure!(error.kind == ErrorKind::Quota, "{error}");
    let current = addresses(&moto).await?;
    ensure!(current.len() >= 4 && current.iter().all(|one| expected(40..48).contains(one)), "{current:?}");
    let balancers = new_process(&moto).await?;
    let error = balancers.ensure(&one, &pods(&name, 50..58)).await.err().context("all pods were registered")?;
    ensure!(error.kind == ErrorKind::Quota, "{error}");
    let current = addresses(&moto).await?;
    ensure!(current.len() >= 4 && current.iter().all(|one| expected(50..58).contains(one)), "{current:?}");
    moto.proxy.set_quota(Quota::Targets, 500);
    settle(&moto, &*balancers, &one, &pods(&name, 50..58)).await?;
    ensure!(addresses(&moto).await? == expected(50..58), "{:?}", addresses(&moto).await?);
    delete(&*balancers, &one.id).await
}

/// All pages of lists are read, with the load balancers of several Services.
pub async fn every_page_is_read(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(2).await?);
    moto.proxy.limit_pages(2);
    let specs: Vec<LoadBalancerSpec> = (1..=4).map(two_ports).collect();
    let balancers = new_process(&moto).await?;
    for spec in &specs {
        settle(&moto, &*balancers, spec, &all).await?;
    }
    let changes = moto.proxy.changes();
    let next = new_process(&moto).await?;
    for spec in &specs {
        settle(&moto, &*next, spec, &all).await?;
    }
    ensure!(moto.proxy.changes() == changes, "{:?}", moto.proxy.calls());
    let owned = next.list_owned().await?;
    ensure!(owned.len() == specs.len(), "{owned:?}");
    remove_all(&*next, &specs).await?;
    check_no_resources(&moto).await
}

async fn remove_all(balancers: &dyn LoadBalancers, specs: &[LoadBalancerSpec]) -> Result<()> {
    for spec in specs {
        delete(balancers, &spec.id).await?;
    }
    Ok(())
}
