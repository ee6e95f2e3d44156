//! Scenarios of ccm's controllers with the mock cloud, each with a crash of the process at a write or during a call of
//! the cloud, or with a failure of a write or of the cloud: in the final state, nothing is missing or leaked.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::{
    Call, Case, CloudBed, Effect, Faults, QUIET, Rule, Space, Tier, during, eventually, write_failures,
};
use futures::future::BoxFuture;
use kube::api::DeleteParams;
use provider_mock::{Effect as CloudEffect, Fault, InstanceConfig, Operation, Pattern};
use serde_json::json;

use crate::cloud::node::until_initialized;
use crate::cloud::node_lifecycle::{until_node_deleted, until_shutdown_taint};
use crate::cloud::service;

/// A scenario of one controller or two.
struct Scenario {
    name: &'static str,
    flags: &'static [&'static str],
    /// The number of instances, with their nodes, that exist before the scenario begins.
    nodes: usize,
    /// Actions of users and changes in the cloud, for an object with this name, each followed by a wait for a state.
    run: for<'a> fn(&'a CloudBed, &'a str) -> BoxFuture<'a, Result<()>>,
    /// The minimum number of writes.
    writes: usize,
    /// Calls of the cloud during which the process crashes, and their minimum number.
    calls: (Pattern, u64),
    /// Faults that must have no lasting effect, in addition to those that any call can have.
    faults: &'static [(Operation, CloudEffect)],
}

static SCENARIOS: [Scenario; 3] = [
    Scenario {
        name: "cloud_service",
        flags: &["--controllers=service"],
        nodes: 2,
        run: |cloud, name| Box::pin(service::scenario(cloud, name)),
        writes: 6,
        calls: (Pattern::Changes, 14),
        faults: &[
            (Operation::AllocateAddress, CloudEffect::ResponseLost),
            (Operation::CreateBalancer, CloudEffect::ResponseLost),
            (Operation::SetListeners, CloudEffect::ResponseLost),
            (Operation::SetTargets, CloudEffect::ResponseLost),
            (Operation::DeleteBalancer, CloudEffect::ResponseLost),
            (Operation::ReleaseAddresses, CloudEffect::ResponseLost),
            (Operation::AllocateAddress, CloudEffect::Invisible { millis: 3_000 }),
            (Operation::CreateBalancer, CloudEffect::Invisible { millis: 3_000 }),
            (Operation::DeleteBalancer, CloudEffect::Pending { millis: 3_000 }),
        ],
    },
    Scenario {
        name: "cloud_node",
        flags: &["--node-monitor-period=1s"],
        nodes: 0,
        run: |cloud, name| Box::pin(life_of_a_node(cloud, name)),
        writes: 5,
        calls: (Pattern::Reads, 5),
        faults: &[],
    },
    Scenario {
        name: "cloud_route",
        flags: &[
            "--controllers=route",
            "--configure-cloud-routes=true",
            "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
            "--route-reconciliation-period=1s",
        ],
        nodes: 0,
        run: |cloud, name| Box::pin(life_of_a_route(cloud, name)),
        writes: 1,
        calls: (Pattern::Changes, 4),
        faults: &[
            (Operation::SetRoute, CloudEffect::ResponseLost),
            (Operation::RemoveRoute, CloudEffect::ResponseLost),
        ],
    },
];

/// Creates an instance with its node, stops it, starts it again, and removes it from the cloud.
async fn life_of_a_node(cloud: &CloudBed, name: &str) -> Result<()> {
    cloud.register_instance(name).await?;
    until_initialized(cloud, name).await?;
    cloud.cloud.stop_instance(name);
    cloud.set_ready_condition(name, "Unknown").await?;
    until_shutdown_taint(cloud, name, true).await?;
    cloud.cloud.start_instance(name);
    cloud.set_ready_condition(name, "True").await?;
    until_shutdown_taint(cloud, name, false).await?;
    cloud.cloud.remove_instance(name);
    cloud.set_ready_condition(name, "False").await?;
    until_node_deleted(cloud, name).await
}

/// Registers a node, waits for the routes of its networks, and deletes the node.
async fn life_of_a_route(cloud: &CloudBed, name: &str) -> Result<()> {
    let id = cloud.cloud.add_instance(&InstanceConfig::named(name));
    let networks = json!(["10.244.1.0/24", "fd00:10:244:1::/64"]);
    let spec = json!({"spec": {"providerID": id, "podCIDR": "10.244.1.0/24", "podCIDRs": networks}});
    cloud.register(name, spec).await?;
    eventually("its networks are routed, and its condition is set", || async {
        let status = cloud.nodes().get(name).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let condition =
            conditions.iter().find(|condition| condition.type_ == "NetworkUnavailable").context("no condition")?;
        ensure!(condition.status == "False" && cloud.cloud.snapshot().routes.len() == 2, "{condition:?}");
        Ok(())
    })
    .await?;
    cloud.nodes().delete(name, &DeleteParams::default()).await?;
    eventually("its routes are removed", || async {
        ensure!(cloud.cloud.snapshot().routes.is_empty(), "{:?}", cloud.cloud.snapshot().routes);
        Ok(())
    })
    .await
}

/// The fault of one run.
#[derive(Clone)]
enum RunFault {
    Nothing,
    /// A fault of a write.
    Write(Rule),
    /// A crash of the process during a call to the cloud.
    Crash(Fault),
    /// A fault of the cloud.
    Cloud(Fault),
}

/// Runs ccm repeatedly, each process until it crashes or, if `crashes_in_a_call`, until a call to the cloud hangs.
async fn run_until_crash(
    scenario: &Scenario,
    cloud: &CloudBed,
    faults: &Faults,
    crashes_in_a_call: bool,
) -> Result<()> {
    loop {
        let manager = cloud.start_ccm(faults, scenario.flags).await?;
        tokio::select! {
            () = faults.crashes() => {}
            () = until_call_hangs(cloud), if crashes_in_a_call => {}
        }
        manager.crash().await;
        if crashes_in_a_call {
            cloud.cloud.clear_faults();
        }
    }
}

/// Completes when the fault that makes a call hang forever has occurred.
async fn until_call_hangs(cloud: &CloudBed) {
    while cloud.cloud.snapshot().faults.iter().all(|fault| fault.fired == 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs the scenario with a fault, which has to occur if `must_occur`; returns the numbers of writes and of changes in
/// the cloud.
async fn run_with_fault(
    scenario: &Scenario,
    cloud: &CloudBed,
    name: &str,
    run_fault: RunFault,
    must_occur: bool,
) -> Result<(usize, u64)> {
    let changes = cloud.cloud.changing_calls();
    let faults = Faults::default();
    let crashes_in_a_call = matches!(run_fault, RunFault::Crash(_));
    match &run_fault {
        RunFault::Nothing => {}
        RunFault::Write(rule) => faults.add(rule.clone()),
        RunFault::Crash(fault) | RunFault::Cloud(fault) => drop(cloud.cloud.add_fault(fault.clone())?),
    }
    tokio::select! {
        done = (scenario.run)(cloud, name) => done?,
        ended = run_until_crash(scenario, cloud, &faults, crashes_in_a_call) => ended?,
    }
    let occurred = match run_fault {
        RunFault::Nothing => true,
        RunFault::Write(_) => faults.unmet() == 0,
        // `run_until_crash` removes this fault after the crash that it causes.
        RunFault::Crash(_) => cloud.cloud.snapshot().faults.is_empty(),
        RunFault::Cloud(_) => cloud.cloud.snapshot().faults.iter().all(|fault| fault.fired > 0),
    };
    cloud.cloud.clear_faults();
    ensure!(occurred || !must_occur, "the fault did not occur: the run tests nothing");
    let snapshot = cloud.cloud.snapshot();
    ensure!(snapshot.balancers.is_empty() && snapshot.routes.is_empty(), "left behind: {snapshot:?}");
    Ok((faults.count(Call::is_object_write), cloud.cloud.changing_calls() - changes))
}

/// Checks that another process finds nothing to do.
async fn finds_nothing_to_do(scenario: &Scenario, cloud: &CloudBed) -> Result<()> {
    let (faults, changes) = (Faults::default(), cloud.cloud.changing_calls());
    let manager = cloud.start_ccm(&faults, scenario.flags).await?;
    faults.until_watching(&["nodes"]).await?;
    during(QUIET, "no work remains", || async {
        ensure!(
            faults.count(Call::is_object_write) == 0 && cloud.cloud.changing_calls() == changes,
            "{:?}",
            faults.requests()
        );
        Ok(())
    })
    .await?;
    manager.crash().await;
    Ok(())
}

/// Runs the scenario with each fault, one after the other in one cloud.
async fn run_with_each_fault(
    scenario: &Scenario,
    run_faults: impl FnOnce(usize, u64) -> Vec<(String, RunFault, bool)>,
) -> Result<()> {
    let cloud = CloudBed::start().await?;
    for number in 1..=scenario.nodes {
        let name = format!("node-{number}");
        let id = cloud.cloud.add_instance(&InstanceConfig::named(&name));
        cloud.register(&name, json!({"spec": {"providerID": id}})).await?;
    }
    let (writes, changes) = run_with_fault(scenario, &cloud, "undisturbed", RunFault::Nothing, true).await?;
    ensure!(writes >= scenario.writes, "only {writes} writes: the scenario's minimum is wrong");
    ensure!(scenario.calls.0 == Pattern::Reads || changes >= scenario.calls.1, "only {changes} changes of the cloud");
    let run_faults = run_faults(writes, changes.max(scenario.calls.1));
    let count = run_faults.len();
    for (number, (what, run_fault, must_occur)) in run_faults.into_iter().enumerate() {
        let name = format!("{}-{number}", scenario.name.replace('_', "-"));
        if let Err(error) = run_with_fault(scenario, &cloud, &name, run_fault, must_occur).await {
            // Objects and faults of the failed run remain, so later runs in this cloud would prove nothing.
            bail!("run {number} of {count}, {name}: {what}: {error:#}");
        }
    }
    finds_nothing_to_do(scenario, &cloud).await
}

fn crash_at_write(scenario: &Scenario, n: usize, effect: Effect) -> (String, RunFault, bool) {
    let what = format!("{effect:?} at write {n}");
    (what, RunFault::Write(Rule::new(Call::is_object_write, effect).nth(n)), n <= scenario.writes)
}

/// Returns crashes in the n-th call to the cloud: before its execution and, if it changes something, also after it.
fn crash_in_call(scenario: &Scenario, n: u64) -> Vec<(String, RunFault, bool)> {
    let (pattern, certain) = scenario.calls;
    let before = CloudEffect::Latency { millis: 24 * 60 * 60 * 1000 };
    let effects = [Some(before), (pattern == Pattern::Changes).then_some(CloudEffect::Unanswered)];
    let crash = |effect| {
        let fault = Fault::at(pattern, n, effect);
        (format!("crash in call {n}: {effect:?}"), RunFault::Crash(fault), n <= certain)
    };
    effects.into_iter().flatten().map(crash).collect()
}

async fn crash_at_a_sample(scenario: &Scenario) -> Result<()> {
    run_with_each_fault(scenario, |writes, calls| {
        let writes = [1, writes.div_ceil(2)].map(|n| crash_at_write(scenario, n, Effect::CrashAfter));
        let last = scenario.writes;
        let crashes_before_response = [crash_at_write(scenario, last, Effect::CrashBeforeResponse)];
        let calls = [1, calls / 2].into_iter().filter_map(|n| crash_in_call(scenario, n).pop());
        writes.into_iter().chain(crashes_before_response).chain(calls).collect()
    })
    .await
}

async fn crash_everywhere(scenario: &Scenario) -> Result<()> {
    run_with_each_fault(scenario, |writes, calls| {
        let both =
            |n| [Effect::CrashAfter, Effect::CrashBeforeResponse].map(|effect| crash_at_write(scenario, n, effect));
        let calls = (1..=calls).flat_map(|n| crash_in_call(scenario, n));
        (1..=writes).flat_map(both).chain(calls).collect()
    })
    .await
}

/// Runs the scenario with each kind of failure at each write, and at each call to the cloud, that occurs in every run.
async fn fail_each_way(scenario: &Scenario) -> Result<()> {
    run_with_each_fault(scenario, |writes, _| {
        let writes = (1..=writes.min(scenario.writes)).flat_map(|n| {
            write_failures().map(|(how, effect)| {
                (format!("write {n}: {how}"), RunFault::Write(Rule::new(Call::is_object_write, effect).nth(n)), true)
            })
        });
        let anywhere = [
            CloudEffect::Latency { millis: 1_500 },
            CloudEffect::Throttle { after_millis: None },
            CloudEffect::Throttle { after_millis: Some(500) },
            CloudEffect::Quota,
            CloudEffect::Denied,
            CloudEffect::Conflict,
            CloudEffect::Transient,
        ];
        let calls = (1..=scenario.calls.1).flat_map(|n| anywhere.map(|effect| Fault::at(scenario.calls.0, n, effect)));
        let own = scenario.faults.iter().flat_map(|(operation, effect)| {
            [1, 2].map(|times| Fault { times: Some(times), ..Fault::always(Pattern::One(*operation), *effect) })
        });
        let faults = calls.chain(own).map(|fault| (format!("{fault:?}"), RunFault::Cloud(fault), true));
        writes.chain(faults).collect()
    })
    .await
}

/// Returns the tests of all scenarios; each has a separate control plane and cloud.
pub fn cases() -> Vec<Case> {
    type Run = fn(&'static Scenario, Space) -> BoxFuture<'static, Result<()>>;
    let runs: [(&str, Tier, Run); 3] = [
        ("crash_at_a_sample_of_writes_and_calls", Tier::Usual, |scenario, _| Box::pin(crash_at_a_sample(scenario))),
        ("crash_at_every_write_and_call", Tier::Ignored, |scenario, _| Box::pin(crash_everywhere(scenario))),
        ("every_write_and_call_fails_each_way", Tier::Ignored, |scenario, _| Box::pin(fail_each_way(scenario))),
    ];
    let case = |scenario: &'static Scenario, (what, tier, run): (&str, Tier, Run)| Case {
        name: format!("faults::{}::{what}", scenario.name),
        tier,
        run: Arc::new(move |space| run(scenario, space)),
    };
    SCENARIOS.iter().flat_map(|scenario| runs.map(|run| case(scenario, run))).collect()
}
