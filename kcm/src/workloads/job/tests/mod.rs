//! Tables of Job decisions for upstream's cases, whole reconciles, and random histories of a small model of the API
//! server.

pub mod builders;
mod failures;
mod histories;
mod indexed;
mod keys;
mod orphans;
mod reconcile;
mod tables;
