//! Objects of which no state can be decoded, and which therefore seem to be missing: nevertheless, a volume is neither
//! detached nor attached to a second node.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kinds::Str;
use kinds::meta::ObjectKey;
use kinds::persistent_volume::Source;
use kinds::schema::{iscsi_persistent_volume_source as iscsi, persistent_volume_source as source};
use kinds::wire::Put;
use runtime::testing::{deliver_deletion, deliver_undecodable};
use runtime::worker::Outcome;
use tokio::time::advance;

use super::bed::{Bed, NodeState, name};
use crate::storage::attach_detach::changes::Scope;
use crate::storage::attach_detach::decide::{MAX_WAIT_FOR_UNMOUNT, UNDECODABLE_RECHECK};
use crate::storage::volume_name::{attachment_name, of_volume};

fn object(name: &str) -> ObjectKey {
    ObjectKey::new("", name)
}

fn attachment(node: &str) -> ObjectKey {
    object(&attachment_name("disk.example.com", "vol-1", node))
}

/// Returns a controller that reconciles volumes again only if they wait for something.
async fn bed() -> Bed {
    let mut bed = Bed::new().await;
    Arc::get_mut(&mut bed.shared).expect("the only reference").settings.sync_period = None;
    bed
}

impl Bed {
    /// Adds a healthy node whose status lists these volumes as attached and as in use.
    fn add_node(&self, node: &str, listed: &[Str], used: &[Str]) {
        self.change_node(node, NodeState::healthy(5, listed, used));
        self.deliver_node(node);
    }

    /// Replaces the volume by one that kubelets attach. Returns its unique name.
    fn let_kubelets_attach(&self) -> Str {
        let mut raw = Vec::new();
        raw.put_str(iscsi::TARGET_PORTAL, "10.0.0.1:3260");
        raw.put_str(iscsi::IQN, "iqn.2026-11.com.example:disk");
        self.set_source(Source::Other { field: source::ISCSI, raw: raw.into() });
        of_volume(&self.shared.caches.volumes.all()[0]).expect("it is attached")
    }

    /// Returns true if the volume is reserved for a node.
    fn is_held(&self, volume: &Str, node: &str) -> bool {
        self.shared.memory.sites(volume, &Scope::All).get(node).is_some_and(|site| site.is_held)
    }
}

#[tokio::test]
async fn volume_whose_attachment_cannot_be_decoded_stays_on_its_node() {
    let volume = [name()];
    for (case, listed) in [("in use", &volume[..]), ("removed from the list", &[])] {
        let bed = bed().await;
        bed.add_node("a", listed, listed);
        bed.add_node("b", &[], &[]);
        deliver_undecodable(&bed.shared.caches.attachments, attachment("a"));
        bed.add_pod("second", "b");
        // The deletion of an undecodable object is no change of a record: the volume is checked again later.
        let next = bed.reconcile(&name()).await;
        assert_eq!(next, Ok(Outcome::RequeueAfter(UNDECODABLE_RECHECK)), "{case}");
        bed.reconcile_node("a").await.expect("it succeeds");
        assert_eq!((bed.count("PATCH"), bed.count("POST"), bed.count("DELETE")), (0, 0, 0), "{case}");
        deliver_deletion(&bed.shared.caches.attachments, &attachment("a"));
        bed.reconcile(&name()).await.expect("it succeeds");
        bed.reconcile_node("a").await.expect("it succeeds");
        let expected = if listed.is_empty() { (0, 1) } else { (1, 0) };
        assert_eq!((bed.count("PATCH"), bed.count("POST")), expected, "{case}: deleted");
    }
}

#[tokio::test]
async fn volume_whose_attachment_cannot_be_decoded_stays_listed_for_its_pod() {
    let bed = bed().await;
    bed.add_node("a", &[name()], &[]);
    deliver_undecodable(&bed.shared.caches.attachments, attachment("a"));
    bed.add_pod("first", "a");
    bed.reconcile(&name()).await.expect("it succeeds");
    bed.reconcile_node("a").await.expect("it succeeds");
    assert_eq!((bed.count("PATCH"), bed.count("POST")), (0, 0));
    bed.add_attachment("a", |_| {});
    bed.reconcile(&name()).await.expect("it succeeds");
    assert!(bed.shared.memory.sites(&name(), &Scope::All)["a"].is_announced, "it is attached");
}

#[tokio::test]
async fn volume_of_kubelets_is_attached_to_no_node_while_another_node_cannot_be_decoded() {
    let bed = bed().await;
    let volume = bed.let_kubelets_attach();
    bed.add_node("b", &[], &[]);
    deliver_undecodable(&bed.shared.caches.nodes, object("a"));
    bed.add_pod("second", "b");
    let next = bed.reconcile(&volume).await;
    assert_eq!((next, bed.is_held(&volume, "b")), (Ok(Outcome::RequeueAfter(UNDECODABLE_RECHECK)), false));
    bed.add_node("a", &[], std::slice::from_ref(&volume));
    bed.reconcile(&volume).await.expect("it succeeds");
    assert!(!bed.is_held(&volume, "b"), "the other node uses it");
    bed.change_node("a", NodeState::healthy(6, &[], &[]));
    bed.deliver_node("a");
    for _ in 0..2 {
        bed.reconcile(&volume).await.expect("it succeeds");
    }
    assert!(bed.is_held(&volume, "b"), "the other node has released it");
}

#[tokio::test(start_paused = true)]
async fn volume_in_use_is_not_detached_because_of_a_timeout_while_a_user_may_be_undecodable() {
    type Prepare = fn(&Bed);
    let rows: [(&str, Prepare, bool); 7] = [
        ("all decodable", |_| {}, true),
        ("pod", |bed| deliver_undecodable(&bed.shared.caches.pods, ObjectKey::new("default", "web")), false),
        ("pod of another tenant", |bed| deliver_undecodable(&bed.shared.caches.pods, ObjectKey::new("x", "web")), true),
        (
            "claim",
            |bed| {
                let key = ObjectKey::new("default", "data");
                deliver_deletion(&bed.shared.caches.claims, &key);
                deliver_undecodable(&bed.shared.caches.claims, key);
            },
            false,
        ),
        ("volume deleted", |bed| deliver_deletion(&bed.shared.caches.volumes, &object("pv")), true),
        (
            "volume",
            |bed| {
                deliver_deletion(&bed.shared.caches.volumes, &object("pv"));
                deliver_undecodable(&bed.shared.caches.volumes, object("pv"));
            },
            false,
        ),
        // It may have the same storage, and a claim that is not known.
        ("another volume", |bed| deliver_undecodable(&bed.shared.caches.volumes, object("garbled")), false),
    ];
    for (case, prepare, is_detached) in rows {
        let bed = bed().await;
        bed.add_attachment("a", |_| {});
        bed.change_node("a", NodeState { is_unhealthy: true, ..NodeState::healthy(5, &[], &[name()]) });
        bed.deliver_node("a");
        bed.reconcile(&name()).await.expect("it succeeds");
        prepare(&bed);
        advance(MAX_WAIT_FOR_UNMOUNT).await;
        let next = bed.reconcile(&name()).await.expect("it succeeds");
        assert_eq!(bed.count("DELETE"), usize::from(is_detached), "{case}");
        let forced = bed.shared.operations.forced[0].load(Ordering::Relaxed);
        assert_eq!(forced, u64::from(is_detached), "{case}");
        assert_eq!(next == Outcome::RequeueAfter(UNDECODABLE_RECHECK), !is_detached, "{case}: {next:?}");
    }
}
