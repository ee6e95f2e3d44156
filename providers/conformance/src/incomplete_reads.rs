//! Incomplete reads: failed ones, pages, delayed visibility, and resources of another owner.

use std::collections::BTreeSet;
use std::time::Duration;

use providers::{CloudError, Deletion, ErrorKind, InstanceRef, InstanceState, Targets};

use crate::context::{Context, Stop, ensure};
use crate::fixture::ReadFailure;
use crate::load_balancer_creation::{matches_spec, owned_of};

/// The time for which a new load balancer is not visible.
const INVISIBLE: Duration = Duration::from_millis(300);

/// Returns true if an error fits a failure, so that the controllers react to it in the right way.
fn fits(error: &CloudError, failure: ReadFailure) -> bool {
    match failure {
        ReadFailure::Denied => error.kind == ErrorKind::Denied,
        ReadFailure::Throttled => matches!(error.kind, ErrorKind::Throttled { .. }),
        ReadFailure::Outage => error.kind == ErrorKind::Transient,
    }
}

pub(crate) async fn failed_read_does_not_report_an_instance_as_gone(context: &Context<'_>) -> Result<(), Stop> {
    let instances = context.instances()?;
    let existing = context.instance("node").await?;
    let by_name = InstanceRef { provider_id: None, ..existing.clone() };
    let unknown = InstanceRef::named(context.unique_name("unknown"));
    let requested = [existing, by_name, unknown];
    for failure in ReadFailure::ALL {
        context.fixture.fail_reads(failure).await?;
        let states = instances.describe(&requested).await;
        context.fixture.restore().await?;
        ensure!(states.len() == requested.len(), "{} were requested, and {} returned", requested.len(), states.len());
        for state in states {
            let unknown = matches!(&state, InstanceState::Unknown(error) if fits(error, failure));
            ensure!(unknown, "while reads are refused ({failure:?}), an instance is {state:?}");
        }
    }
    Ok(())
}

pub(crate) async fn failed_read_does_not_complete_a_deletion(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    for failure in ReadFailure::ALL {
        let spec = context.spec();
        context.settle(&spec, &targets).await?;
        context.fixture.fail_reads(failure).await?;
        let listed = balancers.list_owned().await;
        let changed = balancers.set_targets(&spec, &Targets::default()).await;
        let deleted = balancers.delete(&spec.id).await;
        context.fixture.restore().await?;
        ensure!(listed.is_err(), "while reads are refused ({failure:?}), list_owned returns {listed:?}");
        let absent = changed.as_ref().is_err_and(CloudError::is_not_found);
        ensure!(!absent, "while reads are refused ({failure:?}), set_targets reports that nothing exists");
        if deleted == Ok(Deletion::Gone) {
            context.check_nothing_leaked(&spec.id).await?;
            let owned = owned_of(context, &spec).await?;
            ensure!(owned.is_empty(), "while reads are refused ({failure:?}), {owned:?} is reported as deleted");
        }
        context.delete(&spec.id).await?;
        context.check_nothing_leaked(&spec.id).await?;
    }
    Ok(())
}

pub(crate) async fn lists_are_read_to_the_last_page(context: &Context<'_>) -> Result<(), Stop> {
    context.fixture.limit_pages(2).await?;
    if context.balancers().is_ok() {
        let specs = [context.spec(), context.spec(), context.spec(), context.spec(), context.spec()];
        for spec in &specs {
            context.settle(spec, &Targets::default()).await?;
        }
        for spec in &specs {
            let owned = owned_of(context, spec).await?;
            ensure!(owned.len() == 1, "with pages of 2 items, {} should be listed once and is {owned:?}", spec.id);
        }
    }
    let instances = context.instances()?;
    let mut requested = Vec::new();
    for _ in 0..5 {
        requested.push(InstanceRef { provider_id: None, ..context.instance("node").await? });
    }
    // Enough requests for a list, if the provider chooses between single reads and lists.
    requested.extend((0..50).map(|index| InstanceRef::named(format!("unknown-{index}"))));
    let states = instances.describe(&requested).await;
    let found: BTreeSet<usize> = states
        .iter()
        .enumerate()
        .filter_map(|(index, state)| matches!(state, InstanceState::Running(_)).then_some(index))
        .collect();
    ensure!(found.iter().copied().eq(0..5), "with pages of 2 items, 5 instances exist, and {found:?} are found");
    Ok(())
}

pub(crate) async fn load_balancer_that_is_not_visible_yet_is_created_once(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let plain = context.spec();
    context.settle(&plain, &targets).await?;
    let resources = owned_of(context, &plain).await?.first().map_or(0, |owned| owned.resources.len());
    let spec = context.spec();
    context.fixture.delay_visibility(INVISIBLE).await?;
    for _ in 0..3 {
        // Any result is allowed: reads do not contain the resources that the previous call created.
        let _ = balancers.ensure(&spec, &targets).await;
    }
    context.fixture.restore().await?;
    tokio::time::sleep(INVISIBLE).await;
    context.settle(&spec, &targets).await?;
    matches_spec(context, &spec, &targets).await?;
    let owned = owned_of(context, &spec).await?;
    let count = owned.first().map_or(0, |owned| owned.resources.len());
    ensure!(
        count == resources,
        "after calls made before the load balancer was visible, there is {owned:?} instead of {resources} resources"
    );
    Ok(())
}

pub(crate) async fn foreign_load_balancer_of_the_same_name_is_kept(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let spec = context.spec();
    context.fixture.create_foreign_load_balancer(&spec.id).await?;
    let checked = foreign_is_kept(context, &spec).await;
    context.fixture.delete_foreign_load_balancer(&spec.id).await?;
    checked
}

async fn foreign_is_kept(context: &Context<'_>, spec: &providers::LoadBalancerSpec) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let unchanged = async |what: &str| {
        let kept = context.fixture.has_foreign_load_balancer(&spec.id).await?;
        ensure!(kept, "{what} changed the load balancer of another owner");
        Ok(())
    };
    let ensured = balancers.ensure(spec, &targets).await;
    unchanged("ensure").await?;
    let kind = ensured.as_ref().err().map(|error| error.kind);
    ensure!(
        matches!(kind, None | Some(ErrorKind::Conflict)),
        "ensure next to a load balancer of the same name is {ensured:?}, neither a success nor a Conflict"
    );
    // If a load balancer of the Service exists, it has another name; otherwise no load balancer may be reported.
    let owned = owned_of(context, spec).await?;
    ensure!(kind.is_none() || owned.is_empty(), "the load balancer of another owner is listed: {owned:?}");
    let changed = balancers.set_targets(spec, &targets).await;
    unchanged("set_targets").await?;
    ensure!(kind.is_none() || changed.is_err(), "set_targets of a load balancer that does not exist is a success");
    context.delete(&spec.id).await?;
    unchanged("delete").await
}
