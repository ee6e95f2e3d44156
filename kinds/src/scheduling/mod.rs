//! Requirements of a pod on its node: node selectors, affinity, tolerations of taints, claims of devices.

pub mod claim_entry;
pub mod node_selector;
pub mod placement;
pub mod taint;
