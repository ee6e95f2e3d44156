//! Tables of decisions, and random histories.

pub mod builders;
mod claim_table;
mod volume_table;
