//! Observed state: reads from AWS, cached between reconciles.

pub(super) mod balancer_state;
pub(super) mod balancer_states;
pub(super) mod certificates;
pub(super) mod classic;
pub(super) mod convert;
pub(super) mod interfaces;
pub(super) mod inventory;
pub(super) mod misses;
pub(super) mod network;
pub(super) mod openings;
pub(super) mod refusals;
pub(super) mod refused_targets;
pub(super) mod report;
pub(super) mod stack;
pub(super) mod vpc;
