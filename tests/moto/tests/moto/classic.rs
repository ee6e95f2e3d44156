//! Classic Load Balancers of cloud-provider-aws: they are kept while their Service exists, deleted with it, and
//! replaced without a gap if an annotation requests it. All tests use only the permissions of the published policy.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Instance, Moto, Service};
use providers::{Deletion, Ensured, ErrorKind, LoadBalancerId, LoadBalancerSpec, PlannedChange, Progress};

use crate::balancers::{AccountResources, PREFIX, delete, new_process, port, settle, spec, targets, texts};
use crate::bed::CLUSTER;
use crate::sharing::{self, RecordsInMemory};
use crate::user_groups::{UsersBalancer, unused_group};

const REPLACED: &str = "kubernetes.io/load-balancer-replaced";

/// Returns a Service of type LoadBalancer without an annotation for the type of load balancer.
pub fn untyped(number: usize, annotations: &[(&str, &str)]) -> LoadBalancerSpec {
    let mut spec = spec(number, annotations);
    spec.annotations.remove(&format!("{PREFIX}type"));
    spec
}

/// Creates the resources that cloud-provider-aws creates for a Service: load balancer, security group, rule, one
/// instance.
pub async fn create_classic(moto: &Moto, id: &LoadBalancerId, cluster: &str, instance: &Instance) -> Result<String> {
    let (name, tag, service) = (id.default_name(), format!("kubernetes.io/cluster/{cluster}"), id.to_string());
    let group = [
        ("GroupName", &*format!("k8s-elb-{name}")),
        ("GroupDescription", "Security group for Kubernetes ELB"),
        ("VpcId", &*moto.network.vpc),
        ("TagSpecification.1.ResourceType", "security-group"),
        ("TagSpecification.1.Tag.1.Key", &*tag),
        ("TagSpecification.1.Tag.1.Value", "owned"),
    ];
    let group = moto.aws.ec2("CreateSecurityGroup", &group, "groupId").await?.remove(0);
    let rule = [
        ("GroupId", &*moto.network.group),
        ("IpPermissions.1.IpProtocol", "-1"),
        ("IpPermissions.1.Groups.1.GroupId", &*group),
    ];
    moto.aws.call(Service::Ec2, "AuthorizeSecurityGroupIngress", &rule).await?;
    let balancer = [
        ("LoadBalancerName", &*name),
        ("Listeners.member.1.Protocol", "TCP"),
        ("Listeners.member.1.LoadBalancerPort", "80"),
        ("Listeners.member.1.InstanceProtocol", "TCP"),
        ("Listeners.member.1.InstancePort", "30080"),
        ("Subnets.member.1", &*moto.network.subnets[0]),
        ("SecurityGroups.member.1", &*group),
        ("Tags.member.1.Key", &*tag),
        ("Tags.member.1.Value", "owned"),
        ("Tags.member.2.Key", "kubernetes.io/service-name"),
        ("Tags.member.2.Value", &*service),
    ];
    moto.aws.call(Service::Classic, "CreateLoadBalancer", &balancer).await?;
    let registration = [("LoadBalancerName", &*name), ("Instances.member.1.InstanceId", &*instance.id)];
    moto.aws.call(Service::Classic, "RegisterInstancesWithLoadBalancer", &registration).await?;
    Ok(group)
}

/// Returns the instances of all Classic Load Balancers, in order; `None` if this Service's one does not exist.
async fn registered_instances(moto: &Moto, id: &LoadBalancerId) -> Result<Option<Vec<String>>> {
    let all = moto.aws.call(Service::Classic, "DescribeLoadBalancers", &[]).await?;
    let name = format!("<LoadBalancerName>{}</LoadBalancerName>", id.default_name());
    if !all.contains(&name) {
        return Ok(None);
    }
    let mut ids = texts(&all, "InstanceId");
    ids.sort();
    Ok(Some(ids))
}

fn ids(instances: &[Instance]) -> Option<Vec<String>> {
    let mut ids: Vec<String> = instances.iter().map(|instance| instance.id.clone()).collect();
    ids.sort();
    Some(ids)
}

async fn start() -> Result<(Moto, Vec<Instance>)> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(3).await?;
    Ok((moto, instances))
}

fn hostname(ensured: &Ensured) -> Result<String> {
    let first = ensured.status.ingress.first().context("no address")?;
    first.hostname.clone().context("no hostname")
}

/// When nodes are added and removed, the Classic Load Balancer gets their instances. When the Service is deleted, all
/// resources are deleted.
pub async fn classic_load_balancer_follows_nodes_and_is_deleted_with_its_service(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    // Settings that only a Classic Load Balancer can have are not errors.
    let one = untyped(1, &[("extra-security-groups", "sg-extra"), ("proxy-protocol", "*")]);
    create_classic(&moto, &one.id, CLUSTER, &instances[0]).await?;
    let balancers = new_process(&moto).await?;
    let before = moto.proxy.changes();
    let ensured = balancers.ensure(&one, &targets(&instances[..1])).await?;
    ensure!(ensured.progress == Progress::Settled && hostname(&ensured)?.contains("elb"), "{ensured:?}");
    ensure!(ensured.warnings.iter().any(|one| one.contains("replace-classic")), "{ensured:?}");
    ensure!(moto.proxy.changes() == before, "the takeover made changes: {:?}", moto.proxy.calls());

    balancers.set_targets(&one, &targets(&instances[1..])).await?;
    ensure!(
        registered_instances(&moto, &one.id).await? == ids(&instances[1..]),
        "{:?}",
        registered_instances(&moto, &one.id).await?
    );
    // An instance that no longer exists does not affect the others.
    let mut with_missing = instances.clone();
    with_missing[0].id = "i-00000000000000000".into();
    balancers.ensure(&one, &targets(&with_missing)).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(
        resources.balancers.is_empty() && resources.target_groups.is_empty() && resources.node_rules == 1,
        "{resources:?}"
    );

    delete(&*balancers, &one.id).await?;
    ensure!(registered_instances(&moto, &one.id).await?.is_none(), "the load balancer still exists");
    let groups = moto.aws.ec2("DescribeSecurityGroups", &[], "groupName").await?;
    ensure!(!groups.iter().any(|name| name.starts_with("k8s-elb-")), "{groups:?}");
    ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// AWS refuses the instance of a new node for a while: the next `ensure` reports it, requests another check, and a
/// later one registers it.
pub async fn refused_instance_of_a_classic_load_balancer_is_reported_and_registered_later(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let one = untyped(1, &[]);
    create_classic(&moto, &one.id, CLUSTER, &instances[0]).await?;
    let balancers = new_process(&moto).await?;
    let (current, all) = (targets(&instances[..1]), targets(&instances[..2]));
    balancers.ensure(&one, &current).await?;
    moto.proxy.arm(Fault::always("RegisterInstancesWithLoadBalancer", Effect::refused("InvalidInstance", "no")));
    let updated = balancers.set_targets(&one, &all).await;
    ensure!(updated.as_ref().is_err_and(|error| error.is_not_found()), "{updated:?}");
    let ensured = balancers.ensure(&one, &all).await?;
    let is_named = ensured.warnings.iter().any(|warning| warning.contains(&instances[1].id));
    ensure!(is_named && ensured.check_after == Some(Duration::from_secs(60)), "{ensured:?}");
    moto.proxy.disarm();
    let ensured = balancers.ensure(&one, &all).await?;
    ensure!(ensured.check_after.is_none(), "{ensured:?}");
    let registered = registered_instances(&moto, &one.id).await?;
    ensure!(registered == ids(&instances[..2]), "{registered:?}");
    delete(&*balancers, &one.id).await
}

/// Nodes change while the retry of a failed call waits, and while each call fails for another reason.
pub async fn classic_load_balancer_follows_nodes_while_its_service_fails(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let one = untyped(1, &[]);
    create_classic(&moto, &one.id, CLUSTER, &instances[0]).await?;
    let balancers = new_process(&moto).await?;
    moto.proxy.arm(Fault::always("RegisterInstancesWithLoadBalancer", Effect::Outage));
    ensure!(balancers.ensure(&one, &targets(&instances[..2])).await.is_err(), "the registration did not fail");
    moto.proxy.disarm();
    balancers.set_targets(&one, &targets(&instances[1..])).await?;
    let registered = registered_instances(&moto, &one.id).await?;
    ensure!(registered == ids(&instances[1..]), "targets did not follow while a retry waits: {registered:?}");

    // The target group of the user for another port does not exist.
    let missing = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/missing/0123456789abcdef";
    let annotations = untyped(1, &[("target-group-arn.443", missing)]).annotations;
    let two = LoadBalancerSpec { ports: vec![port(80), port(443)], annotations, ..one.clone() };
    for some in [&instances[..2], &instances[..1]] {
        ensure!(balancers.ensure(&two, &targets(some)).await.is_err(), "the target group was found");
        let registered = registered_instances(&moto, &one.id).await?;
        ensure!(registered == ids(some), "targets did not follow in a failed call: {registered:?}");
    }
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    delete(&*balancers, &one.id).await
}

/// cloud-provider-aws created the load balancer moments before the takeover, so the first responses lack it: no
/// other load balancer is created.
pub async fn classic_load_balancer_is_kept_when_it_is_visible_late(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let one = untyped(1, &[]);
    create_classic(&moto, &one.id, CLUSTER, &instances[0]).await?;
    moto.proxy.hide_classic(&one.id.default_name(), 3);
    let balancers = new_process(&moto).await?;
    let address = settle(&moto, &*balancers, &one, &targets(&instances)).await?;
    ensure!(moto.proxy.calls_of("CreateLoadBalancer") == 0, "{address}: {:?}", moto.proxy.calls());
    ensure!(registered_instances(&moto, &one.id).await? == ids(&instances), "the instances are not current");
    delete(&*balancers, &one.id).await?;
    ensure!(registered_instances(&moto, &one.id).await?.is_none(), "the load balancer still exists");
    Ok(())
}

/// The Service is deleted before the first response that contains its load balancer, or its security group.
pub async fn classic_load_balancer_is_deleted_when_it_is_visible_late(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    for (kind, responses) in [("nlb", 3), ("", 3), ("", 1)] {
        let one = if kind.is_empty() { untyped(1, &[]) } else { spec(1, &[("type", kind)]) };
        let group = create_classic(&moto, &one.id, CLUSTER, &instances[0]).await?;
        moto.proxy.hide_classic(&one.id.default_name(), responses);
        moto.proxy.omit_from_lists(&group, responses + 2);
        delete(&*new_process(&moto).await?, &one.id).await?;
        ensure!(
            registered_instances(&moto, &one.id).await?.is_none(),
            "the load balancer exists after {responses} responses"
        );
        let groups = moto.aws.ec2("DescribeSecurityGroups", &[], "groupId").await?;
        ensure!(!groups.contains(&group), "the security group exists after {responses} responses");
    }
    Ok(())
}

/// A cluster that was restored from a backup has the uids of the original, and changes none of the original's
/// resources.
pub async fn classic_load_balancer_of_another_cluster_is_left_alone(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let one = untyped(1, &[]);
    create_classic(&moto, &one.id, "original", &instances[0]).await?;
    let balancers = new_process(&moto).await?;
    let before = moto.proxy.changes();
    let error = balancers.ensure(&one, &targets(&instances)).await.err().context("the load balancer was adopted")?;
    ensure!(error.kind == ErrorKind::Conflict && error.message.contains("another cluster"), "{error}");
    delete(&*balancers, &one.id).await?;
    ensure!(moto.proxy.changes() == before, "{:?}", moto.proxy.calls());
    ensure!(registered_instances(&moto, &one.id).await? == ids(&instances[..1]), "the instances changed");
    Ok(())
}

/// The address changes only when the new load balancer has healthy targets. The old one is deleted only when the time
/// in the annotation has passed since then.
pub async fn service_moves_to_a_network_load_balancer_without_a_gap(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let one = untyped(1, &[("replace-classic", "3600")]);
    create_classic(&moto, &one.id, CLUSTER, &instances[0]).await?;
    instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, true));
    let all = targets(&instances);
    let balancers = new_process(&moto).await?;
    let mut old = String::new();
    for _ in 0..3 {
        let ensured = balancers.ensure(&one, &all).await?;
        ensure!(ensured.progress != Progress::Settled, "no target is healthy: {ensured:?}");
        old = hostname(&ensured)?;
        ensure!(!AccountResources::read(&moto).await?.balancers.is_empty(), "the new load balancer was not created");
        ensure!(registered_instances(&moto, &one.id).await? == ids(&instances), "the old one lost instances");
    }
    instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, false));
    // The status is not written yet: retries neither delete the old one nor record the time of the replacement.
    let mut new = String::new();
    for _ in 0..3 {
        new = hostname(&balancers.ensure(&one, &all).await?)?;
    }
    ensure!(new != old, "the address is still {old}");
    ensure!(
        replaced(&moto, &one.id).await?.is_none(),
        "the replacement is recorded before the status has the new address"
    );
    balancers.published(&one.id);
    let ensured = balancers.ensure(&one, &all).await?;
    ensure!(hostname(&ensured)? == new && ensured.progress != Progress::Settled, "{ensured:?}");
    ensure!(replaced(&moto, &one.id).await?.is_some(), "no tag with the time of the replacement");

    // Another process continues. The address stays, though the new targets fail; both load balancers get other nodes.
    let next = new_process(&moto).await?;
    instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, true));
    let ensured = next.ensure(&one, &targets(&instances[1..])).await?;
    ensure!(hostname(&ensured)? == new, "{ensured:?}");
    ensure!(
        registered_instances(&moto, &one.id).await? == ids(&instances[1..]),
        "the old one does not have the new instances"
    );

    // The time that clients have to switch to the new load balancer has passed.
    let name = one.id.default_name();
    let tag = [("LoadBalancerNames.member.1", &*name), ("Tags.member.1.Key", REPLACED), ("Tags.member.1.Value", "1")];
    moto.aws.call(Service::Classic, "AddTags", &tag).await?;
    ensure!(settle(&moto, &*next, &one, &all).await? == new, "the address changed");
    ensure!(registered_instances(&moto, &one.id).await?.is_none(), "the old one still exists");
    let groups = moto.aws.ec2("DescribeSecurityGroups", &[], "groupName").await?;
    ensure!(!groups.iter().any(|name| name.starts_with("k8s-elb-")), "{groups:?}");
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    delete(&*next, &one.id).await?;
    ensure!(AccountResources::read(&moto).await?.is_empty(), "{:?}", AccountResources::read(&moto).await?);
    Ok(())
}

/// The move is cancelled before the new load balancer has a healthy target: the old address stays until then, and both
/// load balancers afterwards.
pub async fn cancelled_move_keeps_the_address_until_the_network_load_balancer_serves(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let moving = untyped(1, &[("replace-classic", "3600")]);
    create_classic(&moto, &moving.id, CLUSTER, &instances[0]).await?;
    instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, true));
    let all = targets(&instances);
    let balancers = new_process(&moto).await?;
    let old = hostname(&balancers.ensure(&moving, &all).await?)?;
    let annotations = untyped(1, &[("replace-classic", "false")]).annotations;
    let cancelled = LoadBalancerSpec { annotations, ..moving.clone() };
    for _ in 0..3 {
        let ensured = balancers.ensure(&cancelled, &all).await?;
        ensure!(hostname(&ensured)? == old && ensured.progress != Progress::Settled, "{ensured:?}");
    }
    instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, false));
    let mut new = String::new();
    for _ in 0..3 {
        new = hostname(&balancers.ensure(&cancelled, &all).await?)?;
    }
    ensure!(new != old, "the address is still {old}");
    balancers.published(&cancelled.id);
    balancers.ensure(&cancelled, &all).await?;
    ensure!(settle(&moto, &*balancers, &cancelled, &all).await? == new, "the address changed");
    // From now on, the address does not depend on the health of targets.
    instances.iter().for_each(|instance| moto.proxy.set_in_first_checks(&instance.id, true));
    let ensured = new_process(&moto).await?.ensure(&cancelled, &all).await?;
    ensure!(hostname(&ensured)? == new, "{ensured:?}");
    let registered = registered_instances(&moto, &moving.id).await?;
    ensure!(registered == ids(&instances), "{registered:?}");
    delete(&*balancers, &moving.id).await
}

/// All ports move to a target group of a user that no listener uses yet. Until one does, the Classic Load Balancer
/// serves: the Service has its address, and its instances follow nodes.
pub async fn classic_load_balancer_follows_nodes_until_the_target_group_of_a_user_serves(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let users = UsersBalancer::create(&moto, &[]).await?;
    let records = Arc::new(RecordsInMemory::default());
    for (kind, own, port) in [("untyped", untyped(1, &[]), "80"), ("nlb", spec(1, &[]), "81")] {
        let group = unused_group(&moto, kind, "instance").await?;
        create_classic(&moto, &own.id, CLUSTER, &instances[0]).await?;
        let balancers = sharing::new_process(&moto, &records).await?;
        let old = hostname(&balancers.ensure(&own, &targets(&instances[..1])).await?)?;
        let mut moved = own.clone();
        moved.annotations.insert(format!("{PREFIX}target-group-arn.80"), group.clone());
        for nodes in [&instances[..2], &instances[1..]] {
            let ensured = balancers.ensure(&moved, &targets(nodes)).await?;
            ensure!(hostname(&ensured)? == old && ensured.progress != Progress::Settled, "{kind}: {ensured:?}");
            let registered = registered_instances(&moto, &own.id).await?;
            ensure!(registered == ids(nodes), "{kind}: {registered:?}");
        }
        let forecast = balancers.forecast(&moved).await?;
        let is_named = forecast.reasons.iter().any(|reason| reason.contains("Classic Load Balancer"));
        ensure!(forecast.change == PlannedChange::Replaced && is_named, "{kind}: {forecast:?}");
        users.listen(&moto, port, &group).await?;
        let next = sharing::new_process(&moto, &records).await?;
        settle(&moto, &*next, &moved, &targets(&instances)).await?;
        ensure!(registered_instances(&moto, &own.id).await?.is_none(), "{kind}: the old one still exists");
        delete(&*next, &own.id).await?;
    }
    Ok(())
}

/// The Classic Load Balancer of a deleted Service is found, distinguished from that of a new Service of the same name,
/// and deleted with its security group.
pub async fn classic_load_balancer_of_a_deleted_service_is_a_leak(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    let (leaked, kept) = (untyped(1, &[]).id, untyped(2, &[]).id);
    for id in [&leaked, &kept] {
        create_classic(&moto, id, CLUSTER, &instances[0]).await?;
    }
    let foreign = untyped(3, &[]).id;
    create_classic(&moto, &foreign, "another", &instances[0]).await?;
    let balancers = new_process(&moto).await?;
    let owned = balancers.list_owned().await?;
    ensure!(owned.len() == 2 && owned.iter().all(|one| one.certain), "{owned:?}");
    let found = owned.iter().find(|one| one.id.name == leaked.name).context("the leak is not listed")?;
    let later = LoadBalancerId { uid: untyped(4, &[]).id.uid, ..leaked.clone() };
    ensure!(balancers.may_be_owned_by(found, &leaked) && !balancers.may_be_owned_by(found, &later), "{found:?}");
    let deadline = std::time::Instant::now() + cluster_tests::DEADLINE;
    while balancers.collect(found).await? != Deletion::Gone {
        ensure!(std::time::Instant::now() < deadline, "the leak is not deleted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(registered_instances(&moto, &leaked).await?.is_none(), "the load balancer still exists");
    for id in [&kept, &foreign] {
        ensure!(registered_instances(&moto, id).await?.is_some(), "{id} lost its load balancer");
    }
    let groups = moto.aws.ec2("DescribeSecurityGroups", &[], "groupName").await?;
    let named = |id: &LoadBalancerId| groups.contains(&format!("k8s-elb-{}", id.default_name()));
    ensure!(!named(&leaked) && named(&kept) && named(&foreign), "{groups:?}");
    ensure!(balancers.list_owned().await?.len() == 1 && moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// One load balancer is deleted between the call that lists them and the call that reads the tags of all of them: the
/// others are found.
pub async fn classic_load_balancers_are_listed_while_another_is_deleted(_: Space) -> Result<()> {
    let (moto, instances) = start().await?;
    for number in 1..=3 {
        create_classic(&moto, &untyped(number, &[]).id, CLUSTER, &instances[0]).await?;
    }
    let gone = Effect::refused("LoadBalancerNotFound", "There is no ACTIVE Load Balancer named 'gone'");
    // The fault applies to the call for all load balancers, and to the call for the deleted load balancer alone.
    moto.proxy.arm(Fault { times: Some(2), ..Fault::first("DescribeTags", gone) });
    let owned = new_process(&moto).await?.list_owned().await?;
    ensure!(owned.len() == 2, "{owned:?}");
    Ok(())
}

/// Returns the tag with the time at which the address of a Classic Load Balancer was replaced.
async fn replaced(moto: &Moto, id: &LoadBalancerId) -> Result<Option<String>> {
    let name = [("LoadBalancerNames.member.1", &*id.default_name())];
    let tags = moto.aws.call(Service::Classic, "DescribeTags", &name).await?;
    let pairs = texts(&tags, "Key").into_iter().zip(texts(&tags, "Value"));
    Ok(pairs.into_iter().find(|(key, _)| key == REPLACED).map(|(_, value)| value))
}
