//! Changes of load balancers: to the last requested state, from any previous one.

use providers::{
    CloudError, EndpointTarget, ErrorKind, Features, IpFamilyPolicy, IpNet, LoadBalancerSpec, NodeTarget, Observed,
    Protocol, Targeting, Targets,
};

use crate::context::{Context, Stop, ensure, merged, port};
use crate::fixture::FixtureError;
use crate::load_balancer_creation::{matches_spec, owned_of};

pub(crate) async fn ports_are_changed(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let mut spec = context.spec();
    let tcp = |number| port(&format!("p{number}"), Protocol::Tcp, number);
    for ports in [vec![tcp(80)], vec![tcp(80), tcp(443)], vec![tcp(443), tcp(8443)], vec![tcp(80)]] {
        spec.ports = ports;
        context.settle(&spec, &targets).await?;
        matches_spec(context, &spec, &targets).await?;
    }
    // The same port, at another node port.
    spec.ports[0].node_port = Some(31_999);
    context.settle(&spec, &targets).await?;
    matches_spec(context, &spec, &targets).await?;
    Ok(())
}

pub(crate) async fn source_ranges_are_changed(context: &Context<'_>) -> Result<(), Stop> {
    if !context.balancers()?.features().source_ranges {
        return Err(Stop::Skip("the provider does not enforce source ranges".into()));
    }
    let targets = Targets::nodes(context.nodes(1).await?);
    let mut spec = context.spec();
    let range = |third: u8| IpNet::new_assert([192, 0, third, 0].into(), 24);
    for ranges in [vec![], vec![range(2)], vec![range(3), range(2)], vec![range(3)], vec![]] {
        spec.source_ranges = ranges;
        context.settle(&spec, &targets).await?;
        matches_spec(context, &spec, &targets).await?;
    }
    Ok(())
}

pub(crate) async fn variant_is_changed_into_another(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let variants = context.fixture.variants();
    if variants.len() < 2 {
        return Err(Stop::Skip("the fixture has fewer than two variants".into()));
    }
    let targets = Targets::nodes(context.nodes(1).await?);
    let mut spec = context.spec();
    let plain = spec.annotations.clone();
    for variant in variants.iter().chain(variants.first()) {
        spec.annotations = merged(plain.clone(), variant.clone());
        context.settle(&spec, &targets).await?;
        matches_spec(context, &spec, &targets).await?;
    }
    // delete receives no annotations: it must find the load balancer without them.
    context.delete(&spec.id).await?;
    context.check_nothing_leaked(&spec.id).await?;
    Ok(())
}

pub(crate) async fn targets_shrink_and_grow(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let nodes = context.nodes(3).await?;
    let spec = context.spec();
    let all = Targets::nodes(nodes.clone());
    context.settle(&spec, &all).await?;
    let before = owned_of(context, &spec).await?;
    let some = |range: std::ops::Range<usize>| Targets::nodes(nodes[range].to_vec());
    for targets in [some(1..3), some(1..3), some(0..1), some(0..0), all.clone(), all] {
        balancers.set_targets(&spec, &targets).await?;
        matches_spec(context, &spec, &targets).await?;
    }
    let after = owned_of(context, &spec).await?;
    ensure!(before == after, "before its targets changed there was {before:?}, after it {after:?}");
    // A node without a provider ID does not affect the others.
    let without_id = NodeTarget { name: "without-id".into(), ..NodeTarget::default() };
    let mixed = Targets::nodes([&nodes[..1], &[without_id]].concat());
    balancers.set_targets(&spec, &mixed).await?;
    matches_spec(context, &spec, &mixed).await?;
    Ok(())
}

pub(crate) async fn targets_of_an_absent_load_balancer_are_not_found(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let spec = context.spec();
    let targets = Targets::nodes(context.nodes(1).await?);
    // The load balancer never existed, or it was deleted.
    for existed in [false, true] {
        if existed {
            context.settle(&spec, &targets).await?;
            context.delete(&spec.id).await?;
        }
        let result = balancers.set_targets(&spec, &targets).await;
        let kind = result.as_ref().err().map(|error| error.kind);
        ensure!(kind == Some(ErrorKind::NotFound), "targets of an absent load balancer are {result:?}, not NotFound");
        let observed = balancers.observe(&spec.id).await?;
        ensure!(observed == Observed::Absent, "set_targets created {observed:?}");
        context.check_nothing_leaked(&spec.id).await?;
    }
    Ok(())
}

/// Returns an endpoint of the first port, without a node.
fn endpoint(spec: &LoadBalancerSpec, last: u8, ready: bool) -> EndpointTarget {
    EndpointTarget {
        port_name: spec.ports[0].name.clone(),
        address: [10, 0, 0, last].into(),
        port: 8080,
        node: None,
        provider_id: None,
        zone: None,
        ready,
        serving: ready,
        terminating: false,
        pod: None,
    }
}

pub(crate) async fn endpoints_are_targets(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let annotations = context.fixture.endpoint_annotations();
    let Some(annotations) = annotations.filter(|_| balancers.features().endpoint_targets) else {
        return Err(Stop::Skip("the provider, or the fixture, has no endpoint targets".into()));
    };
    let mut spec = context.spec();
    spec.annotations = merged(spec.annotations, annotations);
    let targeting = balancers.targeting(&spec)?;
    ensure!(targeting == Targeting::Endpoints, "a load balancer for endpoints has the targeting {targeting:?}");
    // Endpoints need no node port.
    spec.allocate_node_ports = false;
    spec.ports[0].node_port = None;
    let endpoint = |last, ready| endpoint(&spec, last, ready);
    let some = |list: Vec<EndpointTarget>| Targets { endpoints: list.into(), ..Targets::default() };
    let first = some(vec![endpoint(10, true), endpoint(11, false), endpoint(12, true)]);
    context.settle(&spec, &first).await?;
    matches_spec(context, &spec, &first).await?;
    for targets in [some(vec![endpoint(11, true)]), some(Vec::new()), first] {
        balancers.set_targets(&spec, &targets).await?;
        matches_spec(context, &spec, &targets).await?;
    }
    // An incomplete list, because objects could not be decoded, removes no target.
    let more = some(vec![endpoint(10, true), endpoint(11, true), endpoint(12, true)]);
    let partial = Targets { incomplete: true, ..some(vec![endpoint(11, true)]) };
    balancers.set_targets(&spec, &partial).await?;
    matches_spec(context, &spec, &more).await?;
    balancers.set_targets(&spec, &Targets { incomplete: false, ..partial.clone() }).await?;
    matches_spec(context, &spec, &Targets { incomplete: false, ..partial }).await?;
    Ok(())
}

/// Returns the spec with a mistake: the fixture's invalid annotation, or dual stack that the provider does not support.
/// `None` if there is neither.
fn with_mistake(context: &Context<'_>, features: &Features, spec: &LoadBalancerSpec) -> Option<LoadBalancerSpec> {
    let mut invalid = spec.clone();
    match context.fixture.invalid_annotation() {
        Some((key, value)) => drop(invalid.annotations.insert(key, value)),
        None if !features.dual_stack => invalid.ip_family_policy = IpFamilyPolicy::RequireDualStack,
        None => return None,
    }
    Some(invalid)
}

/// After a restart, the last valid request of an invalid Service is unknown.
pub(crate) async fn targets_follow_an_invalid_service(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let features = balancers.features();
    let nodes = context.nodes(2).await?;
    let mut kinds = vec![context.fixture.annotations()];
    kinds.extend(context.fixture.endpoint_annotations().filter(|_| features.endpoint_targets));
    for annotations in kinds {
        let mut spec = context.spec();
        spec.annotations = merged(spec.annotations, annotations);
        let Some(invalid) = with_mistake(context, &features, &spec) else {
            return Err(Stop::Skip("the fixture has no invalid_annotation".into()));
        };
        ensure!(balancers.targeting(&invalid).is_err(), "{invalid:?} is valid");
        // Endpoints are also given for a load balancer whose targets are nodes.
        let number = |number: usize| Targets {
            endpoints: (0..number).map(|last| endpoint(&spec, 10 + last as u8, true)).collect::<Vec<_>>().into(),
            ..Targets::nodes(nodes[..number].to_vec())
        };
        let absent = balancers.follow_targets(&invalid, &number(1)).await;
        let observed = balancers.observe(&spec.id).await?;
        ensure!(observed == Observed::Absent, "follow_targets created {observed:?}");
        if absent.is_ok() {
            return Err(Stop::Skip("the provider has no follow_targets".into()));
        }
        let is_not_found = absent.as_ref().is_err_and(CloudError::is_not_found);
        ensure!(is_not_found, "targets of an absent load balancer are {absent:?}, not NotFound");
        context.settle(&spec, &number(1)).await?;
        for count in [2, 1, 1] {
            balancers.follow_targets(&invalid, &number(count)).await?;
            matches_spec(context, &spec, &number(count)).await?;
            none_blocked(context, &format!("after a change to {count} targets")).await?;
        }
        // An incomplete list removes no target.
        balancers.follow_targets(&invalid, &number(2)).await?;
        balancers.follow_targets(&invalid, &Targets { incomplete: true, ..number(1) }).await?;
        matches_spec(context, &spec, &number(2)).await?;
    }
    Ok(())
}

/// Checks that the firewall blocks no target, if the fixture supports that.
async fn none_blocked(context: &Context<'_>, when: &str) -> Result<(), Stop> {
    match context.fixture.blocked_targets().await {
        Err(FixtureError::Unsupported(_)) => {}
        blocked => {
            let blocked = blocked?;
            ensure!(blocked.is_empty(), "{when}, the firewall blocks {blocked:?}");
        }
    }
    Ok(())
}

pub(crate) async fn firewall_follows_targets(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    // Skips the case before anything is created, if the fixture does not support it.
    context.fixture.blocked_targets().await?;
    let nodes = context.nodes(2).await?;
    let some = |count: usize| Targets::nodes(nodes[..count].to_vec());
    let mut spec = context.spec();
    // The load balancer is created before it has targets.
    context.settle(&spec, &some(0)).await?;
    for count in [1, 2, 1, 0, 2] {
        balancers.set_targets(&spec, &some(count)).await?;
        none_blocked(context, &format!("after a change to {count} targets")).await?;
    }
    // Other ports, which need other firewall rules for the same targets.
    for (number, protocol) in [(443, Protocol::Tcp), (53, Protocol::Udp)] {
        if balancers.features().protocols.contains(&protocol) {
            spec.ports = vec![port(&format!("p{number}"), protocol, number)];
            context.settle(&spec, &some(2)).await?;
            none_blocked(context, &format!("after a change to port {number} of {protocol}")).await?;
        }
    }
    let other = context.spec();
    context.settle(&other, &some(2)).await?;
    context.delete(&spec.id).await?;
    none_blocked(context, "after another load balancer was deleted").await
}
