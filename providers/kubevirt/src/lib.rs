//! KubeVirt as a cloud provider: the nodes of a tenant cluster are virtual machines of an infrastructure cluster, and
//! its load balancers are Services there.
//!
//! The cloud's API is a Kubernetes API. Instances are VirtualMachineInstances of one namespace. The load balancer of a
//! Service is a Service of type LoadBalancer in the same namespace. Its address comes from the infrastructure cluster's
//! own load balancer controller. Names and labels are the same as cloud-provider-kubevirt's, so that each can replace
//! the other.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod config;
mod desired;
mod error;
mod infra;
mod instances;
mod load_balancers;
mod objects;
mod ownership;
mod provider;
mod slices;
mod virtual_machines;

pub use config::{Config, LoadBalancerConfig, SettingError, Targets};
pub use provider::{build, factory};
