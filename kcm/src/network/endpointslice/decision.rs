//! The input and the result of a decision on the slices of a Service.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::endpoint_slice::Endpoint;
use kinds::intern::Labels;
use kinds::ip::Family;
use kinds::{EndpointSlice, Service};
use runtime::events::EventType;

use super::desired::Members;
use super::topology::{EndpointsByZone, Shares};
use crate::network::service_endpoints::slice_writes::Plan;

/// The input of a decision.
pub struct View<'a> {
    /// The Service.
    pub service: &'a Service,
    /// Its pods.
    pub members: &'a Members,
    /// Its slices, sorted by name.
    pub existing: &'a [Arc<EndpointSlice>],
    /// The labels that slices should have.
    pub labels: &'a Labels,
    /// Maximum number of endpoints in a slice.
    pub max_endpoints: usize,
    /// Returns false for a surplus endpoint that has to be kept, because its pod may exist but cannot be decoded.
    pub may_be_removed: &'a dyn Fn(&Endpoint) -> bool,
    /// The zones' shares of the cluster's CPU; `None` when they are unknown.
    pub shares: Option<&'a Shares>,
    /// True if endpoints of this Service were allocated to zones before.
    pub was_allocated: bool,
}

/// An event about the Service.
pub type EventText = (EventType, &'static str, String);

/// A decision.
#[derive(Debug, Default)]
pub struct Decision {
    /// Writes that must be done now.
    pub now: Plan,
    /// Writes that may be delayed: they remove endpoints that get no traffic.
    pub later: Plan,
    /// Events to record.
    pub events: Vec<EventText>,
    /// The number of endpoints for each zone, in the families where they are allocated.
    pub allocated: BTreeMap<Family, EndpointsByZone>,
    /// Numbers for metrics, by family.
    pub tallies: BTreeMap<Family, SliceCounts>,
}

/// Counts of one decision on a family.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SliceCounts {
    /// Number of desired endpoints.
    pub endpoints: usize,
    /// Number of slices after the writes.
    pub slices: usize,
    /// Number of slices that would suffice for the desired endpoints.
    pub needed_slices: usize,
    /// Endpoints to add.
    pub added: usize,
    /// Endpoints to remove.
    pub removed: usize,
}
