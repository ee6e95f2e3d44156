//! Kinds of the API groups `networking.k8s.io` and `discovery.k8s.io`.

pub mod endpoint;
pub mod endpoint_slice;
pub mod ip_address;
pub mod service_cidr;
