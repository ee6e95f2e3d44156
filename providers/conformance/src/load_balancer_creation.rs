//! Creation of load balancers: once, completely, and not for invalid Services.

use std::collections::BTreeSet;

use providers::{
    CloudError, ErrorKind, Health, IpFamily, IpFamilyPolicy, IpNet, LoadBalancerSpec, Observed, ObservedLoadBalancer,
    Owned, Phase, Protocol, TargetId, Targeting, Targets,
};

use crate::context::{Context, Stop, ensure, merged, port};
use crate::fixture::FixtureError;

/// Maximum number of runs, in each of which another change fails: in run `n`, the `n`th. It exceeds the number of
/// changes that any cloud needs for one load balancer. The runs end earlier if the fixture reports that the provider
/// made fewer changes.
pub(crate) const MAX_CHANGES: u64 = 16;

pub(crate) async fn owned_of(context: &Context<'_>, spec: &LoadBalancerSpec) -> Result<Vec<Owned>, Stop> {
    let owned = context.balancers()?.list_owned().await?;
    Ok(owned.into_iter().filter(|owned| owned.id == spec.id).collect())
}

/// Checks that the load balancer exists once and matches the spec.
pub(crate) async fn matches_spec(
    context: &Context<'_>,
    spec: &LoadBalancerSpec,
    targets: &Targets,
) -> Result<ObservedLoadBalancer, Stop> {
    let features = context.balancers()?.features();
    let balancer = context.wait_until_active(&spec.id).await?;
    let requested: BTreeSet<_> = spec.ports.iter().map(|port| (port.protocol, port.port)).collect();
    let listeners_found: Vec<_> =
        balancer.listeners.iter().map(|listener| (listener.protocol, listener.port)).collect();
    ensure!(
        listeners_found.iter().eq(&requested),
        "it should listen on {requested:?} and listens on {listeners_found:?}"
    );
    if features.source_ranges {
        let ranges: BTreeSet<_> = spec.source_ranges.iter().map(IpNet::trunc).collect();
        let as_requested = balancer.source_ranges.iter().eq(&ranges);
        ensure!(as_requested, "{ranges:?} should be allowed and {:?} is", balancer.source_ranges);
    }
    let targeting = context.balancers()?.targeting(spec)?;
    let expected: BTreeSet<TargetId> = match targeting {
        Targeting::Nodes => {
            targets.nodes.iter().filter_map(|n| n.provider_id.clone()).map(TargetId::Instance).collect()
        }
        Targeting::Endpoints => targets
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.ready)
            .map(|endpoint| TargetId::Endpoint { address: endpoint.address, port: endpoint.port })
            .collect(),
        Targeting::Elsewhere => return Err(Stop::Fail("a plain load balancer is left to another controller".into())),
    };
    // Draining targets still exist, but get no new traffic.
    let live = balancer.targets.iter().filter(|observed| observed.health != Health::Draining);
    let found: Vec<_> = live.map(|observed| &observed.target).collect();
    let expected = if features.selects_targets { BTreeSet::new() } else { expected };
    ensure!(found.iter().copied().eq(&expected), "its targets should be {expected:?} and are {found:?}");
    let owned = owned_of(context, spec).await?;
    ensure!(owned.len() == 1, "list_owned should return it once and returns {owned:?}");
    ensure!(!owned[0].resources.is_empty(), "list_owned returns it without a resource");
    Ok(balancer)
}

pub(crate) async fn features_are_consistent(context: &Context<'_>) -> Result<(), Stop> {
    let features = context.balancers()?.features();
    ensure!(!features.protocols.is_empty(), "no protocol is supported");
    ensure!(!features.mixed_protocols || features.protocols.len() > 1, "one protocol can't be mixed: {features:?}");
    ensure!(!features.dual_stack || features.ipv6, "dual stack without IPv6: {features:?}");
    let classes = &features.classes;
    ensure!(classes.unset || !classes.named.is_empty(), "no Service is ever accepted: {classes:?}");
    ensure!(!classes.accepts(Some("example.com/unknown")), "an unknown class is accepted: {classes:?}");
    ensure!(features == context.balancers()?.features(), "features() returns another value the second time");
    Ok(())
}

pub(crate) async fn unknown_load_balancer_is_absent_and_gone(context: &Context<'_>) -> Result<(), Stop> {
    let (balancers, spec) = (context.balancers()?, context.spec());
    let observed = balancers.observe(&spec.id).await?;
    ensure!(observed == Observed::Absent, "an unknown load balancer is {observed:?}");
    context.delete(&spec.id).await?;
    let owned = owned_of(context, &spec).await?;
    ensure!(owned.is_empty(), "an unknown load balancer is listed: {owned:?}");
    Ok(())
}

pub(crate) async fn ensure_creates_the_load_balancer_that_observe_returns(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let mut spec = context.spec();
    spec.ports.push(port("https", Protocol::Tcp, 443));
    let targets = Targets::nodes(context.nodes(2).await?);
    let ensured = context.settle(&spec, &targets).await?;
    ensure!(!ensured.status.ingress.is_empty(), "a settled load balancer has no ingress");
    for ingress in &ensured.status.ingress {
        ensure!(ingress.ip.is_some() || ingress.hostname.is_some(), "an ingress without address or name: {ingress:?}");
        ensure!(ingress.ip.is_some() || ingress.ip_mode.is_none(), "an ipMode without an address: {ingress:?}");
    }
    matches_spec(context, &spec, &targets).await?;
    Ok(())
}

pub(crate) async fn ensure_is_idempotent(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let (spec, targets) = (context.spec(), Targets::nodes(context.nodes(2).await?));
    let first = context.settle(&spec, &targets).await?;
    let before = owned_of(context, &spec).await?;
    let second = context.settle(&spec, &targets).await?;
    ensure!(first == second, "the first call returns {first:?}, the second one {second:?}");
    let after = owned_of(context, &spec).await?;
    ensure!(before == after, "before the second call there was {before:?}, after it {after:?}");
    matches_spec(context, &spec, &targets).await?;
    // The next change would fail: `ensure` succeeds only if it makes none.
    match context.fixture.fail_change(1).await {
        Ok(()) => {
            let unchanged = context.balancers()?.ensure(&spec, &targets).await;
            ensure!(unchanged.as_ref() == Ok(&second), "ensure tries a change although nothing differs: {unchanged:?}");
            context.fixture.restore().await?;
            Ok(())
        }
        Err(FixtureError::Unsupported(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) async fn concurrent_ensures_create_one_load_balancer(context: &Context<'_>) -> Result<(), Stop> {
    let balancers = context.balancers()?;
    let (spec, targets) = (context.spec(), Targets::nodes(context.nodes(1).await?));
    let both = futures::join!(balancers.ensure(&spec, &targets), balancers.ensure(&spec, &targets));
    let is_acceptable = |result: &Result<_, CloudError>| !result.as_ref().is_err_and(CloudError::is_invalid);
    ensure!(is_acceptable(&both.0) && is_acceptable(&both.1), "concurrent calls return {both:?}");
    context.settle(&spec, &targets).await?;
    matches_spec(context, &spec, &targets).await?;
    Ok(())
}

pub(crate) async fn lost_response_creates_no_second_load_balancer(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    let plain = context.spec();
    context.settle(&plain, &targets).await?;
    let resources = owned_of(context, &plain).await?[0].resources.len();
    for nth in 1..=MAX_CHANGES {
        let spec = context.spec();
        context.fixture.lose_response(nth).await?;
        context.settle(&spec, &targets).await?;
        let is_last = context.restore_after_fault(nth).await?;
        matches_spec(context, &spec, &targets).await?;
        let created = owned_of(context, &spec).await?.remove(0).resources;
        ensure!(
            created.len() == resources,
            "after losing response {nth} there is {created:?}, not {resources} resources"
        );
        context.delete(&spec.id).await?;
        context.check_nothing_leaked(&spec.id).await?;
        if is_last {
            break;
        }
    }
    Ok(())
}

pub(crate) async fn ensure_recovers_from_a_failure_at_any_change(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let targets = Targets::nodes(context.nodes(1).await?);
    for nth in 1..=MAX_CHANGES {
        let spec = context.spec();
        context.fixture.fail_change(nth).await?;
        context.settle(&spec, &targets).await?;
        let is_last = context.restore_after_fault(nth).await?;
        matches_spec(context, &spec, &targets).await?;
        context.delete(&spec.id).await?;
        context.check_nothing_leaked(&spec.id).await?;
        if is_last {
            break;
        }
    }
    Ok(())
}

async fn check_refused(context: &Context<'_>, spec: &LoadBalancerSpec, what: &str) -> Result<CloudError, Stop> {
    let balancers = context.balancers()?;
    let Err(error) = balancers.targeting(spec) else {
        return Err(Stop::Fail(format!("{what} is accepted by targeting")));
    };
    ensure!(error.kind == ErrorKind::Invalid, "{what} is {:?}, not Invalid: {error}", error.kind);
    let Err(refusal) = balancers.ensure(spec, &Targets::default()).await else {
        return Err(Stop::Fail(format!("{what} is accepted by ensure")));
    };
    ensure!(refusal.kind == ErrorKind::Invalid, "ensure returns {:?} for {what}, not Invalid", refusal.kind);
    let owned = owned_of(context, spec).await?;
    ensure!(owned.is_empty(), "{what} was refused, but created {owned:?}");
    context.check_nothing_leaked(&spec.id).await?;
    Ok(error)
}

pub(crate) async fn invalid_annotation_is_reported_and_nothing_created(context: &Context<'_>) -> Result<(), Stop> {
    context.balancers()?;
    let Some((key, value)) = context.fixture.invalid_annotation() else {
        return Err(Stop::Skip("the fixture has no invalid_annotation".into()));
    };
    let mut spec = context.spec();
    spec.annotations = merged(spec.annotations, [(key.clone(), value.clone())]);
    let error = check_refused(context, &spec, "an invalid annotation").await?;
    let (message, rest) = (&error.message, error.message.replace(&key, "").replace(&value, ""));
    ensure!(message.contains(&key) && message.contains(&value), "{message:?} does not name {key} and {value:?}");
    ensure!(rest.len() > 20, "{message:?} does not name the fix");
    Ok(())
}

pub(crate) async fn unsupported_features_are_invalid(context: &Context<'_>) -> Result<(), Stop> {
    let features = context.balancers()?.features();
    let plain = context.spec();
    if !features.source_ranges {
        let ranges = vec![IpNet::new_assert([192, 0, 2, 0].into(), 24)];
        check_refused(context, &LoadBalancerSpec { source_ranges: ranges, ..plain.clone() }, "source ranges").await?;
    }
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        if !features.protocols.contains(&protocol) {
            let ports = vec![port("one", protocol, 5000)];
            check_refused(context, &LoadBalancerSpec { ports, ..plain.clone() }, protocol.as_str()).await?;
        }
    }
    if !features.mixed_protocols && features.protocols.len() > 1 {
        let ports = features.protocols.iter().map(|protocol| port(&port_name(*protocol), *protocol, 5000)).collect();
        check_refused(context, &LoadBalancerSpec { ports, ..plain.clone() }, "mixed protocols").await?;
    }
    if !features.dual_stack {
        let both = LoadBalancerSpec {
            ip_families: vec![IpFamily::IPv4, IpFamily::IPv6],
            ip_family_policy: IpFamilyPolicy::RequireDualStack,
            ..plain.clone()
        };
        check_refused(context, &both, "required dual stack").await?;
    }
    Ok(())
}

pub(crate) async fn written_annotations_have_the_prefix(context: &Context<'_>) -> Result<(), Stop> {
    let features = context.balancers()?.features();
    let Some(prefix) = features.written_annotations else {
        return Err(Stop::Skip("the provider writes no annotations".into()));
    };
    let read = features.annotations.iter().find(|read| prefix.starts_with(read.as_str()));
    ensure!(
        read.is_none(),
        "annotations with the prefix {prefix:?} are written, and also read (prefix {read:?}): each write causes a \
         reconcile"
    );
    let targets = Targets::nodes(context.nodes(1).await?);
    let mut spec = context.spec();
    let plain = spec.annotations.clone();
    for variant in context.fixture.variants() {
        spec.annotations = merged(plain.clone(), variant);
        let written = context.settle(&spec, &targets).await?.annotations;
        let other = written.keys().find(|key| !key.starts_with(prefix));
        ensure!(other.is_none(), "the annotation {other:?} is written, which does not have the prefix {prefix:?}");
        let again = context.settle(&spec, &targets).await?.annotations;
        ensure!(
            written == again,
            "the Service did not change, but its annotations were first {written:?}, then {again:?}"
        );
    }
    Ok(())
}

/// Returns a port's name, of lower-case letters as the API server requires.
fn port_name(protocol: Protocol) -> String {
    protocol.as_str().to_lowercase()
}

pub(crate) async fn protocols_can_be_mixed(context: &Context<'_>) -> Result<(), Stop> {
    let features = context.balancers()?.features();
    if !features.mixed_protocols {
        return Err(Stop::Skip("the provider does not support mixed protocols".into()));
    }
    let mut spec = context.spec();
    // The same number for each protocol, as for DNS.
    spec.ports = features.protocols.iter().map(|protocol| port(&port_name(*protocol), *protocol, 53)).collect();
    let targets = Targets::nodes(context.nodes(1).await?);
    context.settle(&spec, &targets).await?;
    matches_spec(context, &spec, &targets).await?;
    Ok(())
}

pub(crate) async fn dual_stack_gets_addresses_of_both_families(context: &Context<'_>) -> Result<(), Stop> {
    if !context.balancers()?.features().dual_stack {
        return Err(Stop::Skip("the provider has no dual stack".into()));
    }
    let targets = Targets::nodes(context.nodes(1).await?);
    let mut spec = context.spec();
    spec.ip_families = vec![IpFamily::IPv6, IpFamily::IPv4];
    spec.ip_family_policy = IpFamilyPolicy::RequireDualStack;
    let families = |status: &providers::LoadBalancerStatus| -> Vec<IpFamily> {
        status.ingress.iter().filter_map(|ingress| ingress.ip).map(IpFamily::of).collect()
    };
    let ensured = context.settle(&spec, &targets).await?;
    // A name serves both families.
    if ensured.status.ingress.iter().all(|ingress| ingress.ip.is_some()) {
        let assigned = families(&ensured.status);
        ensure!(assigned == spec.ip_families, "{:?} were requested, but {assigned:?} are assigned", spec.ip_families);
        spec.ip_families = vec![IpFamily::IPv6];
        spec.ip_family_policy = IpFamilyPolicy::SingleStack;
        let assigned = families(&context.settle(&spec, &targets).await?.status);
        ensure!(assigned == spec.ip_families, "{:?} is requested now, but {assigned:?} are assigned", spec.ip_families);
    }
    let phase = matches_spec(context, &spec, &targets).await?.phase;
    ensure!(phase == Phase::Active, "it is {phase:?}");
    Ok(())
}
