//! Stories of ccm's controllers over the mock cloud, each told with the process's death at any of its writes and of its
//! calls of the cloud, and with every fault that a cloud can be scripted to have: in the end nothing is missing and
//! nothing is left.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Call, Case, CloudBed, Effect, Faults, QUIET, Rule, Space, Tier, during, eventually, fails};
use futures::future::BoxFuture;
use kube::api::DeleteParams;
use provider_mock::{Effect as CloudEffect, Fault, InstanceConfig, Operation, Pattern};
use serde_json::json;

use crate::cloud::node::initialised;
use crate::cloud::node_lifecycle::{until_node_deleted, until_shutdown_taint};
use crate::cloud::service;

/// A story of one controller or two.
struct Story {
    name: &'static str,
    flags: &'static [&'static str],
    /// Machines that are there, with their nodes, before it begins.
    nodes: usize,
    /// What users and the cloud do, about something of this name, and the states that are waited for.
    tell: for<'a> fn(&'a CloudBed, &'a str) -> BoxFuture<'a, Result<()>>,
    /// How many writes there are at least.
    writes: usize,
    /// Which calls of the cloud the process dies in, and how many of those there are at least.
    calls: (Pattern, u64),
    /// Faults that must not matter, besides those that may happen to any call.
    faults: &'static [(Operation, CloudEffect)],
}

static STORIES: [Story; 3] = [
    Story {
        name: "cloud_service",
        flags: &["--controllers=service"],
        nodes: 2,
        tell: |cloud, name| Box::pin(service::scenario(cloud, name)),
        writes: 6,
        calls: (Pattern::Changes, 14),
        faults: &[
            (Operation::AllocateAddress, CloudEffect::AnswerLost),
            (Operation::CreateBalancer, CloudEffect::AnswerLost),
            (Operation::SetListeners, CloudEffect::AnswerLost),
            (Operation::SetTargets, CloudEffect::AnswerLost),
            (Operation::DeleteBalancer, CloudEffect::AnswerLost),
            (Operation::ReleaseAddresses, CloudEffect::AnswerLost),
            (Operation::AllocateAddress, CloudEffect::Invisible { millis: 3_000 }),
            (Operation::CreateBalancer, CloudEffect::Invisible { millis: 3_000 }),
            (Operation::DeleteBalancer, CloudEffect::Pending { millis: 3_000 }),
        ],
    },
    Story {
        name: "cloud_node",
        flags: &["--node-monitor-period=1s"],
        nodes: 0,
        tell: |cloud, name| Box::pin(life_of_a_node(cloud, name)),
        writes: 5,
        calls: (Pattern::Reads, 5),
        faults: &[],
    },
    Story {
        name: "cloud_route",
        flags: &[
            "--controllers=route",
            "--configure-cloud-routes=true",
            "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
            "--route-reconciliation-period=1s",
        ],
        nodes: 0,
        tell: |cloud, name| Box::pin(life_of_a_route(cloud, name)),
        writes: 1,
        calls: (Pattern::Changes, 4),
        faults: &[(Operation::SetRoute, CloudEffect::AnswerLost), (Operation::RemoveRoute, CloudEffect::AnswerLost)],
    },
];

/// A machine comes, stops, starts and goes.
async fn life_of_a_node(cloud: &CloudBed, name: &str) -> Result<()> {
    cloud.register_instance(name).await?;
    initialised(cloud, name).await?;
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

/// A node's networks are routed to it, until it goes.
async fn life_of_a_route(cloud: &CloudBed, name: &str) -> Result<()> {
    let id = cloud.cloud.add_instance(&InstanceConfig::named(name));
    let networks = json!(["10.244.1.0/24", "fd00:10:244:1::/64"]);
    let spec = json!({"spec": {"providerID": id, "podCIDR": "10.244.1.0/24", "podCIDRs": networks}});
    cloud.register(name, spec).await?;
    eventually("its networks are routed, and it is told", || async {
        let status = cloud.nodes().get(name).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let told = conditions.iter().find(|condition| condition.type_ == "NetworkUnavailable").context("not told")?;
        ensure!(told.status == "False" && cloud.cloud.snapshot().routes.len() == 2, "{told:?}");
        Ok(())
    })
    .await?;
    cloud.nodes().delete(name, &DeleteParams::default()).await?;
    eventually("its routes go", || async {
        ensure!(cloud.cloud.snapshot().routes.is_empty(), "{:?}", cloud.cloud.snapshot().routes);
        Ok(())
    })
    .await
}

/// What goes wrong in one telling.
#[derive(Clone)]
enum Trouble {
    Nothing,
    /// Something happens to a write.
    Write(Rule),
    /// The process dies in a call of the cloud.
    Death(Fault),
    /// Something happens in the cloud.
    Cloud(Fault),
}

/// Runs ccm again and again, each until it dies.
async fn lives(story: &Story, cloud: &CloudBed, faults: &Faults, dies_in_a_call: bool) -> Result<()> {
    loop {
        let manager = cloud.ccm(faults, story.flags).await?;
        tokio::select! {
            () = faults.crashes() => {}
            () = in_a_call(cloud), if dies_in_a_call => {}
        }
        manager.crash().await;
        if dies_in_a_call {
            cloud.cloud.clear_faults();
        }
    }
}

/// Completes when the fault that keeps a call from ever ending has struck.
async fn in_a_call(cloud: &CloudBed) {
    while cloud.cloud.snapshot().faults.iter().all(|fault| fault.fired == 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Tells the story with a trouble, which must come if it says so; answers how many writes and changes of the cloud it
/// took.
async fn tell(story: &Story, cloud: &CloudBed, name: &str, trouble: Trouble, must_come: bool) -> Result<(usize, u64)> {
    let changes = cloud.cloud.changing_calls();
    let faults = Faults::default();
    let dies_in_a_call = matches!(trouble, Trouble::Death(_));
    match &trouble {
        Trouble::Nothing => {}
        Trouble::Write(rule) => faults.add(rule.clone()),
        Trouble::Death(fault) | Trouble::Cloud(fault) => drop(cloud.cloud.add_fault(fault.clone())?),
    }
    tokio::select! {
        told = (story.tell)(cloud, name) => told?,
        lived = lives(story, cloud, &faults, dies_in_a_call) => lived?,
    }
    let came = match trouble {
        Trouble::Nothing => true,
        Trouble::Write(_) => faults.unmet() == 0,
        // It is disarmed by the death that it leads to.
        Trouble::Death(_) => cloud.cloud.snapshot().faults.is_empty(),
        Trouble::Cloud(_) => cloud.cloud.snapshot().faults.iter().all(|fault| fault.fired > 0),
    };
    cloud.cloud.clear_faults();
    ensure!(came || !must_come, "it did not come: this proves nothing");
    let snapshot = cloud.cloud.snapshot();
    ensure!(snapshot.balancers.is_empty() && snapshot.routes.is_empty(), "left behind: {snapshot:?}");
    Ok((faults.count(Call::is_deed), cloud.cloud.changing_calls() - changes))
}

/// One more process finds nothing to do.
async fn finds_nothing_to_do(story: &Story, cloud: &CloudBed) -> Result<()> {
    let (faults, changes) = (Faults::default(), cloud.cloud.changing_calls());
    let manager = cloud.ccm(&faults, story.flags).await?;
    eventually("it has listed", || async {
        ensure!(faults.most_watches().contains_key("nodes"));
        Ok(())
    })
    .await?;
    during(QUIET, "there is nothing left to do", || async {
        ensure!(faults.count(Call::is_deed) == 0 && cloud.cloud.changing_calls() == changes, "{:?}", faults.seen());
        Ok(())
    })
    .await?;
    manager.crash().await;
    Ok(())
}

/// Tells the story with each trouble, one after the other in one cloud.
async fn tell_each(story: &Story, troubles: impl FnOnce(usize, u64) -> Vec<(String, Trouble, bool)>) -> Result<()> {
    let cloud = CloudBed::start().await?;
    for number in 1..=story.nodes {
        let name = format!("node-{number}");
        let id = cloud.cloud.add_instance(&InstanceConfig::named(&name));
        cloud.register(&name, json!({"spec": {"providerID": id}})).await?;
    }
    let (writes, changes) = tell(story, &cloud, "undisturbed", Trouble::Nothing, true).await?;
    ensure!(writes >= story.writes, "only {writes} writes: it is not what it says");
    ensure!(story.calls.0 == Pattern::Reads || changes >= story.calls.1, "only {changes} changes of the cloud");
    let mut failed = Vec::new();
    let troubles = troubles(writes, changes.max(story.calls.1));
    let count = troubles.len();
    for (number, (what, trouble, must_come)) in troubles.into_iter().enumerate() {
        let name = format!("{}-{number}", story.name.replace('_', "-"));
        if let Err(error) = tell(story, &cloud, &name, trouble, must_come).await {
            failed.push(format!("{name}: {what}: {error:#}"));
        }
    }
    ensure!(failed.is_empty(), "{} of {count} failed:\n{}", failed.len(), failed.join("\n"));
    finds_nothing_to_do(story, &cloud).await
}

fn death_at_write(story: &Story, n: usize, effect: Effect) -> (String, Trouble, bool) {
    let what = format!("{effect:?} at write {n}");
    (what, Trouble::Write(Rule::new(Call::is_deed, effect).nth(n)), n <= story.writes)
}

/// In the n-th call of the cloud: before it is done, or if it changes something also after.
fn deaths_in_call(story: &Story, n: u64) -> Vec<(String, Trouble, bool)> {
    let (pattern, certain) = story.calls;
    let before = CloudEffect::Latency { millis: 24 * 60 * 60 * 1000 };
    let effects = [Some(before), (pattern == Pattern::Changes).then_some(CloudEffect::Unanswered)];
    let death = |effect| {
        let fault = Fault::at(pattern, n, effect);
        (format!("death in call {n}: {effect:?}"), Trouble::Death(fault), n <= certain)
    };
    effects.into_iter().flatten().map(death).collect()
}

async fn dies_in_a_sample(story: &Story) -> Result<()> {
    tell_each(story, |writes, calls| {
        let writes = [1, writes.div_ceil(2)].map(|n| death_at_write(story, n, Effect::CrashAfter));
        let last = story.writes;
        let answers = [death_at_write(story, last, Effect::CrashBeforeAnswer)];
        let calls = [1, calls / 2].into_iter().filter_map(|n| deaths_in_call(story, n).pop());
        writes.into_iter().chain(answers).chain(calls).collect()
    })
    .await
}

async fn dies_everywhere(story: &Story) -> Result<()> {
    tell_each(story, |writes, calls| {
        let both = |n| [Effect::CrashAfter, Effect::CrashBeforeAnswer].map(|effect| death_at_write(story, n, effect));
        let calls = (1..=calls).flat_map(|n| deaths_in_call(story, n));
        (1..=writes).flat_map(both).chain(calls).collect()
    })
    .await
}

/// Each write fails in each way, each operation in each way in which a cloud can fail.
async fn whatever_fails(story: &Story) -> Result<()> {
    tell_each(story, |writes, _| {
        let writes = (1..=writes.min(story.writes)).flat_map(|n| {
            fails().map(|(how, effect)| {
                (format!("write {n}: {how}"), Trouble::Write(Rule::new(Call::is_deed, effect).nth(n)), true)
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
        let calls = (1..=story.calls.1).flat_map(|n| anywhere.map(|effect| Fault::at(story.calls.0, n, effect)));
        let own = story.faults.iter().flat_map(|(operation, effect)| {
            [1, 2].map(|times| Fault { times: Some(times), ..Fault::always(Pattern::One(*operation), *effect) })
        });
        let faults = calls.chain(own).map(|fault| (format!("{fault:?}"), Trouble::Cloud(fault), true));
        writes.chain(faults).collect()
    })
    .await
}

/// The tests of all stories; each has a control plane and a cloud of its own.
pub fn cases() -> Vec<Case> {
    type Run = fn(&'static Story, Space) -> BoxFuture<'static, Result<()>>;
    let runs: [(&str, Tier, Run); 3] = [
        ("death_at_a_sample_of_writes_and_calls", Tier::Usual, |story, _| Box::pin(dies_in_a_sample(story))),
        ("death_at_every_write_and_call", Tier::Ignored, |story, _| Box::pin(dies_everywhere(story))),
        ("every_write_and_call_fails_each_way", Tier::Ignored, |story, _| Box::pin(whatever_fails(story))),
    ];
    let case = |story: &'static Story, (what, tier, run): (&str, Tier, Run)| Case {
        name: format!("faults::{}::{what}", story.name),
        tier,
        run: Arc::new(move |space| run(story, space)),
    };
    STORIES.iter().flat_map(|story| runs.map(|run| case(story, run))).collect()
}
