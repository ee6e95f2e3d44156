//! Targets that follow pods and nodes although the current spec of their Service does not describe their target groups:
//! the spec is invalid and the last valid one is unknown, or AWS refuses the change to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Instance, Moto, Service};
use providers::{
    EndpointTarget, Followed, IpFamily, LoadBalancerSpec, LoadBalancers, NodeTarget, OtherService, Progress,
    TargetPort, Targets,
};
use serde_json::json;

use crate::balancers::{AccountResources, PREFIX, delete, port, settle, spec, texts};
use crate::bed::CLUSTER;
use crate::forwards::{ACTION, action};
use crate::sharing::{RecordsInMemory, new_process, registered};
use crate::user_balancers::create_as_user;
use crate::user_groups::{UsersBalancer, unused_group};

/// Returns a node for each instance, with a label on the first `labelled` ones, and one pod.
fn targets(instances: &[Instance], labelled: usize, pod: u8) -> Targets {
    let node = |(number, instance): (usize, &Instance)| NodeTarget {
        name: instance.name.clone(),
        provider_id: Some(instance.provider_id()),
        labels: (number < labelled).then(|| ("role".to_owned(), "ingress".to_owned())).into_iter().collect(),
        ..NodeTarget::default()
    };
    let nodes: Vec<NodeTarget> = instances.iter().enumerate().map(node).collect();
    Targets { endpoints: vec![endpoint(pod)].into(), ..Targets::nodes(nodes) }
}

fn endpoint(pod: u8) -> EndpointTarget {
    EndpointTarget {
        port_name: "p80".into(),
        address: [10, 0, 16, pod].into(),
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

/// Returns the ids of all registered targets.
async fn all_registered(moto: &Moto) -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for group in AccountResources::read(moto).await?.target_groups {
        all.extend(registered(moto, &group).await?);
    }
    Ok(all)
}

/// Returns the same Service with other annotations.
fn with(one: &LoadBalancerSpec, annotations: &[(&str, &str)]) -> LoadBalancerSpec {
    LoadBalancerSpec { annotations: spec(1, annotations).annotations, ..one.clone() }
}

/// Whatever mistake a request has after a restart, targets follow according to the settings of the load balancer.
/// Nothing else is changed.
pub async fn targets_follow_an_invalid_request_after_a_restart(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(4).await?;
    let [old, ingress, other, foreign] = &instances[..] else { anyhow::bail!("four instances were not started") };
    let users = UsersBalancer::create(&moto, &["80"]).await?;
    let balancer = create_as_user(&moto, "shared", "shared").await?;
    let (pod, nodes) = (vec!["10.0.16.10".to_owned()], vec![ingress.id.clone(), other.id.clone()]);
    type Annotations<'a> = &'a [(&'a str, &'a str)];
    // The annotations that were applied last; the invalid ones; the targets.
    let cases: [(Annotations<'_>, Annotations<'_>, Vec<String>); 9] = [
        (&[], &[("nlb-target-type", "ip"), ("scheme", "public")], nodes.clone()),
        (&[("nlb-target-type", "ip")], &[("scheme", "public")], pod),
        (&[("target-node-labels", "role=ingress")], &[("target-node-labels", "=")], vec![ingress.id.clone()]),
        (&[("target-node-labels", "role=ingress")], &[("scheme", "public")], vec![ingress.id.clone()]),
        (&[("group", "web")], &[("group", "Web")], nodes.clone()),
        (&[("arn", &balancer)], &[("arn", "shared")], nodes.clone()),
        (&[("target-group-arn.80", &users.groups[0])], &[("target-group-arn.80", "Users-80")], nodes.clone()),
        (&[("target-group-arn.80", &users.groups[0])], &[("target-group-arn.http", "Users-80")], nodes.clone()),
        (
            &[("multi-cluster-target-group", "true")],
            &[("multi-cluster-target-group", "yes")],
            vec![ingress.id.clone(), other.id.clone(), foreign.id.clone()],
        ),
    ];
    for (applied, annotations, expected) in cases {
        let at = format!("{applied:?}, then {annotations:?}");
        let records = Arc::new(RecordsInMemory::default());
        let one = spec(1, applied);
        let before = targets(&instances[..1], 1, 9);
        settle(&moto, &*new_process(&moto, &records).await?, &one, &before).await.with_context(|| at.clone())?;
        if applied.iter().any(|(name, _)| *name == "multi-cluster-target-group") {
            let group = find_group(&moto, &old.id).await?;
            let register =
                [("TargetGroupArn", &*group), ("Targets.member.1.Id", &foreign.id), ("Targets.member.1.Port", "30080")];
            moto.aws.call(Service::Elb, "RegisterTargets", &register).await?;
        }
        let (invalid, after) = (with(&one, annotations), targets(&instances[1..3], 1, 10));
        let next = new_process(&moto, &records).await?;
        ensure!(next.targeting(&invalid).is_err(), "{at}: it is valid");
        let made = || moto.proxy.calls_of("RegisterTargets") + moto.proxy.calls_of("DeregisterTargets");
        let (changes, targets_changed) = (moto.proxy.changes(), made());
        for _ in 0..2 {
            let followed = next.follow_targets(&invalid, &after).await.with_context(|| at.clone())?;
            ensure!(followed == Followed::default(), "{at}: {followed:?}");
        }
        let (changes, targets_changed) = (moto.proxy.changes() - changes, made() - targets_changed);
        ensure!(changes == 2 && targets_changed == 2, "{at}: {changes} changes: {:?}", moto.proxy.calls());
        let found = all_registered(&moto).await?;
        ensure!(found == expected.into_iter().collect(), "{at}: {found:?}");
        delete(&*next, &one.id).await.with_context(|| at.clone())?;
    }
    Ok(())
}

/// Returns the target group in which a target is registered.
async fn find_group(moto: &Moto, target: &str) -> Result<String> {
    for group in AccountResources::read(moto).await?.target_groups {
        if registered(moto, &group).await?.contains(target) {
            return Ok(group);
        }
    }
    anyhow::bail!("{target} is registered nowhere")
}

/// The annotation that names another Service is no longer readable: both Services' pods follow.
pub async fn targets_of_another_service_follow_an_invalid_request(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let records = Arc::new(RecordsInMemory::default());
    let mut one = spec(1, &[("nlb-target-type", "ip")]);
    one.annotations.insert(ACTION.into(), action((1, 1), &json!("p80")));
    let green = OtherService { ports: vec![port(80)], ip_families: vec![IpFamily::IPv4], health_check_node_port: None };
    one.others.insert("green".into(), green.clone());
    let pods = |own: u8, green: u8| Targets {
        others: [("green".to_owned(), vec![endpoint(green)].into())].into(),
        ..targets(&[], 0, own)
    };
    settle(&moto, &*new_process(&moto, &records).await?, &one, &pods(9, 19)).await?;

    let mut invalid = with(&one, &[("scheme", "public")]);
    invalid.annotations.insert(ACTION.into(), "{".into());
    invalid.others.clear();
    let next = new_process(&moto, &records).await?;
    let others = next.follow_targets(&invalid, &targets(&[], 0, 10)).await?.others;
    ensure!(others == ["green".to_owned()].into(), "{others:?}");
    let found = all_registered(&moto).await?;
    ensure!(
        found == ["10.0.16.10".to_owned(), "10.0.16.19".to_owned()].into(),
        "the targets of the other Service were changed: {found:?}"
    );
    invalid.others.insert("green".into(), green);
    next.follow_targets(&invalid, &pods(10, 20)).await?;
    let found = all_registered(&moto).await?;
    ensure!(found == ["10.0.16.10".to_owned(), "10.0.16.20".to_owned()].into(), "{found:?}");
    delete(&*next, &one.id).await
}

/// AWS refuses the target groups of another kind that a Service requests: targets of the existing ones follow.
pub async fn targets_follow_while_a_change_of_their_kind_is_refused(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let records = Arc::new(RecordsInMemory::default());
    for (kind, next_kind) in [("instance", "ip"), ("ip", "instance")] {
        let balancers = new_process(&moto, &records).await?;
        let one = spec(1, &[("nlb-target-type", kind)]);
        settle(&moto, &*balancers, &one, &targets(&instances[..1], 0, 9)).await?;
        moto.proxy.arm(Fault::always("CreateTargetGroup", Effect::refused("TooManyTargetGroups", "no")));
        let (other, after) = (with(&one, &[("nlb-target-type", next_kind)]), targets(&instances[1..], 0, 10));
        ensure!(balancers.ensure(&other, &after).await.is_err(), "nothing was refused");
        let expected = if kind == "ip" { "10.0.16.10" } else { &*instances[1].id };
        let found = all_registered(&moto).await?;
        ensure!(found == [expected.to_owned()].into(), "{kind}: {found:?}");
        // Between retries, too.
        let back = targets(&instances[..1], 0, 9);
        let updated = balancers.set_targets(&other, &back).await;
        ensure!(updated.as_ref().is_err_and(|error| error.is_not_found()), "{kind}: {updated:?}");
        let expected = if kind == "ip" { "10.0.16.9" } else { &*instances[0].id };
        let found = all_registered(&moto).await?;
        ensure!(found == [expected.to_owned()].into(), "{kind}, between retries: {found:?}");
        moto.proxy.disarm();
        delete(&*balancers, &one.id).await?;
    }
    Ok(())
}

/// The old load balancer serves while a new one is being provisioned: its targets follow nodes and pods.
pub async fn targets_follow_while_their_load_balancer_is_replaced(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let records = Arc::new(RecordsInMemory::default());
    for kind in ["instance", "ip"] {
        let balancers = new_process(&moto, &records).await?;
        let one = spec(1, &[("nlb-target-type", kind), ("scheme", "internal")]);
        settle(&moto, &*balancers, &one, &targets(&instances[..1], 0, 9)).await?;
        let old = AccountResources::read(&moto).await?.target_groups.pop().context("no target group")?;
        moto.proxy.delay_provisioning(1_000_000);
        let other = with(&one, &[("nlb-target-type", kind), ("scheme", "internet-facing")]);
        for (nodes, pod) in [(&instances[..1], 9), (&instances[1..], 10), (&instances[..1], 11)] {
            let ensured = balancers.ensure(&other, &targets(nodes, 0, pod)).await?;
            ensure!(ensured.progress != Progress::Settled, "{ensured:?}");
            let expected = if kind == "ip" { format!("10.0.16.{pod}") } else { nodes[0].id.clone() };
            let found = registered(&moto, &old).await?;
            ensure!(found == [expected.clone()].into(), "{kind}: {found:?}, not {expected}");
        }
        moto.proxy.delay_provisioning(0);
        settle(&moto, &*balancers, &other, &targets(&instances[..1], 0, 11)).await?;
        delete(&*balancers, &one.id).await?;
    }
    Ok(())
}

/// A Service moves to a target group of a user that no listener uses yet, and back to a load balancer that is being
/// provisioned: the targets in the former destination follow nodes and pods.
pub async fn targets_follow_while_their_service_moves_to_a_target_group_of_a_user_and_back(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let users = UsersBalancer::create(&moto, &[]).await?;
    let records = Arc::new(RecordsInMemory::default());
    for (kind, listener) in [("instance", "80"), ("ip", "81")] {
        let group = unused_group(&moto, &format!("Unused-{kind}"), kind).await?;
        let mut own = spec(1, &[("nlb-target-type", kind)]);
        own.ports[0].target_port = TargetPort::Name("web".into());
        let moved = with(&own, &[("nlb-target-type", kind), ("target-group-arn.80", &group)]);
        let balancers = new_process(&moto, &records).await?;
        settle(&moto, &*balancers, &own, &targets(&instances[..1], 0, 9)).await?;
        let all = AccountResources::read(&moto).await?.target_groups;
        let former = all.into_iter().find(|arn| !arn.contains("Unused")).context("no target group")?;
        let check =
            async |balancers: &dyn LoadBalancers, wanted: &LoadBalancerSpec, groups: &[&String]| -> Result<()> {
                for (nodes, pod) in [(&instances[..1], 9), (&instances[1..], 10), (&instances[..1], 11)] {
                    let ensured = balancers.ensure(wanted, &targets(nodes, 0, pod)).await?;
                    ensure!(ensured.progress != Progress::Settled && !ensured.status.ingress.is_empty(), "{ensured:?}");
                    let expected = if kind == "ip" { format!("10.0.16.{pod}") } else { nodes[0].id.clone() };
                    for group in groups {
                        let found = registered(&moto, group).await?;
                        ensure!(found == [expected.clone()].into(), "{group}: {found:?}, not {expected}");
                    }
                }
                Ok(())
            };
        check(&*balancers, &moved, &[&former, &group]).await.with_context(|| format!("{kind}: there"))?;
        users.listen(&moto, listener, &group).await?;
        let next = new_process(&moto, &records).await?;
        settle(&moto, &*next, &moved, &targets(&instances[..1], 0, 11)).await?;
        ensure!(!AccountResources::read(&moto).await?.target_groups.contains(&former), "{former} is left");

        moto.proxy.delay_provisioning(1_000_000);
        check(&*next, &own, &[&group]).await.with_context(|| format!("{kind}: back"))?;
        moto.proxy.delay_provisioning(0);
        settle(&moto, &*next, &own, &targets(&instances[..1], 0, 11)).await?;
        ensure!(registered(&moto, &group).await?.is_empty(), "{:?}", registered(&moto, &group).await?);
        delete(&*next, &own.id).await?;
    }
    Ok(())
}

/// A Service without the annotation for the scheme keeps the scheme of its load balancer, and may have Elastic IPs if
/// that is internet-facing.
pub async fn elastic_addresses_fit_the_scheme_of_the_existing_load_balancer(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?, 0, 9);
    let records = Arc::new(RecordsInMemory::default());
    let balancers = new_process(&moto, &records).await?;
    let public = [("scheme", "internet-facing"), ("subnets", &*moto.network.subnets[0])];
    let classed = |spec: LoadBalancerSpec| LoadBalancerSpec { class: Some("service.k8s.aws/nlb".into()), ..spec };
    let one = classed(spec(1, &public));
    settle(&moto, &*balancers, &one, &all).await?;
    let address = moto.aws.call(Service::Ec2, "AllocateAddress", &[("Domain", "vpc")]).await?;
    let allocation = texts(&address, "allocationId").pop().context("no allocation")?;
    let elastic = with(&one, &[("subnets", &*moto.network.subnets[0]), ("eip-allocations", &allocation)]);
    balancers.targeting(&elastic).context("refused without reading the scheme of the existing load balancer")?;
    settle(&moto, &*balancers, &elastic, &all).await?;
    delete(&*balancers, &one.id).await?;

    // A new one is internal.
    let new = classed(LoadBalancerSpec { id: crate::balancers::id(2), ..elastic });
    let error =
        balancers.ensure(&new, &all).await.err().context("an internal load balancer with Elastic IPs was accepted")?;
    let text = error.to_string();
    ensure!(
        text.contains(&format!("{PREFIX}eip-allocations")) && text.contains("a new load balancer is internal"),
        "{text}"
    );
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.balancers.is_empty() && resources.target_groups.is_empty(), "{resources:?}");
    delete(&*balancers, &new.id).await
}
