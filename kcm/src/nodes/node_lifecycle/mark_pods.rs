//! The Ready conditions of pods on unresponsive nodes.

use std::sync::Arc;

use futures::{StreamExt, stream};
use kinds::node::READY;
use kinds::{Kind, Node, Pod};
use runtime::events::{EventType, Recorder};
use runtime::store::Store;
use runtime::wake::Wake;
use runtime::write::Writer;
use serde_json::{Value, json};
use tracing::warn;

use crate::context::Clock;
use crate::pods::indexes::{by_node, on_node};

/// Pods that are written to concurrently.
const MAX_CONCURRENT_WRITES: usize = 8;

/// Sets pods to not ready.
pub struct PodMarker {
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub clock: Clock,
}

impl PodMarker {
    /// Sets the pods of unresponsive nodes to not ready: in every pass, so that none is left out after a failure, a
    /// restart, or on a node that was not ready before. Upstream: pkg/controller/nodelifecycle, MarkPodsNotReady.
    pub async fn mark_not_ready<'a>(&self, nodes: impl Iterator<Item = &'a Node>) {
        let pods = nodes.flat_map(|node| self.pods.by_index(&by_node(), on_node(&node.meta.name)));
        stream::iter(pods).for_each_concurrent(MAX_CONCURRENT_WRITES, |pod| self.mark(pod)).await;
    }

    async fn mark(&self, cached: Arc<Pod>) {
        let key = cached.meta.key();
        // The next pass marks a pod whose last write the cache does not contain yet.
        let current = self.pods.read_settled(&key, Wake::none()).current();
        let Some(pod) = current.filter(|current| current.meta.uid == cached.meta.uid && current.ready) else { return };
        let patch = not_ready(&pod, (self.clock)());
        match self.writer.patch_status(&Pod::RESOURCE, &key, &patch).await {
            Ok(answer) => self.pods.wrote(&key, answer.meta().map_or(0, |meta| meta.version)),
            Err(error) if error.is_not_found() => return,
            Err(error) => {
                warn!(pod = %key, %error, "could not set pod to not ready; retrying in the next pass");
                return;
            }
        }
        let about = runtime::events::about(&*pod);
        self.recorder.event(&about, EventType::Warning, "NodeNotReady", "Node is not ready".to_owned());
    }
}

/// Returns a patch of the status of a pod, for the version in the cache.
fn not_ready(pod: &Pod, now: jiff::Timestamp) -> Value {
    json!({
        "metadata": { "uid": pod.meta.uid.to_string(), "resourceVersion": pod.meta.version.to_string() },
        "status": { "conditions": [{
            "type": READY, "status": "False", "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }] },
    })
}
