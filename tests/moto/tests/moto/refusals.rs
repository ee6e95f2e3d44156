//! Changes of targets and rules that AWS refuses: what is reported, what is repeated, and what serves meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Space, eventually};
use moto::{Effect, Element, Fault, Instance, Moto, Quota, Service};
use providers::{EndpointTarget, Ensured, ErrorKind, IpNet, LoadBalancerSpec, LoadBalancers, Progress, Targets};

use crate::balancers::{AccountResources, PREFIX, delete, new_process, port, settle, spec, targets, texts};
use crate::bed::CLUSTER;
use crate::reach::start_in_another_group;
use crate::sharing::{self, RecordsInMemory};
use crate::user_groups::UsersBalancer;

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

/// Returns a pod of a Service.
fn pod_of(one: &LoadBalancerSpec) -> EndpointTarget {
    EndpointTarget {
        port_name: one.ports[0].name.clone(),
        address: [10, 0, 16, 1].into(),
        port: 8080,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    }
}

/// AWS accepts an address outside of the network only if the call names all zones.
pub async fn address_outside_of_the_network_is_named_with_all_zones(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[("nlb-target-type", "ip")]));
    let pod = |address: [u8; 4]| EndpointTarget { address: address.into(), ..pod_of(&one) };
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

/// Calls `ensure` until the Service is settled, although some of its targets may not be reached.
async fn settled(balancers: &dyn LoadBalancers, one: &LoadBalancerSpec, all: &Targets) -> Result<Ensured> {
    eventually(format!("{} is settled", one.id), || async {
        let ensured = balancers.ensure(one, all).await?;
        ensure!(ensured.progress == Progress::Settled, "{ensured:?}");
        Ok(ensured)
    })
    .await
}

/// Returns the security group of an instance.
async fn group_of(moto: &Moto, instance: &Instance) -> Result<String> {
    let described = moto.aws.call(Service::Ec2, "DescribeInstances", &[("InstanceId.1", &*instance.id)]).await?;
    texts(&described, "groupId").into_iter().next().context("no group")
}

/// Adds as many rules to a security group as AWS allows in a new account.
async fn fill(moto: &Moto, group: &str) -> Result<()> {
    for part in 0..60 {
        let range = format!("198.51.100.{part}/32");
        let rule = [
            ("GroupId", group),
            ("IpPermissions.1.IpProtocol", "tcp"),
            ("IpPermissions.1.FromPort", "22"),
            ("IpPermissions.1.ToPort", "22"),
            ("IpPermissions.1.IpRanges.1.CidrIp", &*range),
        ];
        moto.aws.call(Service::Ec2, "AuthorizeSecurityGroupIngress", &rule).await?;
    }
    Ok(())
}

/// Removes all incoming rules of a security group.
async fn empty(moto: &Moto, group: &str) -> Result<()> {
    let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", group)];
    let rules = moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &filter, "securityGroupRuleSet").await?;
    for rule in rules.iter().filter(|rule| rule.text("isEgress") == "false") {
        let revoked = [("GroupId", group), ("SecurityGroupRuleId.1", rule.text("securityGroupRuleId"))];
        moto.aws.call(Service::Ec2, "RevokeSecurityGroupIngress", &revoked).await?;
    }
    Ok(())
}

/// A security group of nodes has as many rules as AWS allows. Each Service with targets there has one warning, which
/// names the group and the quota, and is checked again with backoff. Targets in other groups get traffic, and other
/// Services are not affected.
pub async fn full_security_group_of_nodes_is_reported_and_opened_once_it_has_room(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let full = group_of(&moto, &instances[1]).await?;
    for annotations in [&[][..], &[("disable-nlb-sg", "true")]] {
        let at = format!("{annotations:?}");
        fill(&moto, &full).await?;
        let balancers = new_process(&moto).await?;
        let (one, other) = (spec(1, annotations), spec(2, annotations));
        balancers.starts_empty(&one.id);
        for (attempt, pause) in [60, 120].into_iter().enumerate() {
            let ensured = settled(&*balancers, &one, &targets(&instances)).await.with_context(|| at.clone())?;
            let [warning] = &ensured.warnings[..] else { anyhow::bail!("{at}, attempt {attempt}: {ensured:?}") };
            let quota = ["RulesPerSecurityGroupLimitExceeded", "\"Inbound or outbound rules per security group\""];
            ensure!(warning.contains(&full) && quota.iter().all(|name| warning.contains(name)), "{at}: {warning}");
            ensure!(ensured.check_after == Some(Duration::from_secs(pause)), "{at}, attempt {attempt}: {ensured:?}");
            let unreached = moto.proxy.unreached(None).await?;
            ensure!(unreached == [format!("{}:30080", instances[1].id)], "{at}: {unreached:?} are not reached");
        }
        balancers.starts_empty(&other.id);
        let ensured = settled(&*balancers, &other, &targets(&instances[..1])).await.with_context(|| at.clone())?;
        ensure!(ensured.warnings.is_empty() && ensured.check_after.is_none(), "{at}, another Service: {ensured:?}");
        empty(&moto, &full).await?;
        // Rules are read again after 30 seconds, or after a refusal.
        let ensured = settled(&*balancers, &one, &targets(&instances)).await.with_context(|| at.clone())?;
        ensure!(ensured.warnings.is_empty() && ensured.check_after.is_none(), "{at}, with room: {ensured:?}");
        let unreached = moto.proxy.unreached(None).await?;
        ensure!(unreached.is_empty(), "{at}, with room: {unreached:?} are not reached");
        delete(&*balancers, &other.id).await?;
        delete(&*balancers, &one.id).await?;
        empty(&moto, &full).await?;
    }
    Ok(())
}

/// A node joins whose security group AWS does not allow to open: it is registered, and the caller continues with
/// `ensure`, which reports the refusal. Later changes of targets neither open the group nor end in another `ensure`.
pub async fn refused_opening_for_a_new_node_is_reported_by_the_next_ensure(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(2).await?;
    instances.push(start_in_another_group(&moto).await?);
    let (current, all) = (targets(&instances[..1]), targets(&instances));
    for annotations in [&[][..], &[("disable-nlb-sg", "true")]] {
        let at = format!("{annotations:?}");
        let (balancers, one) = (new_process(&moto).await?, spec(1, annotations));
        settle(&moto, &*balancers, &one, &current).await?;
        moto.proxy.arm(Fault::always("AuthorizeSecurityGroupIngress", Effect::refused("UnauthorizedOperation", "no")));
        let updated = balancers.set_targets(&one, &all).await;
        ensure!(updated.as_ref().is_err_and(|error| error.is_not_found()), "{at}: {updated:?}");
        let unreached = moto.proxy.unreached(None).await?;
        ensure!(unreached == [format!("{}:30080", instances[2].id)], "{at}: {unreached:?} are not reached");
        let ensured = settled(&*balancers, &one, &all).await.with_context(|| at.clone())?;
        let is_reported = ensured.warnings.len() == 1 && ensured.warnings[0].contains("UnauthorizedOperation");
        ensure!(is_reported && ensured.check_after.is_some(), "{at}: {ensured:?}");
        let attempts = moto.proxy.calls_of("AuthorizeSecurityGroupIngress");
        for nodes in [&instances[1..], &instances[..]] {
            balancers.set_targets(&one, &targets(nodes)).await.with_context(|| at.clone())?;
        }
        let later = moto.proxy.calls_of("AuthorizeSecurityGroupIngress");
        ensure!(later == attempts, "{at}: {} attempts to open the group", later - attempts);
        moto.proxy.disarm();
        settle(&moto, &*balancers, &one, &all).await.with_context(|| at.clone())?;
        delete(&*balancers, &one.id).await?;
    }
    Ok(())
}

/// The instances of new nodes cannot be described, so their security groups are unknown: the nodes are registered
/// nevertheless, and a later call opens the groups.
pub async fn targets_are_registered_while_their_security_groups_cannot_be_read(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
    settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
    moto.proxy.arm(Fault::always("DescribeInstances", Effect::refused("UnauthorizedOperation", "no")));
    let error = balancers.set_targets(&one, &targets(&instances)).await.err().context("the groups were read")?;
    ensure!(error.kind == ErrorKind::Denied, "{error:?}");
    let unreached = moto.proxy.unreached(None).await?;
    ensure!(unreached == [format!("{}:30080", instances[1].id)], "registered: {unreached:?}");
    moto.proxy.disarm();
    balancers.set_targets(&one, &targets(&instances)).await?;
    let unreached = moto.proxy.unreached(None).await?;
    ensure!(unreached.is_empty(), "{unreached:?} are not reached");
    delete(&*balancers, &one.id).await
}

/// AWS refuses a change of a Service each time, and at first also to open the security group of a new node. The error
/// names both, and a later attempt opens the group although the change is still refused.
pub async fn refused_opening_is_repeated_while_another_change_is_refused(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let group = group_of(&moto, &instances[1]).await?;
    for annotations in [&[][..], &[("disable-nlb-sg", "true")]] {
        let at = format!("{annotations:?}");
        let (balancers, one) = (new_process(&moto).await?, spec(1, annotations));
        settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
        let mut changed = one.clone();
        // There is no such subnet: `ensure` fails, and only updates the existing load balancer's targets.
        changed.annotations.insert(format!("{PREFIX}subnets"), "subnet-none".into());
        moto.proxy.arm(Fault::always("AuthorizeSecurityGroupIngress", Effect::refused("UnauthorizedOperation", "no")));
        for _ in 0..2 {
            let error = balancers.ensure(&changed, &targets(&instances)).await.err().context("nothing was refused")?;
            let is_named = ["subnet-none", &*group].iter().all(|part| error.message.contains(part));
            ensure!(is_named, "{at}: {error}");
        }
        moto.proxy.disarm();
        let error = balancers.ensure(&changed, &targets(&instances)).await.err().context("nothing was refused")?;
        ensure!(!error.message.contains(&*group), "{at}: {error}");
        let unreached = moto.proxy.unreached(None).await?;
        ensure!(unreached.is_empty(), "{at}: {unreached:?} are not reached");
        delete(&*balancers, &one.id).await?;
    }
    Ok(())
}

/// The clients of a Service change, and the quota has no room for the old and the new rules together, or for the new
/// ones alone: the change fails with the quota and the security group, and the old state is kept.
pub async fn old_state_serves_while_a_quota_has_no_room_for_a_change(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let ranges = |first: u8, count: u8| {
        (first..first + count).map(|part| IpNet::new_assert([192, 0, 2, part * 8].into(), 29)).collect::<Vec<_>>()
    };
    let balancers = new_process(&moto).await?;
    let one = LoadBalancerSpec { source_ranges: ranges(0, 4), ..spec(1, &[]) };
    settle(&moto, &*balancers, &one, &all).await?;
    let read = async || -> Result<(Vec<Element>, Vec<String>)> {
        let rules = moto.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &[], "securityGroupRuleSet").await?;
        let balancer = AccountResources::read(&moto).await?.balancers.pop().context("no load balancer")?;
        let listeners = moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", &*balancer)]).await?;
        let rules = rules.into_iter().filter(|rule| rule.text("isEgress") == "false").collect();
        Ok((rules, texts(&listeners, "Port")))
    };
    let ids = |rules: &[Element]| -> BTreeSet<String> {
        rules.iter().map(|rule| rule.text("securityGroupRuleId").to_owned()).collect()
    };
    let (rules, ports) = read().await?;
    let own = AccountResources::read(&moto).await?.security_groups;
    let current = own.iter().map(|own| rules.iter().filter(|rule| rule.text("groupId") == own).count());
    let almost_full = current.max().context("no security group")? + 1;
    let group = ["security group k8s-default-web1-", "rules per security group"];
    for (quota, limit, named, changed) in [
        (Quota::Rules, almost_full, &group[..], LoadBalancerSpec { source_ranges: ranges(4, 4), ..one.clone() }),
        (Quota::Rules, almost_full, &group, LoadBalancerSpec { source_ranges: ranges(4, 9), ..one.clone() }),
    ] {
        moto.proxy.set_quota(quota, limit);
        let error = balancers.ensure(&changed, &all).await.err().with_context(|| format!("{quota:?} has room"))?;
        let is_named = named.iter().all(|part| error.message.contains(part));
        ensure!(error.kind == ErrorKind::Quota && is_named, "{quota:?}: {error}");
        let (now, listeners) = read().await?;
        let is_kept = ids(&now).is_superset(&ids(&rules)) && listeners == ports;
        ensure!(is_kept, "{quota:?}: {listeners:?} with {now:?}; before: {ports:?} with {rules:?}");
        moto.proxy.set_quota(quota, 60);
    }
    settle(&moto, &*balancers, &one, &all).await?;
    delete(&*balancers, &one.id).await
}

/// A load balancer without security groups has no rule for clients, because AWS has refused all. Then each `ensure`
/// with a change of the Service fails. Nodes that join are still registered, and those that leave are deregistered:
/// `set_targets` does not depend on the change.
pub async fn nodes_of_closed_groups_are_registered_while_another_change_is_refused(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    moto.proxy.ignore_reachability("AWS refuses to open the security group of nodes");
    let instances = moto.run(3).await?;
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[("disable-nlb-sg", "true")]));
    moto.proxy.arm(Fault::always("AuthorizeSecurityGroupIngress", Effect::refused("UnauthorizedOperation", "no")));
    settled(&*balancers, &one, &targets(&instances[..1])).await?;
    let mut changed = one.clone();
    // There is no such subnet: `ensure` fails, and only updates the existing load balancer's targets.
    changed.annotations.insert(format!("{PREFIX}subnets"), "subnet-none".into());
    let failed = balancers.ensure(&changed, &targets(&instances[..1])).await;
    ensure!(failed.is_err(), "{failed:?}");
    for nodes in [&instances[..2], &instances[1..]] {
        let updated = balancers.set_targets(&changed, &targets(nodes)).await;
        ensure!(updated.is_ok(), "{updated:?}");
        let (registered, expected) = (registered(&moto).await?, nodes.iter().map(|node| node.id.clone()));
        ensure!(registered.into_iter().collect::<BTreeSet<_>>() == expected.collect(), "{} nodes", nodes.len());
    }
    moto.proxy.disarm();
    delete(&*balancers, &one.id).await
}

/// The rules for a new node cannot be changed: the node is registered nevertheless, and the error is returned.
pub async fn node_is_registered_although_the_rules_for_it_cannot_be_changed(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let mut instances = moto.run(1).await?;
    instances.push(start_in_another_group(&moto).await?);
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[("disable-nlb-sg", "true")]));
    settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
    moto.proxy.arm(Fault::always("AuthorizeSecurityGroupIngress", Effect::Outage));
    let updated = balancers.set_targets(&one, &targets(&instances)).await;
    ensure!(updated.as_ref().is_err_and(|error| !error.is_not_found()), "{updated:?}");
    let unreached = moto.proxy.unreached(None).await?;
    ensure!(unreached == [format!("{}:30080", instances[1].id)], "registered, and not opened: {unreached:?}");
    moto.proxy.disarm();
    settle(&moto, &*balancers, &one, &targets(&instances)).await?;
    delete(&*balancers, &one.id).await
}

/// Returns the ids of the targets in the only target group.
async fn registered(moto: &Moto) -> Result<Vec<String>> {
    let group = AccountResources::read(moto).await?.target_groups.pop().context("no target group")?;
    registered_in(moto, &group).await
}

/// Returns the ids of the targets in a target group.
async fn registered_in(moto: &Moto, group: &str) -> Result<Vec<String>> {
    let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", group)]).await?;
    Ok(texts(&health, "Id"))
}

/// AWS refuses a new target for a while: the next `ensure` reports it, and a later one registers it. Until then,
/// changes of other targets do not end in further reports.
pub async fn refused_target_is_reported_and_registered_later(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (current, all) = (targets(&instances[..1]), targets(&instances));
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
    settle(&moto, &*balancers, &one, &current).await?;
    moto.proxy.arm(Fault::always("RegisterTargets", Effect::refused("InvalidTarget", "the instance is not running")));
    let updated = balancers.set_targets(&one, &all).await;
    ensure!(updated.as_ref().is_err_and(|error| error.is_not_found()), "{updated:?}");
    let ensured = settled(&*balancers, &one, &all).await?;
    let is_reported = ensured.warnings.len() == 1 && ensured.warnings[0].contains(&instances[1].id);
    ensure!(is_reported && ensured.check_after.is_some(), "{ensured:?}");
    balancers.set_targets(&one, &current).await?;
    balancers.set_targets(&one, &all).await?;
    moto.proxy.disarm();
    let ensured = settled(&*balancers, &one, &all).await?;
    ensure!(ensured.warnings.is_empty() && registered(&moto).await?.len() == 2, "{ensured:?}");
    delete(&*balancers, &one.id).await
}

/// As the test above, while the Service is invalid after a restart: the result of the call names the target, and the
/// next call registers it.
pub async fn refused_target_of_an_invalid_service_is_registered_later(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (one, all) = (spec(1, &[]), targets(&instances));
    settle(&moto, &*new_process(&moto).await?, &one, &targets(&instances[..1])).await?;
    let next = new_process(&moto).await?;
    let mut invalid = one.clone();
    invalid.annotations.insert(format!("{PREFIX}scheme"), "public".into());
    moto.proxy.arm(Fault::always("RegisterTargets", Effect::refused("InvalidTarget", "the instance is not running")));
    for _ in 0..2 {
        let refused = next.follow_targets(&invalid, &all).await?.refused.context("nothing was refused")?;
        ensure!(refused.message.contains(&instances[1].id), "{refused}");
    }
    moto.proxy.disarm();
    let followed = next.follow_targets(&invalid, &all).await?;
    ensure!(followed.refused.is_none() && registered(&moto).await?.len() == 2, "{followed:?}");
    delete(&*next, &one.id).await
}

/// AWS refuses new targets: changes of other targets do not repeat the attempt, also after a failed `ensure` and while
/// the Service is invalid after a restart. One warning names all of them.
pub async fn refused_targets_are_left_out_of_later_changes(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(4).await?;
    let (one, all) = (spec(1, &[]), targets(&instances));
    let mut changed = one.clone();
    // There is no such subnet: `ensure` fails, and only updates the existing load balancer's targets.
    changed.annotations.insert(format!("{PREFIX}subnets"), "subnet-none".into());
    let mut invalid = one.clone();
    invalid.annotations.insert(format!("{PREFIX}scheme"), "public".into());
    settle(&moto, &*new_process(&moto).await?, &one, &targets(&instances[..2])).await?;
    moto.proxy.arm(Fault::always("RegisterTargets", Effect::refused("InvalidTarget", "the instance is not running")));
    for (at, service) in [("valid", &one), ("with a refused change", &changed), ("invalid", &invalid)] {
        let balancers = new_process(&moto).await?;
        let update = async |nodes: &Targets| -> Result<()> {
            if at == "invalid" {
                balancers.follow_targets(service, nodes).await?.refused.context("nothing was refused")?;
            } else {
                // The caller continues with `ensure` because of the refusal.
                let updated = balancers.set_targets(service, nodes).await;
                ensure!(updated.as_ref().is_err_and(|error| error.is_not_found()), "{updated:?}");
            }
            Ok(())
        };
        if at == "with a refused change" {
            let failed = balancers.ensure(service, &all).await;
            ensure!(failed.is_err(), "{failed:?}");
        } else {
            update(&all).await.context(at)?;
        }
        let attempts = moto.proxy.calls_of("RegisterTargets");
        update(&targets(&instances[1..])).await.context(at)?;
        let more = moto.proxy.calls_of("RegisterTargets") - attempts;
        ensure!(more == 0, "{at}: {more} attempts with a change of another target");
        moto.proxy.disarm();
        settle(&moto, &*new_process(&moto).await?, &one, &targets(&instances[..2])).await?;
        let refused = Effect::refused("InvalidTarget", "the instance is not running");
        moto.proxy.arm(Fault::always("RegisterTargets", refused));
    }
    let balancers = new_process(&moto).await?;
    let ensured = settled(&*balancers, &one, &all).await?;
    let [warning] = &ensured.warnings[..] else { anyhow::bail!("{ensured:?}") };
    ensure!(instances[2..].iter().all(|node| warning.contains(&node.id)), "{warning}");
    moto.proxy.disarm();
    delete(&*balancers, &one.id).await
}

/// AWS refuses all pods of the new target group that replaces one of nodes. The new group has no healthy target, so the
/// Service is not settled; still, the pods are not sent again with each `ensure`.
pub async fn refused_targets_are_left_out_while_their_group_replaces_another(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
    let nodes = targets(&moto.run(1).await?);
    settle(&moto, &*balancers, &one, &nodes).await?;
    let pods = |count: u8| Targets {
        endpoints: (1..=count).map(|pod| EndpointTarget { address: [10, 0, 16, pod].into(), ..pod_of(&one) }).collect(),
        ..nodes.clone()
    };
    let mut changed = one.clone();
    changed.annotations.insert(format!("{PREFIX}nlb-target-type"), "ip".into());
    moto.proxy.arm(Fault::always("RegisterTargets", Effect::refused("InvalidTarget", "not in the network")));
    let before = moto.proxy.calls_of("RegisterTargets");
    let mut sent = Vec::new();
    for _ in 0..5 {
        let ensured = balancers.ensure(&changed, &pods(8)).await?;
        let is_reported = ensured.warnings.iter().any(|warning| warning.contains("and 3 more get no traffic"));
        ensure!(ensured.progress != Progress::Settled && is_reported, "{ensured:?}");
        sent.push(moto.proxy.calls_of("RegisterTargets") - before);
    }
    ensure!(sent == [15; 5], "{sent:?} calls");
    // With more pods than AWS accepts attempts for, the others are tried by the following calls.
    let mut sent = vec![moto.proxy.calls_of("RegisterTargets")];
    for _ in 0..5 {
        balancers.ensure(&changed, &pods(72)).await?;
        sent.push(moto.proxy.calls_of("RegisterTargets"));
    }
    let sent: Vec<u64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let is_limited = sent.iter().all(|calls| *calls <= 61) && sent[1] > 0 && sent[4] == 0;
    ensure!(is_limited, "{sent:?} calls");
    moto.proxy.disarm();
    delete(&*balancers, &one.id).await
}

/// A zone is full: targets in other zones are registered, and the quota is reported.
pub async fn targets_that_fit_are_registered_although_others_exceed_a_quota(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(5).await?;
    let (balancers, one) = (new_process(&moto).await?, spec(1, &[]));
    settle(&moto, &*balancers, &one, &targets(&instances[..1])).await?;
    // The first of four targets does not fit: not with the others, and not alone. The same applies to the second
    // attempt, after the deregistrations.
    let full = || Effect::refused("TooManyTargets", "500 targets in a zone");
    moto.proxy.arm(Fault { times: Some(3), ..Fault::first("RegisterTargets", full()) });
    moto.proxy.arm(Fault { times: None, ..Fault::nth("RegisterTargets", 6, full()) });
    let error = balancers.set_targets(&one, &targets(&instances)).await.err().context("all targets fit")?;
    ensure!(error.kind == ErrorKind::Quota, "{error:?}");
    let found = registered(&moto).await?;
    ensure!(found.len() == 4, "{found:?}");
    moto.proxy.disarm();
    settle(&moto, &*balancers, &one, &targets(&instances)).await?;
    delete(&*balancers, &one.id).await
}

/// AWS refuses a change of one target group for another reason than its targets: the targets of the Service's other
/// groups follow, while the Service is valid and while it is invalid after a restart.
pub async fn error_of_one_target_group_does_not_affect_the_others(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (before, after) = (targets(&instances[..1]), targets(&instances[1..]));
    let denied = || Fault::first("RegisterTargets", Effect::refused("AccessDenied", "no"));
    let two = LoadBalancerSpec { ports: vec![port(80), port(443)], ..spec(1, &[]) };
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &two, &before).await?;
    moto.proxy.arm(denied());
    let error = balancers.set_targets(&two, &after).await.err().context("nothing was refused")?;
    ensure!(error.kind == ErrorKind::Denied, "{error:?}");
    moto.proxy.disarm();
    let mut found = BTreeSet::new();
    for group in AccountResources::read(&moto).await?.target_groups {
        found.insert(registered_in(&moto, &group).await?);
    }
    let expected: BTreeSet<_> = instances.iter().map(|instance| vec![instance.id.clone()]).collect();
    ensure!(found == expected, "{found:?}");
    delete(&*balancers, &two.id).await?;

    let users = UsersBalancer::create(&moto, &["443"]).await?;
    let records = Arc::new(RecordsInMemory::default());
    let two = LoadBalancerSpec { ports: two.ports.clone(), ..spec(2, &[("target-group-arn.443", &users.groups[0])]) };
    settle(&moto, &*sharing::new_process(&moto, &records).await?, &two, &before).await?;
    let next = sharing::new_process(&moto, &records).await?;
    let mut invalid = two.clone();
    invalid.annotations.insert(format!("{PREFIX}scheme"), "public".into());
    moto.proxy.arm(denied());
    let error = next.follow_targets(&invalid, &after).await.err().context("nothing was refused")?;
    ensure!(error.kind == ErrorKind::Denied, "{error:?}");
    moto.proxy.disarm();
    let found = registered_in(&moto, &users.groups[0]).await?;
    ensure!(found == [instances[1].id.clone()], "the targets of the user's group did not follow: {found:?}");
    settle(&moto, &*next, &two, &after).await?;
    delete(&*next, &two.id).await
}
