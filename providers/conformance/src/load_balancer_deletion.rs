//! Deletion of load balancers: complete, asynchronous, and from any state.

use std::time::Duration;

use providers::{Deletion, Observed, Phase, Targets};

use crate::context::{Context, Stop, ensure};
use crate::fixture::FixtureError;
use crate::load_balancer_creation::{MAX_CHANGES, matches_spec, owned_of};

pub(crate) async fn delete_is_idempotent(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let (spec, targets) = (context.spec(), Targets::nodes(context.nodes(1).await?));
    context.settle(&spec, &targets).await?;
    context.delete(&spec.id).await?;
    let again = balancers.delete(&spec.id).await?;
    ensure!(again == Deletion::Gone, "a deleted load balancer is {again:?}");
    let observed = balancers.observe(&spec.id).await?;
    ensure!(observed == Observed::Absent, "a deleted load balancer is {observed:?}");
    context.check_nothing_leaked(&spec.id).await?;
    // A Service with the same uid may get the type LoadBalancer again.
    context.settle(&spec, &targets).await?;
    matches_spec(context, &spec, &targets).await?;
    Ok(())
}

pub(crate) async fn delete_that_takes_time_is_in_progress(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let (spec, targets) = (context.spec(), Targets::nodes(context.nodes(1).await?));
    context.settle(&spec, &targets).await?;
    // Longer than the calls take on a machine under load: a cloud with a long timeout needs several for each deletion.
    let delay = Duration::from_secs(2).max(context.fixture.timeout() / 18);
    context.fixture.hold_deletion(delay).await?;
    let started = tokio::time::Instant::now();
    let deletion = balancers.delete(&spec.id).await?;
    let took = started.elapsed();
    let Deletion::InProgress(after) = deletion else {
        return Err(Stop::Fail(format!("a deletion that takes {delay:?} is {deletion:?} immediately")));
    };
    ensure!(took < delay, "delete waited {took:?} for the cloud instead of returning InProgress");
    ensure!(!after.is_zero(), "InProgress requests an immediate retry, which is a hot loop");
    if let Observed::Present(balancer) = balancers.observe(&spec.id).await? {
        let phase = balancer.phase;
        ensure!(matches!(phase, Phase::Deleting | Phase::Incomplete), "while it is deleted, its phase is {phase:?}");
    }
    // If the load balancer is requested again during the deletion, it is recreated once the old one is deleted.
    context.settle(&spec, &targets).await?;
    matches_spec(context, &spec, &targets).await?;
    context.delete(&spec.id).await?;
    context.check_nothing_leaked(&spec.id).await?;
    Ok(())
}

pub(crate) async fn delete_recovers_from_a_failure_at_any_change(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    for nth in 1..=MAX_CHANGES / 2 {
        let mut is_last = true;
        for lost in [false, true] {
            let spec = context.spec();
            context.settle(&spec, &targets).await?;
            if lost {
                context.fixture.lose_response(nth).await?
            } else {
                context.fixture.fail_change(nth).await?
            }
            context.delete(&spec.id).await?;
            is_last &= context.restore_after_fault(nth).await?;
            context.check_nothing_leaked(&spec.id).await?;
            let owned = owned_of(context, &spec).await?;
            ensure!(owned.is_empty(), "a deleted load balancer is listed: {owned:?}");
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

pub(crate) async fn partial_load_balancer_is_listed_and_deleted(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let mut partial = 0;
    for nth in 1..=MAX_CHANGES {
        let spec = context.spec();
        context.fixture.fail_change(nth).await?;
        let failed = balancers.ensure(&spec, &targets).await.is_err();
        let is_last = context.restore_after_fault(nth).await? && !failed;
        let leaked = match context.fixture.leaked_resources(&spec.id).await {
            Err(FixtureError::Unsupported(_)) => Vec::new(),
            leaked => leaked?,
        };
        let owned = owned_of(context, &spec).await?;
        ensure!(
            leaked.is_empty() || !owned.is_empty(),
            "after a failure at change {nth} {leaked:?} exists, which list_owned does not return"
        );
        partial += u32::from(failed && !owned.is_empty());
        context.delete(&spec.id).await?;
        context.check_nothing_leaked(&spec.id).await?;
        let owned = owned_of(context, &spec).await?;
        ensure!(owned.is_empty(), "a deleted load balancer is listed: {owned:?}");
        if is_last {
            break;
        }
    }
    if partial == 0 {
        return Err(Stop::Skip("a load balancer of this cloud is created by one call, so it is never partial".into()));
    }
    Ok(())
}

pub(crate) async fn service_with_another_uid_has_another_load_balancer(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let name = context.unique_name("twin");
    let (old, new) = (context.spec_of(context.id_named(&name)), context.spec_of(context.id_named(&name)));
    context.settle(&old, &targets).await?;
    context.settle(&new, &targets).await?;
    matches_spec(context, &old, &targets).await?;
    matches_spec(context, &new, &targets).await?;
    context.delete(&old.id).await?;
    context.check_nothing_leaked(&old.id).await?;
    matches_spec(context, &new, &targets).await?;
    Ok(())
}

pub(crate) async fn owned_resources_are_listed_until_deleted(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let specs = [context.spec(), context.spec(), context.spec()];
    for spec in &specs {
        context.settle(spec, &targets).await?;
    }
    for spec in &specs {
        matches_spec(context, spec, &targets).await?;
    }
    context.delete(&specs[1].id).await?;
    for (spec, times) in specs.iter().zip([1, 0, 1]) {
        let owned = owned_of(context, spec).await?;
        ensure!(owned.len() == times, "{} should be listed {times} times and is {owned:?}", spec.id);
    }
    Ok(())
}

pub(crate) async fn leaked_resources_are_collected_and_those_of_a_successor_kept(
    context: &Context<'_>,
) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let name = context.unique_name("leaked");
    let (old, new) = (context.spec_of(context.id_named(&name)), context.spec_of(context.id_named(&name)));
    context.settle(&old, &targets).await?;
    context.settle(&new, &targets).await?;
    let listed = owned_of(context, &old).await?;
    let [leaked] = &listed[..] else {
        return Err(Stop::Fail(format!("{} should be listed once and is {listed:?}", old.id)));
    };
    ensure!(balancers.may_be_owned_by(leaked, &old.id), "{leaked:?} is not attributed to {}, which created it", old.id);
    ensure!(
        !balancers.may_be_owned_by(leaked, &new.id),
        "{leaked:?} is attributed to another Service of the same name"
    );
    if !leaked.certain {
        return Err(Stop::Skip(
            "resources of this cloud may belong to another cluster, so they are never collected".into(),
        ));
    }
    context.collect(leaked).await?;
    context.check_nothing_leaked(&old.id).await?;
    matches_spec(context, &new, &targets).await?;
    Ok(())
}
