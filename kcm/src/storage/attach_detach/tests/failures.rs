//! Requests that fail on one of several nodes, and changes that never reach the cache.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kinds::Time;
use kinds::meta::ObjectKey;
use runtime::consistency::DELETION_TIMEOUT;
use runtime::lock::lock;
use runtime::testing::deliver_deletion;
use runtime::worker::Outcome;
use tokio::time::{Instant, advance};

use super::bed::{Bed, NodeState, name};
use crate::storage::attach_detach::changes::Extent;
use crate::storage::attach_detach::decide::CACHE_RECHECK;
use crate::storage::attach_detach::keys::subscribe;
use crate::storage::lost_write::REQUEST_TIMEOUT;
use crate::storage::volume_name::attachment_name;

/// Longer than the time after which an event reports a slow driver.
const LATE: Duration = Duration::from_secs(3 * 60);

/// Returns a controller with these healthy nodes, which reconciles volumes again only if they wait for something.
async fn bed(nodes: &[&str]) -> Bed {
    let mut bed = Bed::new().await;
    Arc::get_mut(&mut bed.shared).expect("the only reference").settings.sync_period = None;
    for node in nodes {
        bed.change_node(node, NodeState::healthy(5, &[], &[]));
        bed.deliver_node(node);
    }
    bed
}

impl Bed {
    /// Returns the time until the next reconcile.
    async fn next(&self) -> Duration {
        let next = self.reconcile(&name()).await;
        let Ok(Outcome::RequeueAfter(next)) = next else { panic!("nothing requeues the volume: {next:?}") };
        next
    }

    fn remove_attachment(&self, node: &str) {
        let key = ObjectKey::new("", attachment_name("disk.example.com", "vol-1", node));
        deliver_deletion(&self.shared.caches.attachments, &key);
    }

    fn remove_pod(&self, pod: &str) {
        deliver_deletion(&self.shared.caches.pods, &ObjectKey::new("default", pod));
    }

    /// Returns the number and the total duration of successful detachments.
    fn detached(&self) -> (f64, f64) {
        let text = self.metrics.text();
        let value = |suffix: &str| -> f64 {
            let is_counted = |line: &&str| {
                line.starts_with(&format!("storage_operation_duration_seconds_{suffix}"))
                    && line.contains("volume_detach")
                    && line.contains("success")
            };
            text.lines().find(is_counted).and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
        };
        (value("count"), value("sum"))
    }
}

/// The API server's storage was restored from a backup: it has the attachment again, at a version that the cache has
/// already.
#[tokio::test(start_paused = true)]
async fn attachment_is_deleted_again_when_its_deletion_never_reaches_the_cache() {
    let bed = bed(&["node"]).await;
    bed.add_attachment("node", |_| {});
    let started = Instant::now();
    let next = bed.next().await;
    assert_eq!((bed.count("DELETE"), bed.next().await), (1, CACHE_RECHECK), "a change of another object");
    advance(next).await;
    bed.next().await;
    assert_eq!((bed.count("DELETE"), started.elapsed()), (2, DELETION_TIMEOUT));
}

#[tokio::test(start_paused = true)]
async fn refused_attachment_is_not_requested_again_when_another_node_changes() {
    let bed = bed(&["a", "b"]).await;
    bed.share();
    subscribe(&bed.shared);
    lock(&bed.server).unattachable_node = "a".to_owned();
    bed.add_pod("first", "a");
    bed.add_pod("second", "b");
    bed.reconcile(&name()).await.expect_err("one is refused");
    assert_eq!(bed.count("POST"), 2);
    bed.add_attachment("b", |attachment| attachment.meta.version = 100);
    let visited = || bed.shared.memory.visited.load(Ordering::Relaxed);
    let before = visited();
    for number in 0..5 {
        bed.add_pod(&format!("web-{number}"), "b");
        assert!(bed.next().await <= Duration::from_millis(500), "the refused one is requested again soon");
    }
    assert_eq!(bed.count("POST"), 2);
    assert!(visited() - before <= 11, "only the changed node and its pods are visited: {}", visited() - before);
    for (attempts, pause) in [(3, 500), (4, 1_000), (5, 2_000)] {
        bed.shared.requeue(name(), Extent::of_nodes(["a".into()]));
        advance(Duration::from_millis(pause - 1)).await;
        assert_eq!(bed.next().await, Duration::from_millis(1), "a change of the node itself");
        advance(Duration::from_millis(1)).await;
        bed.reconcile(&name()).await.expect_err("it is refused again");
        assert_eq!(bed.count("POST"), attempts);
    }
    lock(&bed.server).unattachable_node.clear();
    advance(Duration::from_secs(4)).await;
    bed.next().await;
    assert_eq!(bed.count("POST"), 6);
}

#[tokio::test(start_paused = true)]
async fn wait_for_the_driver_begins_with_the_last_request() {
    let bed = bed(&["node"]).await;
    lock(&bed.server).unattachable_node = "node".to_owned();
    bed.add_pod("web", "node");
    bed.reconcile(&name()).await.expect_err("it is refused");
    lock(&bed.server).unattachable_node.clear();
    advance(LATE).await;
    bed.next().await;
    bed.add_attachment("node", |attachment| (attachment.attached, attachment.meta.version) = (false, 100));
    bed.next().await;
    let events = bed.end().await;
    assert!(events.len() == 1 && !events[0].contains("timed out"), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn wait_for_the_driver_ends_when_no_pod_uses_the_volume() {
    let bed = bed(&[]).await;
    bed.change_node("node", NodeState::healthy(5, &[], &[name()]));
    bed.deliver_node("node");
    bed.add_attachment("node", |attachment| attachment.attached = false);
    bed.add_pod("first", "node");
    bed.next().await;
    bed.remove_pod("first");
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::Done), "the kubelet has not released it yet");
    advance(LATE).await;
    bed.add_pod("second", "node");
    bed.next().await;
    assert_eq!(bed.end().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn each_detachment_is_measured_from_its_own_start() {
    let bed = bed(&["node"]).await;
    bed.add_pod("first", "node");
    bed.add_attachment("node", |attachment| attachment.meta.deletion = Time(1));
    bed.reconcile(&name()).await.expect("it succeeds");
    advance(Duration::from_secs(10)).await;
    bed.remove_attachment("node");
    for _ in 0..2 {
        bed.reconcile(&name()).await.expect("it succeeds");
        assert_eq!(bed.detached(), (1.0, 10.0), "a pod still uses the volume");
    }
    advance(LATE).await;
    bed.remove_pod("first");
    bed.add_attachment("node", |attachment| attachment.meta.version = 3);
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!(bed.count("DELETE"), 1);
    advance(Duration::from_secs(5)).await;
    bed.remove_attachment("node");
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!(bed.detached(), (2.0, 15.0));
}

/// The API server may still make a write without a response while it has the list that the write replaces.
#[tokio::test(start_paused = true)]
async fn volume_counts_as_listed_until_a_lost_write_can_no_longer_list_it() {
    for is_changed in [false, true] {
        let bed = bed(&["node"]).await;
        bed.shared.memory.decide_listing(&"node".into(), &name(), true, true);
        lock(&bed.server).loses_lists = true;
        bed.reconcile_node("node").await.expect_err("the response is lost");
        bed.shared.memory.decide_listing(&"node".into(), &name(), false, true);
        if is_changed {
            bed.change_node("node", NodeState::healthy(6, &["kubernetes.io/csi/d^other".into()], &[]));
            bed.deliver_node("node");
        }
        let expected = if is_changed { Outcome::Done } else { Outcome::RequeueAfter(REQUEST_TIMEOUT) };
        assert_eq!(bed.reconcile_node("node").await, Ok(expected), "changed: {is_changed}");
        assert_eq!(bed.shared.memory.may_be_writing("node", &name()), !is_changed);
        advance(REQUEST_TIMEOUT).await;
        assert_eq!(bed.reconcile_node("node").await, Ok(Outcome::Done), "changed: {is_changed}");
        assert!(!bed.shared.memory.may_be_writing("node", &name()));
        assert_eq!(bed.shared.volume_queue.len(), 1, "the volume is decided on again");
    }
}
