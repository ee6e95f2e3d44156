//! Kinds of the API group `resource.k8s.io`.

pub mod claim_edit;
pub mod claim_state;
pub mod device_allocation;
pub mod device_taint_rule;
pub mod pool_status_request;
pub mod published_slice;
pub mod resource_claim;
pub mod resource_claim_template;
pub mod resource_slice;
