//! The Ready conditions of pods on unresponsive nodes.

use std::sync::Arc;

use futures::{StreamExt, stream};
use kinds::node::READY;
use kinds::{Kind, Node, Pod};
use runtime::events::{EventType, Recorder};
use runtime::store::Store;
use runtime::text::api_time;
use runtime::wake::Wake;
use runtime::write::Writer;
use serde_json::{Value, json};
use tracing::warn;

use crate::context::Clock;
use crate::pods::indexes::{by_node, on_node};

/// Maximum number of pods that are written concurrently.
const MAX_CONCURRENT_WRITES: usize = 8;

/// Sets pods to not ready.
pub struct PodMarker {
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub clock: Clock,
}

impl PodMarker {
    /// Sets the pods of unresponsive nodes to not ready. Every pass does so: no pod is left out after a failure or a
    /// restart, or if its node was already not ready before it became unresponsive. Upstream:
    /// pkg/controller/nodelifecycle, MarkPodsNotReady.
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
            Ok(response) => self.pods.wrote(&key, response.meta().map_or(0, |meta| meta.version)),
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
            "type": READY, "status": "False", "lastTransitionTime": api_time(now),
        }] },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use kinds::schema::object_meta;
    use kinds::wire::Put as _;
    use kinds::{Decode, Sections, envelope};
    use runtime::testing::{NoEvents, filled_store, slow_clients, writer_of};
    use tokio::time::Instant;

    use super::*;

    /// Time that the API server takes for a write.
    const WRITE_TIME: Duration = Duration::from_secs(1);

    fn decoding() -> Decode {
        Decode { interner: Arc::default(), sections: Sections::default() }
    }

    fn named<K: Kind>(name: &str) -> K {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        K::decode(&decoding(), &object).expect("well-formed")
    }

    /// A ready pod on the node `a`.
    fn pod(name: &str) -> Pod {
        Pod { node: "a".into(), ready: true, ..named(name) }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_of_one_node_are_marked_concurrently() {
        let requests = Arc::<Mutex<Vec<(Instant, String)>>>::default();
        let sent = requests.clone();
        let clients = slow_clients(WRITE_TIME, move |_, path, _| {
            sent.lock().expect("the requests").push((Instant::now(), path.to_owned()));
            (200, envelope::wrap(&Pod::RESOURCE, &[]))
        });
        let pods: Vec<Pod> = (0..2 * MAX_CONCURRENT_WRITES).map(|number| pod(&format!("web-{number}"))).collect();
        let marker = PodMarker {
            pods: Arc::new(filled_store(decoding(), vec![by_node()], pods)),
            writer: writer_of(clients.await),
            recorder: Recorder::new("node-controller", Arc::new(NoEvents)).0,
            clock: Arc::new(|| jiff::Timestamp::UNIX_EPOCH),
        };
        let node: Node = named("a");
        let start = Instant::now();
        marker.mark_not_ready([node].iter()).await;
        assert_eq!(start.elapsed(), WRITE_TIME * 2, "pods are not marked in two rounds");
        let requests = requests.lock().expect("the requests");
        let in_first_round = requests.iter().filter(|(at, _)| *at < start + WRITE_TIME).count();
        assert_eq!((in_first_round, requests.len()), (MAX_CONCURRENT_WRITES, 2 * MAX_CONCURRENT_WRITES));
        let paths: std::collections::BTreeSet<&String> = requests.iter().map(|(_, path)| path).collect();
        assert_eq!(paths.len(), requests.len(), "a pod was marked twice");
    }
}
