//! Tables of decisions, the index, and random histories.

mod binders;
pub mod builders;
mod claim_table;
mod index;
mod model;
mod provision_table;
mod provisioner;
mod recycler;
mod volume_table;
