//! Kinds of the API group `batch`.

pub mod cronjob;
pub mod job;
