//! Tables for each decision, and random histories over a small model of a cluster.

mod builders;
mod histories;
mod keys;
mod model;
mod refused;
mod revision;
mod scale;
mod status;
mod sync_mode;
