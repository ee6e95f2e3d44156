//! What a pod asks of the node that it runs on: node selectors, affinity, tolerations of taints, claims of devices.

pub mod claim_entry;
pub mod node_selector;
pub mod placement;
pub mod taint;
