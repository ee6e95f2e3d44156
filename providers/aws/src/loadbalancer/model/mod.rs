//! The desired stack of a Service, and the steps that lead to it. No IO.

pub(super) mod build;
pub(super) mod certificates;
pub(super) mod claims;
pub(super) mod classic;
pub(super) mod classic_groups;
pub(super) mod diff;
pub(super) mod endpoint_service;
pub(super) mod failures;
pub(super) mod following;
pub(super) mod node_rules;
pub(super) mod range_rules;
pub(super) mod registration;
pub(super) mod subnet_changes;
pub(super) mod subnets;
pub(super) mod target_change;
pub(super) mod traffic_shift;
pub(super) mod user_groups;
