//! Policy: the writes that make a Service's EndpointSlices equal to its pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kinds::endpoint::{HEADLESS, Port};
use kinds::endpoint_slice::{Contents, Endpoint, FROM_PODS, MANAGED_BY, SERVICE_NAME};
use kinds::intern::Labels;
use kinds::ip::Family;
use kinds::{EndpointSlice, Service};

use super::decision::{Decision, SliceCounts, View};
use super::desired::same_ports;
use super::hints;
use super::pack::{Draft, PackedSlices, PackingInput, pack};
use crate::network::service_endpoints::pods::families;
use crate::network::service_endpoints::slice_writes::Plan;
use crate::network::service_endpoints::subsets::sorted_ports;

/// Returns the labels of a Service's slices: those of the Service, its name, and the manager. Upstream:
/// k8s.io/endpointslice, setEndpointSliceLabels.
pub fn labels(service: &Service) -> Labels {
    let reserved = [SERVICE_NAME, MANAGED_BY, HEADLESS];
    let mut labels: Vec<_> =
        service.meta.labels.iter().filter(|(key, _)| !reserved.contains(&&**key)).cloned().collect();
    labels.push((SERVICE_NAME.into(), service.meta.name.clone()));
    labels.push((MANAGED_BY.into(), FROM_PODS.into()));
    if service.is_without_ip() {
        labels.push((HEADLESS.into(), "".into()));
    }
    labels.sort_unstable();
    labels.into()
}

/// Returns true if a slice belongs to this Service, not to a previous one of the same name.
fn is_owned(slice: &EndpointSlice, service: &Service) -> bool {
    let owners = &slice.meta.owners;
    owners.iter().any(|owner| owner.uid == service.meta.uid && &*owner.kind == "Service" && &*owner.api_version == "v1")
}

/// Compares a Service's slices with its pods. Upstream: k8s.io/endpointslice, Reconcile.
pub fn decide(view: &View<'_>) -> Decision {
    let families: BTreeSet<Family> = families(view.service);
    let mut decision = Decision::default();
    let mut all = Plan::default();
    for family in &families {
        let mut tally = SliceCounts::default();
        let packed = pack_family(view, *family, &mut tally);
        let PackedSlices { kept, mut drafts, dropped, added, removed } =
            hints::spread(view, *family, packed, &mut decision);
        let slices = kept.len() + drafts.len();
        drafts.retain(|draft| !draft.changes_nothing(view.labels));
        decision.tallies.insert(*family, SliceCounts { slices, added, removed, ..tally });
        for Draft { of, contents } in drafts {
            match of {
                Some(slice) => all.update.push((slice, contents)),
                None => all.create.push(contents),
            }
        }
        all.delete.extend(dropped);
    }
    for slice in view.existing {
        if slice.contents.family.is_none_or(|family| !families.contains(&family)) {
            all.delete.push(slice.clone());
        }
    }
    all.recycle(|slice| is_owned(slice, view.service));
    split(all, view, &mut decision);
    decision
}

/// Separates the removal of endpoints that get no traffic from all changes on which clients act.
fn split(all: Plan, view: &View<'_>, decision: &mut Decision) {
    decision.now.create = all.create;
    for (slice, contents) in all.update {
        let urgent = slice.meta.labels != *view.labels
            || !same_ports(&slice.contents.ports, &contents.ports)
            || !only_removes_idle(&slice.contents, &contents);
        if urgent { &mut decision.now } else { &mut decision.later }.update.push((slice, contents));
    }
    for slice in all.delete {
        let urgent = slice.contents.endpoints.iter().any(gets_traffic) || !is_owned(&slice, view.service);
        if urgent { &mut decision.now } else { &mut decision.later }.delete.push(slice);
    }
}

/// Returns true if an endpoint may receive traffic: it is ready, or serves while it terminates.
fn gets_traffic(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready != Some(false) || endpoint.conditions.serving == Some(true)
}

/// Returns true if an update only removes endpoints that get no traffic.
fn only_removes_idle(before: &Contents, after: &Contents) -> bool {
    let mut remaining: HashMap<_, _> = after.endpoints.iter().map(|endpoint| (&endpoint.addresses, endpoint)).collect();
    let mut stays_or_is_idle = |endpoint: &Endpoint| match remaining.remove(&endpoint.addresses) {
        Some(same) => same == endpoint,
        None => !gets_traffic(endpoint),
    };
    before.endpoints.iter().all(&mut stays_or_is_idle) && remaining.is_empty()
}

impl Draft {
    fn changes_nothing(&self, labels: &Labels) -> bool {
        self.of.as_ref().is_some_and(|slice| slice.contents == self.contents && slice.meta.labels == *labels)
    }
}

fn pack_family(view: &View<'_>, family: Family, tally: &mut SliceCounts) -> PackedSlices {
    let (owned, foreign): (Vec<Arc<EndpointSlice>>, Vec<_>) = view
        .existing
        .iter()
        .filter(|slice| slice.contents.family == Some(family))
        .cloned()
        .partition(|slice| is_owned(slice, view.service));
    let mut by_ports: BTreeMap<Vec<Port>, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in owned {
        by_ports.entry(sorted_ports(&slice.contents.ports)).or_default().push(slice);
    }
    let mut all = PackedSlices { dropped: foreign, ..PackedSlices::default() };
    let mut needed = 0;
    for group in &view.members.groups {
        let existing = by_ports.remove(&sorted_ports(&group.ports)).unwrap_or_default();
        let endpoints = group.endpoints(view.service, family);
        tally.endpoints += endpoints.len();
        needed += endpoints.len().div_ceil(view.max_endpoints);
        let ports = group.ports.clone();
        let load = PackingInput {
            family,
            ports,
            endpoints,
            max_endpoints: view.max_endpoints,
            labels: view.labels,
            may_be_removed: view.may_be_removed,
        };
        let mut packed = pack(&existing, load);
        all.kept.append(&mut packed.kept);
        all.drafts.append(&mut packed.drafts);
        all.dropped.append(&mut packed.dropped);
        all.added += packed.added;
        all.removed += packed.removed;
    }
    // No pod has the ports of these slices: the slices are deleted, except those with an endpoint whose pod cannot be
    // decoded. As in upstream, the endpoints do not count as removed.
    for slice in by_ports.into_values().flatten() {
        if slice.contents.endpoints.iter().all(|endpoint| (view.may_be_removed)(endpoint)) {
            all.dropped.push(slice);
        } else {
            all.kept.push(slice);
        }
    }
    tally.needed_slices = needed.max(1);
    keep_empty_slice(&mut all, view, family);
    all
}

/// Keeps or creates one empty slice if there is no other: it shows that the Service was reconciled.
fn keep_empty_slice(all: &mut PackedSlices, view: &View<'_>, family: Family) {
    if !all.kept.is_empty() || !all.drafts.is_empty() {
        return;
    }
    let is_placeholder = |slice: &Arc<EndpointSlice>| {
        slice.contents.endpoints.is_empty()
            && slice.contents.ports.is_empty()
            && slice.meta.labels == *view.labels
            && is_owned(slice, view.service)
    };
    match all.dropped.iter().position(is_placeholder) {
        Some(at) => {
            let placeholder = all.dropped.remove(at);
            all.kept.push(placeholder);
        }
        None => {
            let contents = Contents { family: Some(family), ports: Arc::new([]), endpoints: Vec::new() };
            all.drafts.push(Draft { of: None, contents });
        }
    }
}
