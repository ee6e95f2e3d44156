//! Policy: the desired mirrored slices of Endpoints.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use kinds::endpoint::{LAST_CHANGE_TRIGGER_TIME, Port};
use kinds::endpoint_slice::{Conditions, Contents, Endpoint, MANAGED_BY, MIRRORED, SERVICE_NAME};
use kinds::endpoints::{Address, Subset};
use kinds::intern::Labels;
use kinds::ip::Family;
use kinds::{EndpointSlice, Endpoints, Str};

use crate::network::service_endpoints::identity::{Identity, identity, is_same};
use crate::network::service_endpoints::slice_writes::Plan;
use crate::network::service_endpoints::subsets::{repack, sorted_ports};

/// A decision.
#[derive(Debug, Default)]
pub struct Decision {
    /// The writes.
    pub plan: Plan,
    /// The endpoints that they add, change and remove.
    pub changes: EndpointChanges,
    /// Number of invalid addresses.
    pub invalid: usize,
    /// Number of addresses that are not mirrored, including invalid ones.
    pub skipped: usize,
    /// The subsets overlap too much: nothing is mirrored.
    pub is_too_large: bool,
}

/// Endpoints that a decision adds, changes and removes, for the metrics. Upstream:
/// pkg/controller/endpointslicemirroring, totalsByAction.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct EndpointChanges {
    /// Endpoints that are not in the slice that is kept for their ports.
    pub added: usize,
    /// Endpoints that keep their identity and change in another field.
    pub updated: usize,
    /// Endpoints of that slice that are no longer desired; if none are desired on a subset's ports, the endpoints of
    /// all slices with these ports.
    pub removed: usize,
}

impl EndpointChanges {
    /// Compares the endpoints of a slice with the desired ones, whose identities are distinct.
    fn of(existing: &[Endpoint], wanted: &[Endpoint]) -> Self {
        let mut left: HashMap<Identity<'_>, &Endpoint> =
            wanted.iter().map(|endpoint| (identity(endpoint), endpoint)).collect();
        let mut changes = Self::default();
        for endpoint in existing {
            match left.remove(&identity(endpoint)) {
                None => changes.removed += 1,
                Some(wanted) => changes.updated += usize::from(!is_same(endpoint, wanted)),
            }
        }
        changes.added = left.len();
        changes
    }

    fn append(&mut self, other: Self) {
        self.added += other.added;
        self.updated += other.updated;
        self.removed += other.removed;
    }
}

/// Returns the labels of mirrored slices: those of the Endpoints, the Service's name, and the manager.
pub fn labels(endpoints: &Endpoints) -> Labels {
    let reserved = [SERVICE_NAME, MANAGED_BY];
    let own = endpoints.meta.labels.iter().filter(|(key, _)| !reserved.contains(&&**key)).cloned();
    let more: [(Str, Str); 2] =
        [(SERVICE_NAME.into(), endpoints.meta.name.clone()), (MANAGED_BY.into(), MIRRORED.into())];
    sorted(own.chain(more))
}

/// Returns the annotations of mirrored slices: those of the Endpoints, except the time of the last change.
pub fn annotations(endpoints: &Endpoints) -> Labels {
    sorted(endpoints.annotations.iter().filter(|(key, _)| **key != *LAST_CHANGE_TRIGGER_TIME).cloned())
}

fn sorted(pairs: impl Iterator<Item = (Str, Str)>) -> Labels {
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_unstable();
    pairs.into()
}

/// Returns the family and the endpoint of an address; `None` if it is invalid. Upstream:
/// pkg/controller/endpointslicemirroring, addressToEndpoint.
fn endpoint(address: &Address, ready: bool) -> Option<(Family, Endpoint)> {
    let ip = address.ip.canonical()?;
    let endpoint = Endpoint {
        conditions: Conditions { ready: Some(ready), serving: None, terminating: None },
        hostname: Some(address.hostname.clone()).filter(|name| !name.is_empty()),
        target: address.target.clone(),
        node: address.node.clone(),
        zone: None,
        hints: None,
        addresses: [ip.clone()].into(),
    };
    Some((ip.family()?, endpoint))
}

/// Returns the endpoints of a subset by family, up to `max_endpoints`, those that are ready first.
fn endpoints_of(subset: &Subset, max_endpoints: usize, decision: &mut Decision) -> BTreeMap<Family, Vec<Endpoint>> {
    let mut by_family: BTreeMap<Family, Vec<Endpoint>> = BTreeMap::new();
    let (mut taken, mut invalid) = (0, 0);
    for (list, ready) in [(&subset.ready, true), (&subset.not_ready, false)] {
        for address in list {
            if taken == max_endpoints {
                break;
            }
            match endpoint(address, ready) {
                Some((family, endpoint)) => {
                    by_family.entry(family).or_default().push(endpoint);
                    taken += 1;
                }
                None => invalid += 1,
            }
        }
    }
    decision.invalid += invalid;
    decision.skipped += subset.ready.len() + subset.not_ready.len() - taken;
    by_family.values_mut().for_each(keep_last_of_each_identity);
    by_family
}

/// Removes all but the last endpoint of each identity: Endpoints may contain an address in two notations, or for two
/// pods with the same name.
fn keep_last_of_each_identity(endpoints: &mut Vec<Endpoint>) {
    let mut known = HashSet::new();
    let is_last: Vec<bool> = endpoints.iter().rev().map(|endpoint| known.insert(identity(endpoint))).collect();
    let mut is_last = is_last.into_iter().rev();
    endpoints.retain(|_| is_last.next().unwrap_or(true));
}

/// The family and the sorted ports of slices.
type SliceGroup = (Option<Family>, Vec<Port>);

/// Compares Endpoints with the slices that mirror them, which are sorted by name. Upstream:
/// pkg/controller/endpointslicemirroring, reconcile.
pub fn decide(endpoints: &Endpoints, existing: &[Arc<EndpointSlice>], max_endpoints: usize) -> Decision {
    let mut decision = Decision::default();
    let labels = labels(endpoints);
    let annotations = annotations(endpoints);
    let Ok(subsets) = repack(&endpoints.subsets) else { return Decision { is_too_large: true, ..Decision::default() } };
    // There may be tens of thousands of subsets and of slices: a slice is found by its ports.
    let mut left: BTreeMap<SliceGroup, VecDeque<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in existing {
        let contents = &slice.contents;
        left.entry((contents.family, sorted_ports(&contents.ports))).or_default().push_back(slice);
    }
    for subset in subsets {
        let mut by_family = endpoints_of(&subset, max_endpoints, &mut decision);
        for family in [Family::V4, Family::V6] {
            let contents = Contents {
                family: Some(family),
                ports: subset.ports.clone().into(),
                endpoints: by_family.remove(&family).unwrap_or_default(),
            };
            // Further slices with these ports stay in `left`: they are reused or deleted.
            let same_ports = left.get_mut(&(Some(family), subset.ports.clone()));
            if contents.endpoints.is_empty() {
                let removed = same_ports.iter().flat_map(|slices| slices.iter());
                decision.changes.removed += removed.map(|slice| slice.contents.endpoints.len()).sum::<usize>();
                continue;
            }
            let Some(slice) = same_ports.and_then(VecDeque::pop_front).cloned() else {
                decision.changes.added += contents.endpoints.len();
                decision.plan.create.push(contents);
                continue;
            };
            let changes = EndpointChanges::of(&slice.contents.endpoints, &contents.endpoints);
            decision.changes.append(changes);
            let same = changes == EndpointChanges::default()
                && slice.meta.labels == labels
                && slice.annotations == annotations
                && !is_of_another(&slice, endpoints);
            if !same {
                decision.plan.update.push((slice, contents));
            }
        }
    }
    let mut surplus: Vec<Arc<EndpointSlice>> = left.into_values().flatten().cloned().collect();
    surplus.sort_unstable_by(|a, b| a.meta.name.cmp(&b.meta.name));
    decision.plan.delete = surplus;
    decision.plan.recycle(|_| true);
    decision
}

/// Returns true if a slice mirrors previous Endpoints of the same name.
fn is_of_another(slice: &EndpointSlice, endpoints: &Endpoints) -> bool {
    let meta = &endpoints.meta;
    slice.meta.owners.iter().any(|o| &*o.kind == "Endpoints" && o.name == meta.name && o.uid != meta.uid)
}
