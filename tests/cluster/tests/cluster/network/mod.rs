//! Endpoints, and the nodes' ranges of pod addresses.

pub mod endpoints;
pub mod node_ipam;
