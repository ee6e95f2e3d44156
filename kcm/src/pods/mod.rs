//! Shared parts of the controllers of pods.

pub mod availability;
pub mod control;
pub mod creation_gate;
pub mod disruption_target;
pub mod indexes;
pub mod keys;
pub mod ranking;
pub mod refusals;
pub mod status_delay;
pub mod status_write;
