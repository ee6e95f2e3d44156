//! Calls of a provider in another process, as they are sent to the process that serves the cloud.

use std::collections::BTreeMap;

use providers::{
    EndpointTarget, InstanceRef, Instances, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget, RouteChange,
    Routes, Targets,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::balancers::MockLoadBalancers;
use crate::cloud::MockCloud;
use crate::instances::MockInstances;
use crate::routes::MockRoutes;

/// A call. The response is the value that the same method of the mock returns.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    Describe(Vec<InstanceRef>),
    Observe(LoadBalancerId),
    Ensure(Box<LoadBalancerSpec>, TargetLists),
    SetTargets(Box<LoadBalancerSpec>, TargetLists),
    FollowTargets(Box<LoadBalancerSpec>, TargetLists),
    Delete(LoadBalancerId),
    ListOwned,
    ListRoutes,
    ApplyRoutes(Vec<RouteChange>),
}

/// [`Targets`] whose lists are not shared.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TargetLists {
    nodes: Vec<NodeTarget>,
    endpoints: Vec<EndpointTarget>,
    others: BTreeMap<String, Vec<EndpointTarget>>,
    incomplete: bool,
}

impl From<&Targets> for TargetLists {
    fn from(targets: &Targets) -> Self {
        Self {
            nodes: targets.nodes.to_vec(),
            endpoints: targets.endpoints.to_vec(),
            others: targets.others.iter().map(|(name, list)| (name.clone(), list.to_vec())).collect(),
            incomplete: targets.incomplete,
        }
    }
}

impl From<TargetLists> for Targets {
    fn from(lists: TargetLists) -> Self {
        Self {
            nodes: lists.nodes.into(),
            endpoints: lists.endpoints.into(),
            others: lists.others.into_iter().map(|(name, list)| (name, list.into())).collect(),
            incomplete: lists.incomplete,
        }
    }
}

/// Executes a call for a cluster.
pub(crate) async fn execute(cloud: &MockCloud, cluster: &str, call: Call) -> Result<Value, serde_json::Error> {
    let (instances, routes) = (MockInstances(cloud.clone()), MockRoutes(cloud.clone()));
    let balancers = MockLoadBalancers { cloud: cloud.clone(), cluster: cluster.to_owned() };
    match call {
        Call::Describe(wanted) => serde_json::to_value(instances.describe(&wanted).await),
        Call::Observe(id) => serde_json::to_value(balancers.observe(&id).await),
        Call::Ensure(spec, targets) => serde_json::to_value(balancers.ensure(&spec, &targets.into()).await),
        Call::SetTargets(spec, targets) => serde_json::to_value(balancers.set_targets(&spec, &targets.into()).await),
        Call::FollowTargets(spec, targets) => {
            serde_json::to_value(balancers.follow_targets(&spec, &targets.into()).await)
        }
        Call::Delete(id) => serde_json::to_value(balancers.delete(&id).await),
        Call::ListOwned => serde_json::to_value(balancers.list_owned().await),
        Call::ListRoutes => serde_json::to_value(routes.list().await),
        Call::ApplyRoutes(changes) => serde_json::to_value(routes.apply(&changes).await),
    }
}
