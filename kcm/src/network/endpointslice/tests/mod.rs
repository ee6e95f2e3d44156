mod builders;
mod hints;
mod histories;
mod packing;
mod reconcile;
mod tables;
