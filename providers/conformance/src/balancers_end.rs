//! Load balancers go: completely, in their own time, found whatever state they were left in.

use std::time::Duration;

use providers::{Deletion, Observed, Phase, Targets};

use crate::balancers_make::{CHANGES, as_asked, owned_of};
use crate::context::{Context, Stop, ensure};
use crate::fixture::FixtureError;

pub(crate) async fn delete_twice_is_delete_once(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let (spec, targets) = (context.spec(), Targets::nodes(context.nodes(1).await?));
    context.settle(&spec, &targets).await?;
    context.delete(&spec.id).await?;
    let again = balancers.delete(&spec.id).await?;
    ensure!(again == Deletion::Gone, "what is gone is {again:?}");
    let observed = balancers.observe(&spec.id).await?;
    ensure!(observed == Observed::Absent, "what is gone is {observed:?}");
    context.nothing_left(&spec.id).await?;
    // A Service may come back to type LoadBalancer under the same uid.
    context.settle(&spec, &targets).await?;
    as_asked(context, &spec, &targets).await?;
    Ok(())
}

pub(crate) async fn delete_that_takes_time_is_in_progress(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let (spec, targets) = (context.spec(), Targets::nodes(context.nodes(1).await?));
    context.settle(&spec, &targets).await?;
    let held = Duration::from_millis(400);
    context.fixture.hold_deletion(held).await?;
    let begun = tokio::time::Instant::now();
    let deletion = balancers.delete(&spec.id).await?;
    let took = begun.elapsed();
    let Deletion::InProgress(after) = deletion else {
        return Err(Stop::Fail(format!("a deletion that takes {held:?} is {deletion:?} at once")));
    };
    ensure!(took < held, "delete waited {took:?} for the cloud instead of answering InProgress");
    ensure!(!after.is_zero(), "InProgress says to come again at once, which is a hot loop");
    if let Observed::Present(balancer) = balancers.observe(&spec.id).await? {
        let phase = balancer.phase;
        ensure!(matches!(phase, Phase::Deleting | Phase::Incomplete), "while it goes, it is {phase:?}");
    }
    // Asked for again while it goes, it comes back once the old one is gone.
    context.settle(&spec, &targets).await?;
    as_asked(context, &spec, &targets).await?;
    context.delete(&spec.id).await?;
    context.nothing_left(&spec.id).await?;
    Ok(())
}

pub(crate) async fn delete_recovers_from_a_failure_at_any_change(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    for nth in 1..=CHANGES / 2 {
        for lost in [false, true] {
            let spec = context.spec();
            context.settle(&spec, &targets).await?;
            match lost {
                false => context.fixture.fail_change(nth).await?,
                true => context.fixture.lose_answer(nth).await?,
            }
            context.delete(&spec.id).await?;
            context.fixture.restore().await?;
            context.nothing_left(&spec.id).await?;
            let owned = owned_of(context, &spec).await?;
            ensure!(owned.is_empty(), "what is gone is listed: {owned:?}");
        }
    }
    Ok(())
}

pub(crate) async fn a_half_made_balancer_is_listed_and_deleted(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let mut half_made = 0;
    for nth in 1..=CHANGES {
        let spec = context.spec();
        context.fixture.fail_change(nth).await?;
        let failed = balancers.ensure(&spec, &targets).await.is_err();
        context.fixture.restore().await?;
        let left = match context.fixture.leftovers(&spec.id).await {
            Err(FixtureError::Unsupported(_)) => Vec::new(),
            left => left?,
        };
        let owned = owned_of(context, &spec).await?;
        ensure!(
            left.is_empty() || !owned.is_empty(),
            "after a failure at change {nth} there is {left:?}, which list_owned does not find"
        );
        half_made += u32::from(failed && !owned.is_empty());
        context.delete(&spec.id).await?;
        context.nothing_left(&spec.id).await?;
        let owned = owned_of(context, &spec).await?;
        ensure!(owned.is_empty(), "what is gone is listed: {owned:?}");
    }
    if half_made == 0 {
        return Err(Stop::Skip("a balancer of this cloud is made by one call, so it is never half made".into()));
    }
    Ok(())
}

pub(crate) async fn a_namesake_is_another_balancer(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let name = context.fresh_name("twin");
    let (old, new) = (context.spec_of(context.id_named(&name)), context.spec_of(context.id_named(&name)));
    context.settle(&old, &targets).await?;
    context.settle(&new, &targets).await?;
    as_asked(context, &old, &targets).await?;
    as_asked(context, &new, &targets).await?;
    context.delete(&old.id).await?;
    context.nothing_left(&old.id).await?;
    as_asked(context, &new, &targets).await?;
    Ok(())
}

pub(crate) async fn what_is_owned_is_listed_until_it_is_gone(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let specs = [context.spec(), context.spec(), context.spec()];
    for spec in &specs {
        context.settle(spec, &targets).await?;
    }
    for spec in &specs {
        as_asked(context, spec, &targets).await?;
    }
    context.delete(&specs[1].id).await?;
    for (spec, times) in specs.iter().zip([1, 0, 1]) {
        let owned = owned_of(context, spec).await?;
        ensure!(owned.len() == times, "{} should be listed {times} times and is {owned:?}", spec.id);
    }
    Ok(())
}

pub(crate) async fn what_is_left_is_collected_and_a_namesake_stays(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let name = context.fresh_name("left");
    let (old, new) = (context.spec_of(context.id_named(&name)), context.spec_of(context.id_named(&name)));
    context.settle(&old, &targets).await?;
    context.settle(&new, &targets).await?;
    let listed = owned_of(context, &old).await?;
    let [left] = &listed[..] else {
        return Err(Stop::Fail(format!("{} should be listed once and is {listed:?}", old.id)));
    };
    ensure!(balancers.may_belong(left, &old.id), "{left:?} is said not to be {}'s, who made it", old.id);
    ensure!(!balancers.may_belong(left, &new.id), "{left:?} is said to be a namesake's");
    if !left.certain {
        return Err(Stop::Skip("what this cloud lists may be another cluster's, so it is never collected".into()));
    }
    context.collect(left).await?;
    context.nothing_left(&old.id).await?;
    as_asked(context, &new, &targets).await?;
    Ok(())
}
