//! Network Load Balancers in AWS: creation, failures and recovery, takeover, and the number of calls.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cluster_tests::{Space, eventually};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use moto::{Effect, Fault, Instance, Moto, Quota, Service};
use providers::{
    CloudError, Deletion, ErrorKind, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget, Port, Progress,
    Protocol, TargetPort, Targets,
};
use serde_json::json;

use crate::bed::{AwsBed, CLUSTER, provider};

pub const PREFIX: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// Returns the texts of all elements with one name in a response.
pub fn texts(xml: &str, tag: &str) -> Vec<String> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let found = xml.split(&open).skip(1).filter_map(|rest| rest.split_once(&close));
    found.map(|(text, _)| text.trim().to_owned()).collect()
}

/// The resources of Services in an account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountResources {
    pub balancers: Vec<String>,
    pub target_groups: Vec<String>,
    pub security_groups: BTreeSet<String>,
    /// Ingress rules of the nodes' security group.
    pub node_rules: usize,
}

impl AccountResources {
    pub async fn read(moto: &Moto) -> Result<Self> {
        let elb = async |action: &str, tag: &str| -> Result<Vec<String>> {
            Ok(texts(&moto.aws.call(Service::Elb, action, &[]).await?, tag))
        };
        let mut security_groups = BTreeSet::new();
        for key in [
            "kubernetes.io/service-uid",
            "kubernetes.io/load-balancer-backend",
            "kubernetes.io/load-balancer-group",
            "elbv2.k8s.aws/cluster",
        ] {
            let filter = [("Filter.1.Name", "tag-key"), ("Filter.1.Value.1", key)];
            security_groups.extend(moto.aws.ec2("DescribeSecurityGroups", &filter, "groupId").await?);
        }
        let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &*moto.network.group)];
        let rules = moto.aws.ec2("DescribeSecurityGroupRules", &filter, "isEgress").await?;
        Ok(Self {
            balancers: elb("DescribeLoadBalancers", "LoadBalancerArn").await?,
            target_groups: elb("DescribeTargetGroups", "TargetGroupArn").await?,
            security_groups,
            node_rules: rules.iter().filter(|egress| *egress == "false").count(),
        })
    }

    /// Returns the resources whose tags contain a value.
    pub async fn with_tag(moto: &Moto, value: &str) -> Result<Vec<String>> {
        let all = Self::read(moto).await?;
        let mut found = Vec::new();
        for arn in all.balancers.into_iter().chain(all.target_groups) {
            let tags = moto.aws.call(Service::Elb, "DescribeTags", &[("ResourceArns.member.1", &arn)]).await?;
            if tags.contains(value) {
                found.push(arn);
            }
        }
        let filter = [("Filter.1.Name", "tag:kubernetes.io/service-uid"), ("Filter.1.Value.1", value)];
        found.extend(moto.aws.ec2("DescribeSecurityGroups", &filter, "groupId").await?);
        Ok(found)
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

pub fn id(number: usize) -> LoadBalancerId {
    LoadBalancerId {
        cluster: CLUSTER.into(),
        namespace: "default".into(),
        name: format!("web-{number}"),
        uid: format!("{number:08x}-0000-4000-8000-0000{:08x}", rand::random::<u32>()),
    }
}

pub fn port(number: u16) -> Port {
    Port {
        name: format!("p{number}"),
        protocol: Protocol::Tcp,
        app_protocol: None,
        port: number,
        node_port: Some(30_000 + number),
        target_port: TargetPort::Number(8080),
    }
}

pub fn spec(number: usize, annotations: &[(&str, &str)]) -> LoadBalancerSpec {
    let mut spec = LoadBalancerSpec::new(id(number), vec![port(80)]);
    spec.annotations = annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned())).collect();
    spec.annotations.entry(format!("{PREFIX}type")).or_insert_with(|| "nlb".into());
    spec
}

pub fn targets(instances: &[Instance]) -> Targets {
    let node = |instance: &Instance| NodeTarget {
        name: instance.name.clone(),
        provider_id: Some(instance.provider_id()),
        ..NodeTarget::default()
    };
    Targets::nodes(instances.iter().map(node).collect::<Vec<_>>())
}

/// Returns the load balancers of a provider in a new process, without any cache.
pub async fn new_process(moto: &Moto) -> Result<Arc<dyn LoadBalancers>> {
    let provider = provider(moto)?;
    provider.initialize().await?;
    provider.load_balancers().context("no load balancers")
}

pub fn is_retried(error: &CloudError) -> bool {
    matches!(error.kind, ErrorKind::Throttled { .. } | ErrorKind::Transient | ErrorKind::Conflict)
}

/// Calls `ensure` until the load balancer is in the desired state and reaches all its targets; returns its DNS name.
pub async fn settle(
    moto: &Moto,
    balancers: &dyn LoadBalancers,
    spec: &LoadBalancerSpec,
    targets: &Targets,
) -> Result<String> {
    let (mut last, mut pause) = (String::new(), Duration::from_millis(50));
    // The provider reuses listings for seconds, so several calls may be necessary.
    let deadline = Instant::now() + cluster_tests::DEADLINE;
    while Instant::now() < deadline {
        match balancers.ensure(spec, targets).await {
            Ok(ensured) if ensured.progress == Progress::Settled => {
                let ingress = ensured.status.ingress.first().context("no address")?;
                let name = ingress.hostname.clone().context("no name")?;
                let rules = spec.annotations.get(&format!("{PREFIX}manage-backend-security-group-rules"));
                if rules.is_none_or(|managed| managed != "false") {
                    let unreached = moto.proxy.unreached(Some(&name)).await?;
                    ensure!(unreached.is_empty(), "{} does not reach {unreached:?}", spec.id);
                }
                return Ok(name);
            }
            Ok(ensured) => last = format!("{:?}", ensured.progress),
            Err(error) if is_retried(&error) => last = error.to_string(),
            Err(error) => bail!(error),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 6 / 5).min(Duration::from_secs(2));
    }
    bail!("timed out waiting for the desired state of {}: {last}", spec.id)
}

/// Calls `delete` until nothing is left of the load balancer.
pub async fn delete(balancers: &dyn LoadBalancers, id: &LoadBalancerId) -> Result<()> {
    let (mut last, mut pause) = (String::new(), Duration::from_millis(50));
    let deadline = Instant::now() + cluster_tests::DEADLINE;
    while Instant::now() < deadline {
        match balancers.delete(id).await {
            Ok(Deletion::Gone) => return Ok(()),
            Ok(Deletion::InProgress(_)) => last = "in progress".into(),
            Err(error) if is_retried(&error) => last = error.to_string(),
            Err(error) => bail!(error),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 6 / 5).min(Duration::from_secs(2));
    }
    bail!("timed out waiting for the deletion of {id}: {last}")
}

/// Checks the resources of a Service with one port or two.
async fn check_desired_state(moto: &Moto, ports: usize) -> Result<()> {
    let resources = AccountResources::read(moto).await?;
    ensure!(resources.balancers.len() == 1 && resources.target_groups.len() == ports, "{resources:?}");
    ensure!(resources.security_groups.len() == 2 && resources.node_rules == 1, "{resources:?}");
    for group in &resources.target_groups {
        let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", group)]).await?;
        ensure!(texts(&health, "Id").len() == 2, "{group} does not have two targets: {health}");
    }
    let listeners =
        moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", &resources.balancers[0])]).await?;
    ensure!(texts(&listeners, "ListenerArn").len() == ports, "{listeners}");
    Ok(())
}

/// Fails one change in each run: the first, the third, and so on. The next test loses the responses to the other
/// changes.
pub async fn another_process_finishes_after_a_failed_call(_: Space) -> Result<()> {
    finish_in_another_process(Effect::Outage, (1..).step_by(2)).await
}

pub async fn another_process_finishes_after_a_lost_response(_: Space) -> Result<()> {
    finish_in_another_process(Effect::ResponseLost, (2..).step_by(2)).await
}

/// Runs only in `cargo xtask soak --only aws`.
pub async fn another_process_finishes_after_any_call(_: Space) -> Result<()> {
    finish_in_another_process(Effect::Outage, 1..).await?;
    finish_in_another_process(Effect::ResponseLost, 1..).await
}

/// For each number in `changes_to_fail`: a Service is created, updated and deleted, and the change with that number
/// fails or loses its response. The process crashes after the first call of each phase, and another process finishes.
async fn finish_in_another_process(effect: Effect, changes_to_fail: impl Iterator<Item = u64>) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let all = targets(&instances);
    for nth in changes_to_fail {
        let one = spec(usize::try_from(nth)?, &[]);
        let two = LoadBalancerSpec { ports: vec![port(80), port(443)], ..one.clone() };
        let mut faults_applied = 0;
        moto.proxy.arm(Fault::nth("changes", nth, effect.clone()));
        for phase in 0..3 {
            // The first call may fail; the process crashes with it.
            let crashing = new_process(&moto).await?;
            match phase {
                0 => drop(crashing.ensure(&one, &all).await),
                1 => drop(crashing.ensure(&two, &all).await),
                _ => drop(crashing.delete(&one.id).await),
            }
            faults_applied = faults_applied.max(moto.proxy.faults_applied());
            let next = new_process(&moto).await?;
            match phase {
                0 => drop(settle(&moto, &*next, &one, &all).await?),
                1 => drop(settle(&moto, &*next, &two, &all).await?),
                _ => delete(&*next, &one.id).await?,
            }
            faults_applied = faults_applied.max(moto.proxy.faults_applied());
            match phase {
                0 => check_desired_state(&moto, 1)
                    .await
                    .with_context(|| format!("{effect:?} at change {nth}, after creation"))?,
                1 => check_desired_state(&moto, 2)
                    .await
                    .with_context(|| format!("{effect:?} at change {nth}, after the update"))?,
                _ => {
                    let resources = AccountResources::read(&moto).await?;
                    ensure!(resources.is_empty(), "{effect:?} at change {nth} leaves {resources:?}");
                }
            }
        }
        moto.proxy.disarm();
        if faults_applied == 0 {
            ensure!(nth > 15, "only {nth} changes were made");
            break;
        }
    }
    Ok(())
}

/// A load balancer that cannot be created leaks nothing, even if its Service is deleted while parts of it exist.
pub async fn failed_creation_leaves_nothing_when_its_service_is_deleted(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    for action in ["CreateLoadBalancer", "CreateTargetGroup", "CreateListener", "RegisterTargets"] {
        let one = spec(1, &[]);
        moto.proxy.arm(Fault::always(action, Effect::refused("TooManyLoadBalancers", "the limit is reached")));
        let error = balancers.ensure(&one, &all).await.err().context("the load balancer was created")?;
        ensure!(error.kind == ErrorKind::Quota, "{error:?}");
        ensure!(
            !AccountResources::read(&moto).await?.security_groups.is_empty(),
            "no resource was created before the failure"
        );
        let owned = balancers.list_owned().await?;
        ensure!(owned.len() == 1 && owned[0].id == one.id, "an incomplete load balancer is not listed: {owned:?}");
        moto.proxy.disarm();
        delete(&*balancers, &one.id).await?;
        let resources = AccountResources::read(&moto).await?;
        ensure!(resources.is_empty(), "after {action} failed there is {resources:?}");
    }
    Ok(())
}

/// Counts the calls in a cluster that grows and in one without changes.
pub async fn calls_do_not_grow_with_nodes_and_services(_: Space) -> Result<()> {
    const SERVICES: usize = 100;
    const FEW: usize = 5;
    let moto = Moto::start(CLUSTER).await?;
    moto.proxy.ignore_reachability("it counts the calls of 100 load balancers, and each check reads all of them");
    moto.proxy.set_quota(Quota::LoadBalancers, SERVICES);
    let mut instances = moto.run(12).await?;
    let later_nodes = instances.split_off(10);
    let balancers = new_process(&moto).await?;
    let specs: Vec<LoadBalancerSpec> = (0..SERVICES)
        .map(|number| LoadBalancerSpec { ports: vec![port(80), port(443)], ..spec(number, &[]) })
        .collect();
    // A node joins: the number of reads does not depend on the number of Services.
    for (services, joined) in [(FEW, &later_nodes[0]), (SERVICES, &later_nodes[1])] {
        let current = targets(&instances);
        let settled: Vec<_> = specs[..services].iter().map(|spec| settle(&moto, &*balancers, spec, &current)).collect();
        stream::iter(settled).buffer_unordered(10).try_collect::<Vec<_>>().await?;
        instances.push(joined.clone());
        let more = targets(&instances);
        let before = moto.proxy.calls();
        let all = specs[..services].iter().map(|spec| balancers.set_targets(spec, &more));
        futures::future::try_join_all(all).await?;
        let after = moto.proxy.calls();
        let increase = |action: &str| after.get(action).unwrap_or(&0) - before.get(action).unwrap_or(&0);
        let reads: u64 =
            after.keys().filter(|action| action.starts_with("Describe")).map(|action| increase(action)).sum();
        let registrations = increase("RegisterTargets");
        ensure!(registrations == 2 * services as u64, "{registrations} registrations for {services} Services");
        ensure!(increase("DeregisterTargets") == 0 && reads <= 6, "{reads} reads for {services} Services: {after:?}");
    }
    let more = targets(&instances);
    let rules = AccountResources::read(&moto).await?.node_rules;
    ensure!(rules == 1, "{rules} rules for {SERVICES} Services");

    // Without changes: checks for drift change nothing, and read a few resources of each Service.
    let (before, changes) = (moto.proxy.calls(), moto.proxy.changes());
    for spec in &specs {
        settle(&moto, &*balancers, spec, &more).await?;
    }
    ensure!(moto.proxy.changes() == changes, "{:?}", moto.proxy.calls());
    let total = |calls: &std::collections::BTreeMap<String, u64>| calls.values().sum::<u64>();
    let each = (total(&moto.proxy.calls()) - total(&before)) / SERVICES as u64;
    ensure!(each <= 9, "{each} reads for each Service without changes");
    let deletions: Vec<_> = specs.iter().map(|spec| delete(&*balancers, &spec.id)).collect();
    stream::iter(deletions).buffer_unordered(10).try_collect::<Vec<_>>().await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// Creates the resources of cloud-provider-aws for a Service, with one target and these security groups. Returns the
/// ARNs of the load balancer, its target group and its listener.
pub async fn create_as_cloud_provider_aws(
    moto: &Moto,
    one: &LoadBalancerSpec,
    instance: &Instance,
    security_groups: &[(&str, &str)],
) -> Result<[String; 3]> {
    let (name, service) = (one.id.default_name(), format!("default/{}", one.id.name));
    let tag = format!("kubernetes.io/cluster/{CLUSTER}");
    let tags = [
        ("Tags.member.1.Key", &*tag),
        ("Tags.member.1.Value", "owned"),
        ("Tags.member.2.Key", "kubernetes.io/service-name"),
        ("Tags.member.2.Value", &service),
    ];
    let elb = async |action: &str, more: &[(&str, &str)], element: &str| -> Result<String> {
        let response = moto.aws.call(Service::Elb, action, &[more, &tags[..]].concat()).await?;
        texts(&response, element).into_iter().next().with_context(|| format!("the response to {action} is {response}"))
    };
    let subnets = &moto.network.subnets;
    let balancer = [
        ("Name", &*name),
        ("Type", "network"),
        ("SubnetMappings.member.1.SubnetId", &subnets[0]),
        ("SubnetMappings.member.2.SubnetId", &subnets[1]),
        ("SubnetMappings.member.3.SubnetId", &subnets[2]),
    ];
    let balancer = elb("CreateLoadBalancer", &[&balancer, security_groups].concat(), "LoadBalancerArn").await?;
    let group = [
        ("Name", "k8s-default-web1-0123456789"),
        ("Protocol", "TCP"),
        ("Port", "30080"),
        ("VpcId", &*moto.network.vpc),
        ("TargetType", "instance"),
        ("HealthCheckProtocol", "TCP"),
        ("HealthCheckPort", "traffic-port"),
        ("HealthCheckIntervalSeconds", "30"),
        ("HealthyThresholdCount", "3"),
        ("UnhealthyThresholdCount", "3"),
    ];
    let group = elb("CreateTargetGroup", &group, "TargetGroupArn").await?;
    let register =
        [("TargetGroupArn", &*group), ("Targets.member.1.Id", &instance.id), ("Targets.member.1.Port", "30080")];
    moto.aws.call(Service::Elb, "RegisterTargets", &register).await?;
    let listener = [
        ("LoadBalancerArn", &*balancer),
        ("Protocol", "TCP"),
        ("Port", "80"),
        ("DefaultActions.member.1.Type", "forward"),
        ("DefaultActions.member.1.TargetGroupArn", &group),
    ];
    let listener = elb("CreateListener", &listener, "ListenerArn").await?;
    Ok([balancer, group, listener])
}

/// A load balancer of cloud-provider-aws is kept, including its name.
pub async fn load_balancer_of_cloud_provider_aws_is_adopted(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let one = spec(1, &[]);
    let [balancer, group, listener] = create_as_cloud_provider_aws(&moto, &one, &instances[0], &[]).await?;

    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &targets(&instances)).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.balancers == [balancer.clone()] && resources.target_groups == [group.clone()], "{resources:?}");
    ensure!(
        resources.security_groups.is_empty(),
        "AWS cannot add security groups to a load balancer without any: {resources:?}"
    );
    let calls = moto.proxy.calls();
    for never in ["CreateLoadBalancer", "CreateTargetGroup", "CreateListener", "ModifyListener", "DeregisterTargets"] {
        ensure!(!calls.contains_key(never), "{never} was called: {calls:?}");
    }
    let listeners = moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", &balancer)]).await?;
    ensure!(texts(&listeners, "ListenerArn") == [listener], "{listeners}");
    // Nodes are opened to clients, as upstream does for a load balancer without groups.
    ensure!(resources.node_rules > 0, "{resources:?}");
    delete(&*balancers, &one.id).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// Another client changes resources in AWS; the next `ensure` reverts the changes and reports them.
pub async fn changes_by_other_clients_are_reverted_and_reported(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    let one = spec(1, &[]);
    settle(&moto, &*balancers, &one, &all).await?;
    let resources = AccountResources::read(&moto).await?;
    let attributes = [
        ("LoadBalancerArn", &*resources.balancers[0]),
        ("Attributes.member.1.Key", "load_balancing.cross_zone.enabled"),
        ("Attributes.member.1.Value", "true"),
    ];
    moto.aws.call(Service::Elb, "ModifyLoadBalancerAttributes", &attributes).await?;
    let ensured = balancers.ensure(&one, &all).await?;
    let reported = ensured.warnings.join("; ");
    ensure!(reported.contains("load_balancing.cross_zone.enabled"), "warnings: {reported:?}");
    ensure!(balancers.ensure(&one, &all).await?.warnings.is_empty());
    delete(&*balancers, &one.id).await
}

/// A target that AWS refuses does not affect the others.
pub async fn refused_target_does_not_affect_the_others(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(4).await?;
    let balancers = new_process(&moto).await?;
    let one = spec(1, &[]);
    // Three attempts contain the refused target: all four, then two, then this one alone.
    let bad = Effect::refused("InvalidTarget", "the instance is not in the network");
    moto.proxy.arm(Fault { times: Some(3), ..Fault::first("RegisterTargets", bad) });
    let ensured = balancers.ensure(&one, &targets(&instances)).await?;
    moto.proxy.disarm();
    ensure!(ensured.warnings.len() == 1 && ensured.warnings[0].contains("gets no traffic"), "{:?}", ensured.warnings);
    let resources = AccountResources::read(&moto).await?;
    let health = [("TargetGroupArn", &*resources.target_groups[0])];
    let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &health).await?;
    ensure!(texts(&health, "Id").len() == 3, "{health}");
    delete(&*balancers, &one.id).await
}

pub fn service(name: &str, annotations: serde_json::Value) -> Result<KubeService> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }))?)
}

/// The Service gets a DNS name, targets follow the nodes, and the deletion removes all resources.
pub async fn service_gets_a_load_balancer_until_it_is_deleted(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let _manager = bed.ccm(&["--controllers=cloud-node,service"]).await?;
    let instances = bed.nodes(2).await?;
    for instance in &instances {
        bed.until_initialized(instance).await?;
    }
    let services: Api<KubeService> = Api::namespaced(bed.cloud.bed.client.clone(), "default");
    let annotations = json!({format!("{PREFIX}type"): "nlb"});
    services.create(&PostParams::default(), &service("web", annotations)?).await?;
    eventually("the Service has a name", || async {
        let status = services.get("web").await?.status.and_then(|status| status.load_balancer);
        let ingress = status.and_then(|status| status.ingress).unwrap_or_default();
        ensure!(ingress.first().is_some_and(|one| one.hostname.is_some()), "{ingress:?}");
        Ok(())
    })
    .await?;
    let until_targets = async |expected: &[&Instance]| {
        eventually(format!("there are {} targets", expected.len()), || async {
            let resources = AccountResources::read(&bed.moto).await?;
            let group = resources.target_groups.first().context("no target group")?;
            let health = bed.moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", group)]).await?;
            let ids: BTreeSet<String> = texts(&health, "Id").into_iter().collect();
            ensure!(ids == expected.iter().map(|instance| instance.id.clone()).collect(), "{ids:?}");
            Ok(())
        })
        .await
    };
    until_targets(&[&instances[0], &instances[1]]).await?;
    let third = bed.nodes(1).await?.remove(0);
    until_targets(&[&instances[0], &instances[1], &third]).await?;
    let excluded = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}});
    bed.cloud.edit(&third.name, excluded).await?;
    until_targets(&[&instances[0], &instances[1]]).await?;

    // A mistake is reported with its fix.
    let wrong = json!({"metadata": {"annotations": {format!("{PREFIX}scheme"): "outside"}}});
    services.patch("web", &PatchParams::default(), &Patch::Merge(&wrong)).await?;
    eventually("the mistake is reported", || async {
        let events = bed.cloud.events("web").await?;
        let is_reported =
            events.keys().any(|event| event.contains("scheme is \"outside\": use internal or internet-facing"));
        ensure!(is_reported, "{events:?}");
        Ok(())
    })
    .await?;
    services.delete("web", &DeleteParams::default()).await?;
    eventually("all resources are deleted", || async {
        ensure!(services.get_opt("web").await?.is_none(), "the Service still has its finalizer");
        let resources = AccountResources::read(&bed.moto).await?;
        ensure!(resources.is_empty(), "{resources:?}");
        Ok(())
    })
    .await
}

/// An error that an operator has to fix is reported by one Event with the fix, and is not retried constantly.
pub async fn missing_permission_is_reported_with_the_fix(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let _manager = bed.ccm(&["--controllers=cloud-node,service"]).await?;
    let services: Api<KubeService> = Api::namespaced(bed.cloud.bed.client.clone(), "default");
    for (name, code, expected) in [
        ("denied", "AccessDenied", "allow this process the IAM action elasticloadbalancing:CreateLoadBalancer"),
        ("quota", "TooManyLoadBalancers", "request a higher quota, or delete unused resources"),
    ] {
        bed.moto.proxy.arm(Fault::always("CreateLoadBalancer", Effect::refused(code, "no")));
        let before = bed.moto.proxy.calls_of("CreateLoadBalancer");
        let annotations = json!({format!("{PREFIX}type"): "nlb"});
        services.create(&PostParams::default(), &service(name, annotations)?).await?;
        let matching_events = async || {
            let events = bed.cloud.events(name).await?;
            let found: Vec<_> = events.into_iter().filter(|(event, _)| event.contains(expected)).collect();
            anyhow::Ok(found)
        };
        eventually(format!("the error of {name} is reported"), || async {
            let found = matching_events().await?;
            ensure!(found.len() == 1 && found[0].1 == 1, "{found:?}");
            ensure!(found[0].0.contains("Warning SyncLoadBalancerFailed"), "{found:?}");
            Ok(())
        })
        .await?;
        // A change of the Service causes another attempt. The attempt succeeds, because the permission exists now, and
        // records no second Event.
        let attempts = bed.moto.proxy.calls_of("CreateLoadBalancer") - before;
        ensure!(attempts == 1, "{attempts} attempts");
        bed.moto.proxy.disarm();
        let change =
            json!({"metadata": {"annotations": {format!("{PREFIX}cross-zone-load-balancing-enabled"): "true"}}});
        services.patch(name, &PatchParams::default(), &Patch::Merge(&change)).await?;
        eventually(format!("{name} has its load balancer"), || async {
            let status = services.get(name).await?.status.and_then(|status| status.load_balancer);
            let ingress = status.and_then(|status| status.ingress).unwrap_or_default();
            ensure!(ingress.first().is_some_and(|one| one.hostname.is_some()), "{ingress:?}");
            Ok(())
        })
        .await?;
        let found = matching_events().await?;
        ensure!(found.len() == 1 && found[0].1 == 1, "{found:?}");
    }
    Ok(())
}
