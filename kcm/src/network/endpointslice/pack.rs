//! Packs endpoints into slices with as few writes as possible.
//!
//! Slices are never rebalanced: an endpoint stays in its slice. New endpoints fill the slices that have to be written
//! anyway, then full new slices. The remaining endpoints go to the fullest unchanged slice that has room for all of
//! them, or else to a new slice. Upstream packs them in any order; here they keep the given order, so that pods that
//! were created together share slices. Upstream: k8s.io/endpointslice, reconcileByPortMapping.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use kinds::EndpointSlice;
use kinds::endpoint::Port;
use kinds::endpoint_slice::{Contents, Endpoint};
use kinds::intern::Labels;
use kinds::ip::Family;

use crate::network::service_endpoints::identity::{Identity, identity, is_same};

/// A slice to write.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The existing slice to update; `None`: a new slice is created.
    pub of: Option<Arc<EndpointSlice>>,
    /// Its new contents.
    pub contents: Contents,
}

/// Slices by their treatment.
#[derive(Debug, Default)]
pub struct PackedSlices {
    /// Unchanged slices.
    pub kept: Vec<Arc<EndpointSlice>>,
    /// Slices to write.
    pub drafts: Vec<Draft>,
    /// Slices to delete: they became empty, belong to another Service, or have ports that no pod has.
    pub dropped: Vec<Arc<EndpointSlice>>,
    /// Number of added endpoints.
    pub added: usize,
    /// Number of removed endpoints.
    pub removed: usize,
}

/// The input of packing.
pub struct PackingInput<'a> {
    /// Family of the addresses.
    pub family: Family,
    /// Ports of all endpoints.
    pub ports: Arc<[Port]>,
    /// The desired endpoints; new ones are packed in this order.
    pub endpoints: Vec<Endpoint>,
    /// Maximum number of endpoints in a slice.
    pub max_endpoints: usize,
    /// The labels that slices should have.
    pub labels: &'a Labels,
    /// Returns false for a surplus endpoint that has to be kept, because its pod may exist but cannot be decoded.
    pub may_be_removed: &'a dyn Fn(&Endpoint) -> bool,
}

/// An endpoint that stays in its slice.
enum Slot {
    /// The index of a desired endpoint.
    Wanted(usize),
    /// The index, in the slice, of a surplus endpoint that is kept.
    Surplus(usize),
}

/// Packs endpoints of one family and one set of ports. `existing` are the slices of this family with these ports,
/// sorted by name.
pub fn pack(existing: &[Arc<EndpointSlice>], load: PackingInput<'_>) -> PackedSlices {
    let mut packed = PackedSlices::default();
    let wanted: HashMap<Identity<'_>, usize> =
        load.endpoints.iter().enumerate().map(|(at, endpoint)| (identity(endpoint), at)).collect();
    let mut placed = vec![false; load.endpoints.len()];
    for slice in existing {
        let had = &slice.contents.endpoints;
        let mut slots = Vec::with_capacity(had.len());
        let mut changed = slice.meta.labels != *load.labels;
        for (at, endpoint) in had.iter().enumerate() {
            match wanted.get(&identity(endpoint)).copied().filter(|at| !placed[*at]) {
                Some(wanted) => {
                    placed[wanted] = true;
                    changed |= !is_same(endpoint, &load.endpoints[wanted]);
                    slots.push(Slot::Wanted(wanted));
                }
                None if wanted.contains_key(&identity(endpoint)) || (load.may_be_removed)(endpoint) => changed = true,
                None => slots.push(Slot::Surplus(at)),
            }
        }
        packed.removed += had.len() - slots.len();
        if slots.is_empty() && !had.is_empty() {
            packed.dropped.push(slice.clone());
        } else if changed {
            let endpoints = slots.iter().map(|slot| match slot {
                Slot::Wanted(at) => load.endpoints[*at].clone(),
                Slot::Surplus(at) => had[*at].clone(),
            });
            let contents = Contents { endpoints: endpoints.collect(), ..without_endpoints(slice) };
            packed.drafts.push(Draft { of: Some(slice.clone()), contents });
        } else {
            packed.kept.push(slice.clone());
        }
    }
    // If several endpoints have one identity, only the last one counts.
    let last = |at: usize| wanted.get(&identity(&load.endpoints[at])) == Some(&at);
    let left = (0..load.endpoints.len()).rev().filter(|at| !placed[*at] && last(*at));
    let mut left: Vec<Endpoint> = left.map(|at| load.endpoints[at].clone()).collect();
    packed.added = left.len();
    fill(&mut packed, &mut left, &load);
    packed
}

fn without_endpoints(slice: &EndpointSlice) -> Contents {
    Contents { family: slice.contents.family, ports: slice.contents.ports.clone(), endpoints: Vec::new() }
}

/// Packs the endpoints in `left` into slices, last first.
fn fill(packed: &mut PackedSlices, left: &mut Vec<Endpoint>, load: &PackingInput<'_>) {
    let top_up = |endpoints: &mut Vec<Endpoint>, left: &mut Vec<Endpoint>| {
        let room = load.max_endpoints.saturating_sub(endpoints.len()).min(left.len());
        endpoints.extend(left.drain(left.len() - room..).rev());
    };
    packed.drafts.sort_by_key(|draft| Reverse(draft.contents.endpoints.len()));
    packed.drafts.iter_mut().for_each(|draft| top_up(&mut draft.contents.endpoints, left));
    while !left.is_empty() {
        let fits = |slice: &EndpointSlice| slice.contents.endpoints.len() + left.len() <= load.max_endpoints;
        let best = (0..packed.kept.len())
            .filter(|at| left.len() < load.max_endpoints && fits(&packed.kept[*at]))
            .max_by_key(|at| packed.kept[*at].contents.endpoints.len());
        let (of, mut contents) = match best {
            Some(at) => {
                let slice = packed.kept.remove(at);
                let mut contents = slice.contents.clone();
                contents.endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
                (Some(slice), contents)
            }
            None => {
                let ports = load.ports.clone();
                (None, Contents { family: Some(load.family), ports, endpoints: Vec::new() })
            }
        };
        top_up(&mut contents.endpoints, left);
        packed.drafts.push(Draft { of, contents });
    }
}
