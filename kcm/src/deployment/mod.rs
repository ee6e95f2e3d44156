//! The deployment controller: keeps ReplicaSets so that a Deployment's pods follow its template and scale.
//!
//! It never holds more pods than the strategy's surge allows, never takes away available pods beyond what may be
//! missing, and keeps history to go back to. The policy is pure: [`decide`] chooses what a sync does,
//! [`decide_revision`] knows revisions and rollbacks, [`decide_scale`] knows numbers of pods, [`decide_status`] reports.

pub mod decide;
pub mod decide_revision;
pub mod decide_scale;
pub mod decide_status;

#[cfg(test)]
mod tests;
