//! Stories of controllers, each told with a fault at any of its writes: the end is the same, and then all is quiet.
//!
//! A [`Story`] is data: what users do up to a state that is known, beside managers of which each takes over where the
//! one before it crashed. Of the places to crash at a sample is tried in every run of the tests, all of them in the
//! soak.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::{
    Call, Case, Effect, Faults, Manager, Observer, QUIET, Rule, Space, Tier, during, eventually, fails, variants,
};

use crate::api::{garbage_collector, namespace, resourcequota};
use crate::auth::serviceaccount;
use crate::devices::{resource_claims, taint_eviction};
use crate::robustness::faults;
use crate::robustness::story::{Story, Told};
use crate::workloads::{
    cronjob, daemonset, disruption, horizontal_pod_autoscaler, job, pod_garbage_collector, replicationcontroller,
    rollout, statefulset,
};

static STORIES: [Story; 17] = [
    serviceaccount::STORY,
    cronjob::STORY,
    cronjob::BRIEF,
    daemonset::STORY,
    taint_eviction::STORY,
    disruption::STORY,
    faults::STORY,
    garbage_collector::STORY,
    job::STORY,
    namespace::STORY,
    horizontal_pod_autoscaler::STORY,
    pod_garbage_collector::STORY,
    replicationcontroller::STORY,
    resource_claims::STORY,
    resourcequota::STORY,
    rollout::STORY,
    statefulset::STORY,
];

/// How many places to crash at are tried of all that there are.
const SAMPLE: usize = 8;

/// The tests of all stories.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for story in &STORIES {
        let mut add = |what: &str, tier, run: fn(&'static Story, Space) -> Told| {
            let name = format!("faults::{}::{what}", story.name);
            cases.push(Case { name, tier, run: Arc::new(move |space| run(story, space)) });
        };
        add("crash_after_a_sample_of_writes", Tier::Usual, |story, space| Box::pin(crash_at_a_sample(story, space)));
        add("crash_after_every_write", Tier::Ignored, |story, space| Box::pin(crash_everywhere(story, space)));
        if !story.fails.is_empty() {
            add("slices_are_correct_after_each_failure_of_each_write", Tier::Usual, |story, space| {
                Box::pin(fail_each_way(story, space))
            });
        }
    }
    cases
}

/// Runs managers one after the other, each until it crashes.
async fn lives(story: &Story, space: &Space, faults: &Faults) -> Result<()> {
    loop {
        let manager = Manager::start_with(space, faults, story.flags).await?;
        faults.crashes().await;
        manager.crash().await;
    }
}

/// Tells the story with a fault, which must come if it says so; answers how many writes it took.
async fn tell(story: &Story, space: &Space, (fault, must_come): (Rule, bool)) -> Result<usize> {
    let faults = Faults::script([fault]);
    let observer = Observer::start(space, story.judge).await?;
    tokio::select! {
        told = (story.tell)(space.clone()) => told.with_context(|| calls(&faults))?,
        lived = lives(story, space, &faults) => lived?,
    }
    ensure!(faults.unmet() == 0 || !must_come, "the fault did not come: this proves nothing");
    let deeds = faults.count(Call::is_deed);
    finds_nothing_to_do(story, space).await.with_context(|| calls(&faults))?;
    if story.pods > 0 {
        observer.verdict()?;
    }
    let made = observer.view().pods_ever.len();
    ensure!(made == story.pods, "there were {made} pods instead of {}\n{}", story.pods, calls(&faults));
    (story.clear)(space.clone()).await?;
    Ok(deeds)
}

/// The writes so far, for finding out what went wrong.
fn calls(faults: &Faults) -> String {
    let seen = faults.seen();
    let deeds = seen.iter().filter(|seen| seen.call.is_deed());
    let lines =
        deeds.map(|seen| format!("  {} -> {}", seen.call, seen.status.map_or("nothing".into(), |s| s.to_string())));
    format!("its writes were:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// One more manager sees all that there is, and leaves it alone.
async fn finds_nothing_to_do(story: &Story, space: &Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start_with(space, &faults, story.flags).await?;
    eventually("the last manager has listed", || async {
        ensure!(faults.most_watches().contains_key(story.kind), "it watches {:?}", faults.most_watches().keys());
        Ok(())
    })
    .await?;
    // Managers of all kinds also log what other tests do in other namespaces.
    let concerns = |call: &Call| call.is_write() && (call.namespace.is_empty() || call.namespace == space.namespace);
    during(QUIET, "there is nothing left to do", || async {
        ensure!(faults.count(concerns) == 0, "{}", calls(&faults));
        Ok(())
    })
    .await?;
    manager.crash().await;
    Ok(())
}

/// Tells the story once without a fault; answers how many writes it took.
async fn undisturbed(story: &Story, space: &Space) -> Result<usize> {
    let space = space.bed.space("undisturbed").await?;
    let writes = tell(story, &space, (Rule::new(|_| false, Effect::NotSent), false)).await?;
    ensure!(writes >= story.writes, "only {writes} writes instead of {}: it is not what it says", story.writes);
    Ok(writes)
}

/// Tells the story once with each fault, each time in a namespace of its own.
async fn tell_each(story: &'static Story, space: &Space, faults: Vec<(String, (Rule, bool))>) -> Result<()> {
    variants(space, faults, |space, fault| async move {
        tell(story, &space, fault).await?;
        Ok(())
    })
    .await
}

fn crash(story: &Story, n: usize, effect: Effect) -> (String, (Rule, bool)) {
    let fault = (Rule::new(Call::is_deed, effect.clone()).nth(n), n <= story.writes);
    (format!("{effect:?} at write {n}"), fault)
}

/// `CLUSTER_SEED` chooses another sample of places.
async fn crash_at_a_sample(story: &'static Story, space: Space) -> Result<()> {
    let seed: usize = std::env::var("CLUSTER_SEED").ok().map_or(Ok(1), |seed| seed.parse())?;
    let writes = undisturbed(story, &space).await?;
    let places = (0..SAMPLE.min(writes)).map(|n| 1 + (seed * 5 + n * writes / SAMPLE.min(writes)) % writes);
    let faults = places.enumerate().map(|(at, n)| {
        let effect = if (at + seed).is_multiple_of(2) { Effect::CrashAfter } else { Effect::CrashBeforeAnswer };
        crash(story, n, effect)
    });
    tell_each(story, &space, faults.collect()).await
}

async fn crash_everywhere(story: &'static Story, space: Space) -> Result<()> {
    let writes = undisturbed(story, &space).await?;
    let both = |n| [crash(story, n, Effect::CrashAfter), crash(story, n, Effect::CrashBeforeAnswer)];
    tell_each(story, &space, (1..=writes).flat_map(both).collect()).await
}

async fn fail_each_way(story: &'static Story, space: Space) -> Result<()> {
    let each = story.fails.iter().flat_map(|(beginning, n)| {
        fails().map(|(how, effect)| {
            let matches = move |call: &Call| call.is_deed() && format!("{call} ").starts_with(beginning);
            (format!("{beginning} no. {n}: {how}"), (Rule::new(matches, effect).nth(*n), true))
        })
    });
    tell_each(story, &space, each.collect()).await
}
