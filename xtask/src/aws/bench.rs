//! `cargo xtask bench aws`: AWS calls, duration and memory of upstream's AWS manager and of ours for the same work.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Service as KubeService;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use moto::Service;
use serde_json::json;

use super::bed::{Bed, Calls, Manager, since};
use super::{ours, upstream};
use crate::process::usage;

/// Time without an AWS call after which a manager is done.
const REST: Duration = Duration::from_secs(4);
/// The number of nodes before the measurement.
const INITIAL_NODES: usize = 3;

/// Numbers of objects.
#[derive(Debug, Clone, Copy)]
struct Size {
    nodes: usize,
    /// Services with one port each: with two ports, upstream's rules in the nodes' security group exceed AWS's quota.
    services: usize,
    resyncs: usize,
}

impl Size {
    const WHOLE: Self = Self { nodes: 100, services: 50, resyncs: 20 };
    const QUICK: Self = Self { nodes: 20, services: 10, resyncs: 3 };
}

/// A scenario.
#[derive(Debug)]
struct Scenario {
    title: String,
    /// Time until the last call that the scenario caused; in the first scenario, until all nodes are initialized.
    took: Duration,
    calls: Calls,
}

impl Scenario {
    fn calls(&self) -> u64 {
        self.calls.values().sum()
    }

    fn reads(&self) -> u64 {
        self.calls.iter().filter(|(action, _)| action.starts_with("Describe")).map(|(_, count)| count).sum()
    }
}

/// All measurements of one manager.
#[derive(Debug)]
struct Measured {
    scenarios: Vec<Scenario>,
    /// Memory in MiB before the last two scenarios; the first of them restarts the manager.
    resident: f64,
    /// The maximum until then, in MiB.
    peak: f64,
    /// CPU time until then, in seconds.
    cpu: f64,
}

/// Measures both managers and prints tables; with `assert`, fails if a goal is missed.
pub fn bench(ccm: Option<&Path>, quick: bool, assert: bool) -> Result<()> {
    let size = if quick { Size::QUICK } else { Size::WHOLE };
    let managers = [upstream()?, ours(ccm, !quick)?];
    let runtime = tokio::runtime::Runtime::new().context("start threads")?;
    let measured = managers.iter().map(|manager| {
        eprintln!("{}: {size:?}", manager.name);
        runtime.block_on(measure(manager, size)).with_context(|| format!("manager {}", manager.name))
    });
    let [theirs, own] = <[Measured; 2]>::try_from(measured.collect::<Result<Vec<_>>>()?)
        .map_err(|_| anyhow::anyhow!("the number of measured managers is not two"))?;
    println!("{}", table(&theirs, &own));
    println!("{}", actions(&theirs, &own));
    let goals = goals(&theirs, &own);
    for Goal { what, ratio, limit } in &goals {
        let met = if ratio <= limit { "met" } else { "MISSED" };
        println!("{what}: {ratio:.3} of upstream's, at most {limit} allowed: {met}");
    }
    if assert && goals.iter().any(|goal| goal.ratio > goal.limit) {
        bail!("a goal is missed");
    }
    Ok(())
}

async fn measure(manager: &Manager, size: Size) -> Result<Measured> {
    let mut bed = Bed::start(false).await?;
    bed.join(INITIAL_NODES).await?;
    let process = bed.run(manager)?;
    bed.until_initialized().await?;
    bed.until_quiet(REST).await?;
    let result = work(&mut bed, manager, process, size).await;
    if result.is_err() {
        let log = std::env::temp_dir().join(format!("bench-aws-{}.log", manager.name));
        std::fs::copy(bed.cluster.log(manager.name), &log)?;
        eprintln!("the log of manager {} is kept as {}", manager.name, log.display());
    }
    result
}

async fn work(bed: &mut Bed, manager: &Manager, process: u32, size: Size) -> Result<Measured> {
    let Size { nodes, services, resyncs } = size;
    let mut scenarios = Vec::new();

    let mark = ScenarioStart::now(bed, format!("{nodes} nodes join"));
    bed.join(nodes).await?;
    bed.until_initialized().await?;
    scenarios.push(mark.at(bed, Instant::now()));
    bed.until_quiet(REST).await?;

    let mark = ScenarioStart::now(bed, format!("{services} Services are created"));
    for number in 0..services {
        bed.services().create(&PostParams::default(), &service(number)?).await?;
    }
    bed.until_reachable(services).await?;
    scenarios.push(mark.after(bed).await?);
    check_targets(bed, services, INITIAL_NODES + nodes).await?;

    let mark = ScenarioStart::now(bed, format!("a node joins {services} Services"));
    bed.join(1).await?;
    bed.until_initialized().await?;
    scenarios.push(mark.after(bed).await?);
    check_targets(bed, services, INITIAL_NODES + nodes + 1).await?;

    let mark = ScenarioStart::now(bed, format!("{resyncs} resyncs of all Services, without a change"));
    let mut last = Instant::now();
    for number in 0..resyncs {
        let patch = json!({"metadata": {"annotations": {"example.com/resync": number.to_string()}}});
        for service in bed.services().list(&created_services()).await? {
            let name = service.metadata.name.context("a Service has no name")?;
            bed.services().patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        }
        last = bed.until_quiet(REST / 2).await?;
    }
    scenarios.push(mark.at(bed, last));
    let usage = usage(process)?;

    let mark = ScenarioStart::now(bed, format!("the manager is started again with {services} Services"));
    bed.cluster.kill(manager.name)?;
    bed.run(manager)?;
    scenarios.push(mark.after(bed).await?);

    let mark = ScenarioStart::now(bed, format!("{services} Services are deleted"));
    bed.services().delete_collection(&DeleteParams::default(), &created_services()).await?;
    bed.until(|| async {
        let left = bed.services().list(&created_services()).await?.items.len();
        Ok((left > 0).then(|| format!("{left} Services are left")))
    })
    .await?;
    scenarios.push(mark.after(bed).await?);
    let left = bed.moto.aws.list(Service::Elb, "DescribeTargetGroups", &[], "TargetGroups").await?;
    ensure!(left.is_empty(), "{} target groups are left", left.len());
    Ok(Measured { scenarios, resident: usage.resident, peak: usage.peak, cpu: usage.cpu })
}

/// Selects all Services except the API server's own.
fn created_services() -> ListParams {
    ListParams::default().labels("!component")
}

fn service(number: usize) -> Result<KubeService> {
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": format!("web-{number}"),
            "annotations": {"service.beta.kubernetes.io/aws-load-balancer-type": "nlb"},
        },
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    }))?)
}

/// Checks that each Service has this number of targets.
async fn check_targets(bed: &Bed, services: usize, nodes: usize) -> Result<()> {
    let groups = bed.moto.aws.list(Service::Elb, "DescribeTargetGroups", &[], "TargetGroups").await?;
    ensure!(groups.len() == services, "{services} Services have {} target groups", groups.len());
    for group in groups {
        let about = [("TargetGroupArn", group.text("TargetGroupArn"))];
        let health =
            bed.moto.aws.list(Service::Elb, "DescribeTargetHealth", &about, "TargetHealthDescriptions").await?;
        ensure!(health.len() == nodes, "{} has {} targets, not {nodes}", group.text("TargetGroupName"), health.len());
    }
    Ok(())
}

/// The start of a scenario.
struct ScenarioStart {
    title: String,
    begun: Instant,
    calls: Calls,
}

impl ScenarioStart {
    fn now(bed: &Bed, title: String) -> Self {
        eprintln!("  {title}");
        Self { title, begun: Instant::now(), calls: bed.moto.proxy.calls() }
    }

    /// Returns the scenario, once it causes no further calls.
    async fn after(self, bed: &Bed) -> Result<Scenario> {
        let last = bed.until_quiet(REST).await?;
        Ok(self.at(bed, last))
    }

    /// Returns the scenario, which ended at that time.
    fn at(self, bed: &Bed, end: Instant) -> Scenario {
        let took = end.saturating_duration_since(self.begun);
        Scenario { title: self.title, took, calls: since(&self.calls, bed.moto.proxy.calls()) }
    }
}

/// The position of the scenario in which Services are created.
const CREATED: usize = 1;
/// The position of the scenario in which Services are deleted.
const DELETED: usize = 5;

/// A goal for the ratio of ours to upstream's.
#[derive(Debug, PartialEq)]
struct Goal {
    what: &'static str,
    ratio: f64,
    limit: f64,
}

fn goals(theirs: &Measured, own: &Measured) -> Vec<Goal> {
    // The first and the third scenario add nodes.
    let reads = |measured: &Measured| measured.scenarios.iter().step_by(2).take(2).map(Scenario::reads).sum::<u64>();
    let calls = |measured: &Measured| measured.scenarios.iter().map(Scenario::calls).sum::<u64>();
    let ratio = |own: u64, theirs: u64| own as f64 / theirs as f64;
    let calls_of = |at: usize| ratio(own.scenarios[at].calls(), theirs.scenarios[at].calls());
    vec![
        Goal { what: "reads when nodes join", ratio: ratio(reads(own), reads(theirs)), limit: 0.1 },
        Goal { what: "calls when Services are created", ratio: calls_of(CREATED), limit: 0.5 },
        Goal { what: "calls when Services are deleted", ratio: calls_of(DELETED), limit: 0.5 },
        Goal { what: "all calls", ratio: ratio(calls(own), calls(theirs)), limit: 0.5 },
        Goal { what: "peak memory", ratio: own.peak / theirs.peak, limit: 0.22 },
    ]
}

/// Returns the scenarios, both managers in one table.
fn table(theirs: &Measured, own: &Measured) -> String {
    let mut text = String::from(
        "| | upstream: seconds | reads | changes | ours: seconds | reads | changes | calls, ratio |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (theirs, own) in theirs.scenarios.iter().zip(&own.scenarios) {
        let half =
            |one: &Scenario| format!("{:.1} | {} | {}", one.took.as_secs_f64(), one.reads(), one.calls() - one.reads());
        let ratio = own.calls() as f64 / theirs.calls() as f64;
        let _ = writeln!(text, "| {} | {} | {} | {ratio:.2} |", theirs.title, half(theirs), half(own));
    }
    for (what, theirs, own) in [
        ("memory, MiB", theirs.resident, own.resident),
        ("peak memory, MiB", theirs.peak, own.peak),
        ("CPU seconds", theirs.cpu, own.cpu),
    ] {
        let _ = writeln!(text, "| {what} | {theirs:.1} | | | {own:.1} | | | {:.2} |", own / theirs);
    }
    text
}

/// Returns the calls of each scenario by action, both managers in one table.
fn actions(theirs: &Measured, own: &Measured) -> String {
    let mut text = String::from("| scenario | calls | upstream | ours |\n| --- | --- | ---: | ---: |\n");
    for (theirs, own) in theirs.scenarios.iter().zip(&own.scenarios) {
        let names: BTreeSet<&String> = theirs.calls.keys().chain(own.calls.keys()).collect();
        let count = |calls: &Calls, name: &String| calls.get(name).copied().unwrap_or_default();
        for (row, name) in names.into_iter().enumerate() {
            let title = if row == 0 { theirs.title.as_str() } else { "" };
            let _ =
                writeln!(text, "| {title} | {name} | {} | {} |", count(&theirs.calls, name), count(&own.calls, name));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(counts: [(u64, u64); 6], peak: f64) -> Measured {
        let scenario = |(reads, changes): (u64, u64)| Scenario {
            title: "work".into(),
            took: Duration::from_secs(1),
            calls: [("DescribeInstances".to_owned(), reads), ("CreateListener".to_owned(), changes)].into(),
        };
        Measured { scenarios: counts.map(scenario).into(), resident: peak, peak, cpu: 1.0 }
    }

    #[test]
    fn goals_are_ratios_to_upstream() {
        let theirs = measured([(60, 1), (10, 10), (40, 1), (7, 0), (0, 0), (1, 10)], 80.0);
        let own = measured([(2, 1), (10, 10), (3, 1), (7, 0), (0, 0), (1, 10)], 16.0);
        let ratios: Vec<f64> = goals(&theirs, &own).iter().map(|goal| goal.ratio).collect();
        assert_eq!(ratios, [0.05, 1.0, 1.0, 45.0 / 140.0, 0.2]);
    }

    #[test]
    fn table_shows_both_managers() {
        let (theirs, own) = (measured([(4, 2); 6], 80.0), measured([(1, 2); 6], 16.0));
        assert!(table(&theirs, &own).contains("| work | 1.0 | 4 | 2 | 1.0 | 1 | 2 | 0.50 |\n"));
        let rows = "| work | CreateListener | 2 | 2 |\n|  | DescribeInstances | 4 | 1 |\n";
        assert!(actions(&theirs, &own).contains(rows));
    }
}
