//! Reconciles of volumes and nodes: requests to the API server, events and rechecks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use kinds::meta::ObjectKey;
use kinds::persistent_volume::Source;
use kinds::pod::InTreeVolume;
use kinds::schema::{
    aws_elastic_block_store, csi_driver, iscsi_persistent_volume_source as iscsi, object_meta,
    persistent_volume_source as source, volume_source,
};
use kinds::wire::Put;
use kinds::{CsiDriver, Decode, Kind, Sections, Time};
use runtime::lock::lock;
use runtime::testing::{deliver, deliver_deletion};
use runtime::worker::{Outcome, ReconcileError};
use tokio::time::{Instant, advance};

use super::bed::{Bed, NodeState, SYNC_PERIOD, name};
use crate::storage::attach_detach::changes::{Extent, Scope};
use crate::storage::attach_detach::decide::MAX_WAIT_FOR_UNMOUNT;
use crate::storage::attach_detach::decide_wait::{DETACH_GRACE, UNMOUNT_GRACE};
use crate::storage::attach_detach::detach::READ_RECHECK;
use crate::storage::attach_detach::keys::subscribe;
use crate::storage::attach_detach::memory::{SiteMemory, Sites};
use crate::storage::testing::{deleting, pod_with};
use crate::storage::volume_name::{attachment_name, of_csi, of_volume};

const A_SECOND: Duration = Duration::from_secs(1);

fn node(version: u64, attached: &[kinds::Str], in_use: &[kinds::Str]) -> NodeState {
    NodeState::healthy(version, attached, in_use)
}

/// Returns a controller with a pod on `node` that uses the volume. Another client has deleted the volume's
/// attachment.
async fn with_deleted_attachment(in_use: &[kinds::Str]) -> Bed {
    let bed = Bed::new().await;
    bed.change_node("node", node(5, &[], in_use));
    bed.deliver_node("node");
    bed.add_pod("web", "node");
    let attached = SiteMemory { is_attached: true, ..SiteMemory::default() };
    bed.shared.memory.store(&name(), &Scope::All, Sites::from([("node".into(), attached)]));
    bed
}

/// A cluster may have tens of thousands of volumes that no pod uses.
#[tokio::test]
async fn new_volume_is_reconciled_only_if_it_may_have_a_node() {
    type Prepare = fn(&Bed);
    let rows: [(&str, Prepare, usize); 5] = [
        ("unused", |_| {}, 0),
        ("used", |bed| drop(bed.add_pod("web", "node")), 1),
        ("attached", |bed| bed.add_attachment("node", |_| {}), 1),
        (
            "remembered",
            |bed| drop(bed.shared.memory.store(&name(), &Scope::All, [("node".into(), SiteMemory::default())].into())),
            1,
        ),
        (
            "listed",
            |bed| {
                bed.change_node("node", node(5, &[name()], &[]));
                bed.deliver_node("node");
            },
            1,
        ),
    ];
    for (case, prepare, expected) in rows {
        let bed = Bed::new().await;
        let volumes = &bed.shared.caches.volumes;
        let volume = (*volumes.all()[0]).clone();
        deliver_deletion(volumes, &volume.meta.key());
        prepare(&bed);
        subscribe(&bed.shared);
        deliver(volumes, volume);
        assert_eq!(bed.shared.volume_queue.len(), expected, "{case}");
    }
}

#[tokio::test]
async fn dead_node_that_never_reports_the_volume_is_not_read() {
    let bed = with_deleted_attachment(&[]).await;
    for _ in 0..10 {
        assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::RequeueAfter(SYNC_PERIOD)));
    }
    assert_eq!((bed.count("GET nodes/node"), bed.count("POST")), (0, 0));
    bed.change_node("node", node(6, &[], &[name()]));
    bed.deliver_node("node");
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!((bed.count("GET nodes/node"), bed.count("POST volumeattachments")), (1, 1));
}

#[tokio::test]
async fn volume_waits_for_the_cache_when_the_read_node_is_newer() {
    let bed = with_deleted_attachment(&[name()]).await;
    bed.change_node("node", node(8, &[], &[]));
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::RequeueAfter(Duration::ZERO)));
    for _ in 0..10 {
        assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::WaitingForCache));
    }
    assert_eq!((bed.count("GET nodes/node"), bed.count("POST")), (1, 0), "one read, not one a second");
    bed.deliver_node("node");
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::RequeueAfter(SYNC_PERIOD)));
    assert_eq!((bed.count("GET nodes/node"), bed.count("POST")), (1, 0));
}

/// The API server's storage was restored from a backup, which the watch has not detected yet.
#[tokio::test]
async fn node_that_is_older_than_the_cache_is_read_once_a_second() {
    let bed = with_deleted_attachment(&[name()]).await;
    bed.change_node("node", node(4, &[], &[]));
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::RequeueAfter(READ_RECHECK)));
    let bed = Bed::new().await;
    bed.change_node("node", node(5, &[], &[]));
    bed.deliver_node("node");
    bed.add_attachment("node", |_| {});
    bed.change_node("node", node(4, &[], &[name()]));
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::RequeueAfter(READ_RECHECK)));
    assert_eq!((bed.count("GET nodes/node"), bed.count("DELETE")), (1, 0));
}

#[tokio::test]
async fn detachment_waits_for_the_cache_when_the_kubelet_uses_the_volume_by_now() {
    let bed = Bed::new().await;
    bed.change_node("node", node(5, &[], &[]));
    bed.deliver_node("node");
    bed.add_attachment("node", |_| {});
    bed.change_node("node", node(8, &[], &[name()]));
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::RequeueAfter(Duration::ZERO)));
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::WaitingForCache));
    assert_eq!((bed.count("GET nodes/node"), bed.count("DELETE")), (1, 0));
    bed.change_node("node", node(9, &[], &[]));
    bed.deliver_node("node");
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!((bed.count("GET nodes/node"), bed.count("DELETE")), (2, 1));
}

/// The node was deleted, and its last status is unknown.
#[tokio::test(start_paused = true)]
async fn forced_detachment_is_counted_when_its_deletion_is_accepted() {
    let bed = Bed::new().await;
    bed.add_attachment("node", |_| {});
    lock(&bed.server).refuses_deletions = true;
    assert_eq!(bed.reconcile(&name()).await, Ok(Outcome::RequeueAfter(MAX_WAIT_FOR_UNMOUNT)));
    advance(MAX_WAIT_FOR_UNMOUNT).await;
    bed.reconcile(&name()).await.expect_err("the deletion is refused");
    advance(A_SECOND).await;
    let forced = || bed.shared.operations.forced[0].load(Ordering::Relaxed);
    assert_eq!((bed.count("DELETE"), forced()), (1, 0));
    lock(&bed.server).refuses_deletions = false;
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!((bed.count("DELETE"), forced()), (2, 1));
}

#[tokio::test]
async fn volumes_of_a_node_share_a_read() {
    let bed = Bed::new().await;
    bed.change_node("node", node(5, &[], &[]));
    let node = "node".into();
    let reads = join_all((0..100).map(|_| bed.shared.read_node(&node))).await;
    assert!(reads.iter().all(|read| read.as_ref().is_ok_and(|node| node.is_some())));
    assert!(bed.count("GET nodes/node") <= 2, "{}", bed.count("GET nodes/node"));
}

#[tokio::test(start_paused = true)]
async fn move_is_reported_only_when_it_takes_long() {
    let deleted = |bed: &Bed| {
        deliver_deletion(
            &bed.shared.caches.attachments,
            &ObjectKey::new("", attachment_name("disk.example.com", "vol-1", "a")),
        );
    };
    for (case, in_use, grace) in [("unmounted", true, UNMOUNT_GRACE), ("detached", false, DETACH_GRACE)] {
        let bed = Bed::new().await;
        let used = [name()];
        bed.change_node("a", node(5, &used, if in_use { &used } else { &[] }));
        bed.change_node("b", node(5, &[], &used));
        ["a", "b"].iter().for_each(|node| bed.deliver_node(node));
        bed.add_attachment("a", |_| {});
        bed.add_pod("second", "b");
        let started = Instant::now();
        let Ok(Outcome::RequeueAfter(next)) = bed.reconcile(&name()).await else { panic!("{case}: no recheck") };
        assert!(next <= grace, "{case}: {next:?}");
        advance(grace - A_SECOND).await;
        bed.reconcile(&name()).await.expect("it succeeds");
        if case == "unmounted" {
            deleted(&bed);
            bed.change_node("a", node(6, &[], &[]));
            bed.deliver_node("a");
            bed.reconcile(&name()).await.expect("it succeeds");
            assert_eq!(bed.count("POST volumeattachments"), 1, "{case}");
            assert_eq!(bed.end().await, Vec::<String>::new(), "{case}: moved in time, {:?}", started.elapsed());
            continue;
        }
        advance(A_SECOND).await;
        for _ in 0..5 {
            bed.reconcile(&name()).await.expect("it succeeds");
        }
        let events = bed.end().await;
        assert!(events.len() == 1 && events[0].contains("already exclusively attached"), "{case}: {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn volume_that_a_pod_on_another_node_uses_is_reported_immediately_and_once() {
    let bed = Bed::new().await;
    for node_name in ["a", "b"] {
        bed.change_node(node_name, node(5, &[], &[name()]));
        bed.deliver_node(node_name);
    }
    bed.add_attachment("a", |_| {});
    let mut first = bed.add_pod("first", "a");
    bed.add_pod("second", "b");
    for _ in 0..5 {
        bed.reconcile(&name()).await.expect("it succeeds");
    }
    // The first pod is deleted later, and is not reported again.
    deleting(&mut first.meta, &[]);
    first.meta.version = 7;
    first.volumes.as_mut().expect("it has volumes").is_running = false;
    deliver(&bed.shared.caches.pods, first);
    advance(DETACH_GRACE).await;
    bed.reconcile(&name()).await.expect("it succeeds");
    let events = bed.end().await;
    assert!(events.len() == 1 && events[0].contains("already used by pod(s) first"), "{events:?}");
}

#[tokio::test]
async fn failure_of_the_driver_to_detach_is_reported_immediately() {
    let bed = Bed::new().await;
    for node_name in ["a", "b"] {
        bed.change_node(node_name, node(5, &[], &[]));
        bed.deliver_node(node_name);
    }
    bed.add_attachment("a", |attachment| {
        attachment.meta.deletion = Time(1);
        attachment.detach_error = Some("no such instance".into());
    });
    bed.add_pod("second", "b");
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!(bed.end().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failure_on_one_node_does_not_delay_the_checks_of_another() {
    let bed = Bed::new().await;
    let recheck = Duration::from_secs(5);
    let errors = || {
        [
            Err(ReconcileError::new("refused")),
            Ok(Some(recheck)),
            Err(ReconcileError { message: "invalid".into(), terminal: true }),
        ]
    };
    let outcome = bed.shared.outcome(&name(), &Extent::ALL, errors().into(), true);
    assert_eq!(outcome, Err(ReconcileError::new("refused; invalid")));
    let waiting = bed.shared.volume_queue.waiting();
    assert_eq!(waiting.iter().map(|key| (key.key.clone(), key.due)).collect::<Vec<_>>(), [(name(), Some(recheck))]);
    let terminal = Err(ReconcileError { message: "invalid".into(), terminal: true });
    assert!(bed.shared.outcome(&name(), &Extent::ALL, vec![terminal], true).is_err_and(|error| error.terminal));
    let both = vec![Ok(None), Ok(Some(SYNC_PERIOD * 2)), Ok(Some(recheck))];
    assert_eq!(bed.shared.outcome(&name(), &Extent::ALL, both, true), Ok(Outcome::RequeueAfter(recheck)));
    assert_eq!(bed.shared.outcome(&name(), &Extent::ALL, vec![Ok(None)], false), Ok(Outcome::Done));
}

#[tokio::test]
async fn refused_list_fails_visibly_unless_the_cache_is_behind() {
    let bed = Bed::new().await;
    bed.change_node("node", node(5, &[], &[]));
    bed.deliver_node("node");
    bed.shared.memory.decide_listing(&"node".into(), &name(), true, true);
    lock(&bed.server).refuses_lists = true;
    let error = bed.reconcile_node("node").await.expect_err("the list is refused");
    assert!(error.message.contains("refuses the list") && error.message.contains("volumesAttached"), "{error}");
    assert!(!error.terminal, "it is retried with backoff");

    let other = "kubernetes.io/csi/d^other".into();
    bed.change_node("node", node(4, std::slice::from_ref(&other), &[]));
    assert_eq!(bed.reconcile_node("node").await, Ok(Outcome::RequeueWithBackoff), "older than the cache");
    bed.change_node("node", node(6, &[other], &[]));
    assert_eq!(bed.reconcile_node("node").await, Ok(Outcome::RequeueAfter(Duration::ZERO)));
    assert_eq!(bed.reconcile_node("node").await, Ok(Outcome::WaitingForCache));
    bed.deliver_node("node");
    lock(&bed.server).refuses_lists = false;
    assert_eq!(bed.reconcile_node("node").await, Ok(Outcome::Done));
    assert_eq!(bed.count("PATCH nodes/node"), 4);
}

/// Upstream's TestNodeStatusUpdater_UpdateNodeStatuses_FailureInFirstUpdate.
#[tokio::test]
async fn failed_write_of_one_node_does_not_hold_up_another() {
    let bed = Bed::new().await;
    for name_of_node in ["a", "b"] {
        bed.change_node(name_of_node, node(5, &[], &[]));
        bed.deliver_node(name_of_node);
        bed.shared.memory.decide_listing(&name_of_node.into(), &name(), true, true);
    }
    lock(&bed.server).failing_node = "a".to_owned();
    bed.reconcile_node("a").await.expect_err("the write is refused");
    assert_eq!(bed.reconcile_node("b").await, Ok(Outcome::Done));
    lock(&bed.server).failing_node.clear();
    assert_eq!(bed.reconcile_node("a").await, Ok(Outcome::Done));
    assert_eq!((bed.count("PATCH nodes/a"), bed.count("PATCH nodes/b")), (2, 1));
}

/// Upstream's Test_MarkVolumeAsUncertain and Test_AddVolumeNode_Positive_NewVolumeNewNodeWithFalseAttached.
#[tokio::test]
async fn volume_is_listed_only_while_its_attachment_is_confirmed() {
    for (case, is_listed, is_attached, expected) in [
        ("attached", false, true, &["add"][..]),
        ("attached and listed", true, true, &[]),
        ("requested", false, false, &[]),
        ("requested and listed", true, false, &["remove"]),
    ] {
        let bed = Bed::new().await;
        let listed = if is_listed { vec![name()] } else { Vec::new() };
        bed.change_node("node", node(5, &listed, &[]));
        bed.deliver_node("node");
        bed.add_pod("web", "node");
        bed.add_attachment("node", |attachment| attachment.attached = is_attached);
        bed.reconcile(&name()).await.expect(case);
        bed.reconcile_node("node").await.expect(case);
        let sent = lock(&bed.server).requests.clone();
        let writes = sent.iter().filter(|request| request.starts_with("PATCH"));
        let kind = |request: &String| if request.contains(r#""op":"add""#) { "add" } else { "remove" };
        assert_eq!(writes.map(kind).collect::<Vec<_>>(), expected, "{case}");
    }
}

/// A volume that kubelets attach has no VolumeAttachment, so only the nodes' statuses show where it is.
#[tokio::test]
async fn volume_that_kubelets_attach_waits_for_the_statuses_that_the_previous_leader_wrote() {
    let bed = Bed::new().await;
    let mut raw = Vec::new();
    raw.put_str(iscsi::TARGET_PORTAL, "10.0.0.1:3260");
    raw.put_str(iscsi::IQN, "iqn.2026-11.com.example:disk");
    bed.set_source(Source::Other { field: source::ISCSI, raw: raw.into() });
    let volume = of_volume(&bed.shared.caches.volumes.all()[0]).expect("it is attached");
    for node_name in ["a", "b"] {
        bed.change_node(node_name, node(5, &[], &[]));
        bed.deliver_node(node_name);
    }
    // The previous leader has listed the volume on the first node.
    bed.change_node("a", node(9, std::slice::from_ref(&volume), std::slice::from_ref(&volume)));
    bed.add_pod("second", "b");
    assert_eq!(bed.reconcile(&volume).await, Ok(Outcome::WaitingForCache));
    bed.deliver_node("a");
    assert!(matches!(bed.reconcile(&volume).await, Ok(Outcome::RequeueAfter(_))));
    assert!(bed.shared.memory.sites(&volume, &Scope::All)[&kinds::Str::from("a")].is_held, "the first node has it");
    assert!(!bed.shared.memory.sites(&volume, &Scope::All)[&kinds::Str::from("b")].is_held, "the second one waits");

    // The previous leader has removed the volume from the list, after the kubelet has mounted it.
    bed.change_node("a", node(10, &[], std::slice::from_ref(&volume)));
    bed.deliver_node("a");
    bed.shared.memory.store(&volume, &Scope::All, Sites::new());
    bed.reconcile(&volume).await.expect("it succeeds");
    assert!(!bed.shared.memory.sites(&volume, &Scope::All)[&kinds::Str::from("b")].is_held, "the second one waits");
    bed.change_node("a", node(11, &[], &[]));
    bed.deliver_node("a");
    for _ in 0..2 {
        bed.reconcile(&volume).await.expect("it succeeds");
    }
    assert!(
        bed.shared.memory.sites(&volume, &Scope::All)[&kinds::Str::from("b")].is_held,
        "the first node has released it"
    );
}

#[tokio::test]
async fn volume_that_kubelets_attach_is_unlisted_only_if_the_node_is_unchanged() {
    for (volume, expected) in [("kubernetes.io/iscsi/10.0.0.1:3260:iqn:0", true), ("kubernetes.io/csi/d^vol-1", false)]
    {
        let bed = Bed::new().await;
        let volume = kinds::Str::from(volume);
        bed.change_node("node", node(5, std::slice::from_ref(&volume), &[]));
        bed.deliver_node("node");
        bed.shared.memory.decide_listing(&"node".into(), &volume, false, true);
        bed.reconcile_node("node").await.expect("it succeeds");
        let sent = lock(&bed.server).requests.iter().find(|sent| sent.starts_with("PATCH")).cloned();
        let has_version = sent.expect("it writes the list").contains("/metadata/resourceVersion");
        assert_eq!(has_version, expected, "{volume}");
    }
}

#[tokio::test]
async fn node_waits_for_the_cache_after_each_write_of_its_list() {
    let bed = Bed::new().await;
    let volume = name();
    bed.change_node("node", node(5, &[], &[]));
    bed.deliver_node("node");
    bed.shared.memory.decide_listing(&"node".into(), &volume, true, true);
    // Another client reverts the list: the watch delivers both changes as one, which changes no volume.
    bed.change_node("node", node(8, &[], &[]));
    assert_eq!(bed.reconcile_node("node").await, Ok(Outcome::RequeueAfter(Duration::ZERO)));
    assert_eq!(bed.reconcile_node("node").await, Ok(Outcome::WaitingForCache));
    assert!(bed.shared.memory.may_be_writing("node", &volume));
    bed.deliver_node("node");
    assert_eq!(bed.shared.node_queue.len(), 1, "the cache has reached the version");
    bed.change_node("node", node(9, std::slice::from_ref(&volume), &[]));
    let next = bed.reconcile_node("node").await;
    assert!(matches!(next, Ok(Outcome::RequeueAfter(_))), "the list is written again, now or after a pause: {next:?}");
}

/// Returns a driver whose volumes need not be attached.
fn optional_driver(name: &str) -> CsiDriver {
    let mut object = Vec::new();
    object.put_message(csi_driver::METADATA, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::UID, &format!("{name}-uid"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let mut driver = CsiDriver::decode(&decode, &object).expect("well-formed");
    driver.attach_required = false;
    driver
}

#[tokio::test]
async fn volumes_of_pods_and_of_deleted_volumes_are_requeued_when_their_driver_changes() {
    const EBS: &str = "ebs.csi.aws.com";
    let (bed, queue) = (Bed::new().await, |bed: &Bed| bed.shared.volume_queue.clone());
    let mut raw = Vec::new();
    raw.put_str(aws_elastic_block_store::VOLUME_ID, "vol-7");
    let disk = InTreeVolume { name: "disk".into(), field: volume_source::AWS_ELASTIC_BLOCK_STORE, raw: raw.into() };
    let mut pod = pod_with("web", &["data"]);
    pod.volumes.as_mut().expect("it has volumes").in_tree = [disk].into();
    deliver(&bed.shared.caches.pods, pod);
    let attached = Sites::from([("node".into(), SiteMemory { is_attached: true, ..SiteMemory::default() })]);
    bed.shared.memory.store(&of_csi(EBS, "vol-deleted"), &Scope::All, attached);
    subscribe(&bed.shared);
    deliver(&bed.shared.caches.drivers, optional_driver(EBS));
    let waiting: Vec<_> = [queue(&bed).next().await, queue(&bed).next().await].into_iter().flatten().collect();
    assert_eq!(waiting, [of_csi(EBS, "vol-7"), of_csi(EBS, "vol-deleted")]);
    assert!(queue(&bed).is_empty(), "the volume of another driver does not change");
}

/// Returns a controller with a volume that all nodes may have, attached to each of these nodes.
async fn with_shared_volume(nodes: &[String]) -> Bed {
    let bed = Bed::new().await;
    bed.share();
    for name_of_node in nodes {
        bed.change_node(name_of_node, node(5, &[name()], &[]));
        bed.deliver_node(name_of_node);
        bed.add_attachment(name_of_node, |_| {});
    }
    subscribe(&bed.shared);
    bed
}

/// Reconciles the volume twice, then after each of these changes. Returns the number of nodes and pods that
/// those reconciles visit.
async fn visited_after<T>(bed: &Bed, changes: impl IntoIterator<Item = T>, change: impl Fn(&Bed, T)) -> usize {
    for _ in 0..2 {
        bed.reconcile(&name()).await.expect("it succeeds");
    }
    let visited = || bed.shared.memory.visited.load(Ordering::Relaxed);
    let before = visited();
    for next in changes {
        change(bed, next);
        bed.reconcile(&name()).await.expect("it succeeds");
    }
    visited() - before
}

/// Asserts that a reconcile of all nodes and pods stores the same state as the reconciles of single ones
/// have stored.
async fn assert_all_is_known(bed: &Bed) {
    let memory = &bed.shared.memory;
    let state = || (memory.sites(&name(), &Scope::All), memory.users(&name(), &Scope::All));
    let before = state();
    memory.changes.forget(&name());
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!(state(), before);
}

fn users(bed: &Bed) -> usize {
    bed.shared.memory.users(&name(), &Scope::All).values().map(|pods| pods.len()).sum()
}

#[tokio::test(start_paused = true)]
async fn change_of_one_pod_visits_one_node_when_thousands_share_a_volume() {
    const PODS_PER_NODE: usize = 4;
    let nodes: Vec<String> = (0..500).map(|number| format!("node-{number}")).collect();
    let bed = with_shared_volume(&nodes).await;
    for pod in 0..PODS_PER_NODE {
        bed.add_pod(&format!("first-{pod}"), &nodes[0]);
    }
    let pods: Vec<(usize, &String)> =
        (0..PODS_PER_NODE).flat_map(|pod| nodes[1..].iter().map(move |node| (pod, node))).collect();
    let changes = pods.len() + PODS_PER_NODE;
    let started = visited_after(&bed, pods, |bed, (pod, node)| drop(bed.add_pod(&format!("{node}-{pod}"), node))).await;
    let ended = &nodes[7];
    let end = |bed: &Bed, pod: usize| {
        deliver_deletion(&bed.shared.caches.pods, &ObjectKey::new("default", format!("{ended}-{pod}")));
    };
    // The reconcile for each change visits the pod and its node.
    let visited = started + visited_after(&bed, 0..PODS_PER_NODE, end).await;
    assert!(visited <= 2 * changes, "{visited} nodes and pods for {changes} changes");

    let sites = bed.shared.memory.sites(&name(), &Scope::All);
    assert_eq!((sites.len(), users(&bed)), (nodes.len(), PODS_PER_NODE * (nodes.len() - 1)));
    assert!(sites[ended.as_str()].unwanted_since.is_some(), "no pod uses it there");
    assert_all_is_known(&bed).await;
}

/// A volume that may be attached to one node only: a decision about one node depends on the others.
#[tokio::test(start_paused = true)]
async fn change_of_one_pod_visits_no_other_pod_when_thousands_use_a_volume_on_one_node() {
    const PODS: usize = 2_000;
    let bed = with_shared_volume(&["node".to_owned()]).await;
    bed.make_exclusive();
    bed.add_pod("first", "node");
    let start = |bed: &Bed, pod: usize| drop(bed.add_pod(&format!("web-{pod}"), "node"));
    let end = |bed: &Bed, pod: usize| {
        deliver_deletion(&bed.shared.caches.pods, &ObjectKey::new("default", format!("web-{pod}")));
    };
    let started = visited_after(&bed, 0..PODS, start).await;
    assert!(started <= 2 * PODS, "{started} nodes and pods");
    assert_eq!(users(&bed), PODS + 1);
    assert_all_is_known(&bed).await;
    let ended = visited_after(&bed, 0..PODS, end).await;
    assert!(ended <= 2 * PODS, "{ended} nodes and pods");
    assert_eq!(users(&bed), 1);
    deliver_deletion(&bed.shared.caches.pods, &ObjectKey::new("default", "first"));
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!(users(&bed), 0);
    assert!(bed.shared.memory.sites(&name(), &Scope::All)["node"].unwanted_since.is_some());
}

/// Each node that waits is compared with those that may have the volume, and not with all others.
#[tokio::test(start_paused = true)]
async fn nodes_that_wait_for_an_exclusive_volume_are_not_compared_with_each_other() {
    const NODES: usize = 1_000;
    let bed = Bed::new().await;
    for number in 0..NODES {
        let name_of_node = format!("node-{number}");
        bed.change_node(&name_of_node, node(5, &[], &[]));
        bed.deliver_node(&name_of_node);
        bed.add_pod(&format!("web-{number}"), &name_of_node);
    }
    bed.add_attachment("node-0", |_| {});
    bed.reconcile(&name()).await.expect("it succeeds");
    // For each pod, the reconcile visits the pod, its node, and the node that has the volume.
    let visited = || bed.shared.memory.visited.load(Ordering::Relaxed);
    let first = visited();
    assert!(first <= 3 * NODES, "{first}");
    bed.reconcile(&name()).await.expect("it succeeds");
    let second = visited() - first;
    assert!(second <= 2 * NODES, "{second}: the waits are reported already");
}

#[tokio::test(start_paused = true)]
async fn volume_that_becomes_exclusive_is_reconciled_on_all_nodes() {
    let nodes = ["a", "b"].map(str::to_owned);
    let bed = with_shared_volume(&nodes).await;
    bed.add_pod("web", "a");
    for _ in 0..2 {
        bed.reconcile(&name()).await.expect("it succeeds");
    }
    bed.change_node("c", node(5, &[], &[]));
    bed.deliver_node("c");
    bed.make_exclusive();
    bed.add_pod("other", "c");
    bed.reconcile(&name()).await.expect("it succeeds");
    assert_eq!(bed.count("POST volumeattachments"), 0, "two nodes have it");
}
