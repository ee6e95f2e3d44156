//! The contract between the cloud controllers and a cloud: desired models go in, honest answers come out.
//!
//! Controllers hand a provider plain data and never a Kubernetes object; a provider answers with states, never with
//! waits. What a provider does not know it calls unknown: only [`InstanceState::Gone`] may ever cost a Node its life,
//! and only [`Deletion::Gone`] lets a Service's finalizer go. `docs/providers.md` is the guide for writing one.
//!
//! What holds for every method of every trait here:
//!
//! * It ends: the provider sets its own timeouts, and a long wait is a state with a `retry_after`.
//! * It may be dropped at any await, and the process may die there. That is the same as an answer that got lost: the
//!   next call finds what was made and goes on from it.
//! * It may be called for different objects at the same time. Controllers call it for one object one at a time, but a
//!   predecessor's last call may still be under way when a new leader makes its first.

mod error;
mod factory;
mod instance;
mod load_balancer;
mod model;
mod provider;
mod records;
mod route;
mod tagging;
mod target;

pub use async_trait::async_trait;
pub use ipnet::IpNet;

pub use error::{CloudError, ErrorKind};
pub use factory::{BuildContext, ConfigError, Factory, build, parse_config};
#[cfg(feature = "doubles")]
pub use instance::MockInstances;
pub use instance::{Address, AddressKind, Instance, InstanceRef, InstanceState, Instances};
#[cfg(feature = "doubles")]
pub use load_balancer::MockLoadBalancers;
pub use load_balancer::{
    Balancer, ClassFilter, Deletion, EndpointHealth, Ensured, Fate, Features, Forecast, Listener, LoadBalancers,
    Observed, Owned, Phase, Progress, ReadinessGate, Targeting,
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
#[cfg(feature = "doubles")]
pub use tagging::MockTagging;
pub use tagging::Tagging;
pub use target::{EndpointTarget, Health, NodeTarget, ObservedTarget, PodRef, TargetId, Targets};
