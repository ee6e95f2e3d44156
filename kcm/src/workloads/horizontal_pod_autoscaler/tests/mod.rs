//! Tables of decisions, histories that must keep their bounds, and reconciles against a simulated API server.

mod pace;
mod reconcile;
mod replicas;
mod verdict;

use super::decide::Gates;

/// All gates on.
const GATES: Gates = Gates {
    scale_to_zero: true,
    generation: true,
    configurable_tolerance: true,
    pod_level_resources: true,
    optimized_selectors: true,
};
