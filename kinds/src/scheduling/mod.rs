//! Rules that place a pod on a node: node selectors, affinity, taints and tolerations.

pub mod node_selector;
pub mod placement;
pub mod taint;
