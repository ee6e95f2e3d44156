//! Keys of the collector's queues.

use std::fmt;
use std::hash::{Hash, Hasher};

use kinds::{Str, Uid};
use runtime::queue::QueueKey;

/// An object in the graph, identified by its uid.
#[derive(Debug, Clone)]
pub struct NodeKey {
    /// Identity of the object.
    pub uid: Uid,
    /// Namespace: the queue serves namespaces in turn. It is not part of the identity: until a watch has delivered an
    /// owner, its namespace is an assumption that may change.
    pub namespace: Str,
}

impl PartialEq for NodeKey {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl Eq for NodeKey {}

impl Hash for NodeKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.uid.hash(state);
    }
}

impl QueueKey for NodeKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uid.fmt(f)
    }
}

/// A key of the queue of checks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum CheckKey {
    /// Fill the queue from the graph. The first key of a new leader.
    Begin,
    /// Check this object.
    Check(NodeKey),
}

impl QueueKey for CheckKey {
    fn namespace(&self) -> &str {
        match self {
            Self::Begin => "",
            Self::Check(key) => key.namespace(),
        }
    }
}

impl fmt::Display for CheckKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin => f.write_str("(begin)"),
            Self::Check(key) => key.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::queue::{Queue, QueueOptions};

    use super::*;

    fn key(number: u128, namespace: &str) -> CheckKey {
        CheckKey::Check(NodeKey { uid: Uid::Uuid(number.to_be_bytes()), namespace: namespace.into() })
    }

    #[tokio::test]
    async fn checks_of_namespaces_are_served_in_turn() {
        let queue = Queue::new(QueueOptions::named("test"));
        for number in 0..100 {
            queue.add_background(key(number, "large"));
        }
        queue.add_background(key(100, "small"));
        let mut order = Vec::new();
        for _ in 0..2 {
            order.push(queue.next().await.expect("a key").namespace().to_owned());
        }
        assert_eq!(order, ["large", "small"]);
    }

    #[tokio::test]
    async fn object_whose_namespace_was_guessed_is_queued_once() {
        let queue = Queue::new(QueueOptions::named("test"));
        queue.add(key(1, "guessed"));
        queue.add(key(1, "observed"));
        assert_eq!(queue.len(), 1);
        let taken = queue.next().await.expect("a key");
        queue.add(key(1, "observed"));
        assert!(queue.is_empty(), "an object is never checked twice at the same time");
        queue.done(&taken);
        assert_eq!(queue.len(), 1);
    }
}
