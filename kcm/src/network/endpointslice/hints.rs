//! Hints of endpoints: the zones or nodes whose clients should use an endpoint. Zones get endpoints by their share of
//! the cluster's CPU, or clients use endpoints in their own zone or on their own node (`trafficDistribution`).
//!
//! Upstream: k8s.io/endpointslice, topologycache and trafficdist.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::endpoint_slice::{Endpoint, Hints};
use kinds::ip::Family;
use kinds::{EndpointSlice, Str};
use runtime::events::EventType;

use super::decision::{Decision, View};
use super::pack::{Draft, PackedSlices};
use super::topology::{Allocation, EndpointsByZone, Shares};

const ENABLED: &str = "TopologyAwareHintsEnabled";
const DISABLED: &str = "TopologyAwareHintsDisabled";

/// The traffic distribution of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Distribution {
    Zone,
    Node,
}

fn distribution(traffic_distribution: Option<&str>) -> Option<Distribution> {
    match traffic_distribution? {
        "PreferClose" | "PreferSameZone" => Some(Distribution::Zone),
        "PreferSameNode" => Some(Distribution::Node),
        _ => None,
    }
}

/// Sets the hints of a family's endpoints. Slices whose hints have to change become drafts. Annotations override
/// `trafficDistribution`. The allocation and events are added to `decision`.
pub fn spread(view: &View<'_>, family: Family, mut packed: PackedSlices, decision: &mut Decision) -> PackedSlices {
    if view.service.wants_topology_hints() {
        match allocate(&mut packed, view.shares) {
            Ok(allocated) => {
                if !view.was_allocated && decision.allocated.is_empty() {
                    push_event(decision, EventType::Normal, ENABLED, "Topology Aware Hints has been enabled", family);
                }
                decision.allocated.insert(family, allocated);
            }
            Err(why) => {
                push_event(decision, EventType::Warning, DISABLED, &why, family);
                set_hints(&mut packed, HintScope::All, |_| None);
            }
        }
        return packed;
    }
    if view.was_allocated && decision.events.is_empty() {
        push_event(decision, EventType::Warning, DISABLED, "Topology Aware Hints has been disabled", family);
    }
    match distribution(view.service.traffic_distribution.as_deref()) {
        Some(distribution) => set_hints(&mut packed, HintScope::Ready, |endpoint| nearby_hints(endpoint, distribution)),
        None => set_hints(&mut packed, HintScope::All, |_| None),
    }
    packed
}

fn push_event(decision: &mut Decision, kind: EventType, reason: &'static str, what: &str, family: Family) {
    decision.events.push((kind, reason, format!("{what}, addressType: {}", family.name())));
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready == Some(true)
}

/// Returns the hints of an endpoint for nearby clients; none while it is not ready.
fn nearby_hints(endpoint: &Endpoint, distribution: Distribution) -> Option<Box<Hints>> {
    let zones: Vec<Str> = endpoint.zone.iter().cloned().collect();
    let nodes: Vec<Str> = endpoint.node.iter().filter(|_| distribution == Distribution::Node).cloned().collect();
    (is_ready(endpoint) && !(zones.is_empty() && nodes.is_empty())).then(|| Box::new(Hints { zones, nodes }))
}

/// The endpoints whose outdated hints cause a write of a slice that is otherwise unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HintScope {
    /// All endpoints.
    All,
    /// Endpoints that are ready: hints of other endpoints are not used, and would cost a write.
    Ready,
}

/// Sets the hints of all endpoints to the results of `hints`, except in otherwise unchanged slices without outdated
/// hints in `scope`.
fn set_hints(packed: &mut PackedSlices, scope: HintScope, hints: impl Fn(&Endpoint) -> Option<Box<Hints>>) {
    let stays = |slice: &Arc<EndpointSlice>| {
        let mut endpoints = slice.contents.endpoints.iter();
        endpoints.all(|e| e.hints == hints(e) || scope == HintScope::Ready && !is_ready(e))
    };
    let (kept, changed): (Vec<_>, Vec<_>) = std::mem::take(&mut packed.kept).into_iter().partition(stays);
    packed.kept = kept;
    packed.drafts.extend(changed.into_iter().map(draft_of));
    for endpoint in endpoints_of(&mut packed.drafts) {
        endpoint.hints = hints(endpoint);
    }
}

fn draft_of(slice: Arc<EndpointSlice>) -> Draft {
    let contents = slice.contents.clone();
    Draft { of: Some(slice), contents }
}

fn endpoints_of(drafts: &mut [Draft]) -> impl Iterator<Item = &mut Endpoint> {
    drafts.iter_mut().flat_map(|draft| &mut draft.contents.endpoints)
}

/// Spreads ready endpoints over zones by these shares. Upstream: k8s.io/endpointslice/topologycache, AddHints. Slices
/// with usable hints do not change. An error is the reason why no hints are set.
fn allocate(packed: &mut PackedSlices, shares: Option<&Shares>) -> Result<EndpointsByZone, String> {
    let kept = packed.kept.iter().flat_map(|slice| &slice.contents.endpoints);
    let drafted = packed.drafts.iter().flat_map(|draft| &draft.contents.endpoints);
    let endpoints = kept.chain(drafted).filter(|endpoint| is_ready(endpoint)).count();
    let shares =
        shares.ok_or("Insufficient Node information: allocatable CPU or zone not specified on one or more nodes")?;
    let allocations = shares.allocations(endpoints)?;

    let mut allocated = EndpointsByZone::new();
    for slice in std::mem::take(&mut packed.kept) {
        match hints_of(&slice, &allocated, &allocations) {
            Some(hints) => {
                hints.into_iter().for_each(|(zone, count)| *allocated.entry(zone).or_default() += count);
                packed.kept.push(slice);
            }
            None => packed.drafts.push(draft_of(slice)),
        }
    }
    for endpoint in endpoints_of(&mut packed.drafts) {
        endpoint.hints = None;
        if is_ready(endpoint) {
            let zone = endpoint.zone.clone().filter(|zone| !zone.is_empty());
            let zone = zone.ok_or("One or more endpoints do not have a zone specified")?;
            *allocated.entry(zone.clone()).or_default() += 1;
            endpoint.hints = for_zone(zone);
        }
    }
    redistribute(packed, &mut allocated, &allocations);
    if allocated.is_empty() {
        return Err("No hints allocated for zones".to_owned());
    }
    Ok(allocated)
}

fn for_zone(zone: Str) -> Option<Box<Hints>> {
    Some(Box::new(Hints { zones: vec![zone], nodes: Vec::new() }))
}

/// Returns the numbers of a slice's ready endpoints by the zones of their hints; `None` if the hints are no longer
/// usable: a ready endpoint has no hint, a zone no longer exists, or a zone has too many endpoints. Upstream:
/// k8s.io/endpointslice/topologycache, getHintsByZone.
pub fn hints_of(
    slice: &EndpointSlice,
    allocated: &EndpointsByZone,
    allocations: &BTreeMap<Str, Allocation>,
) -> Option<EndpointsByZone> {
    let mut counts = EndpointsByZone::new();
    for endpoint in slice.contents.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
        let zones = &endpoint.hints.as_ref().filter(|hints| !hints.zones.is_empty())?.zones;
        zones.iter().for_each(|zone| *counts.entry(zone.clone()).or_default() += 1);
    }
    let fits = |(zone, count): (&Str, &usize)| {
        let already = allocated.get(zone).copied().unwrap_or(0);
        allocations.get(zone).is_some_and(|allocation| already + count <= allocation.max)
    };
    counts.iter().all(fits).then_some(counts)
}

/// Changes hints of endpoints: from zones with more than their share to zones with less.
fn redistribute(packed: &mut PackedSlices, allocated: &mut EndpointsByZone, allocations: &BTreeMap<Str, Allocation>) {
    let (mut giving, mut receiving) = exchange(allocated, allocations);
    for endpoint in endpoints_of(&mut packed.drafts).filter(|endpoint| is_ready(endpoint)) {
        let Some(from) = endpoint.zone.clone().filter(|zone| giving.get(zone).is_some_and(|count| *count > 0)) else {
            continue;
        };
        let Some((to, count)) = receiving.iter_mut().find(|(_, count)| **count > 0) else { return };
        *count -= 1;
        giving.entry(from.clone()).and_modify(|count| *count -= 1);
        *allocated.entry(to.clone()).or_default() += 1;
        allocated.entry(from).and_modify(|count| *count -= 1);
        endpoint.hints = for_zone(to.clone());
    }
}

/// Returns the numbers of endpoints that zones give and receive. Upstream: k8s.io/endpointslice/topologycache,
/// getGivingAndReceivingZones.
pub fn exchange(
    allocated: &EndpointsByZone,
    allocations: &BTreeMap<Str, Allocation>,
) -> (EndpointsByZone, EndpointsByZone) {
    let (mut surplus, mut lack) = (BTreeMap::<Str, f64>::new(), BTreeMap::<Str, f64>::new());
    for (zone, allocation) in allocations {
        let difference = allocated.get(zone).copied().unwrap_or(0) as f64 - allocation.desired;
        if difference > 0.0 {
            surplus.insert(zone.clone(), difference);
        } else if difference < 0.0 {
            lack.insert(zone.clone(), -difference);
        }
    }
    let (mut giving, mut receiving) = (EndpointsByZone::new(), EndpointsByZone::new());
    while let (Some((from, give)), Some((to, take))) = (largest(&surplus), largest(&lack)) {
        if give < 1.0 && take < 1.0 || give < 0.5 || take < 0.5 {
            break;
        }
        surplus.entry(from.clone()).and_modify(|surplus| *surplus -= 1.0);
        lack.entry(to.clone()).and_modify(|lack| *lack -= 1.0);
        *giving.entry(from).or_default() += 1;
        *receiving.entry(to).or_default() += 1;
    }
    (giving, receiving)
}

fn largest(zones: &BTreeMap<Str, f64>) -> Option<(Str, f64)> {
    let (zone, amount) = zones.iter().max_by(|a, b| a.1.total_cmp(b.1)).filter(|(_, amount)| **amount > 0.0)?;
    Some((zone.clone(), *amount))
}
