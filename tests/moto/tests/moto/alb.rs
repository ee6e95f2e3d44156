//! Application Load Balancers that users made, as targets of Services.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Moto, Service};
use providers::{LoadBalancerSpec, PlannedChange};

use crate::balancers::{AccountResources, delete, new_process, port, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// Creates an Application Load Balancer with a listener at port 80, as a user does.
async fn application(moto: &Moto) -> Result<String> {
    let balancer = [
        ("Name", "site"),
        ("Type", "application"),
        ("Scheme", "internal"),
        ("Subnets.member.1", &*moto.network.subnets[0]),
        ("Subnets.member.2", &*moto.network.subnets[1]),
    ];
    let made = moto.aws.call(Service::Elb, "CreateLoadBalancer", &balancer).await?;
    let arn = texts(&made, "LoadBalancerArn").pop().context("no load balancer")?;
    let listener = [
        ("LoadBalancerArn", &*arn),
        ("Protocol", "HTTP"),
        ("Port", "80"),
        ("DefaultActions.member.1.Type", "fixed-response"),
        ("DefaultActions.member.1.FixedResponseConfig.StatusCode", "200"),
        ("DefaultActions.member.1.FixedResponseConfig.ContentType", "text/plain"),
    ];
    moto.aws.call(Service::Elb, "CreateListener", &listener).await?;
    Ok(arn)
}

/// With its owner's consent, an Application Load Balancer becomes the target of a Service's Network Load Balancer; the
/// Service switches from its nodes to that load balancer and back.
pub async fn application_load_balancer_is_the_target_of_a_service(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(1).await?;
    let all = targets(&instances);
    let site = application(&moto).await?;
    let held = AccountResources::read(&moto).await?;
    let balancers = new_process(&moto).await?;
    let plain = spec(1, &[]);
    let in_front =
        |name: &str| LoadBalancerSpec { id: plain.id.clone(), ..spec(1, &[("application-load-balancer", name)]) };
    let refused = async |wanted: &LoadBalancerSpec, fix: &str| -> Result<()> {
        let error = balancers
            .ensure(wanted, &all)
            .await
            .err()
            .with_context(|| format!("the load balancer is used; no error with the fix {fix:?}"))?;
        ensure!(error.message.contains(fix), "{error}");
        let forecast = balancers.forecast(wanted).await?;
        ensure!(forecast.change == PlannedChange::Refused && forecast.reasons[0].contains(fix), "{forecast:?}");
        Ok(())
    };
    refused(&in_front("none"), "use the name or the ARN of an Application Load Balancer in").await?;
    refused(&in_front("site"), "=shared on it").await?;
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    let consent = [("ResourceArns.member.1", &*site), ("Tags.member.1.Key", &key), ("Tags.member.1.Value", "shared")];
    moto.aws.call(Service::Elb, "AddTags", &consent).await?;
    let other_port = LoadBalancerSpec { ports: vec![port(443)], ..in_front("site") };
    refused(&other_port, "use a port of the Application Load Balancer site: 80").await?;

    for name in ["site", &*site] {
        for (wanted, kind, target) in [(plain.clone(), "instance", &instances[0].id), (in_front(name), "alb", &site)] {
            settle(&moto, &*balancers, &wanted, &all).await?;
            let resources = AccountResources::read(&moto).await?;
            ensure!(resources.target_groups.len() == 1 && resources.balancers.len() == 2, "{resources:?}");
            let group = &resources.target_groups[0];
            let described = [("TargetGroupArns.member.1", &**group)];
            let described = moto.aws.call(Service::Elb, "DescribeTargetGroups", &described).await?;
            ensure!(texts(&described, "TargetType") == [kind], "{described}");
            let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", group)]).await?;
            ensure!(texts(&health, "Id") == [target.clone()], "{health}");
            balancers.set_targets(&wanted, &all).await?;
            let changes = moto.proxy.changes();
            settle(&moto, &*balancers, &wanted, &all).await?;
            ensure!(moto.proxy.changes() == changes, "changes without a reason: {:?}", moto.proxy.calls());
        }
    }
    delete(&*balancers, &plain.id).await?;
    ensure!(AccountResources::read(&moto).await? == held, "{:?} was {held:?}", AccountResources::read(&moto).await?);
    ensure!(moto.proxy.denied().is_empty() && moto.proxy.gaps().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}
