//! Instances: one state per request, in order, and `Gone` only for instances that certainly do not exist.

use std::collections::BTreeSet;

use providers::{InstanceRef, InstanceState};

use crate::context::{Context, Stop, ensure};

fn running(state: &InstanceState) -> Result<&providers::Instance, Stop> {
    match state {
        InstanceState::Running(instance) => Ok(instance),
        other => Err(Stop::Fail(format!("a running instance is reported as {other:?}"))),
    }
}

async fn describe_one(context: &Context<'_>, instance: InstanceRef) -> Result<InstanceState, Stop> {
    let mut states = context.instances()?.describe(&[instance]).await;
    ensure!(states.len() == 1, "one instance was requested, and {} were returned", states.len());
    Ok(states.remove(0))
}

pub(crate) async fn describe_accepts_an_empty_request(context: &Context<'_>) -> Result<(), Stop> {
    let states = context.instances()?.describe(&[]).await;
    ensure!(states.is_empty(), "nothing was requested, and {states:?} returned");
    Ok(())
}

pub(crate) async fn describe_returns_states_in_the_requested_order(context: &Context<'_>) -> Result<(), Stop> {
    let instances = context.instances()?;
    let (one, two) = (context.instance("one").await?, context.instance("two").await?);
    let unknown = InstanceRef::named(context.unique_name("unknown"));
    let requested = [two.clone(), unknown.clone(), one.clone(), two, unknown];
    let states = instances.describe(&requested).await;
    ensure!(states.len() == requested.len(), "{} were requested, and {} returned", requested.len(), states.len());
    let ids: Vec<Option<&str>> = states
        .iter()
        .map(|state| match state {
            InstanceState::Running(instance) => Some(instance.provider_id.as_str()),
            _ => None,
        })
        .collect();
    ensure!(ids[0].is_some() && ids[0] == ids[3], "the same instance requested twice is {:?}, {:?}", ids[0], ids[3]);
    ensure!(ids[2].is_some() && ids[2] != ids[0], "two instances are {:?}, {:?}", ids[0], ids[2]);
    ensure!(ids[1].is_none() && ids[4].is_none(), "unknown instances are {:?}, {:?}", ids[1], ids[4]);
    for (requested, id) in requested.iter().zip(&ids) {
        if let (Some(given), Some(id)) = (&requested.provider_id, id) {
            ensure!(given == id, "{given} was requested, and {id} returned");
        }
    }
    Ok(())
}

pub(crate) async fn describe_returns_all_fields_of_a_running_instance(context: &Context<'_>) -> Result<(), Stop> {
    let requested = context.instance("node").await?;
    let state = describe_one(context, requested.clone()).await?;
    let instance = running(&state)?;
    let scheme = format!("{}://", context.provider_name());
    ensure!(instance.provider_id.starts_with(&scheme), "provider id {} is not {scheme}...", instance.provider_id);
    ensure!(!instance.addresses.is_empty(), "a running instance has no address");
    ensure!(instance.addresses.iter().all(|a| !a.address.is_empty()), "an empty address: {:?}", instance.addresses);
    let distinct: BTreeSet<_> = instance.addresses.iter().collect();
    ensure!(distinct.len() == instance.addresses.len(), "an address twice: {:?}", instance.addresses);
    let again = describe_one(context, requested).await?;
    ensure!(again == state, "the same instance is {state:?} and then {again:?}");
    Ok(())
}

pub(crate) async fn describe_finds_the_same_instance_by_name_and_id(context: &Context<'_>) -> Result<(), Stop> {
    let requested = context.instance("node").await?;
    let by_name = describe_one(context, InstanceRef { provider_id: None, ..requested.clone() }).await?;
    let id = running(&by_name)?.provider_id.clone();
    let by_id = describe_one(context, requested.with_provider_id(&id)).await?;
    ensure!(by_id == by_name, "by its name it is {by_name:?}, by its id {by_id:?}");
    // The provider ID takes precedence: a Node that has the name of another instance still gets its own instance.
    let other = context.instance("other").await?;
    let mixed = describe_one(context, InstanceRef { node: other.node, ..InstanceRef::default().with_provider_id(&id) });
    let found = mixed.await?;
    ensure!(running(&found)?.provider_id == id, "with id {id} and another's name it is {found:?}");
    Ok(())
}

pub(crate) async fn describe_distinguishes_stopped_from_deleted_instances(context: &Context<'_>) -> Result<(), Stop> {
    let instance = context.instance("node").await?;
    context.fixture.stop_instance(&instance).await?;
    let state = describe_one(context, instance.clone()).await?;
    ensure!(state == InstanceState::Stopped, "a stopped instance is reported as {state:?}");
    context.fixture.delete_instance(&instance).await?;
    let state = describe_one(context, instance.clone()).await?;
    ensure!(state == InstanceState::Gone, "a deleted instance is reported as {state:?}");
    let state = describe_one(context, InstanceRef { provider_id: None, ..instance }).await?;
    ensure!(state == InstanceState::Gone, "a deleted instance, by its name, is reported as {state:?}");
    Ok(())
}

pub(crate) async fn describe_reports_unknown_instances_as_gone(context: &Context<'_>) -> Result<(), Stop> {
    let state = describe_one(context, InstanceRef::named(context.unique_name("unknown"))).await?;
    ensure!(state == InstanceState::Gone, "an instance that never existed is reported as {state:?}");
    Ok(())
}

pub(crate) async fn describe_does_not_report_another_clouds_instance_as_gone(
    context: &Context<'_>,
) -> Result<(), Stop> {
    let foreign =
        InstanceRef::named(context.unique_name("foreign")).with_provider_id("another-cloud:///zone/machine-1");
    match describe_one(context, foreign).await? {
        InstanceState::Unknown(error) if error.is_invalid() => Ok(()),
        other => Err(Stop::Fail(format!(
            "another cloud's instance is reported as {other:?}, not as Unknown with an Invalid error"
        ))),
    }
}

pub(crate) async fn describe_isolates_an_invalid_id_in_a_batch_of_500(context: &Context<'_>) -> Result<(), Stop> {
    let instances = context.instances()?;
    let real = [context.instance("a").await?, context.instance("b").await?, context.instance("c").await?];
    let bad = InstanceRef::named("bad").with_provider_id(format!("{}://\u{0}?%/..", context.provider_name()));
    let requested: Vec<InstanceRef> = (0..500)
        .map(|index| match index {
            250 => bad.clone(),
            index if index % 5 == 0 => real[index / 5 % real.len()].clone(),
            index => InstanceRef::named(format!("unknown-{index}")),
        })
        .collect();
    let states = instances.describe(&requested).await;
    ensure!(states.len() == requested.len(), "{} were requested, and {} returned", requested.len(), states.len());
    for (index, (requested, state)) in requested.iter().zip(&states).enumerate() {
        let is_expected = match index {
            250 => !matches!(state, InstanceState::Running(_) | InstanceState::Stopped),
            index if index % 5 == 0 => matches!(state, InstanceState::Running(_)),
            _ => *state == InstanceState::Gone,
        };
        ensure!(is_expected, "with a bad id in the batch, number {index}, {requested:?}, is reported as {state:?}");
    }
    Ok(())
}
