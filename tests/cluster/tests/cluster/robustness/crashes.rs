//! Scenarios of controllers, each with a fault at any of its writes: the final state is the same, and no writes follow.
//!
//! A [`Scenario`] is data: actions of users up to a known state, while managers run one after the other, each until it
//! crashes. By default, the tests crash at a sample of the writes; the ignored tests crash at all of them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{
    Call, Case, Effect, Faults, Manager, Observer, QUIET, Rule, Space, Tier, during, eventually, restart_after_crashes,
    variants, write_failures,
};

use crate::api::{garbage_collector, namespace, resourcequota};
use crate::auth::serviceaccount;
use crate::devices::{resource_claims, taint_eviction};
use crate::robustness::faults;
use crate::robustness::scenario::{Scenario, StepFuture};
use crate::workloads::{
    cronjob, daemonset, disruption, horizontal_pod_autoscaler, job, pod_garbage_collector, replicationcontroller,
    rollout, statefulset,
};

static SCENARIOS: [Scenario; 17] = [
    serviceaccount::SCENARIO,
    cronjob::SCENARIO,
    cronjob::BRIEF,
    daemonset::SCENARIO,
    taint_eviction::SCENARIO,
    disruption::SCENARIO,
    faults::SCENARIO,
    garbage_collector::SCENARIO,
    job::SCENARIO,
    namespace::SCENARIO,
    horizontal_pod_autoscaler::SCENARIO,
    pod_garbage_collector::SCENARIO,
    replicationcontroller::SCENARIO,
    resource_claims::SCENARIO,
    resourcequota::SCENARIO,
    rollout::SCENARIO,
    statefulset::SCENARIO,
];

/// Time without a write, after which no write follows: longer than a manager waits to combine the changes of a status,
/// or to repeat a write that was refused with `Retry-After: 1`.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// The size of the sample of writes to crash at.
const SAMPLE: usize = 8;

/// Returns the tests of all scenarios.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for scenario in &SCENARIOS {
        let mut add = |what: &str, tier, run: fn(&'static Scenario, Space) -> StepFuture| {
            let name = format!("faults::{}::{what}", scenario.name);
            cases.push(Case { name, tier, run: Arc::new(move |space| run(scenario, space)) });
        };
        add("crash_after_a_sample_of_writes", Tier::Usual, |scenario, space| {
            Box::pin(crash_at_a_sample(scenario, space))
        });
        add("crash_after_every_write", Tier::Ignored, |scenario, space| Box::pin(crash_everywhere(scenario, space)));
        if !scenario.fails.is_empty() {
            add("each_write_fails_each_way", Tier::Usual, |scenario, space| Box::pin(fail_each_way(scenario, space)));
        }
    }
    cases
}

/// Runs the scenario with a fault, which has to occur if `must_occur`; returns the number of writes.
async fn run_with_fault(scenario: &Scenario, space: &Space, (fault, must_occur): (Rule, bool)) -> Result<usize> {
    let faults = Faults::script([fault]);
    let observer = Observer::start(space, scenario.judge).await?;
    let finish = async {
        (scenario.run)(space.clone()).await?;
        until_last_writes(&faults).await
    };
    tokio::select! {
        done = finish => done.with_context(|| list_writes(&faults))?,
        ended = restart_after_crashes(&faults, || Manager::start_with(space, &faults, scenario.flags)) => ended?,
    }
    ensure!(faults.unmet() == 0 || !must_occur, "the fault did not occur: the run tests nothing");
    let writes = faults.count(Call::is_object_write);
    finds_nothing_to_do(scenario, space).await.with_context(|| list_writes(&faults))?;
    if scenario.pods > 0 {
        observer.verdict().await?;
    }
    let made = observer.current().await?.pods_ever.len();
    ensure!(made == scenario.pods, "there were {made} pods instead of {}\n{}", scenario.pods, list_writes(&faults));
    (scenario.clear)(space.clone()).await?;
    Ok(writes)
}

/// Waits until the manager has completed its remaining writes. A status that the scenario accepted may belong to an
/// earlier state, and the manager combines the changes of a status.
async fn until_last_writes(faults: &Faults) -> Result<()> {
    eventually("the manager writes nothing more", || async {
        let before = faults.count(Call::is_object_write);
        during(LAST_WRITES, "no object is written", || async {
            let written = faults.count(Call::is_object_write);
            ensure!(written == before, "{written} writes");
            ensure!(faults.is_settled(), "a write has no response yet");
            Ok(())
        })
        .await
    })
    .await
}

/// Returns the writes so far, for error messages.
fn list_writes(faults: &Faults) -> String {
    let requests = faults.requests();
    let writes = requests.iter().filter(|request| request.call.is_object_write());
    let lines = writes
        .map(|request| format!("  {} -> {}", request.call, request.status.map_or("nothing".into(), |s| s.to_string())));
    format!("its writes were:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Checks that another manager lists everything and writes nothing.
async fn finds_nothing_to_do(scenario: &Scenario, space: &Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start_with(space, &faults, scenario.flags).await?;
    faults.until_watching(&[scenario.kind]).await?;
    // Cluster-wide controllers also write to other tests' objects in other namespaces.
    let concerns = |call: &Call| call.is_write() && (call.namespace.is_empty() || call.namespace == space.namespace);
    during(QUIET, "no work remains", || async {
        ensure!(faults.count(concerns) == 0, "{}", list_writes(&faults));
        Ok(())
    })
    .await?;
    manager.crash().await;
    Ok(())
}

/// Runs the scenario once without a fault; returns the number of writes.
async fn run_without_fault(scenario: &Scenario, space: &Space) -> Result<usize> {
    let space = space.bed.space("undisturbed").await?;
    let writes = run_with_fault(scenario, &space, (Rule::new(|_| false, Effect::NotSent), false)).await?;
    ensure!(
        writes >= scenario.writes,
        "only {writes} writes instead of {}: the scenario's minimum is wrong",
        scenario.writes
    );
    Ok(writes)
}

/// Runs the scenario once with each fault, each time in a separate namespace.
async fn run_with_each_fault(
    scenario: &'static Scenario,
    space: &Space,
    faults: Vec<(String, (Rule, bool))>,
) -> Result<()> {
    variants(space, faults, |space, fault| async move {
        run_with_fault(scenario, &space, fault).await?;
        Ok(())
    })
    .await
}

fn crash(scenario: &Scenario, n: usize, effect: Effect) -> (String, (Rule, bool)) {
    let fault = (Rule::new(Call::is_object_write, effect.clone()).nth(n), n <= scenario.writes);
    (format!("{effect:?} at write {n}"), fault)
}

/// Crashes at a sample of the writes; `CLUSTER_SEED` selects another sample.
async fn crash_at_a_sample(scenario: &'static Scenario, space: Space) -> Result<()> {
    let seed: usize = std::env::var("CLUSTER_SEED").ok().map_or(Ok(1), |seed| seed.parse())?;
    let writes = run_without_fault(scenario, &space).await?;
    let places = (0..SAMPLE.min(writes)).map(|n| 1 + (seed * 5 + n * writes / SAMPLE.min(writes)) % writes);
    let faults = places.enumerate().map(|(at, n)| {
        let effect = if (at + seed).is_multiple_of(2) { Effect::CrashAfter } else { Effect::CrashBeforeResponse };
        crash(scenario, n, effect)
    });
    run_with_each_fault(scenario, &space, faults.collect()).await
}

async fn crash_everywhere(scenario: &'static Scenario, space: Space) -> Result<()> {
    let writes = run_without_fault(scenario, &space).await?;
    let both = |n| [crash(scenario, n, Effect::CrashAfter), crash(scenario, n, Effect::CrashBeforeResponse)];
    run_with_each_fault(scenario, &space, (1..=writes).flat_map(both).collect()).await
}

pub async fn fail_each_way(scenario: &'static Scenario, space: Space) -> Result<()> {
    let each = scenario.fails.iter().flat_map(|(beginning, n)| {
        write_failures().map(|(how, effect)| {
            let matches = move |call: &Call| call.is_object_write() && format!("{call} ").starts_with(beginning);
            (format!("{beginning} no. {n}: {how}"), (Rule::new(matches, effect).nth(*n), true))
        })
    });
    run_with_each_fault(scenario, &space, each.collect()).await
}
