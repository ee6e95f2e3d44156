//! Tests of decisions, hints, packing, metrics, reconciles, and random histories.

mod builders;
mod hints;
mod histories;
mod metrics;
mod packing;
mod reconcile;
mod tables;
