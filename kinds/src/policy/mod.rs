//! Kinds of the API group `policy`.

pub mod pod_disruption_budget;
