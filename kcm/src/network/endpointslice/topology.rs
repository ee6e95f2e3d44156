//! The zones of the cluster: their CPU, and the Services with endpoints allocated to them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use kinds::intern::label;
use kinds::ip::Family;
use kinds::meta::ObjectKey;
use kinds::node::ZONE;
use kinds::{Node, Str};
use runtime::lock::lock;
use runtime::store::Change;

/// Share by which a zone may be overloaded before endpoints are reallocated. Upstream:
/// k8s.io/endpointslice/topologycache, overloadThreshold.
const OVERLOAD: f64 = 0.2;

/// Nodes with these labels are not counted.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Number of endpoints for each zone.
pub type EndpointsByZone = BTreeMap<Str, usize>;

/// Shares of the cluster's CPU by zone, for at least two zones.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares(BTreeMap<Str, f64>);

/// The number of endpoints that a zone should use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allocation {
    /// The largest number.
    pub max: usize,
    /// The ideal number.
    pub desired: f64,
}

impl Shares {
    /// Returns the shares, given the CPU of each zone in millicores; `None` with fewer than two zones, or without any
    /// CPU.
    pub fn of(zones: &BTreeMap<Str, i64>) -> Option<Self> {
        let total: i64 = zones.values().sum();
        let share = |(zone, cpu): (&Str, &i64)| (zone.clone(), *cpu as f64 / total as f64);
        (total > 0 && zones.len() >= 2).then(|| Self(zones.iter().map(share).collect()))
    }

    /// Returns the smallest number of endpoints with which a zone of this share is not overloaded.
    fn min_endpoints(total: f64, share: f64) -> usize {
        (total * share * (1.0 / (1.0 + OVERLOAD))).ceil() as usize
    }

    /// Allocates this number of endpoints to the zones. Upstream: k8s.io/endpointslice/topologycache, getAllocations.
    ///
    /// # Errors
    /// There are too few endpoints. The text is part of an event.
    pub fn allocations(&self, endpoints: usize) -> Result<BTreeMap<Str, Allocation>, String> {
        let too_few = |what: &str| Err(format!("{what} ({endpoints} endpoints, {} zones)", self.0.len()));
        if self.0.len() > endpoints {
            return too_few("Insufficient number of endpoints");
        }
        let min_endpoints = |share: f64| Self::min_endpoints(endpoints as f64, share);
        let needed: usize = self.0.values().map(|share| min_endpoints(*share)).sum();
        if needed > endpoints {
            return too_few(
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold",
            );
        }
        let allocation = |(zone, share): (&Str, &f64)| {
            let min_endpoints = min_endpoints(*share);
            let desired = (endpoints as f64 * share).max(min_endpoints as f64);
            (zone.clone(), Allocation { max: min_endpoints + endpoints - needed, desired })
        };
        Ok(self.0.iter().map(allocation).collect())
    }

    /// Returns true if endpoints are allocated, and a zone would get too much traffic for its endpoints, or the shares
    /// are no longer known. Upstream: k8s.io/endpointslice/topologycache, serviceOverloaded.
    pub fn is_overloaded(shares: Option<&Self>, allocated: &EndpointsByZone) -> bool {
        if allocated.is_empty() {
            return false;
        }
        let total = allocated.values().sum::<usize>() as f64;
        shares.is_none_or(|shares| {
            shares.0.iter().any(|(zone, share)| {
                allocated.get(zone).is_none_or(|endpoints| *endpoints < Self::min_endpoints(total, *share))
            })
        })
    }
}

/// The state of all zones. Each change updates it, so that no reconcile counts the nodes.
#[derive(Debug, Default)]
pub struct Topology {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Counted nodes with their zone and CPU; `None` if one of the two is missing.
    nodes: HashMap<Str, Option<(Str, i64)>>,
    /// Number of nodes without zone or CPU.
    incomplete: usize,
    /// Nodes and CPU in each zone.
    zones: BTreeMap<Str, (usize, i64)>,
    services: HashMap<ObjectKey, BTreeMap<Family, EndpointsByZone>>,
}

/// Returns the zone and CPU that a node contributes: `None` if it is not counted, `Some(None)` if one of the two is
/// missing.
fn contribution(node: &Node) -> Option<Option<(Str, i64)>> {
    if node.ready() != Some("True") {
        return None;
    }
    if EXCLUDED.iter().any(|excluded| label(&node.meta.labels, excluded).is_some()) {
        return None;
    }
    let zone = label(&node.meta.labels, ZONE).filter(|zone| !zone.is_empty());
    Some(zone.filter(|_| node.cpu_millis != 0).map(|zone| (zone.into(), node.cpu_millis)))
}

impl State {
    fn put(&mut self, name: &Str, contribution: Option<Option<(Str, i64)>>) {
        match self.nodes.remove(name) {
            Some(None) => self.incomplete -= 1,
            Some(Some((zone, cpu))) => {
                if let Some(sum) = self.zones.get_mut(&zone) {
                    *sum = (sum.0 - 1, sum.1 - cpu);
                    if sum.0 == 0 {
                        self.zones.remove(&zone);
                    }
                }
            }
            None => {}
        }
        let Some(contribution) = contribution else { return };
        match &contribution {
            None => self.incomplete += 1,
            Some((zone, cpu)) => {
                let sum = self.zones.entry(zone.clone()).or_default();
                *sum = (sum.0 + 1, sum.1 + cpu);
            }
        }
        self.nodes.insert(name.clone(), contribution);
    }

    fn shares(&self) -> Option<Shares> {
        let zones = self.zones.iter().map(|(zone, (_, cpu))| (zone.clone(), *cpu)).collect();
        Shares::of(&zones).filter(|_| self.incomplete == 0)
    }
}

impl Topology {
    /// Applies a change of a node. Returns the Services whose endpoints have to be reallocated.
    pub fn apply(&self, change: &Change<'_, Node>) -> Vec<ObjectKey> {
        let node = |node: Option<&Arc<Node>>| node.and_then(|node| contribution(node));
        let (before, after) = (node(change.old), node(change.new));
        let Some(name) = change.new.or(change.old).map(|node| node.meta.name.clone()) else { return Vec::new() };
        if before == after {
            return Vec::new();
        }
        let mut state = self.lock();
        state.put(&name, after);
        let shares = state.shares();
        let overloaded = |families: &BTreeMap<Family, EndpointsByZone>| {
            families.values().any(|allocated| Shares::is_overloaded(shares.as_ref(), allocated))
        };
        state.services.iter().filter(|(_, families)| overloaded(families)).map(|(key, _)| key.clone()).collect()
    }

    /// Returns the zones' shares of the CPU, if they are known.
    pub fn shares(&self) -> Option<Shares> {
        self.lock().shares()
    }

    /// Returns true if endpoints of a Service are allocated to zones.
    pub fn is_allocated(&self, key: &ObjectKey) -> bool {
        self.lock().services.contains_key(key)
    }

    /// Stores the endpoints of a Service that are allocated to zones; removes an empty allocation.
    pub fn set(&self, key: &ObjectKey, allocated: BTreeMap<Family, EndpointsByZone>) {
        let mut state = self.lock();
        if allocated.is_empty() {
            state.services.remove(key);
        } else {
            state.services.insert(key.clone(), allocated);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}
