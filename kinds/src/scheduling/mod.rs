//! Rules that place a pod on a node: node selectors, affinity, taints and tolerations; kinds of the API group
//! `scheduling.k8s.io`.

pub mod node_selector;
pub mod placement;
pub mod pod_group;
pub mod taint;
