//! Services, their endpoints, and addresses.

pub mod endpoints;
pub mod endpointslice;
pub mod endpointslice_mirroring;
pub mod node_ipam;
pub mod service_cidr;
pub mod service_endpoints;
