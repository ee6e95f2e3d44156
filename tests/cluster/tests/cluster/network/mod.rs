//! Endpoints, and the nodes' ranges of pod addresses.

pub mod ending_services;
pub mod endpoint_lag;
pub mod endpoints;
pub mod node_ipam;
