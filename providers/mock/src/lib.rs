//! A cloud in memory: machines, load balancers with targets and health, routes, and faults by script.
//!
//! It behaves like the clouds that it stands for: what is made may take time to work and to be seen, what is deleted
//! takes time to go, a load balancer has parts that are made one call after another, limits run out, and answers get
//! lost. Which call does so is said by [`Fault`]s, in the configuration file, in code, or over HTTP, and nothing is
//! left to chance that the seed does not decide. Time is tokio's, so that paused time works.
//!
//! In tests, [`MockCloud`] is both the cloud (its own methods) and the provider over it
//! ([`MockCloud::provider`]). In a throw-away cluster, `--cloud-provider=mock` with a configuration such as
//!
//! ```json
//! {"auto_instances": true, "listen": "127.0.0.1:9902"}
//! ```
//!
//! gives every Service of type LoadBalancer an address, and `GET /state` on that port shows what was made.

mod balancers;
mod cloud;
mod config;
mod fault;
mod http;
mod instances;
mod provider;
mod routes;
mod settings;
mod snapshot;
mod state;

pub use cloud::MockCloud;
pub use config::{InstanceConfig, MockConfig, Quotas};
pub use fault::{Effect, Fault, FaultError, Operation, Pattern};
pub use provider::factory;
pub use settings::{CLASS, PREFIX};
pub use snapshot::{Attributes, BalancerView, CallCount, FaultView, InstanceView, ListenerView, RouteView, Snapshot};
