//! Routes to nodes' pod networks: listed together, changed one by one.

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;
use crate::instance::{Address, InstanceRef};

/// A desired route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSpec {
    /// One of the node's pod networks, of either family.
    pub destination: IpNet,
    /// The target instance.
    pub instance: InstanceRef,
    /// The Node's addresses, for clouds whose routes lead to an address.
    pub addresses: Vec<Address>,
    /// A name for the route, in clouds whose routes have names: the Node's uid.
    pub name_hint: String,
}

/// The target of an existing route.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// An instance, by its provider ID.
    Instance(String),
    /// A Node, by its name, in clouds whose routes refer to names.
    Node(String),
    /// No target: the former target no longer exists.
    Blackhole,
}

/// An existing route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The route's name in the cloud; empty if routes have none.
    pub name: String,
    /// The route's destination.
    pub destination: IpNet,
    /// The route's target.
    pub target: RouteTarget,
    /// The addresses that the route leads to, if routes lead to addresses: the controller replaces the route when they
    /// differ from the Node's. `None`: it leads to the instance, regardless of addresses. Upstream: cloud-provider,
    /// Route.EnableNodeAddresses.
    pub addresses: Option<Vec<Address>>,
}

/// A change of the routes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RouteChange {
    /// Traffic for the destination leads to the instance afterwards. If it already does, nothing changes; a route of
    /// the cluster with another target, or a blackhole, is replaced, in one step if the cloud supports that.
    Set(RouteSpec),
    /// The route does not exist afterwards. If it did not exist before, the result is a success; if its destination has
    /// another target than the listed route, the result is a `Conflict` and nothing changes.
    Remove(Route),
}

impl RouteChange {
    /// Returns the destination of the change.
    pub fn destination(&self) -> IpNet {
        match self {
            Self::Set(spec) => spec.destination,
            Self::Remove(route) => route.destination,
        }
    }
}

/// The routes of a cloud.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait Routes: Send + Sync {
    /// Returns all routes that the controller may change: those of this cluster, of both families, including
    /// blackholes. Foreign routes are excluded if the cloud can distinguish them; in addition, the controller ignores
    /// routes outside of `--cluster-cidr`. Routes to instances that have no Node, or no longer exist, are listed too.
    ///
    /// # Errors
    /// Any kind except `NotFound` and `Invalid`: the list is complete or an error.
    async fn list(&self) -> Result<Vec<Route>, CloudError>;

    /// Applies the changes independently and in any order; returns as many results as changes, in the order of the
    /// changes. A failed change does not stop the others. No destination occurs twice in one call.
    ///
    /// A result is `Quota` if the table is full, `Conflict` if the destination has a foreign route already, and
    /// `NotFound` if the instance does not exist.
    async fn apply(&self, changes: &[RouteChange]) -> Vec<Result<(), CloudError>>;
}
