//! Detachments: by force, from deleted nodes, and when another client has deleted the attachment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kinds::Str;
use kinds::meta::ObjectKey;
use kinds::persistent_volume::Source;
use runtime::lock::lock;
use runtime::testing::deliver_deletion;
use tokio::time::advance;

use super::bed::{Bed, NodeState, name};
use crate::storage::attach_detach::changes::Scope;
use crate::storage::attach_detach::decide::MAX_WAIT_FOR_UNMOUNT;
use crate::storage::attach_detach::keys::subscribe;
use crate::storage::attach_detach::memory::{SiteMemory, Sites};
use crate::storage::volume_name::{attachment_name, of_csi};

/// Returns a healthy node, whose status lists the volume as attached if `is_listed`, and as in use if `is_in_use`.
fn node(version: u64, is_listed: bool, is_in_use: bool) -> NodeState {
    let volumes = |is_present: bool| is_present.then(name).into_iter().collect::<Vec<Str>>();
    NodeState::healthy(version, &volumes(is_listed), &volumes(is_in_use))
}

impl Bed {
    fn set_node(&self, name_of_node: &str, state: NodeState) {
        self.change_node(name_of_node, state);
        self.deliver_node(name_of_node);
    }

    async fn sync(&self) {
        self.reconcile(&name()).await.expect("it succeeds");
    }

    fn detachments(&self) -> usize {
        self.count("DELETE volumeattachments")
    }

    fn attachments(&self) -> usize {
        self.count("POST volumeattachments")
    }

    /// Returns the numbers of detachments that were forced by the timeout and by the taint.
    fn forced(&self) -> [u64; 2] {
        let forced = &self.shared.operations.forced;
        [forced[0].load(Ordering::Relaxed), forced[1].load(Ordering::Relaxed)]
    }
}

/// Upstream's Test_Run_OneVolumeDetachOnOutOfServiceTaintedNode and the three tests after it.
#[tokio::test(start_paused = true)]
async fn volume_in_use_leaves_its_node_only_by_force() {
    let healthy = || node(5, false, true);
    let unhealthy = || NodeState { is_unhealthy: true, ..healthy() };
    let tainted = || NodeState { is_out_of_service: true, ..healthy() };
    let both = || NodeState { is_unhealthy: true, ..tainted() };
    let (soon, late) = (Duration::from_secs(60), MAX_WAIT_FOR_UNMOUNT);
    for (case, is_timeout_disabled, states, expected) in [
        ("tainted", false, vec![(tainted(), soon)], [0, 1]),
        ("unhealthy", false, vec![(unhealthy(), soon)], [0, 0]),
        ("healthy for long", false, vec![(healthy(), late)], [0, 0]),
        ("healthy for long, then unhealthy", false, vec![(healthy(), late), (unhealthy(), soon)], [1, 0]),
        ("without timeout", true, vec![(healthy(), late), (unhealthy(), late)], [0, 0]),
        ("without timeout, then tainted", true, vec![(unhealthy(), late), (both(), soon)], [0, 1]),
    ] {
        let mut bed = Bed::new().await;
        let shared = Arc::get_mut(&mut bed.shared).expect("the only reference");
        shared.settings.is_timeout_disabled = is_timeout_disabled;
        bed.add_attachment("node", |_| {});
        for (version, (state, wait)) in (5..).zip(states) {
            bed.set_node("node", NodeState { version, ..state });
            bed.sync().await;
            advance(wait).await;
        }
        bed.sync().await;
        assert_eq!((bed.forced(), bed.attachments()), (expected, 0), "{case}");
        assert_eq!(bed.detachments() > 0, expected != [0, 0], "{case}");
    }
}

/// Upstream's Test_Run_Negative_OneDesiredVolumeAttachThenDetachWithUnmountedVolumeUpdateStatusFail and
/// Test_Run_UpdateNodeStatusFailBeforeOneVolumeDetachNodeWithReadWriteOnce.
#[tokio::test]
async fn volume_stays_attached_until_the_node_no_longer_lists_it() {
    let bed = Bed::new().await;
    bed.set_node("node", node(5, true, false));
    bed.add_attachment("node", |_| {});
    lock(&bed.server).refuses_lists = true;
    for _ in 0..3 {
        bed.sync().await;
        bed.reconcile_node("node").await.expect_err("the list is refused");
    }
    assert_eq!((bed.count("PATCH nodes/node"), bed.detachments()), (3, 0));
    lock(&bed.server).refuses_lists = false;
    bed.reconcile_node("node").await.expect("it succeeds");
    bed.sync().await;
    assert_eq!(bed.detachments(), 0, "the cache still has the list");
    bed.set_node("node", node(6, false, false));
    bed.sync().await;
    assert_eq!((bed.count("PATCH nodes/node"), bed.detachments()), (4, 1));
}

/// Upstream's Test_Run_Positive_OneDesiredVolumeAttachThenDetachWithMountedVolume. Upstream reads the last status of a
/// node when the watch delivers its deletion.
#[tokio::test(start_paused = true)]
async fn volume_that_was_in_use_when_its_node_was_deleted_is_detached_after_the_wait() {
    for (case, was_in_use) in [("in use in the last status", true), ("not in use in the last status", false)] {
        let bed = Bed::new().await;
        subscribe(&bed.shared);
        bed.set_node("node", node(5, true, !was_in_use));
        bed.add_attachment("node", |_| {});
        let pod = bed.add_pod("web", "node");
        bed.sync().await;
        // All of this happens before the next reconcile of the volume.
        bed.set_node("node", node(6, true, was_in_use));
        lock(&bed.server).nodes.clear();
        deliver_deletion(&bed.shared.caches.nodes, &ObjectKey::new("", "node"));
        deliver_deletion(&bed.shared.caches.pods, &pod.meta.key());
        bed.sync().await;
        assert_eq!(bed.detachments(), usize::from(!was_in_use), "{case}");
        if was_in_use {
            advance(MAX_WAIT_FOR_UNMOUNT).await;
            bed.sync().await;
            assert_eq!((bed.detachments(), bed.forced()), (1, [1, 0]), "{case}: after the wait");
        }
    }
}

/// An administrator has deleted the attachment of a volume whose unmount hangs, or the node's kubelet lists volumes
/// that it never had.
#[tokio::test]
async fn node_without_an_attachment_does_not_keep_a_volume_that_it_lists_and_uses() {
    let bed = Bed::new().await;
    bed.set_node("a", node(5, true, true));
    bed.set_node("b", node(5, false, true));
    bed.add_pod("second", "b");
    bed.sync().await;
    assert_eq!(bed.attachments(), 0, "the first node still lists it");
    bed.reconcile_node("a").await.expect("it succeeds");
    assert_eq!(bed.count("PATCH nodes/a"), 1);
    bed.set_node("a", node(6, false, true));
    bed.sync().await;
    assert_eq!(bed.attachments(), 1, "for the second node");
}

/// The attachment to a node was deleted, and the node's kubelet does not report the volume as in use again.
#[tokio::test]
async fn node_that_lost_its_attachment_does_not_keep_the_volume_from_another_node() {
    let bed = Bed::new().await;
    bed.set_node("a", node(5, false, false));
    bed.set_node("b", node(5, false, true));
    bed.add_pod("first", "a");
    bed.add_pod("second", "b");
    let attached = SiteMemory { is_attached: true, ..SiteMemory::default() };
    bed.shared.memory.store(&name(), &Scope::All, Sites::from([("a".into(), attached)]));
    bed.sync().await;
    assert_eq!(bed.attachments(), 1, "for the second node");
    // The kubelet of the first node reports the volume as in use now, but the second node has it.
    bed.set_node("a", node(6, false, true));
    bed.add_attachment("b", |attachment| attachment.meta.version = 100);
    bed.sync().await;
    assert_eq!((bed.attachments(), bed.count("GET nodes/a")), (1, 0));
}

#[tokio::test]
async fn volume_is_requeued_by_its_attachment_after_its_persistent_volume_was_replaced() {
    let bed = Bed::new().await;
    bed.add_attachment("node", |_| {});
    let source = |handle: &str| Source::Csi { driver: "disk.example.com".into(), handle: handle.into() };
    bed.set_source(source("vol-2"));
    bed.shared.memory.store(&name(), &Scope::All, Sites::from([("node".into(), SiteMemory::default())]));
    subscribe(&bed.shared);
    let attachment = ObjectKey::new("", attachment_name("disk.example.com", "vol-1", "node"));
    deliver_deletion(&bed.shared.caches.attachments, &attachment);
    let queue = &bed.shared.volume_queue;
    assert_eq!(queue.len(), 2);
    let requeued = [queue.next().await, queue.next().await];
    // The volume to which the PersistentVolume refers now may wait for the deletion of this attachment.
    assert_eq!(requeued, [Some(name()), Some(of_csi("disk.example.com", "vol-2"))]);
}
