//! Attachments of PersistentVolumes that are missing or undecodable, or that have other storage by now: they still attach
//! the volume.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kinds::PersistentVolume;
use kinds::meta::ObjectKey;
use kinds::persistent_volume::Source;
use runtime::testing::{deliver, deliver_deletion, deliver_undecodable};
use runtime::worker::{Outcome, Reconcile};
use tokio::time::Instant;

use super::bed::{Bed, NodeState, name};
use crate::storage::attach_detach::changes::Extent;
use crate::storage::attach_detach::decide::UNDECODABLE_RECHECK;
use crate::storage::attach_detach::keys::subscribe;
use crate::storage::attach_detach::resolve::Drivers;
use crate::storage::testing::volume;
use crate::storage::volume_name::{Plugin, attachment_name, has_form_of_attachment};

const DRIVER: &str = "disk.example.com";

fn object(name: &str) -> ObjectKey {
    ObjectKey::new("", name)
}

fn attachment(node: &str) -> ObjectKey {
    object(&attachment_name(DRIVER, "vol-1", node))
}

fn volume_with(name: &str, handle: &str) -> PersistentVolume {
    let mut made = volume(name);
    made.source = Source::Csi { driver: DRIVER.into(), handle: handle.into() };
    made
}

impl Bed {
    /// Returns a starting controller with the healthy nodes `a` and `b`, and an attachment of the volume to `a` that
    /// names the PersistentVolume `old`.
    async fn restarted() -> Self {
        let bed = Self::new().await;
        subscribe(&bed.shared);
        for node in ["a", "b"] {
            bed.change_node(node, NodeState::healthy(5, &[], &[]));
            bed.deliver_node(node);
        }
        bed.add_attachment("a", |attachment| attachment.volume = "old".into());
        bed
    }

    /// Reconciles the driver, which must be in the queue.
    async fn resolve(&self) {
        let queue = &self.shared.driver_queue;
        let driver = queue.next().await.expect("the queue is open");
        let resolved = Drivers(self.shared.clone()).reconcile(&driver).await;
        queue.done(&driver);
        assert_eq!((&*driver, resolved), (DRIVER, Ok(Outcome::Done)));
    }

    fn is_unresolved(&self) -> bool {
        self.shared.caches.unresolved.has_driver(DRIVER)
    }
}

#[tokio::test]
async fn volume_is_detached_from_its_node_before_it_is_attached_to_another() {
    type Prepare = fn(&Bed);
    let rows: [(&str, Prepare); 2] = [
        ("deleted", |_| {}),
        ("other storage", |bed| deliver(&bed.shared.caches.volumes, volume_with("old", "vol-9"))),
    ];
    for (case, prepare) in rows {
        let bed = Bed::restarted().await;
        prepare(&bed);
        bed.add_pod("web", "b");
        bed.reconcile(&name()).await.expect("it succeeds");
        assert_eq!((bed.count("POST"), bed.count("DELETE")), (0, 1), "{case}");
        deliver_deletion(&bed.shared.caches.attachments, &attachment("a"));
        bed.reconcile(&name()).await.expect("it succeeds");
        assert_eq!((bed.count("POST"), bed.count("DELETE")), (1, 1), "{case}: detached");
        assert!(!bed.is_unresolved(), "{case}: it would be kept forever");
    }
}

#[tokio::test]
async fn volume_stays_attached_while_the_persistent_volume_of_its_attachment_cannot_be_decoded() {
    let bed = Bed::restarted().await;
    // A pod on the node may use the volume through it.
    deliver_undecodable(&bed.shared.caches.volumes, object("old"));
    bed.change_node("a", NodeState::healthy(6, &[name()], &[]));
    bed.deliver_node("a");
    for has_pod in [false, true] {
        if has_pod {
            bed.add_pod("web", "b");
        }
        let next = bed.reconcile(&name()).await;
        bed.reconcile_node("a").await.expect("it succeeds");
        let requests = ["POST", "PATCH", "DELETE"].map(|verb| bed.count(verb));
        assert_eq!((requests, next), ([0; 3], Ok(Outcome::RequeueAfter(UNDECODABLE_RECHECK))), "pod: {has_pod}");
    }
    deliver_deletion(&bed.shared.caches.volumes, &object("old"));
    bed.reconcile(&name()).await.expect("it succeeds");
    bed.reconcile_node("a").await.expect("it succeeds");
    assert_eq!(bed.count("PATCH"), 1, "no pod uses it: it is removed from the list, then detached");
}

#[tokio::test]
async fn wanted_volume_is_listed_while_the_persistent_volume_of_its_attachment_cannot_be_decoded() {
    let bed = Bed::restarted().await;
    deliver_undecodable(&bed.shared.caches.volumes, object("old"));
    bed.add_pod("web", "a");
    bed.reconcile(&name()).await.expect("it succeeds");
    bed.reconcile_node("a").await.expect("it succeeds");
    let requests = ["POST", "PATCH", "DELETE"].map(|verb| bed.count(verb));
    assert_eq!(requests, [0, 1, 0], "the kubelet waits for the list");
}

#[tokio::test(start_paused = true)]
async fn volume_that_no_pod_uses_is_detached() {
    for is_late in [false, true] {
        let bed = Bed::new().await;
        let created = (*bed.shared.caches.volumes.all()[0]).clone();
        deliver_deletion(&bed.shared.caches.volumes, &created.meta.key());
        subscribe(&bed.shared);
        bed.change_node("a", NodeState::healthy(5, &[], &[]));
        bed.deliver_node("a");
        if !is_late {
            deliver(&bed.shared.caches.volumes, created.clone());
        }
        bed.add_attachment("a", |attachment| attachment.volume = "old".into());
        if is_late {
            bed.resolve().await;
            assert_eq!(bed.shared.volume_queue.len(), 0, "its PersistentVolume is unknown");
            deliver(&bed.shared.caches.volumes, created);
        }
        assert_eq!(bed.shared.volume_queue.len(), 0, "late: {is_late}");
        bed.resolve().await;
        assert_eq!(bed.shared.volume_queue.next().await, Some(name()), "late: {is_late}");
        bed.reconcile(&name()).await.expect("it succeeds");
        assert_eq!(bed.count("DELETE"), 1, "late: {is_late}");
    }
}

#[tokio::test(start_paused = true)]
async fn persistent_volumes_are_searched_once_for_each_attachment() {
    const VOLUMES: usize = 100;
    let bed = Bed::restarted().await;
    let create = |number: usize| {
        let (name, handle) = (format!("other-{number}"), format!("disk-{number}"));
        deliver(&bed.shared.caches.volumes, volume_with(&name, &handle));
    };
    (0..VOLUMES).for_each(create);
    bed.add_attachment("b", |attachment| {
        attachment.volume = "old".into();
        attachment.meta.name = attachment_name(DRIVER, "vol-9", "b").into();
    });
    let visited = || bed.shared.memory.visited.load(Ordering::Relaxed);
    bed.resolve().await;
    assert!(visited() > VOLUMES, "all are searched");
    let queue = &bed.shared.volume_queue;
    assert_eq!(queue.next().await, Some(name()));
    queue.done(&name());
    let first = visited();
    create(VOLUMES);
    bed.resolve().await;
    assert_eq!((visited() - first, queue.len()), (1, 0), "no attachment is of the new one");
    bed.add_attachment("a", |attachment| {
        attachment.volume = "old".into();
        attachment.attached = false;
    });
    let other = volume_with("second", "vol-1");
    deliver(&bed.shared.caches.volumes, other);
    bed.resolve().await;
    assert_eq!(visited() - first, 2, "the attachments are known");
}

#[tokio::test]
async fn attachment_is_resolved_when_its_persistent_volume_is_known() {
    let bed = Bed::restarted().await;
    assert!(bed.is_unresolved(), "PersistentVolumes may arrive later than their attachments");
    deliver(&bed.shared.caches.volumes, volume_with("old", "vol-1"));
    assert!(!bed.is_unresolved());
    deliver(&bed.shared.caches.volumes, volume_with("old", "vol-9"));
    assert!(bed.is_unresolved(), "it was created again with other storage");
    deliver(&bed.shared.caches.volumes, volume_with("old", "vol-1"));
    deliver_deletion(&bed.shared.caches.volumes, &object("old"));
    assert!(bed.is_unresolved());
    deliver_deletion(&bed.shared.caches.attachments, &attachment("a"));
    assert!(!bed.is_unresolved());
    bed.add_attachment("a", |attachment| {
        attachment.volume = "old".into();
        attachment.meta.name = "of-another-client".into();
    });
    assert!(!bed.is_unresolved(), "its name is not the hash of a volume");
}

/// Only the node's name leads from such an attachment to the volume.
#[tokio::test]
async fn change_during_the_first_reconcile_of_a_volume_requeues_it() {
    type Change = fn(&Bed);
    let rows: [(&str, Change); 2] = [
        ("attachment", |bed| deliver_deletion(&bed.shared.caches.attachments, &attachment("a"))),
        ("node", |bed| deliver_deletion(&bed.shared.caches.nodes, &object("a"))),
    ];
    for (case, change) in rows {
        let bed = Bed::restarted().await;
        let (volume, shared) = (name(), &bed.shared);
        let named = shared.caches.volume(&volume, Plugin::of(&volume).expect("it is known"));
        shared.caches.observe(&named, &Extent::ALL, &shared.memory, Instant::now());
        assert_eq!(shared.volume_queue.len(), 0, "{case}");
        // The requests of the reconcile are under way.
        change(&bed);
        assert_eq!(shared.volume_queue.len(), 1, "{case}");
    }
}

#[tokio::test]
async fn attachment_of_another_volume_does_not_count() {
    let bed = Bed::restarted().await;
    deliver_deletion(&bed.shared.caches.attachments, &attachment("a"));
    bed.add_attachment("a", |attachment| {
        attachment.volume = "old".into();
        attachment.meta.name = attachment_name(DRIVER, "vol-9", "a").into();
    });
    bed.add_pod("web", "b");
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!((bed.count("POST"), bed.count("DELETE")), (1, 0));
}

/// Returns a bed with a shared volume that pods on `a` and `b` use, and that is attached to `a`.
async fn shared_volume_on_two_nodes() -> Bed {
    let bed = Bed::new().await;
    bed.share();
    for node in ["a", "b"] {
        bed.change_node(node, NodeState::healthy(5, &[], &[]));
        bed.deliver_node(node);
        bed.add_pod(&format!("web-{node}"), node);
    }
    bed.add_attachment("a", |_| {});
    bed
}

#[tokio::test]
async fn shared_volume_is_attached_to_one_node_while_a_persistent_volume_cannot_be_decoded() {
    let bed = shared_volume_on_two_nodes().await;
    // It may have the same storage, and be for one node only.
    deliver_undecodable(&bed.shared.caches.volumes, object("garbled"));
    let next = bed.reconcile(&name()).await;
    assert_eq!((bed.count("POST"), next), (0, Ok(Outcome::RequeueAfter(UNDECODABLE_RECHECK))));
    for _ in 0..2 {
        bed.reconcile(&name()).await.expect("it succeeds");
    }
    deliver_deletion(&bed.shared.caches.volumes, &object("garbled"));
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!(bed.count("POST"), 1);
    let events = bed.end().await;
    assert!(events.len() == 1 && events[0].contains("cannot be decoded"), "{events:?}");
}

#[tokio::test]
async fn wait_for_a_volume_that_turns_out_to_be_for_one_node_is_reported_again() {
    let bed = shared_volume_on_two_nodes().await;
    deliver_undecodable(&bed.shared.caches.volumes, object("garbled"));
    bed.reconcile(&name()).await.expect("it succeeds");
    let mut decoded = volume_with("garbled", "vol-1");
    decoded.access_modes = Arc::new(["ReadWriteOnce".into()]);
    deliver(&bed.shared.caches.volumes, decoded);
    for _ in 0..2 {
        bed.reconcile(&name()).await.expect("it succeeds");
    }
    assert_eq!(bed.count("POST"), 0);
    let events = bed.end().await;
    let reasons = ["cannot be decoded", "Volume is already used by pod(s) web-a"];
    assert_eq!(events.len(), reasons.len(), "{events:?}");
    for (event, reason) in events.iter().zip(reasons) {
        assert!(event.contains(reason), "{reason}: {event}");
    }
}

#[test]
fn form_of_the_name_is_that_of_this_controllers_attachments() {
    let own = attachment_name(DRIVER, "vol-1", "a");
    let rows =
        [("own", &*own, true), ("shorter", &own[1..], false), ("no hash", "csi-1", false), ("other", "x", false)];
    for (case, name, expected) in rows {
        assert_eq!(has_form_of_attachment(name), expected, "{case}");
    }
    assert!(!has_form_of_attachment(&own.replace(|c: char| c.is_ascii_digit(), "x")), "not hexadecimal");
}
