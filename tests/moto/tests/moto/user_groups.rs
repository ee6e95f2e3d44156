//! Target groups that users made: targets of Services are registered and deregistered there, and nothing else changes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Service};
use providers::{ErrorKind, LoadBalancerSpec, PlannedChange, Progress};

use crate::balancers::{AccountResources, delete, id, port, settle, spec, targets, texts};
use crate::bed::CLUSTER;
use crate::sharing::{RecordsInMemory, ids, new_process, registered};

pub const ALLOWED: &str = "kubernetes.io/allowed-services";

/// A load balancer that a user made, with a target group behind each of some ports.
pub struct UsersBalancer {
    arn: String,
    pub groups: Vec<String>,
}

/// Creates a target group as a user does.
pub async fn group(moto: &Moto, name: &str, parameters: &[(&str, &str)], tags: &[(&str, &str)]) -> Result<String> {
    let tags: Vec<(String, &str)> = (1..)
        .zip(tags)
        .flat_map(|(number, (key, value))| {
            [(format!("Tags.member.{number}.Key"), *key), (format!("Tags.member.{number}.Value"), *value)]
        })
        .collect();
    let tags: Vec<(&str, &str)> = tags.iter().map(|(name, value)| (&**name, *value)).collect();
    let named = [("Name", name), ("Port", "1")];
    let defaults = [("Protocol", "TCP"), ("VpcId", &*moto.network.vpc), ("TargetType", "instance")];
    let others = defaults.iter().filter(|(name, _)| !parameters.iter().any(|(set, _)| set == name));
    let others: Vec<(&str, &str)> = others.copied().collect();
    let made =
        moto.aws.call(Service::Elb, "CreateTargetGroup", &[&named[..], &others, parameters, &tags].concat()).await?;
    texts(&made, "TargetGroupArn").pop().context("no target group")
}

/// Creates a listener as a user does.
async fn listen(moto: &Moto, balancer: &str, port: &str, group: &str) -> Result<()> {
    let listener = [
        ("LoadBalancerArn", balancer),
        ("Protocol", "TCP"),
        ("Port", port),
        ("DefaultActions.member.1.Type", "forward"),
        ("DefaultActions.member.1.TargetGroupArn", group),
    ];
    moto.aws.call(Service::Elb, "CreateListener", &listener).await.map(drop)
}

impl UsersBalancer {
    pub async fn create(moto: &Moto, ports: &[&str]) -> Result<Self> {
        // Users open their own load balancers' targets, so these count as reached.
        moto.proxy.open_by_hand(["users".to_owned()].into());
        let key = format!("kubernetes.io/cluster/{CLUSTER}");
        let balancer = [
            ("Name", "users"),
            ("Type", "network"),
            ("Scheme", "internal"),
            ("Subnets.member.1", &*moto.network.subnets[0]),
        ];
        let balancer = moto.aws.call(Service::Elb, "CreateLoadBalancer", &balancer).await?;
        let arn = texts(&balancer, "LoadBalancerArn").pop().context("no load balancer")?;
        let mut groups = Vec::new();
        for port in ports {
            let group =
                group(moto, &format!("Users-{port}"), &[], &[(&key, "shared"), (ALLOWED, "shop default")]).await?;
            listen(moto, &arn, port, &group).await?;
            groups.push(group);
        }
        Ok(Self { arn, groups })
    }

    /// Creates a listener that sends traffic to a target group.
    pub async fn listen(&self, moto: &Moto, port: &str, group: &str) -> Result<()> {
        listen(moto, &self.arn, port, group).await
    }

    /// Returns the parts that must not change: the load balancer, its listeners, and the target groups with attributes
    /// and tags.
    async fn description(&self, moto: &Moto) -> Result<Vec<String>> {
        let mut all = Vec::new();
        let mut calls = vec![("DescribeLoadBalancers", "LoadBalancerArns.member.1", &self.arn)];
        calls.push(("DescribeListeners", "LoadBalancerArn", &self.arn));
        calls.push(("DescribeTags", "ResourceArns.member.1", &self.arn));
        for group in &self.groups {
            calls.push(("DescribeTargetGroups", "TargetGroupArns.member.1", group));
            calls.push(("DescribeTargetGroupAttributes", "TargetGroupArn", group));
            calls.push(("DescribeTags", "ResourceArns.member.1", group));
        }
        for (action, parameter, arn) in calls {
            let response = moto.aws.call(Service::Elb, action, &[(parameter, arn)]).await?;
            // The id of the request is omitted.
            all.push(response.split("<ResponseMetadata>").next().unwrap_or_default().to_owned());
        }
        Ok(all)
    }
}

/// The records cannot be read while a Service is deleted after a restart, because the permission is missing, or the
/// process has not received them yet: its targets are not left behind.
pub async fn deletion_waits_for_the_records_of_target_groups_of_users(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let own = moto.run(1).await?;
    let users = UsersBalancer::create(&moto, &["80"]).await?;
    let group = &users.groups[0];
    let records = Arc::new(RecordsInMemory::default());
    let (one, other) = (spec(1, &[("target-group-arn.80", group)]), spec(2, &[]));
    settle(&moto, &*new_process(&moto, &records).await?, &one, &targets(&own)).await?;
    ensure!(registered(&moto, group).await? == ids(&[&own[0]]), "no target");

    let without_records = crate::balancers::new_process(&moto).await?;
    let deleted = without_records.delete_last(&one.id, Some(Arc::new(one.clone()))).await;
    ensure!(deleted.as_ref().is_err_and(|error| error.kind == ErrorKind::Transient), "without records: {deleted:?}");

    let next = new_process(&moto, &records).await?;
    records.denied.store(true, Ordering::Relaxed);
    let error = next.delete_last(&one.id, Some(Arc::new(one.clone()))).await.err().context("the targets are left")?;
    ensure!(error.kind == ErrorKind::Denied, "{error}");
    // Services without such target groups do not need the permission.
    delete(&*next, &other.id).await?;
    records.denied.store(false, Ordering::Relaxed);
    delete(&*next, &one.id).await?;
    ensure!(registered(&moto, group).await?.is_empty(), "{:?}", registered(&moto, group).await?);
    Ok(())
}

/// Targets follow nodes, even after crashes. Another owner's target stays, and nothing remains of a deleted Service.
pub async fn targets_follow_in_a_target_group_of_a_user(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(4).await?;
    let (others, own) = instances.split_last().context("no instances")?;
    let users = UsersBalancer::create(&moto, &["80"]).await?;
    let group = &users.groups[0];
    let register = [("TargetGroupArn", &**group), ("Targets.member.1.Id", &others.id), ("Targets.member.1.Port", "9")];
    moto.aws.call(Service::Elb, "RegisterTargets", &register).await?;
    let (before, held) = (users.description(&moto).await?, AccountResources::read(&moto).await?);
    let records = Arc::new(RecordsInMemory::default());
    let one = spec(1, &[("target-group-arn.80", group)]);

    let balancers = new_process(&moto, &records).await?;
    let name = settle(&moto, &*balancers, &one, &targets(&own[..2])).await?;
    ensure!(before[0].to_ascii_lowercase().contains(&name), "{name} is not the name of {}", before[0]);
    ensure!(registered(&moto, group).await? == ids(&[&own[0], &own[1], others]), "after the creation");
    balancers.set_targets(&one, &targets(&own[1..])).await?;
    ensure!(registered(&moto, group).await? == ids(&[&own[1], &own[2], others]), "after a change of targets");
    let forecast = balancers.forecast(&one).await?;
    ensure!(forecast.change == PlannedChange::Kept && forecast.reasons[0].contains(&**group), "{forecast:?}");

    // The response to a registration is lost, and the process crashes.
    moto.proxy.arm(Fault::first("RegisterTargets", Effect::ResponseLost));
    let crashing = new_process(&moto, &records).await?;
    ensure!(crashing.ensure(&one, &targets(own)).await.is_err(), "the response was not lost");
    moto.proxy.disarm();
    let next = new_process(&moto, &records).await?;
    settle(&moto, &*next, &one, &targets(&own[..1])).await?;
    ensure!(registered(&moto, group).await? == ids(&[&own[0], others]), "after a crash");
    let changes = moto.proxy.changes();
    settle(&moto, &*next, &one, &targets(&own[..1])).await?;
    ensure!(moto.proxy.changes() == changes, "changes without a reason: {:?}", moto.proxy.calls());

    // The process crashes during the deletion, and another process continues.
    moto.proxy.arm(Fault::first("DeregisterTargets", Effect::Outage));
    ensure!(new_process(&moto, &records).await?.delete(&one.id).await.is_err(), "the deletion succeeded");
    moto.proxy.disarm();
    delete(&*new_process(&moto, &records).await?, &one.id).await?;
    ensure!(registered(&moto, group).await? == ids(&[others]), "{:?}", registered(&moto, group).await?);
    ensure!(AccountResources::read(&moto).await? == held, "{:?} was {held:?}", AccountResources::read(&moto).await?);

    // A listing lacks the target group while the Service is deleted.
    settle(&moto, &*next, &one, &targets(own)).await?;
    let (deleting, last) = (new_process(&moto, &records).await?, Some(Arc::new(one.clone())));
    moto.proxy.omit_from_lists(group, 1);
    let error = deleting.delete_last(&one.id, last).await.err().context("the targets are left")?;
    ensure!(error.kind == ErrorKind::Transient && error.message.contains(&**group), "{error}");
    delete(&*deleting, &one.id).await?;
    ensure!(registered(&moto, group).await? == ids(&[others]), "{:?}", registered(&moto, group).await?);

    // A Service that was deleted without waiting: its records no longer exist.
    let (two, next) = (LoadBalancerSpec { id: id(2), ..one.clone() }, new_process(&moto, &records).await?);
    settle(&moto, &*next, &two, &targets(own)).await?;
    records.clear();
    delete(&*next, &two.id).await?;
    ensure!(registered(&moto, group).await? == ids(&[others]), "{:?}", registered(&moto, group).await?);
    ensure!(users.description(&moto).await? == before, "{:?} was {before:?}", users.description(&moto).await?);
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// For a group that cannot be used, an error names the fix, and nothing changes. The group is used once it is fixed.
pub async fn target_group_of_a_user_is_used_only_with_consent_and_if_it_fits(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let records = Arc::new(RecordsInMemory::default());
    let balancers = new_process(&moto, &records).await?;
    let own = spec(2, &[]);
    settle(&moto, &*balancers, &own, &all).await?;
    let of_service = AccountResources::read(&moto).await?.target_groups.remove(0);
    let other_vpc = moto.aws.ec2("CreateVpc", &[("CidrBlock", "10.9.0.0/16")], "vpcId").await?.remove(0);
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    let consent = [(&*key, "shared"), (ALLOWED, "default/web-1")];
    let for_others = [(&*key, "shared"), (ALLOWED, "default/web-2 shop")];
    let untagged = group(&moto, "untagged", &[], &[]).await?;
    let of_others = group(&moto, "of-others", &[], &for_others).await?;
    let pods = group(&moto, "pods", &[("TargetType", "ip")], &consent).await?;
    let udp = group(&moto, "udp", &[("Protocol", "UDP")], &consent).await?;
    let http = group(&moto, "http", &[("Protocol", "HTTP")], &consent).await?;
    let elsewhere = group(&moto, "elsewhere", &[("VpcId", &other_vpc)], &consent).await?;
    let held = AccountResources::read(&moto).await?;
    // A new process, because the last listing of the first one lacks the new groups.
    let balancers = new_process(&moto, &records).await?;
    for (arn, fix) in [
        (&*of_service, "was made for a Service"),
        (&untagged, "=shared on it"),
        (&of_others, "put default/web-1 into its tag kubernetes.io/allowed-services"),
        (&pods, "nlb-target-type to ip"),
        (&udp, "use a target group for TCP, the protocol of port 80: the protocol of this one is UDP"),
        (&http, "this one has type instance and protocol HTTP"),
        (&elsewhere, "this one is in vpc-"),
        ("arn:aws:elasticloadbalancing:eu-west-1:1:targetgroup/none/1", "use the ARN of a target group that exists"),
    ] {
        let one = spec(1, &[("target-group-arn.80", arn)]);
        let error = balancers.ensure(&one, &all).await.err().with_context(|| format!("{arn} is used"))?;
        ensure!(error.message.contains(fix), "{arn}: {error}");
        let forecast = balancers.forecast(&one).await?;
        ensure!(forecast.change == PlannedChange::Refused && forecast.reasons[0].contains(fix), "{forecast:?}");
    }
    ensure!(AccountResources::read(&moto).await? == held, "{:?}", AccountResources::read(&moto).await?);

    // The owner sets the tag, and a new process uses the group. It has no listener and gets no traffic: that is a
    // warning.
    let tags =
        [("ResourceArns.member.1", &*of_others), ("Tags.member.1.Key", ALLOWED), ("Tags.member.1.Value", "default")];
    moto.aws.call(Service::Elb, "AddTags", &tags).await?;
    let one = spec(1, &[("target-group-arn.80", &of_others)]);
    let next = new_process(&moto, &records).await?;
    let ensured = next.ensure(&one, &all).await?;
    ensure!(ensured.warnings.iter().any(|warning| warning.contains("no load balancer uses")), "{ensured:?}");
    ensure!(registered(&moto, &of_others).await?.len() == 1, "{:?}", registered(&moto, &of_others).await?);
    delete(&*next, &one.id).await?;
    ensure!(registered(&moto, &of_others).await?.is_empty(), "{:?}", registered(&moto, &of_others).await?);
    delete(&*next, &own.id).await
}

/// A Service moves from its own load balancer to one target group, to another, and back. The process crashes at the
/// first, second or fourth change.
pub async fn service_moves_to_target_groups_of_a_user_and_back(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let users = UsersBalancer::create(&moto, &["80", "81"]).await?;
    let empty = AccountResources::read(&moto).await?;
    let records = Arc::new(RecordsInMemory::default());
    let own = spec(1, &[]);
    let on = |group: &str| LoadBalancerSpec { id: own.id.clone(), ..spec(1, &[("target-group-arn.80", group)]) };
    let (first, second) = (on(&users.groups[0]), on(&users.groups[1]));
    for nth in [1, 2, 4] {
        for (wanted, expected) in [(&own, [0, 0, 1]), (&first, [1, 0, 0]), (&second, [0, 1, 0]), (&own, [0, 0, 1])] {
            moto.proxy.arm(Fault::nth("changes", nth, Effect::ResponseLost));
            drop(new_process(&moto, &records).await?.ensure(wanted, &all).await);
            moto.proxy.disarm();
            let next = new_process(&moto, &records).await?;
            settle(&moto, &*next, wanted, &all).await.with_context(|| format!("after change {nth}"))?;
            let balancers = AccountResources::read(&moto).await?.balancers.len() - 1;
            let found =
                [registered(&moto, &users.groups[0]).await?.len(), registered(&moto, &users.groups[1]).await?.len()];
            ensure!([found[0], found[1], balancers] == expected, "after change {nth}: {found:?}, {balancers}");
        }
    }
    delete(&*new_process(&moto, &records).await?, &own.id).await?;
    ensure!(AccountResources::read(&moto).await? == empty, "{:?}", AccountResources::read(&moto).await?);
    ensure!(moto.proxy.gaps().is_empty() && moto.proxy.denied().is_empty(), "{:?}", moto.proxy.gaps());
    Ok(())
}

/// Creates a target group that the Services of the cluster may use, and that no listener uses yet.
pub async fn unused_group(moto: &Moto, name: &str, kind: &str) -> Result<String> {
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    group(moto, name, &[("TargetType", kind)], &[(&key, "shared"), (ALLOWED, "default")]).await
}

/// One of two ports moves to a target group that no listener uses yet. Until one does, the load balancer of the Service
/// serves both ports, and the targets of both follow nodes, also while AWS refuses another change.
pub async fn listener_stays_until_the_target_group_of_a_user_serves(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(3).await?;
    let users = UsersBalancer::create(&moto, &[]).await?;
    let group = unused_group(&moto, "Unused", "instance").await?;
    let records = Arc::new(RecordsInMemory::default());
    let with = |own: &LoadBalancerSpec, annotations: &[(&str, &str)]| {
        let annotations = spec(1, annotations).annotations;
        LoadBalancerSpec { ports: vec![port(80), port(443)], annotations, ..own.clone() }
    };
    let own = with(&spec(1, &[]), &[]);
    let balancers = new_process(&moto, &records).await?;
    settle(&moto, &*balancers, &own, &targets(&instances[..1])).await?;
    let found = AccountResources::read(&moto).await?;
    let former: Vec<&String> = found.target_groups.iter().filter(|arn| **arn != group).collect();
    let balancer = found.balancers.iter().find(|arn| **arn != users.arn).context("no load balancer")?;
    let ports = async || -> Result<Vec<String>> {
        let mut ports =
            texts(&moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", balancer)]).await?, "Port");
        ports.sort();
        Ok(ports)
    };
    let moved = with(&own, &[("target-group-arn.443", &group)]);
    // Subnets are chosen before anything is changed.
    let refused = with(&own, &[("target-group-arn.443", &group), ("subnets", "subnet-none")]);
    for (wanted, node) in [(&moved, 0), (&moved, 1), (&refused, 2), (&refused, 0), (&refused, 1)] {
        let nodes = targets(&instances[node..=node]);
        if std::ptr::eq(wanted, &moved) {
            let ensured = balancers.ensure(wanted, &nodes).await?;
            ensure!(ensured.progress != Progress::Settled, "no listener uses the target group: {ensured:?}");
        } else if node == 2 {
            ensure!(balancers.ensure(wanted, &nodes).await.is_err(), "nothing was refused");
        } else {
            balancers.set_targets(wanted, &nodes).await?;
        }
        ensure!(ports().await? == ["443", "80"], "{:?}", ports().await?);
        for arn in former.iter().copied().chain([&group]) {
            let found = registered(&moto, arn).await?;
            ensure!(found == ids(&[&instances[node]]), "node {node}: {arn} has {found:?}");
        }
    }
    users.listen(&moto, "443", &group).await?;
    settle(&moto, &*new_process(&moto, &records).await?, &moved, &targets(&instances[..1])).await?;
    ensure!(ports().await? == ["80"], "{:?}", ports().await?);
    ensure!(AccountResources::read(&moto).await?.target_groups.len() == 2, "a target group is left");
    delete(&*new_process(&moto, &records).await?, &own.id).await
}
