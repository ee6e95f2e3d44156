//! One reconcile of a node's taints and labels, and the patch of a node's taints that the monitor uses.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{ObjectKey, Time};
use kinds::taint::Taint;
use kinds::{Kind, Node};
use runtime::queue::Queue;
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};

use super::decide_taints as decide;
use crate::context::Clock;

/// Maximum number of attempts of one call of [`edit_taints`].
const TRIES: usize = 5;

/// The reconciler of taints and labels.
pub struct Nodes {
    pub nodes: Arc<Store<Node>>,
    pub writer: Writer,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
}

impl Reconcile for Nodes {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Nodes {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let node = match self.nodes.read_settled(key, self.queue.waker(key)) {
            Cached::Current(node) => node,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        let taints = decide::no_schedule(&node, Time((self.clock)().as_second()));
        let labels = decide::labels(&node);
        if taints.is_none() && labels.is_empty() {
            return Ok(Outcome::Done);
        }
        match self.writer.patch(&Node::RESOURCE, key, &decide::patch(&node, taints.as_deref(), &labels)).await {
            Ok(response) => {
                self.nodes.wrote(key, response.meta().map_or(0, |meta| meta.version));
                Ok(Outcome::Done)
            }
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) if error.is_not_found() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes the taints that `edit` returns for a node, if any. If the cached node is outdated, `edit` is called again
/// with the API server's node. Returns true if something was written.
pub async fn edit_taints(
    nodes: &Store<Node>,
    writer: &Writer,
    node: &Arc<Node>,
    edit: impl Fn(&Node) -> Option<Vec<Taint>>,
) -> Result<bool, WriteError> {
    let key = node.meta.key();
    let uid = node.meta.uid.clone();
    let mut node = node.clone();
    let mut retries = 1..TRIES;
    loop {
        let Some(taints) = edit(&node) else { return Ok(false) };
        let patch = decide::patch(&node, Some(&taints), &[]);
        match writer.patch(&Node::RESOURCE, &key, &patch).await {
            Ok(response) => {
                nodes.wrote(&key, response.meta().map_or(0, |meta| meta.version));
                return Ok(true);
            }
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if error.is_conflict() && retries.next().is_some() => {
                match writer.get(&Node::RESOURCE, &key).await {
                    Ok(response) => node = Arc::new(response.decode(nodes.decoding())?),
                    Err(error) if error.is_not_found() => return Ok(false),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
        if node.meta.uid != uid {
            return Ok(false);
        }
    }
}
