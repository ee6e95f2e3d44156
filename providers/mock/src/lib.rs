//! A cloud in memory: instances, load balancers with targets and health, routes, and injected faults.
//!
//! It behaves like real clouds: created resources may take time to work and to be visible, deletions take time, a load
//! balancer has parts that are created one call after another, limits are reached, and responses get lost. [`Fault`]s,
//! which are set in the configuration file, in code or over HTTP, select the affected calls; all randomness comes from
//! the seed. Time is tokio's, so that paused time works.
//!
//! In tests, [`MockCloud`] is both the cloud (by its own methods) and the source of providers
//! ([`MockCloud::provider`]). In a throw-away cluster, `--cloud-provider=mock` with a configuration such as
//!
//! ```json
//! {"auto_instances": true, "listen": "127.0.0.1:9902"}
//! ```
//!
//! gives every Service of type LoadBalancer an address; `GET /state` on that port returns the state. The program
//! `mock-cloud` serves a cloud without a provider. Several processes can use it, each with the configuration
//! `{"url": "http://127.0.0.1:9902"}`.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod balancers;
mod cloud;
mod config;
mod fault;
mod http;
mod instances;
mod provider;
mod remote;
mod routes;
mod settings;
mod snapshot;
mod state;
mod wire;

pub use cloud::MockCloud;
pub use config::{InstanceConfig, MockConfig, Quotas};
pub use fault::{Effect, Fault, FaultError, FaultView, Operation, Pattern};
pub use instances::NODE_PREFIX;
pub use provider::factory;
pub use settings::{CLASS, PREFIX, WRITTEN_PREFIX};
pub use snapshot::{Attributes, CallCount, InstanceView, ListenerView, LoadBalancerView, RouteView, Snapshot};
pub use state::INSTANCE_ANNOTATION;
