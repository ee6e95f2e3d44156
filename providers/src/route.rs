//! Routes to nodes' pod networks: listed once, changed one by one.

use async_trait::async_trait;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;
use crate::instance::{Address, InstanceRef};

/// A route that should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteSpec {
    /// One of the node's pod networks, of either family.
    pub destination: IpNet,
    /// The machine it leads to.
    pub instance: InstanceRef,
    /// The Node's addresses, for clouds whose routes lead to an address.
    pub addresses: Vec<Address>,
    /// Fit to name the route after, where routes have names: the Node's uid.
    pub name_hint: String,
}

/// Where a route that is there leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteTarget {
    /// To a machine, by its provider id.
    Instance(String),
    /// To a Node, by its name, in clouds whose routes know names.
    Node(String),
    /// Nowhere: what it led to is gone.
    Blackhole,
}

/// A route that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The cloud's name for it; empty where routes have none.
    pub name: String,
    /// What it is for.
    pub destination: IpNet,
    /// Where it leads.
    pub target: RouteTarget,
    /// The addresses that it leads to, if it leads to addresses: the controller sets it anew when they are no longer
    /// the Node's. `None`: it leads to the machine, whatever its addresses (upstream: cloud-provider,
    /// `Route.EnableNodeAddresses`).
    pub addresses: Option<Vec<Address>>,
}

/// A change of the routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteChange {
    /// Traffic for the destination leads to the machine afterwards. If it does so already, nothing happens; an own
    /// route elsewhere, or a blackhole, is replaced, in one step where the cloud can.
    Set(RouteSpec),
    /// The route, as it was listed, is gone afterwards. If it is gone already, that is a success; if its destination
    /// leads elsewhere by now, it is a `Conflict` and nothing happens.
    Remove(Route),
}

impl RouteChange {
    /// The destination that is changed.
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
    /// All routes that the controller may change: those of this cluster, of both families, blackholes too. What is
    /// not this cluster's is not in it, where the cloud can tell; the controller leaves alone what is outside of
    /// `--cluster-cidr` besides. A machine that has no Node, or is gone, spoils nothing: its route is listed.
    ///
    /// # Errors
    /// Any kind but `NotFound` and `Invalid`: a list is complete or not given.
    async fn list(&self) -> Result<Vec<Route>, CloudError>;

    /// Makes the changes, each for itself and in any order: as many results as changes, in the changes' order. One
    /// that fails stops no other. No destination occurs twice in one call.
    ///
    /// A result is `Quota` if the table is full, `Conflict` if the destination is a route that is not this cluster's,
    /// `NotFound` if the machine is not there.
    async fn apply(&self, changes: &[RouteChange]) -> Vec<Result<(), CloudError>>;
}
