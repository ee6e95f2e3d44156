//! Instances: one state per request, in order, and `Gone` only for instances that certainly do not exist.

use std::collections::BTreeSet;

use providers::{Instance, InstanceFeatures, InstanceRef, InstanceState};

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

pub(crate) async fn instance_features_are_consistent(context: &Context<'_>) -> Result<(), Stop> {
    let features = context.instances()?.instance_features();
    let is_empty = features.annotations.iter().any(String::is_empty);
    ensure!(!is_empty, "an empty prefix: all annotations of all Nodes would be kept in memory");
    for prefix in [features.labels, features.taints].into_iter().flatten() {
        let domain = prefix.split_once('/').map_or("", |(domain, _)| domain);
        let own = ["kubernetes.io", "k8s.io"].iter().any(|own| domain == *own || domain.ends_with(&format!(".{own}")));
        ensure!(domain.contains('.') && !own, "{prefix:?} does not begin with a domain of the vendor and a slash");
    }
    ensure!(
        features == context.instances()?.instance_features(),
        "instance_features() returns another value the second time"
    );
    Ok(())
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

pub(crate) async fn describe_returns_id_and_addresses_of_a_running_instance(context: &Context<'_>) -> Result<(), Stop> {
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
    ensure!(by_id == by_name, "requested by its name, an instance is {by_name:?}; by its id, {by_id:?}");
    // The provider ID takes precedence: a Node that has the name of another instance still gets its own instance.
    let other = context.instance("other").await?;
    let mixed = describe_one(context, InstanceRef { node: other.node, ..InstanceRef::default().with_provider_id(&id) });
    let found = mixed.await?;
    ensure!(
        running(&found)?.provider_id == id,
        "requested by the id {id} and the name of another one, an instance is {found:?}"
    );
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

pub(crate) async fn describe_finds_an_instance_by_annotations(context: &Context<'_>) -> Result<(), Stop> {
    let instances = context.instances()?;
    let instance = context.instance("node").await?;
    let Some(annotations) = context.fixture.identifying_annotations(&instance) else {
        return Err(Stop::Skip("the fixture has no identifying_annotations".into()));
    };
    let prefixes = instances.instance_features().annotations;
    for key in annotations.keys() {
        let is_read = prefixes.iter().any(|prefix| key.starts_with(prefix.as_str()));
        ensure!(is_read, "{key} has none of the prefixes {prefixes:?}, so no request contains it");
    }
    let expected = describe_one(context, instance.clone()).await?;
    let named = InstanceRef::named(context.unique_name("renamed"));
    let by_annotations = describe_one(context, InstanceRef { annotations: annotations.clone(), ..named }).await?;
    ensure!(
        by_annotations == expected,
        "requested by its annotations, an instance is {by_annotations:?}; by its name and id, {expected:?}"
    );
    // The provider ID takes precedence: users can change annotations, and IDs are immutable.
    let other = context.instance("other").await?;
    let id = running(&expected)?.provider_id.clone();
    let mixed =
        InstanceRef { annotations: context.fixture.identifying_annotations(&other).unwrap_or_default(), ..instance };
    let found = describe_one(context, mixed.with_provider_id(&id)).await?;
    ensure!(found == expected, "an instance is found by annotations instead of its provider ID: {found:?}");
    Ok(())
}

pub(crate) async fn labels_and_taints_follow_the_instance(context: &Context<'_>) -> Result<(), Stop> {
    let features = context.instances()?.instance_features();
    if features.labels.is_none() && features.taints.is_none() {
        return Err(Stop::Skip("the provider has no labels and taints that follow instances".into()));
    }
    let instance = context.instance("node").await?;
    let before = describe_one(context, instance.clone()).await?;
    let (labels, taints) = followed(running(&before)?, &features)?;
    context.fixture.change_labels_and_taints(&instance, true).await?;
    let changed = describe_one(context, instance.clone()).await?;
    let (more_labels, more_taints) = followed(running(&changed)?, &features)?;
    ensure!(features.labels.is_none() || more_labels > labels, "no additional label: {changed:?}");
    ensure!(features.taints.is_none() || more_taints > taints, "no additional taint: {changed:?}");
    context.fixture.change_labels_and_taints(&instance, false).await?;
    let reverted = describe_one(context, instance).await?;
    ensure!(reverted == before, "the instance was {before:?} and is {reverted:?} after the change was reverted");
    Ok(())
}

/// Returns the numbers of labels and taints with the provider's prefixes. All taints have them.
fn followed(instance: &Instance, features: &InstanceFeatures) -> Result<(usize, usize), Stop> {
    let has = |prefix: Option<&str>, key: &str| prefix.is_some_and(|prefix| key.starts_with(prefix));
    let other = instance.taints.iter().find(|taint| !has(features.taints, &taint.key));
    ensure!(other.is_none(), "{other:?} does not have the prefix {:?}", features.taints);
    let identities: BTreeSet<_> = instance.taints.iter().map(|taint| (&taint.key, taint.effect)).collect();
    ensure!(identities.len() == instance.taints.len(), "the same taint twice: {:?}", instance.taints);
    Ok((instance.labels.keys().filter(|key| has(features.labels, key)).count(), instance.taints.len()))
}
