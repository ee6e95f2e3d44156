//! Metrics under upstream's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use kinds::{OwnerRef, ResourceClaim};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{Counts, Labels, Metrics, gauges};
use runtime::store::Change;

/// Registers the counter of claims that are created from templates.
pub fn register_creations(metrics: &Metrics) -> Counts<4> {
    let help = "Number of ResourceClaims creation requests, categorized by creation status, admin access, and owning API group \
                and kind (either Pod or scheduling.k8s.io/PodGroup)";
    metrics.counts("dynamic_resource_allocation_resourceclaim_creates", help)
}

/// Returns the labels of a creation.
pub fn creation_labels(succeeded: bool, has_admin_access: bool, owner: &OwnerRef) -> Labels<4> {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    [
        ("status", if succeeded { "success" } else { "failure" }.to_owned()),
        ("admin_access", has_admin_access.to_string()),
        ("owner_api_group", group.to_owned()),
        ("owner_api_kind", owner.kind.to_string()),
    ]
}

/// Labels by which claims are counted: allocated, administrative access, source.
type Class = (bool, bool, &'static str);

/// Numbers of claims by their labels, kept up to date with each change.
#[derive(Debug, Default)]
pub struct Totals(Mutex<BTreeMap<Class, u64>>);

fn class(claim: &ResourceClaim) -> Class {
    let state = claim.state.as_deref();
    let is_from_template = state.and_then(|state| state.entry.as_deref()).is_some_and(|entry| !entry.is_empty());
    let source = match (claim.for_extended_resources, is_from_template) {
        (true, _) => "extended_resource",
        (false, true) => "resource_claim_template",
        (false, false) => "",
    };
    (state.is_some_and(|state| state.is_allocated), state.is_some_and(|state| state.has_admin_access), source)
}

impl Totals {
    /// Updates the numbers after a change of a claim.
    pub fn claim_changed(&self, change: &Change<'_, ResourceClaim>) {
        let mut totals = lock(&self.0);
        if let Some(old) = change.old.map(|old| class(old))
            && let Some(total) = totals.get_mut(&old)
        {
            *total = total.saturating_sub(1);
        }
        if let Some(new) = change.new {
            *totals.entry(class(new)).or_default() += 1;
        }
    }

    /// Returns the number of claims for each class that has claims.
    pub(super) fn samples(&self) -> Vec<(Labels<3>, f64)> {
        let totals = lock(&self.0);
        let present = totals.iter().filter(|(_, total)| **total > 0);
        let sample = |((allocated, admin, source), total): (&Class, &u64)| {
            let labels = [
                ("allocated", allocated.to_string()),
                ("admin_access", admin.to_string()),
                ("source", (*source).to_owned()),
            ];
            (labels, *total as f64)
        };
        present.map(sample).collect()
    }
}

impl Collector for Totals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Number of ResourceClaims, categorized by allocation status, admin access, and source. Source can be \
                    'resource_claim_template' (created from a template), 'extended_resource' (extended resources), or \
                    empty (manually created by a user).";
        gauges(&mut encoder, "dynamic_resource_allocation_resource_claims", help, self.samples())
    }
}
