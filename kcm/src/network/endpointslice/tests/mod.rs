mod builders;
mod hints;
mod histories;
mod metrics;
mod packing;
mod reconcile;
mod tables;
