//! Endpoint services (AWS PrivateLink): created, changed, moved and deleted with the load balancer of their Service.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Service};
use providers::{ErrorKind, LoadBalancerSpec};

use crate::balancers::{AccountResources, delete, new_process, settle, spec, targets};
use crate::bed::CLUSTER;

const PARTNER: &str = "arn:aws:iam::111122223333:root";

/// An endpoint service in AWS.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EndpointService {
    id: String,
    balancers: Vec<String>,
    acceptance: String,
    principals: Vec<String>,
}

async fn endpoint_services(moto: &Moto) -> Result<Vec<EndpointService>> {
    let list = "serviceConfigurationSet";
    let listed = moto.aws.list(Service::Ec2, "DescribeVpcEndpointServiceConfigurations", &[], list).await?;
    let mut found = Vec::new();
    for one in listed {
        let id = one.text("serviceId").to_owned();
        let permissions =
            moto.aws.ec2("DescribeVpcEndpointServicePermissions", &[("ServiceId", &*id)], "principal").await?;
        found.push(EndpointService {
            balancers: one.texts("networkLoadBalancerArnSet/item").into_iter().map(str::to_owned).collect(),
            acceptance: one.text("acceptanceRequired").to_owned(),
            principals: permissions,
            id,
        });
    }
    Ok(found)
}

async fn check_nothing_left(moto: &Moto) -> Result<()> {
    let (resources, services) = (AccountResources::read(moto).await?, endpoint_services(moto).await?);
    ensure!(resources.is_empty() && services.is_empty(), "{resources:?} {services:?}");
    Ok(())
}

/// Returns the same Service with an endpoint service.
fn exposed(one: &LoadBalancerSpec, annotations: &[(&str, &str)]) -> LoadBalancerSpec {
    let all = [&[("endpoint-service", "true")], annotations].concat();
    LoadBalancerSpec { id: one.id.clone(), ..spec(1, &all) }
}

/// The settings change, the load balancer is replaced, the annotation is removed and added again, and the Service is
/// deleted.
pub async fn endpoint_service_follows_its_service(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    let plain = spec(1, &[]);
    settle(&moto, &*balancers, &plain, &all).await?;
    let calls = moto.proxy.calls_of("DescribeVpcEndpointServiceConfigurations");
    ensure!(calls == 0, "a Service without the annotation needs {calls} reads of endpoint services");

    settle(&moto, &*balancers, &exposed(&plain, &[]), &all).await?;
    let made = endpoint_services(&moto).await?;
    let resources = AccountResources::read(&moto).await?;
    ensure!(made.len() == 1 && made[0].balancers == resources.balancers, "{made:?} {resources:?}");
    ensure!(made[0].acceptance == "true" && made[0].principals.is_empty(), "{made:?}");

    let open = [("endpoint-service-allowed-principals", PARTNER), ("endpoint-service-acceptance-required", "false")];
    settle(&moto, &*balancers, &exposed(&plain, &open), &all).await?;
    let changed = endpoint_services(&moto).await?;
    let expected = EndpointService { acceptance: "false".into(), principals: vec![PARTNER.into()], ..made[0].clone() };
    ensure!(changed == [expected], "{changed:?}");

    // Another scheme needs another load balancer.
    let internal = exposed(&plain, &[&open[..], &[("scheme", "internal")]].concat());
    settle(&moto, &*balancers, &internal, &all).await?;
    let (moved, resources) = (endpoint_services(&moto).await?, AccountResources::read(&moto).await?);
    ensure!(moved.len() == 1 && moved[0].id == made[0].id, "{moved:?} was {made:?}");
    ensure!(resources.balancers.len() == 1 && moved[0].balancers == resources.balancers, "{moved:?} {resources:?}");

    let changes = moto.proxy.changes();
    settle(&moto, &*new_process(&moto).await?, &internal, &all).await?;
    ensure!(moto.proxy.changes() == changes, "changed again without need");

    let without = LoadBalancerSpec { id: plain.id.clone(), ..spec(1, &[("scheme", "internal")]) };
    settle(&moto, &*balancers, &without, &all).await?;
    ensure!(endpoint_services(&moto).await?.is_empty(), "{:?}", endpoint_services(&moto).await?);
    settle(&moto, &*balancers, &internal, &all).await?;
    ensure!(endpoint_services(&moto).await?.len() == 1, "{:?}", endpoint_services(&moto).await?);
    delete(&*balancers, &plain.id).await?;
    check_nothing_left(&moto).await
}

/// A process crashes at each change of an endpoint service. The next process creates no second endpoint service, and
/// deletes everything.
pub async fn endpoint_service_survives_crashes(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let open = [("endpoint-service-allowed-principals", PARTNER)];
    for action in [
        "CreateVpcEndpointServiceConfiguration",
        "ModifyVpcEndpointServicePermissions",
        "DeleteVpcEndpointServiceConfigurations",
    ] {
        for effect in [Effect::Outage, Effect::ResponseLost] {
            let plain = spec(1, &[]);
            let exposed = exposed(&plain, &open);
            let before = new_process(&moto).await?;
            moto.proxy.arm(Fault::nth(action, 1, effect.clone()));
            let ensured = settle(&moto, &*before, &plain, &all).await;
            ensured.with_context(|| format!("{action} {effect:?}"))?;
            drop(before.ensure(&exposed, &all).await);
            let next = new_process(&moto).await?;
            settle(&moto, &*next, &exposed, &all).await.with_context(|| format!("{action} {effect:?}"))?;
            let made = endpoint_services(&moto).await?;
            ensure!(made.len() == 1 && made[0].principals == [PARTNER], "{action} {effect:?}: {made:?}");
            drop(next.delete(&plain.id).await);
            delete(&*new_process(&moto).await?, &plain.id).await?;
            ensure!(
                moto.proxy.faults_applied() == 1,
                "{action} {effect:?}: {} calls failed",
                moto.proxy.faults_applied()
            );
            moto.proxy.disarm();
            check_nothing_left(&moto).await.with_context(|| format!("{action} {effect:?}"))?;
        }
    }
    ensure!(moto.proxy.denied().is_empty(), "{:?}", moto.proxy.denied());
    Ok(())
}

/// While consumers are connected, AWS deletes neither the endpoint service nor its load balancer.
pub async fn deletion_waits_for_consumers_of_an_endpoint_service(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let all = targets(&moto.run(1).await?);
    let balancers = new_process(&moto).await?;
    let one = spec(1, &[("endpoint-service", "true")]);
    settle(&moto, &*balancers, &one, &all).await?;
    moto.proxy.connect_consumers(true);
    let error = balancers.delete(&one.id).await.err().context("the load balancer was deleted")?;
    ensure!(error.kind == ErrorKind::Conflict && error.message.contains("reject the connections"), "{error}");
    ensure!(AccountResources::read(&moto).await?.balancers.len() == 1, "the load balancer is deleted");
    moto.proxy.connect_consumers(false);
    delete(&*balancers, &one.id).await?;
    check_nothing_left(&moto).await
}
