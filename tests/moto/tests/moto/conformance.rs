//! The conformance suite of all providers, on moto.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Instance, Moto, Service};
use provider_conformance::{CaseResult, Fixture, FixtureError, Outcome, ReadFailure, Report};
use providers::{CloudProvider, InstanceRef, InstanceState, IpNet, LoadBalancerId, async_trait};

use crate::balancers::{AccountResources, texts};
use crate::bed::{CLUSTER, provider, provider_of};

/// The cloud behind the provider, for the suite.
struct MotoFixture {
    moto: Moto,
}

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let key = |key: &str| format!("service.beta.kubernetes.io/aws-load-balancer-{key}");
    pairs.iter().map(|(name, value)| (key(name), (*value).to_owned())).collect()
}

fn failed(error: anyhow::Error) -> FixtureError {
    FixtureError::Failed(format!("{error:#}"))
}

/// Returns the instance id in a provider ID.
fn id(instance: &InstanceRef) -> &str {
    instance.provider_id.as_deref().and_then(|id| id.rsplit('/').next()).unwrap_or_default()
}

fn node_of(instance: &Instance) -> InstanceRef {
    InstanceRef::named(&instance.name).with_provider_id(instance.provider_id())
}

#[async_trait]
impl Fixture for MotoFixture {
    fn cluster(&self) -> String {
        CLUSTER.into()
    }

    /// AWS chooses the instance's name.
    async fn create_instance(&self, _: &str) -> Result<InstanceRef, FixtureError> {
        let instances = self.moto.run(1).await.map_err(failed)?;
        Ok(node_of(&instances[0]))
    }

    async fn stop_instance(&self, instance: &InstanceRef) -> Result<(), FixtureError> {
        self.moto.stop(id(instance)).await.map_err(failed)
    }

    async fn delete_instance(&self, instance: &InstanceRef) -> Result<(), FixtureError> {
        self.moto.terminate(id(instance)).await.map_err(failed)
    }

    async fn leaked_resources(&self, id: &LoadBalancerId) -> Result<Vec<String>, FixtureError> {
        AccountResources::with_tag(&self.moto, &id.uid).await.map_err(failed)
    }

    fn annotations(&self) -> BTreeMap<String, String> {
        annotations(&[("type", "nlb")])
    }

    fn variants(&self) -> Vec<BTreeMap<String, String>> {
        [
            &[("scheme", "internal")][..],
            &[("scheme", "internet-facing")],
            &[("cross-zone-load-balancing-enabled", "true"), ("healthcheck-protocol", "http")],
            &[("target-group-attributes", "deregistration_delay.timeout_seconds=30")],
        ]
        .map(annotations)
        .into()
    }

    fn endpoint_annotations(&self) -> Option<BTreeMap<String, String>> {
        Some(annotations(&[("nlb-target-type", "ip")]))
    }

    fn invalid_annotation(&self) -> Option<(String, String)> {
        annotations(&[("scheme", "outside")]).pop_first()
    }

    async fn blocked_targets(&self) -> Result<Vec<String>, FixtureError> {
        self.moto.proxy.unreached(None).await.map_err(failed)
    }

    async fn fail_reads(&self, failure: ReadFailure) -> Result<(), FixtureError> {
        let effect = match failure {
            ReadFailure::Denied => Effect::refused("UnauthorizedOperation", "no"),
            // Without a Retry-After header, delays grow up to half a minute.
            ReadFailure::Throttled => Effect::Throttle { retry_after: Some(1) },
            ReadFailure::Outage => Effect::Outage,
        };
        self.moto.proxy.arm(Fault::always("reads", effect));
        Ok(())
    }

    /// moto delays visibility by a number of reads, not by a time.
    async fn delay_visibility(&self, _: Duration) -> Result<(), FixtureError> {
        self.moto.proxy.delay_visibility(2);
        Ok(())
    }

    async fn limit_pages(&self, size: usize) -> Result<(), FixtureError> {
        self.moto.proxy.limit_pages(size);
        Ok(())
    }

    async fn hold_deletion(&self, time: Duration) -> Result<(), FixtureError> {
        self.moto.proxy.arm(Fault::first("DeleteLoadBalancer", Effect::Pending(time)));
        Ok(())
    }

    async fn fail_change(&self, nth: u64) -> Result<(), FixtureError> {
        self.moto.proxy.arm(Fault::nth("changes", nth, Effect::Outage));
        Ok(())
    }

    async fn lose_response(&self, nth: u64) -> Result<(), FixtureError> {
        self.moto.proxy.arm(Fault::nth("changes", nth, Effect::ResponseLost));
        Ok(())
    }

    async fn faults_applied(&self) -> Option<u64> {
        Some(self.moto.proxy.faults_applied())
    }

    async fn restore(&self) -> Result<(), FixtureError> {
        self.moto.proxy.disarm();
        self.moto.proxy.delay_visibility(0);
        self.moto.proxy.limit_pages(usize::MAX);
        Ok(())
    }

    fn destinations(&self) -> Vec<IpNet> {
        let ipv4 = (240..244).map(|third| IpNet::new_assert([10, 244, third, 0].into(), 24));
        let ipv6 = (1..3).map(|part| IpNet::new_assert([0xfd00, 0x10, 0x244, part, 0, 0, 0, 0].into(), 64));
        ipv4.chain(ipv6).collect()
    }

    async fn create_foreign_route(&self, destination: IpNet) -> Result<(), FixtureError> {
        let (network, destination) = (&self.moto.network, destination.to_string());
        let parameters = [
            ("RouteTableId", &*network.table),
            ("DestinationCidrBlock", &destination),
            ("GatewayId", &network.gateway),
        ];
        self.moto.aws.call(Service::Ec2, "CreateRoute", &parameters).await.map(drop).map_err(failed)
    }

    async fn delete_foreign_route(&self, destination: IpNet) -> Result<(), FixtureError> {
        let destination = destination.to_string();
        let parameters = [("RouteTableId", &*self.moto.network.table), ("DestinationCidrBlock", &destination)];
        self.moto.aws.call(Service::Ec2, "DeleteRoute", &parameters).await.map(drop).map_err(failed)
    }

    async fn has_foreign_route(&self, destination: IpNet) -> Result<bool, FixtureError> {
        let parameters = [("RouteTableId.1", &*self.moto.network.table)];
        let table = self.moto.aws.call(Service::Ec2, "DescribeRouteTables", &parameters).await.map_err(failed)?;
        let route = format!("<destinationCidrBlock>{destination}</destinationCidrBlock>");
        let mut items = table.split("<item>");
        Ok(items.any(|item| item.contains(&route) && item.contains(&self.moto.network.gateway)))
    }

    /// Creates a load balancer with the settings that the provider would request, so that a creation would return it.
    async fn create_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<(), FixtureError> {
        let [a, b, c] = [0, 1, 2].map(|index| &*self.moto.network.subnets[index]);
        let name = id.default_name();
        let balancer = [
            ("Name", &*name),
            ("Type", "network"),
            ("Scheme", "internet-facing"),
            ("SubnetMappings.member.1.SubnetId", a),
            ("SubnetMappings.member.2.SubnetId", b),
            ("SubnetMappings.member.3.SubnetId", c),
            ("Tags.member.1.Key", "team"),
            ("Tags.member.1.Value", "another"),
        ];
        self.moto.aws.call(Service::Elb, "CreateLoadBalancer", &balancer).await.map(drop).map_err(failed)
    }

    async fn has_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<bool, FixtureError> {
        let Some(arn) = self.foreign(id).await? else { return Ok(false) };
        let tags = self.moto.aws.call(Service::Elb, "DescribeTags", &[("ResourceArns.member.1", &arn)]).await;
        let listeners = self.moto.aws.call(Service::Elb, "DescribeListeners", &[("LoadBalancerArn", &arn)]).await;
        let keys = texts(&tags.map_err(failed)?, "Key");
        Ok(keys == ["team"] && texts(&listeners.map_err(failed)?, "ListenerArn").is_empty())
    }

    async fn delete_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<(), FixtureError> {
        let Some(arn) = self.foreign(id).await? else { return Ok(()) };
        let deleted = self.moto.aws.call(Service::Elb, "DeleteLoadBalancer", &[("LoadBalancerArn", &arn)]).await;
        deleted.map(drop).map_err(failed)
    }

    fn timeout(&self) -> Duration {
        cluster_tests::DEADLINE
    }
}

impl MotoFixture {
    /// Returns the ARN of the load balancer of another owner.
    async fn foreign(&self, id: &LoadBalancerId) -> Result<Option<String>, FixtureError> {
        let named = [("Names.member.1", &*id.default_name())];
        match self.moto.aws.call(Service::Elb, "DescribeLoadBalancers", &named).await {
            Ok(found) => Ok(texts(&found, "LoadBalancerArn").pop()),
            Err(error) if format!("{error:#}").contains("LoadBalancerNotFound") => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

pub async fn configuration_is_completed_from_instance_metadata(_: Space) -> Result<()> {
    let moto = Moto::start("tagged").await?;
    let instances = moto.run(2).await?;
    let provider = provider_of(&moto, moto.cloud_config_in_aws(&instances[0]))?;
    provider.initialize().await?;
    ensure!(provider.has_cluster_id(), "the instance's tag was not read");
    let api = provider.instances().context("no instances")?;
    let states = api.describe(&[node_of(&instances[1])]).await;
    ensure!(matches!(&states[..], [InstanceState::Running(_)]), "{states:?}");
    // The table is found by the cluster's tag and the instance's network.
    let routes = provider.routes().context("no routes")?.list().await?;
    ensure!(routes.is_empty(), "{routes:?}");

    // No metadata service here: the error contains the fix.
    let other = Moto::start("tagged").await?;
    let config = moto.cloud_config_in_aws(&instances[0]).replace(&moto.proxy.url(), &other.proxy.url());
    let provider = provider_of(&other, config)?;
    let error = provider.initialize().await.err().context("the provider was initialized without metadata")?;
    ensure!(error.to_string().contains("set VPC, SubnetID and KubernetesClusterID"), "{error}");
    Ok(())
}

pub async fn provider_passes_the_conformance_suite(_: Space) -> Result<()> {
    // A server handles one call at a time.
    let next = AtomicUsize::new(0);
    let results = futures::future::try_join_all((0..SERVERS).map(|_| run_share(&next))).await?;
    let results: Vec<_> = results.into_iter().flatten().collect();
    let report = Report { results };
    println!("{report}");
    let failed: Vec<_> =
        report.results.iter().filter(|result| matches!(result.outcome, Outcome::Failed(_))).map(|r| r.name).collect();
    ensure!(failed.is_empty(), "failed: {failed:?}");
    let mut skipped: Vec<_> = report.skipped().map(|result| result.name).collect();
    skipped.sort_unstable();
    ensure!(skipped == WITHOUT_FEATURE, "skipped: {skipped:?}");
    Ok(())
}

/// The cases for features that this provider does not have; all others run.
const WITHOUT_FEATURE: [&str; 4] = [
    "changed_secret_replaces_the_credentials",
    "describe_finds_an_instance_by_annotations",
    "labels_and_taints_follow_the_instance",
    "written_annotations_have_the_prefix",
];

/// Number of servers among which the cases of the suite are divided.
const SERVERS: usize = 4;

/// The cases that take longest. They run first, so that no server works on one of them after the others are done.
const LONG_CASES: [&str; 6] = [
    "delete_recovers_from_a_failure_at_any_change",
    "ensure_recovers_from_a_failure_at_any_change",
    "lost_response_creates_no_second_load_balancer",
    "partial_load_balancer_is_listed_and_deleted",
    "variant_is_changed_into_another",
    "delete_that_takes_time_is_in_progress",
];

/// Returns the names of all cases, in the order in which they run.
fn cases() -> impl Iterator<Item = &'static str> {
    let (first, others): (Vec<_>, Vec<_>) =
        provider_conformance::case_names().partition(|name| LONG_CASES.contains(name));
    first.into_iter().chain(others)
}

/// Runs cases on one server, beginning with `next`, until none is left.
async fn run_share(next: &AtomicUsize) -> Result<Vec<CaseResult>> {
    let fixture = MotoFixture { moto: Moto::start(CLUSTER).await? };
    let provider: Arc<dyn CloudProvider> = provider(&fixture.moto)?;
    provider.initialize().await?;
    let mut results = Vec::new();
    while let Some(name) = cases().nth(next.fetch_add(1, Ordering::Relaxed)) {
        let started = std::time::Instant::now();
        let result = provider_conformance::run_case(name, &provider, &fixture).await;
        println!("{name}: {:.1} s", started.elapsed().as_secs_f64());
        results.push(result.with_context(|| format!("the suite has no case {name}"))?);
    }
    Ok(results)
}
