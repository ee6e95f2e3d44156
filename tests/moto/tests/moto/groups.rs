//! Load balancers that several Services share: ports, rules and targets of one Service never affect another, and with
//! the last Service everything is deleted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Service};
use providers::{Deletion, LoadBalancerId, LoadBalancerSpec, LoadBalancers, PlannedChange};

use crate::balancers::{AccountResources, id, new_process, port, settle, spec, targets, texts};
use crate::bed::{CLUSTER, provider_of};

/// Returns a Service with one port on the load balancer of a group.
fn member(number: usize, group: &str, listens: u16) -> LoadBalancerSpec {
    LoadBalancerSpec { ports: vec![port(listens)], ..spec(number, &[("group", group)]) }
}

/// Deletes a Service as ccm does, with the last spec as a hint.
async fn delete(balancers: &dyn LoadBalancers, spec: &LoadBalancerSpec) -> Result<()> {
    let last = Arc::new(spec.clone());
    let deadline = Instant::now() + cluster_tests::DEADLINE;
    let mut status = String::new();
    while Instant::now() < deadline {
        match balancers.delete_last(&spec.id, Some(last.clone())).await {
            Ok(Deletion::Gone) => return Ok(()),
            Ok(Deletion::InProgress(_)) => status = "in progress".into(),
            Err(error) => status = error.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("{} is not deleted: {status}", spec.id)
}

async fn ports(moto: &Moto, balancer: &str) -> Result<Vec<String>> {
    let listeners =
        moto.aws.list(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", balancer)], "Listeners").await?;
    let mut ports: Vec<String> = listeners.iter().map(|one| one.text("Port").to_owned()).collect();
    ports.sort();
    Ok(ports)
}

/// Returns the ports that the security group of the only shared load balancer allows.
async fn open_ports(moto: &Moto) -> Result<Vec<String>> {
    let filter = [("Filter.1.Name", "tag-key"), ("Filter.1.Value.1", "kubernetes.io/load-balancer-group")];
    let group =
        moto.aws.ec2("DescribeSecurityGroups", &filter, "groupId").await?.into_iter().next().context("no group")?;
    let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &*group)];
    let rules = moto.aws.call(Service::Ec2, "DescribeSecurityGroupRules", &filter).await?;
    let incoming = rules.split("<item>").filter(|rule| rule.contains("<isEgress>false"));
    let mut ports: Vec<String> = incoming.filter_map(|rule| texts(rule, "fromPort").into_iter().next()).collect();
    ports.sort();
    Ok(ports)
}

/// The only Service of a group is deleted before the load balancer that was created for it is visible. Without rules in
/// nodes' security groups nothing else refers to it.
pub async fn load_balancer_of_a_group_is_deleted_when_it_is_visible_late(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let config = moto.cloud_config().replace("[Global]\n", "[Global]\nDisableSecurityGroupIngress = true\n");
    for delay in 1..=4 {
        let provider = provider_of(&moto, config.clone())?;
        provider.initialize().await?;
        let (balancers, one) = (provider.load_balancers().context("no load balancers")?, member(1, "web", 80));
        balancers.starts_empty(&one.id);
        moto.proxy.delay_visibility(delay);
        balancers.ensure(&one, &all).await?;
        delete(&*balancers, &one).await?;
        moto.proxy.delay_visibility(0);
        let left = AccountResources::read(&moto).await?;
        ensure!(left.is_empty(), "after {delay} reads: {left:?}");
    }
    Ok(())
}

/// Two Services share a load balancer. A third Service is refused, because its port is taken. The deletion of one
/// Service does not affect the others.
pub async fn services_of_a_namespace_share_a_load_balancer_until_the_last_is_deleted(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(2).await?);
    let (first, second, third) = (member(1, "web", 80), member(2, "web", 443), member(3, "web", 80));
    let balancers = new_process(&moto).await?;
    let forecast = balancers.forecast(&first).await?;
    ensure!(forecast.change == PlannedChange::Created && forecast.reasons[0].contains("default/web"), "{forecast:?}");
    let name = settle(&moto, &*balancers, &first, &all).await?;
    ensure!(settle(&moto, &*balancers, &second, &all).await? == name, "the Services have different load balancers");
    let held = AccountResources::read(&moto).await?;
    ensure!(held.balancers.len() == 1 && held.target_groups.len() == 2, "{held:?}");
    ensure!(held.security_groups.len() == 2 && held.node_rules == 1, "{held:?}");
    ensure!(ports(&moto, &held.balancers[0]).await? == ["443", "80"], "{:?}", ports(&moto, &held.balancers[0]).await?);
    ensure!(open_ports(&moto).await? == ["443", "80"], "{:?}", open_ports(&moto).await?);
    let error = balancers.ensure(&third, &all).await.err().context("the port is free")?;
    ensure!(error.message.contains("has a listener of another owner"), "{error}");
    ensure!(balancers.forecast(&second).await?.change == PlannedChange::Kept);
    let changes = moto.proxy.changes();
    settle(&moto, &*balancers, &first, &all).await?;
    settle(&moto, &*balancers, &second, &all).await?;
    ensure!(moto.proxy.changes() == changes, "changes without a reason: {:?}", moto.proxy.calls());
    ensure!(
        balancers.list_owned().await?.iter().all(|owned| owned.id != third.id),
        "{:?}",
        balancers.list_owned().await?
    );

    delete(&*balancers, &third).await?;
    delete(&*balancers, &first).await?;
    ensure!(ports(&moto, &held.balancers[0]).await? == ["443"], "{:?}", ports(&moto, &held.balancers[0]).await?);
    ensure!(open_ports(&moto).await? == ["443"], "{:?}", open_ports(&moto).await?);
    settle(&moto, &*new_process(&moto).await?, &second, &all).await?;
    // Now the port is free.
    settle(&moto, &*balancers, &third, &all).await?;
    delete(&*new_process(&moto).await?, &second).await?;
    delete(&*new_process(&moto).await?, &third).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    ensure!(moto.proxy.denied().is_empty() && moto.proxy.gaps().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// The name of a group belongs to one namespace, unless the cloud config lists several namespaces for it.
pub async fn group_of_several_namespaces_needs_the_operators_consent(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let config = "[LoadBalancerGroup \"public\"]\nNamespace = default\nNamespace = shop\n";
    let provider = provider_of(&moto, format!("{}{config}", moto.cloud_config()))?;
    provider.initialize().await?;
    let balancers = provider.load_balancers().context("no load balancers")?;
    let of = |namespace: &str, spec: LoadBalancerSpec| LoadBalancerSpec {
        id: LoadBalancerId { namespace: namespace.into(), ..spec.id.clone() },
        ..spec
    };
    let (own, other) = (member(1, "web", 80), of("shop", member(2, "web", 443)));
    let first = settle(&moto, &*balancers, &own, &all).await?;
    ensure!(settle(&moto, &*balancers, &other, &all).await? != first, "a Service of another namespace joined");
    let (one, two, three) =
        (member(3, "public", 80), of("shop", member(4, "public", 443)), of("tenant", member(5, "public", 8080)));
    let shared = settle(&moto, &*balancers, &one, &all).await?;
    ensure!(settle(&moto, &*balancers, &two, &all).await? == shared, "the Services have different load balancers");
    let error = balancers.ensure(&three, &all).await.err().context("another namespace joined")?;
    ensure!(error.message.contains("add Namespace = tenant to [LoadBalancerGroup \"public\"]"), "{error}");
    // Internal and public Services never share a load balancer.
    let internal =
        LoadBalancerSpec { ports: vec![port(9000)], ..spec(6, &[("group", "public"), ("scheme", "internal")]) };
    ensure!(settle(&moto, &*balancers, &internal, &all).await? != shared, "an internal Service is public");
    for spec in [&own, &other, &one, &two, &internal] {
        delete(&*balancers, spec).await?;
    }
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// A Service moves to a shared load balancer, to another one, and back to its own; other Services are not affected.
pub async fn service_moves_to_the_load_balancer_of_a_group_and_back(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let other = member(2, "web", 443);
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &other, &all).await?;
    let own = LoadBalancerSpec { id: id(1), ..spec(1, &[]) };
    let on = |group: &str| LoadBalancerSpec { id: own.id.clone(), ..member(1, group, 80) };
    for (wanted, balancer_count) in [(own.clone(), 2), (on("web"), 1), (on("api"), 2), (own.clone(), 2)] {
        let next = new_process(&moto).await?;
        settle(&moto, &*next, &wanted, &all).await?;
        let held = AccountResources::read(&moto).await?;
        let counts = (held.balancers.len(), held.target_groups.len());
        ensure!(counts == (balancer_count, 2), "{:?} has {held:?}", wanted.annotations);
        settle(&moto, &*balancers, &other, &all).await?;
    }
    // The first process may still use a listing from before the changes of the others.
    delete(&*new_process(&moto).await?, &own).await?;
    ensure!(open_ports(&moto).await? == ["443"], "{:?}", open_ports(&moto).await?);
    delete(&*balancers, &other).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    ensure!(moto.proxy.gaps().is_empty(), "{:?}", moto.proxy.gaps());
    Ok(())
}

/// The listener of a Service that has just joined is missing from reads while the only other Service is deleted.
pub async fn load_balancer_of_a_group_stays_while_a_new_listener_is_invisible(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let (first, second) = (member(1, "web", 80), member(2, "web", 443));
    let balancers = new_process(&moto).await?;
    let name = settle(&moto, &*balancers, &first, &all).await?;
    moto.proxy.delay_visibility(1000);
    // The result is not settled: reads miss what was created.
    let ensured = balancers.ensure(&second, &all).await;
    delete(&*balancers, &first).await.with_context(|| format!("after {ensured:?}"))?;
    moto.proxy.delay_visibility(0);
    let held = AccountResources::read(&moto).await?;
    ensure!(held.balancers.len() == 1, "after {ensured:?}: {held:?}");
    ensure!(ports(&moto, &held.balancers[0]).await? == ["443"], "{:?}", ports(&moto, &held.balancers[0]).await?);
    ensure!(settle(&moto, &*balancers, &second, &all).await? == name, "the load balancer was replaced");
    delete(&*balancers, &second).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// A process ends right after a Service has joined. The next one deletes the only other Service, and its reads miss the
/// new listener and its target group.
pub async fn load_balancer_of_a_group_stays_while_a_listener_of_an_earlier_process_is_invisible(
    _: Space,
) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for delay in [1, 3, 4] {
        let (first, second) = (member(1, "web", 80), member(2, "web", 443));
        let earlier = new_process(&moto).await?;
        let name = settle(&moto, &*earlier, &first, &all).await?;
        moto.proxy.delay_visibility(delay);
        earlier.ensure(&second, &all).await?;
        let next = new_process(&moto).await?;
        delete(&*next, &first).await.with_context(|| format!("{delay} reads"))?;
        moto.proxy.delay_visibility(0);
        ensure!(settle(&moto, &*next, &second, &all).await? == name, "{delay} reads: the load balancer was replaced");
        delete(&*next, &second).await?;
        let resources = AccountResources::read(&moto).await?;
        ensure!(resources.is_empty(), "{delay} reads: {resources:?}");
    }
    Ok(())
}

/// Services were deleted without waiting for their cleanup, so their listeners, target groups and rules are
/// leaked. The load balancer is deleted with the leaked resources of the last one.
pub async fn leaked_members_of_a_group_are_deleted_with_its_load_balancer(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let (first, second) = (member(1, "web", 80), member(2, "web", 443));
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &first, &all).await?;
    settle(&moto, &*balancers, &second, &all).await?;
    for (spec, left) in [(&first, &["443"][..]), (&second, &[])] {
        let balancers = new_process(&moto).await?;
        let owned = balancers.list_owned().await?;
        let owned = owned.iter().find(|owned| owned.id == spec.id).context("no leak is found")?;
        let deadline = Instant::now() + cluster_tests::DEADLINE;
        while balancers.collect(owned).await? != Deletion::Gone {
            ensure!(Instant::now() < deadline, "{owned:?} is not deleted");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if !left.is_empty() {
            ensure!(open_ports(&moto).await? == left, "rules of {} are left: {:?}", spec.id, open_ports(&moto).await?);
        }
    }
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

pub async fn crashes_leave_nothing_of_a_group(_: Space) -> Result<()> {
    crash_at_changes(4).await
}

/// Runs only in `cargo xtask soak --only aws`.
pub async fn crash_at_any_call_leaves_nothing_of_a_group(_: Space) -> Result<()> {
    crash_at_changes(1).await
}

/// Two Services are created and deleted. In each run another change (every `step`th one) fails or loses its response,
/// and another process finishes.
async fn crash_at_changes(step: usize) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    for (round, effect) in [Effect::Outage, Effect::ResponseLost].into_iter().enumerate() {
        for nth in (1 + round as u64 % step as u64..).step_by(step) {
            let at = format!("{effect:?} at change {nth}");
            let pair = [member(1, "web", 80), member(2, "web", 443)];
            moto.proxy.arm(Fault::nth("changes", nth, effect.clone()));
            for spec in &pair {
                // Each process makes one call, as if it crashed after it.
                for _ in 0..2 {
                    drop(new_process(&moto).await?.ensure(spec, &all).await);
                }
                settle(&moto, &*new_process(&moto).await?, spec, &all).await.with_context(|| at.clone())?;
            }
            let held = AccountResources::read(&moto).await?;
            ensure!(held.balancers.len() == 1 && held.target_groups.len() == 2, "{at}: {held:?}");
            for spec in &pair {
                for _ in 0..2 {
                    let last = Some(Arc::new(spec.clone()));
                    drop(new_process(&moto).await?.delete_last(&spec.id, last).await);
                }
                delete(&*new_process(&moto).await?, spec).await.with_context(|| at.clone())?;
            }
            let faults_applied = moto.proxy.faults_applied();
            moto.proxy.disarm();
            let held = AccountResources::read(&moto).await?;
            ensure!(held.is_empty(), "{at}: {held:?}");
            if faults_applied == 0 {
                ensure!(nth > 8, "only {nth} changes were made");
                break;
            }
        }
    }
    Ok(())
}
