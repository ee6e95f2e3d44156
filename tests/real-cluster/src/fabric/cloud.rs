//! The state of the mock cloud, as far as the network needs it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use serde::Deserialize;

/// A snapshot of the cloud.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Cloud {
    /// Instances by name.
    pub instances: BTreeMap<String, Instance>,
    /// Load balancers.
    pub balancers: Vec<Balancer>,
    /// Routes to nodes.
    pub routes: Vec<Route>,
}

/// An instance.
#[derive(Clone, Debug, Deserialize)]
pub struct Instance {
    /// Its id.
    pub provider_id: String,
    /// Its addresses and names.
    pub addresses: Vec<Address>,
}

/// An address or a name of an instance.
#[derive(Clone, Debug, Deserialize)]
pub struct Address {
    /// Its text.
    pub address: String,
}

/// A load balancer.
#[derive(Clone, Debug, Deserialize)]
pub struct Balancer {
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its targets.
    pub targets: Vec<ObservedTarget>,
    /// Settings of the health checks.
    pub attributes: Attributes,
}

/// Attributes of a load balancer.
#[derive(Clone, Debug, Deserialize)]
pub struct Attributes {
    /// The port at which nodes report whether they have endpoints of the Service.
    pub health_check_port: Option<u16>,
}

/// A target of a load balancer.
#[derive(Clone, Debug, Deserialize)]
pub struct ObservedTarget {
    /// The instance or endpoint.
    pub target: Target,
}

/// An instance or an endpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// An instance, by its id.
    Instance(String),
    /// An endpoint.
    Endpoint {
        /// Its address.
        address: IpAddr,
    },
}

/// A route.
#[derive(Clone, Debug, Deserialize)]
pub struct Route {
    /// Its range.
    pub destination: String,
    /// The next hop; `None` for a route that no controller created.
    pub target: Option<RouteTarget>,
}

/// The next hop of a route.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// An instance, by its id.
    Instance(String),
    /// An instance, by its name.
    Node(String),
    /// A deleted instance.
    Blackhole,
}

impl Cloud {
    /// Returns the address of an instance by its id.
    pub fn address_of(&self, provider_id: &str) -> Option<Ipv4Addr> {
        address(self.instances.values().find(|instance| instance.provider_id == provider_id)?)
    }

    /// Returns the address of an instance by its name.
    pub fn address_of_name(&self, name: &str) -> Option<Ipv4Addr> {
        address(self.instances.get(name)?)
    }
}

fn address(instance: &Instance) -> Option<Ipv4Addr> {
    instance.addresses.iter().find_map(|address| address.address.parse().ok())
}
