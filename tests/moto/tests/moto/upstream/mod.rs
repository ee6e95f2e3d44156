//! The real cloud-provider-aws and the real AWS Load Balancer Controller in the same cluster and the same AWS account
//! as ccm: next to it, and before and after it.

pub mod account;
pub mod coexistence;
pub mod shared;
pub mod takeover;
