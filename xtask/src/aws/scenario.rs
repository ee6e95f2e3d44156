//! The scenario of `cargo xtask aws`: nodes, routes, and a Service that gets a load balancer and is deleted.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::ListParams;
use moto::Service;

use super::bed::{Bed, Manager, hostname, is_tainted};
use crate::console::Console;

const STEPS: usize = 5;
const SERVICE: &str = "web";
/// The command, as it is displayed and executed.
const CREATE: [&str; 5] = ["create", "service", "loadbalancer", SERVICE, "--tcp=80:8080,443:8443"];
const DELETE: [&str; 3] = ["delete", "service", SERVICE];

/// The resources of an account for Services.
#[derive(Debug, Default, PartialEq, Eq)]
struct AccountResources {
    balancers: usize,
    target_groups: usize,
    security_groups: usize,
}

/// Runs the scenario; the cluster keeps running.
pub async fn run_scenario(console: Console, manager: &Manager, nodes: usize) -> Result<Bed> {
    let step = Step::begin(console, 1, "A control plane and an AWS account, with an instance for each node");
    let mut bed = Bed::start(true).await?;
    let before = read_resources(&bed).await?;
    bed.join(nodes).await?;
    until_ready(&bed).await?;
    step.done(&format!(
        "Kubernetes 1.37 listens at {}, AWS at {}; {nodes} nodes wait for their cloud",
        bed.cluster.server(),
        bed.moto.proxy.url()
    ));

    let step = Step::begin(console, 2, "ccm starts with the rights of its manifest and initializes the nodes");
    let process = bed.run(manager)?;
    let with_log =
        |error: anyhow::Error| error.context(format!("ccm's log is {}", bed.cluster.log(manager.name).display()));
    step.happened(&format!("process {process}: {}", manager.program.display()));
    bed.until(|| async {
        let nodes = bed.nodes().list(&ListParams::default()).await?.items;
        let tainted = nodes.iter().filter(|node| is_tainted(node)).count();
        Ok((tainted > 0).then(|| format!("{tainted} nodes have their taint")))
    })
    .await
    .map_err(with_log)?;
    for node in bed.nodes().list(&ListParams::default().limit(5)).await? {
        step.happened(&line(&node));
    }
    step.done("no node has the taint that kept pods away");

    let step = Step::begin(console, 3, "The nodes' pod networks get routes");
    bed.until_initialized().await.map_err(with_log)?;
    for (network, instance) in bed.moto.routes(&bed.moto.network.table).await?.iter().take(5) {
        step.happened(&format!("{network} -> {instance}"));
    }
    step.done(&format!("{nodes} routes in {}", bed.moto.network.table));

    let step = Step::begin(console, 4, "A Service of type LoadBalancer gets a Network Load Balancer");
    step.command(&CREATE);
    bed.cluster.kubectl(&CREATE)?;
    bed.until_reachable(1).await.map_err(with_log)?;
    let created = read_resources(&bed).await?;
    let service = bed.services().get(SERVICE).await?;
    ensure!(created.balancers == 1 && created.target_groups == 2, "AWS has {created:?}");
    step.happened(&format!("AWS has a load balancer with {} target groups", created.target_groups));
    step.done(&format!("the Service is reached at {}", hostname(&service).unwrap_or_default()));

    let step = Step::begin(console, 5, "The Service is deleted");
    step.command(&DELETE);
    bed.cluster.kubectl(&DELETE)?;
    bed.until_quiet(Duration::from_secs(2)).await?;
    let after = read_resources(&bed).await?;
    // The shared security group is deleted with the last of the load balancers.
    ensure!(after == before, "before the Service AWS had {before:?}, and after it {after:?}");
    step.done("AWS has no resources of the Service");
    Ok(bed)
}

async fn read_resources(bed: &Bed) -> Result<AccountResources> {
    let count = async |service: Service, action: &str, list: &str| -> Result<usize> {
        Ok(bed.moto.aws.list(service, action, &[], list).await?.len())
    };
    Ok(AccountResources {
        balancers: count(Service::Elb, "DescribeLoadBalancers", "LoadBalancers").await?,
        target_groups: count(Service::Elb, "DescribeTargetGroups", "TargetGroups").await?,
        security_groups: count(Service::Ec2, "DescribeSecurityGroups", "securityGroupInfo").await?,
    })
}

async fn until_ready(bed: &Bed) -> Result<()> {
    bed.until(|| async {
        let nodes = bed.nodes().list(&ListParams::default()).await?.items;
        let ready = |node: &&Node| {
            let conditions = node.status.iter().flat_map(|status| &status.conditions).flatten();
            conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        let ready = nodes.iter().filter(ready).count();
        Ok((ready < nodes.len()).then(|| format!("{ready} of {} nodes are Ready", nodes.len())))
    })
    .await?;
    Ok(())
}

/// Formats the fields of a node that its cloud has set.
fn line(node: &Node) -> String {
    let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
    let id = node.spec.iter().find_map(|spec| spec.provider_id.clone()).unwrap_or_default();
    format!(
        "{}: {id}, {}, {}",
        node.name_any(),
        label("topology.kubernetes.io/zone"),
        label("node.kubernetes.io/instance-type")
    )
}

struct Step {
    console: Console,
    begun: Instant,
}

impl Step {
    fn begin(console: Console, number: usize, title: &str) -> Self {
        console.title(&format!("{number}/{STEPS} {title}"));
        Self { console, begun: Instant::now() }
    }

    fn command(&self, words: &[&str]) {
        self.console.command(&format!("kubectl {}", words.join(" ")));
    }

    fn happened(&self, text: &str) {
        self.console.happened(self.begun.elapsed(), text);
    }

    fn done(&self, text: &str) {
        self.console.done(self.begun.elapsed(), text);
    }
}
