//! What the controllers of pods share.

pub mod disruption_target;
pub mod indexes;
pub mod status_delay;
