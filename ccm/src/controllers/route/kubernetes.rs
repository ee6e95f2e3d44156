//! The API server for routes: nodes, conditions and events.

use std::sync::Arc;

use kinds::node_cloud::NETWORK_UNAVAILABLE;
use kinds::{Kind, Node};
use providers::async_trait;
use runtime::consistency::Consistency;
use runtime::events::{EventType, ObjectReference, Recorder};
use runtime::store::{Change, Store, by_namespace, index_key};
use runtime::text::api_time;
use runtime::wake::Wake;
use runtime::write::Writer;
use serde_json::json;

use super::decide::RouteNode;
use super::sync::ClusterAccess;
use crate::cloud::instances;
use crate::context::Clock;

/// The API server, through a cache and a writer.
pub struct Kubernetes {
    pub nodes: Arc<Store<Node>>,
    /// Prefixes of the node annotations that the provider reads.
    pub annotations: Vec<String>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Consistency,
    pub clock: Clock,
}

/// Returns the fields of a node that its routes need.
pub(super) fn route_node(node: &Node, annotations: &[String]) -> RouteNode {
    let cloud = node.cloud.as_deref();
    let status = node.condition(NETWORK_UNAVAILABLE).map(|condition| &*condition.status);
    RouteNode {
        instance: instances::instance_ref(node, annotations),
        uid: node.meta.uid.to_string(),
        addresses: instances::addresses(node),
        pod_cidrs: node.pod_cidrs.iter().map(|cidr| cidr.to_string()).collect(),
        reported: match (status, cloud.map(|cloud| &*cloud.network_reason)) {
            (Some("False"), Some("RouteCreated")) => Some(true),
            (Some("True"), Some("NoRouteCreated")) => Some(false),
            _ => None,
        },
    }
}

/// Returns true if a change of a node can affect its routes, or the condition that reports them. Upstream: route
/// controller, handleNodeUpdate.
pub fn routes_differ(change: &Change<'_, Node>) -> bool {
    let relevant = |node: &Node| {
        let cloud = node.cloud.as_deref();
        (
            node.meta.uid.clone(),
            node.pod_cidrs.clone(),
            cloud.map(|cloud| (cloud.provider_id.clone(), cloud.addresses.clone(), cloud.network_reason.clone())),
        )
    };
    match (change.old, change.new) {
        (Some(old), Some(new)) => relevant(old) != relevant(new),
        _ => true,
    }
}

#[async_trait]
impl ClusterAccess for Kubernetes {
    fn nodes(&self) -> (Vec<RouteNode>, bool) {
        let mut nodes = self.nodes.by_index(&by_namespace(), index_key(""));
        nodes.sort_by(|a, b| a.meta.by_creation(&b.meta));
        (nodes.iter().map(|node| route_node(node, &self.annotations)).collect(), self.nodes.undecodable() == 0)
    }

    fn warn(&self, node: &RouteNode, message: String) {
        let about = ObjectReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: node.instance.node.as_str().into(),
            uid: node.uid.as_str().into(),
            ..ObjectReference::default()
        };
        self.recorder.event(&about, EventType::Warning, "FailedToCreateRoute", message);
    }

    async fn set_network_condition(&self, node: &RouteNode, created: bool) -> Result<(), String> {
        let key = kinds::meta::ObjectKey::new("", node.instance.node.as_str());
        // The cache does not contain this process's last write yet: the next pass compares again.
        if !self.consistency.caught_up(&key, &self.nodes, Wake::none()) {
            return Ok(());
        }
        let (status, reason, message) = if created {
            ("False", "RouteCreated", "RouteController created a route")
        } else {
            ("True", "NoRouteCreated", "RouteController failed to create a route")
        };
        let now = api_time((self.clock)());
        let patch = json!({
            "metadata": { "uid": node.uid },
            "status": { "conditions": [{
                "type": NETWORK_UNAVAILABLE, "status": status, "reason": reason, "message": message,
                "lastHeartbeatTime": now, "lastTransitionTime": now,
            }] },
        });
        match self.writer.patch_status(&Node::RESOURCE, &key, &patch).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(&key, &self.nodes, meta.version);
                }
                Ok(())
            }
            // Deleted, or replaced by a node of the same name, which is processed separately.
            Err(error) if error.is_object_deleted() => {
                self.consistency.forget(&key);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
