//! The contract between the cloud controllers and a cloud: desired state in, observed state out.
//!
//! Controllers pass plain data to a provider, never a Kubernetes object. A provider returns states and never waits. A
//! state that it cannot determine is unknown: only [`InstanceState::Gone`] allows the deletion of a Node, and only
//! [`Deletion::Gone`] the removal of a Service's finalizer. `docs/providers.md` explains how to write a provider.
//!
//! Rules for every method of every trait here:
//!
//! * It always returns: the provider sets its own timeouts. Instead of a long wait, it returns the time of the next
//!   call, such as [`Progress::After`] or [`Deletion::InProgress`].
//! * It may be dropped at any await, and the process may die there. That is equivalent to a lost response: the next
//!   call finds the created resources and continues from there.
//! * It may be called concurrently: reads for any objects, changes for different objects. For one object, a leader
//!   makes at most one changing call at a time. But the last call of the previous leader may still run when a new
//!   leader makes its first.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod error;
mod factory;
mod instance;
mod load_balancer;
mod model;
mod provider;
mod records;
mod route;
mod secret;
mod tagging;
mod target;

pub use async_trait::async_trait;
pub use ipnet::IpNet;

pub use error::{CloudError, ErrorKind};
pub use factory::{BuildContext, ConfigError, Factory, build, parse_config};
#[cfg(feature = "doubles")]
pub use instance::MockInstances;
pub use instance::{
    Address, AddressKind, Instance, InstanceFeatures, InstanceRef, InstanceState, Instances, Taint, TaintEffect,
};
#[cfg(feature = "doubles")]
pub use load_balancer::MockLoadBalancers;
pub use load_balancer::{
    ClassFilter, Deletion, EndpointHealth, Ensured, Features, Followed, Forecast, Listener, LoadBalancers, Observed,
    ObservedLoadBalancer, Owned, Phase, PlannedChange, Progress, ReadinessGate, Targeting,
};
pub use model::{
    Ingress, IpFamily, IpFamilyPolicy, IpMode, LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus, OtherService,
    Port, PortStatus, Protocol, SessionAffinity, TargetPort, TrafficPolicy,
};
pub use provider::CloudProvider;
#[cfg(feature = "doubles")]
pub use provider::MockCloudProvider;
#[cfg(feature = "doubles")]
pub use records::MockRecords;
pub use records::Records;
#[cfg(feature = "doubles")]
pub use route::MockRoutes;
pub use route::{Route, RouteChange, RouteSpec, RouteTarget, Routes};
pub use secret::{SecretData, SecretName};
#[cfg(feature = "doubles")]
pub use tagging::MockTagging;
pub use tagging::Tagging;
pub use target::{EndpointTarget, Health, NodeTarget, ObservedTarget, PodRef, TargetId, Targets};
