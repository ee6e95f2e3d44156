//! AWS as a cloud provider: instances, their tags, routes, Network Load Balancers, and existing Classic Load Balancers.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod budget;
mod client;
mod config;
mod error;
mod http;
mod ini;
mod instances;
mod loadbalancer;
mod provider;
mod role;
mod routes;
mod session;
mod tagging;
mod tags;

pub use aws_credential_types::Credentials;
pub use provider::{build_with, build_with_visibility, factory};
