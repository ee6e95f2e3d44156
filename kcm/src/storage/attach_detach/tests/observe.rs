//! Observations with filled caches.

use std::sync::Arc;
use std::time::Duration;

use kinds::meta::{Meta, ObjectKey};
use kinds::node_volumes::{AttachedVolume, NodeVolumes};
use kinds::persistent_volume::{ClaimRef, Source};
use kinds::persistent_volume_claim::Phase;
use kinds::pod::InTreeVolume;
use kinds::schema::{aws_elastic_block_store, csi_driver, node, object_meta, volume_attachment, volume_source};
use kinds::wire::Put;
use kinds::{
    CsiDriver, Decode, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, Sections, Uid, VolumeAttachment,
};
use runtime::store::{Change, Store};
use runtime::testing::{CpuTime, deliver, deliver_deletion, filled_store};
use tokio::time::Instant;

use crate::storage::attach_detach::changes::{Extent, Scope};
use crate::storage::attach_detach::decide::Attachment;
use crate::storage::attach_detach::indexes::{attachments_by_volume, nodes_by_attached_volume, pods_by_claim_and_node};
use crate::storage::attach_detach::memory::{Memory, NodeWrite, SiteMemory, Sites, Users};
use crate::storage::attach_detach::observe::{Caches, Observation};
use crate::storage::attach_detach::totals::{volumes_by_state, volumes_in_use};
use crate::storage::indexes::pods_by_claim;
use crate::storage::inline_volume::pods_by_inline_volume;
use crate::storage::testing::{claim, deleting, own, pod_with, pod_with_ephemeral, volume};
use crate::storage::volume_name::{Plugin, attachment_name, of_csi, volumes_by_unique_name};

const DRIVER: &str = "disk.example.com";
const HANDLE: &str = "vol-1";

fn read<K: Kind>(metadata: u32, name: &str) -> K {
    let mut object = Vec::new();
    object.put_message(metadata, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::UID, &format!("{name}-uid"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    K::decode(&Decode { interner: Arc::default(), sections: Sections::default() }, &object).expect("well-formed")
}

/// A bound claim `data` with its volume `pv`, a node, and a pod that uses the claim there.
struct Cluster {
    pods: Vec<Pod>,
    nodes: Vec<Node>,
    claims: Vec<PersistentVolumeClaim>,
    volumes: Vec<PersistentVolume>,
    attachments: Vec<VolumeAttachment>,
    drivers: Vec<CsiDriver>,
    memory: Memory,
}

fn managed_node(name: &str) -> Node {
    let mut made: Node = read(node::METADATA, name);
    made.volumes = Some(Box::new(NodeVolumes::new(true, Vec::new(), Vec::new())));
    made
}

fn attachment(name: &str, node: &str) -> VolumeAttachment {
    let mut made: VolumeAttachment = read(volume_attachment::METADATA, name);
    made.attacher = DRIVER.into();
    made.node = node.into();
    made.volume = "pv".into();
    made
}

impl Cluster {
    fn new() -> Self {
        let mut claim = claim("data");
        let mut volume = volume("pv");
        claim.phase = Phase::Bound;
        claim.volume_name = "pv".into();
        volume.source = Source::Csi { driver: DRIVER.into(), handle: HANDLE.into() };
        volume.access_modes = Arc::new(["ReadWriteOnce".into()]);
        volume.claim = Some(Box::new(ClaimRef {
            namespace: "default".into(),
            name: "data".into(),
            uid: Some(claim.meta.uid.clone()),
        }));
        Self {
            pods: vec![pod_with("web", &["data"])],
            nodes: vec![managed_node("node")],
            claims: vec![claim],
            volumes: vec![volume],
            attachments: Vec::new(),
            drivers: Vec::new(),
            memory: Memory::default(),
        }
    }

    fn observe(self) -> Observation {
        self.observe_at(Instant::now())
    }

    fn observe_at(self, now: Instant) -> Observation {
        let (caches, memory) = self.caches();
        let name = of_csi(DRIVER, HANDLE);
        let plugin = Plugin::of(&name).expect("it is known");
        let may_have_places = caches.volumes.all().iter().any(|volume| caches.may_have_places(&name, volume, &memory));
        let observation = caches.observe(&caches.volume(&name, plugin), &Extent::ALL, &memory, now);
        let is_defined = !caches.volumes.is_empty();
        assert!(
            !is_defined || may_have_places || observation.places.is_empty(),
            "a new PersistentVolume is not reconciled"
        );
        observation
    }

    fn caches(self) -> (Caches, Memory) {
        fn store<K: Kind>(indexes: Vec<runtime::store::Index<K>>, records: Vec<K>) -> Arc<Store<K>> {
            let decode = Decode { interner: Arc::default(), sections: Sections::default() };
            Arc::new(filled_store(decode, indexes, records))
        }
        let caches = Caches {
            pods: store(vec![pods_by_claim(), pods_by_claim_and_node(), pods_by_inline_volume()], self.pods),
            nodes: store(vec![nodes_by_attached_volume()], self.nodes),
            claims: store(Vec::new(), self.claims),
            volumes: store(vec![volumes_by_unique_name()], self.volumes),
            attachments: store(vec![attachments_by_volume()], self.attachments),
            drivers: store(Vec::new(), self.drivers),
            unresolved: Default::default(),
        };
        (caches, self.memory)
    }

    fn meta_of_claim(&mut self) -> &mut Meta {
        &mut self.claims[0].meta
    }
}

/// Returns the nodes, and whether the volume is wanted there.
fn wanted(observation: &Observation) -> Vec<(&str, bool)> {
    observation.places.iter().map(|place| (&*place.node, place.site.is_wanted)).collect()
}

#[tokio::test]
async fn volume_is_wanted_where_a_pod_holds_its_claim() {
    type Change = fn(&mut Cluster);
    let rows: [(&str, Change, bool); 13] = [
        ("running", |_| {}, true),
        ("not scheduled", |cluster| cluster.pods[0].node = "".into(), false),
        ("finished", |cluster| cluster.pods[0].phase = kinds::pod::Phase::Succeeded, false),
        ("deleted and running", |cluster| deleting(&mut cluster.pods[0].meta, &[]), true),
        (
            "deleted and ended",
            |cluster| {
                deleting(&mut cluster.pods[0].meta, &[]);
                cluster.pods[0].volumes.as_mut().expect("it has volumes").is_running = false;
            },
            false,
        ),
        ("claim not bound", |cluster| cluster.claims[0].phase = Phase::Pending, false),
        ("claim recreated", |cluster| cluster.meta_of_claim().uid = Uid::parse("another"), false),
        ("claim of another volume", |cluster| cluster.claims[0].volume_name = "other".into(), false),
        ("node missing", |cluster| cluster.nodes.clear(), false),
        ("node not managed", |cluster| cluster.nodes[0].volumes = None, false),
        (
            "driver without attachments",
            |cluster| {
                let mut driver: CsiDriver = read(csi_driver::METADATA, DRIVER);
                driver.attach_required = false;
                cluster.drivers.push(driver);
            },
            false,
        ),
        (
            "claim of another pod",
            |cluster| {
                cluster.pods = vec![pod_with_ephemeral("web")];
                cluster.claims[0].meta.name = "web-data".into();
                cluster.volumes[0].claim.as_mut().expect("it has one").name = "web-data".into();
            },
            false,
        ),
        (
            "claim of the pod",
            |cluster| {
                cluster.pods = vec![pod_with_ephemeral("web")];
                cluster.claims[0].meta.name = "web-data".into();
                let pod = cluster.pods[0].clone();
                own(&mut cluster.claims[0].meta, &pod);
                cluster.volumes[0].claim.as_mut().expect("it has one").name = "web-data".into();
            },
            true,
        ),
    ];
    for (name, change, expected) in rows {
        let mut cluster = Cluster::new();
        change(&mut cluster);
        let observation = cluster.observe();
        assert_eq!(wanted(&observation), if expected { vec![("node", true)] } else { vec![] }, "{name}");
        assert!(observation.is_exclusive && &*observation.label == "pv", "{name}");
    }
}

#[tokio::test]
async fn volume_stays_wanted_while_a_known_pod_runs_whose_claim_was_deleted() {
    let mut cluster = Cluster::new();
    let pod = &cluster.pods[0].meta;
    let users = Users::from([("node".into(), [(pod.key(), pod.uid.clone())].into())]);
    let remember = |memory: &Memory| {
        memory.store(&of_csi(DRIVER, HANDLE), &Scope::All, Sites::from([("node".into(), SiteMemory::default())]));
        memory.set_users(&of_csi(DRIVER, HANDLE), &Scope::All, users.clone());
    };
    remember(&cluster.memory);
    cluster.claims.clear();
    cluster.volumes.clear();
    let observation = cluster.observe();
    assert_eq!(wanted(&observation), [("node", true)]);
    assert!(observation.is_exclusive, "its access modes are unknown");

    let mut replaced = Cluster::new();
    remember(&replaced.memory);
    replaced.claims.clear();
    replaced.pods[0].meta.uid = Uid::parse("another");
    assert_eq!(wanted(&replaced.observe()), [("node", false)]);
}

/// Upstream's tests Test_GetVolumesToAttach_*, Test_AddPod_*, Test_DeletePod_* and Test_DeleteNode_*.
#[tokio::test]
async fn volume_is_wanted_on_a_node_until_the_last_of_its_pods_ends() {
    let mut cluster = Cluster::new();
    let (mut logs, mut second) = (claim("logs"), volume("pv-2"));
    logs.phase = Phase::Bound;
    logs.volume_name = "pv-2".into();
    second.source = Source::Csi { driver: DRIVER.into(), handle: "vol-2".into() };
    let reference = ClaimRef { namespace: "default".into(), name: "logs".into(), uid: Some(logs.meta.uid.clone()) };
    second.claim = Some(Box::new(reference));
    cluster.claims.push(logs);
    cluster.volumes.push(second);
    let on = |node: &str, pod: &str, claims: &[&str]| Pod { node: node.into(), ..pod_with(pod, claims) };
    let other = || on("other", "third", &["logs"]);
    cluster.pods = vec![on("node", "first", &["data", "logs"]), on("node", "second", &["data"]), other()];
    cluster.nodes.push(managed_node("other"));
    let (caches, memory) = cluster.caches();
    let users = |handle: &str| {
        let name = of_csi(DRIVER, handle);
        let plugin = Plugin::of(&name).expect("it is known");
        caches.observe(&caches.volume(&name, plugin), &Extent::ALL, &memory, Instant::now());
        let users = memory.users(&name, &Scope::All);
        users.iter().map(|(node, pods)| format!("{node} {}", pods.len())).collect::<Vec<_>>()
    };
    let delete = |pod: &str| deliver_deletion(&caches.pods, &ObjectKey::new("default", pod));
    assert_eq!((users("vol-1"), users("vol-2")), (vec!["node 2".into()], vec!["node 1".into(), "other 1".into()]));
    assert_eq!(users("vol-1"), ["node 2"], "the same pods again");
    delete("unknown");
    delete("first");
    assert_eq!((users("vol-1"), users("vol-2")), (vec!["node 1".into()], vec!["other 1".into()]));
    // The kubelet of a deleted node still runs its pods.
    for node in ["node", "other", "unknown"] {
        deliver_deletion(&caches.nodes, &ObjectKey::new("", node));
    }
    assert_eq!((users("vol-1"), users("vol-2")), (vec!["node 1".into()], vec!["other 1".into()]));
    deliver(&caches.pods, on("node", "new", &["data"]));
    assert_eq!(users("vol-1"), ["node 1"], "a new pod on a node that does not exist");
    delete("second");
    delete("third");
    assert_eq!((users("vol-1"), users("vol-2")), (vec![], vec![]));
}

/// Upstream's TestFindAndRemoveNonattachableVolumes.
#[tokio::test]
async fn users_of_a_volume_are_forgotten_when_its_driver_no_longer_attaches() {
    let name = of_csi(DRIVER, HANDLE);
    let mut cluster = Cluster::new();
    let mut driver: CsiDriver = read(csi_driver::METADATA, DRIVER);
    cluster.drivers.push(driver.clone());
    let (caches, memory) = cluster.caches();
    let plugin = Plugin::of(&name).expect("it is known");
    let users = || {
        caches.observe(&caches.volume(&name, plugin), &Extent::ALL, &memory, Instant::now());
        memory.users(&name, &Scope::All).len()
    };
    driver.attach_required = true;
    deliver(&caches.drivers, driver.clone());
    assert_eq!(users(), 1);
    driver.attach_required = false;
    deliver(&caches.drivers, driver);
    assert_eq!(users(), 0);
}

/// Any tenant can create pods that name a node in their spec, even if no kubelet runs them.
#[tokio::test]
async fn volume_with_very_many_pods_is_observed_in_linear_time() {
    const PODS: usize = 50_000;
    let mut cluster = Cluster::new();
    cluster.pods = (0..PODS).map(|number| pod_with(&format!("web-{number}"), &["data"])).collect();
    let (caches, memory) = cluster.caches();
    let name = of_csi(DRIVER, HANDLE);
    let started = CpuTime::now();
    let volume = caches.volume(&name, Plugin::of(&name).expect("it is known"));
    let observation = caches.observe(&volume, &Extent::ALL, &memory, Instant::now());
    assert_eq!(wanted(&observation), [("node", true)]);
    assert_eq!(memory.users(&name, &Scope::All)["node"].len(), PODS);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
}

#[tokio::test]
async fn attachment_of_another_client_is_recognized_by_its_name() {
    let own_name = attachment_name(DRIVER, HANDLE, "other");
    let rows = [("own", &*own_name, Attachment::Requested, false), ("foreign", "mine", Attachment::Absent, true)];
    for (name, of, expected, is_foreign) in rows {
        let mut cluster = Cluster::new();
        cluster.attachments.push(attachment(of, "other"));
        let observation = cluster.observe();
        assert_eq!(wanted(&observation), [("node", true), ("other", false)], "{name}");
        let site = &observation.places[1].site;
        assert_eq!((site.attachment, site.has_foreign), (expected, is_foreign), "{name}");
        assert!(!site.node.exists && site.is_in_use, "the last status of the node is unknown");
    }
}

#[tokio::test]
async fn node_that_lists_a_deleted_volume_is_found() {
    let mut cluster = Cluster::new();
    cluster.volumes.clear();
    let mut node = managed_node("other");
    let listed = AttachedVolume { name: of_csi(DRIVER, HANDLE), device_path: "".into() };
    node.volumes = Some(Box::new(NodeVolumes::new(true, vec![listed], Vec::new())));
    cluster.nodes.push(node);
    let mut made = attachment(&attachment_name(DRIVER, HANDLE, "other"), "other");
    made.attached = true;
    cluster.attachments.push(made);
    let observation = cluster.observe();
    assert_eq!(wanted(&observation), [("other", false)]);
    let site = &observation.places[0].site;
    assert_eq!((site.attachment, site.is_listed, site.is_in_use), (Attachment::Attached, true, false));
}

/// Upstream's Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved.
#[tokio::test(start_paused = true)]
async fn time_since_the_last_pod_does_not_restart_when_the_use_changes() {
    const MINUTE: Duration = Duration::from_secs(60);
    let start = Instant::now();
    let mut memory = SiteMemory::default();
    for (name, minutes, is_in_use, has_pod, expected) in [
        ("pod deleted, still mounted", 1, true, false, 0),
        ("unmounted", 2, false, false, 1),
        ("mounted again", 3, true, false, 2),
        ("wanted by a pod", 4, true, true, 0),
        ("pod deleted again", 5, true, false, 0),
        ("still mounted", 7, true, false, 2),
    ] {
        let mut cluster = Cluster::new();
        if !has_pod {
            cluster.pods.clear();
        }
        let in_use = is_in_use.then(|| of_csi(DRIVER, HANDLE));
        let volumes = NodeVolumes::new(true, Vec::new(), in_use.into_iter().collect());
        cluster.nodes[0].volumes = Some(Box::new(volumes));
        cluster.memory.store(&of_csi(DRIVER, HANDLE), &Scope::All, Sites::from([("node".into(), memory)]));
        let mut observation = cluster.observe_at(start + MINUTE * minutes);
        let place = observation.places.remove(0);
        assert_eq!((place.site.is_in_use, place.site.unwanted_for), (is_in_use, MINUTE * expected), "{name}");
        memory = place.memory;
    }
}

#[tokio::test]
async fn volume_that_a_kubelet_attached_stays_reserved_when_its_node_is_deleted_while_in_use() {
    let volume: kinds::Str = "kubernetes.io/iscsi/10.0.0.1:3260:iqn:0".into();
    for (name, is_attached, last_use, expected) in [
        ("in use", true, Some(true), Attachment::Uncertain),
        ("unmounted before", true, Some(false), Attachment::Absent),
        ("last status unknown", true, None, Attachment::Uncertain),
        ("detached by force", false, Some(true), Attachment::Absent),
    ] {
        let mut cluster = Cluster::new();
        let mut node = cluster.nodes.remove(0);
        let memory = SiteMemory { is_attached, is_abandoned: !is_attached, ..SiteMemory::default() };
        cluster.memory.store(&volume, &Scope::All, Sites::from([("node".into(), memory)]));
        if let Some(is_in_use) = last_use {
            let in_use = is_in_use.then(|| volume.clone());
            node.volumes = Some(Box::new(NodeVolumes::new(true, Vec::new(), in_use.into_iter().collect())));
            cluster.memory.keep_deleted(&Change { old: Some(&Arc::new(node)), new: None });
        }
        let (caches, memory) = cluster.caches();
        let plugin = Plugin::of(&volume).expect("it is known");
        let observation = caches.observe(&caches.volume(&volume, plugin), &Extent::ALL, &memory, Instant::now());
        let place = &observation.places[0];
        assert_eq!(place.site.attachment, expected, "{name}");
        assert!(!place.memory.is_abandoned, "{name}: it would be remembered forever");
    }
}

/// Upstream's TestVolumesInUseMetricCollection and TestTotalVolumesMetricCollection.
#[tokio::test]
async fn volumes_are_counted_by_node_plugin_and_state() {
    let mut cluster = Cluster::new();
    let mut unscheduled = pod_with("waiting", &["data"]);
    unscheduled.node = "".into();
    let mut secrets = pod_with("secrets", &["lost"]);
    let driver = kinds::Str::from("secrets.example.com");
    secrets.volumes.as_mut().expect("it has volumes").csi_drivers = Arc::new([driver.clone(), driver]);
    let mut lost = claim("lost");
    lost.phase = Phase::Lost;
    lost.volume_name = "pv".into();
    cluster.claims.push(lost);
    cluster.pods.extend([unscheduled, pod_with("unbound", &["missing"]), secrets]);
    let (caches, memory) = cluster.caches();
    let plugin = format!("kubernetes.io/csi:{DRIVER}");
    let labels = |first: (&'static str, &str), last: (&'static str, &str)| {
        [(first.0, first.1.to_owned()), (last.0, last.1.to_owned())]
    };
    let in_use = labels(("node", "node"), ("volume_plugin", &plugin));
    let inline = labels(("node", "node"), ("volume_plugin", "kubernetes.io/csi:secrets.example.com"));
    assert_eq!(volumes_in_use(&caches).into_iter().collect::<Vec<_>>(), [(in_use, 1.0), (inline, 2.0)]);

    let wanted = SiteMemory::default();
    let attached = SiteMemory { is_attached: true, ..SiteMemory::default() };
    let sites = Sites::from([("a".into(), wanted), ("b".into(), attached.clone())]);
    memory.store(&of_csi(DRIVER, "vol-1"), &Scope::All, sites);
    memory.store(&of_csi(DRIVER, "vol-2"), &Scope::All, Sites::from([("a".into(), attached)]));
    for handle in ["vol-1", "vol-2"] {
        let user = Some(("a".into(), Uid::parse("web-uid")));
        memory.set_user(&of_csi(DRIVER, handle), &ObjectKey::new("default", "web"), user);
    }
    let state = |name| labels(("plugin_name", &plugin), ("state", name));
    let expected = [(state("actual_state_of_world"), 2), (state("desired_state_of_world"), 2)];
    assert_eq!(volumes_by_state(&memory).into_iter().collect::<Vec<_>>(), expected);
}

/// Upstream's TestNodeStatusUpdater_UpdateNodeStatuses_TwoNodesUpdate.
#[test]
fn lists_of_two_nodes_are_written_independently() {
    let memory = Memory::default();
    let volume = of_csi(DRIVER, HANDLE);
    let (a, b) = ("a".into(), "b".into());
    let now = Instant::now();
    let listed = vec![AttachedVolume { name: volume.clone(), device_path: "".into() }];
    assert!(memory.decide_listing(&a, &volume, true, true) && memory.decide_listing(&b, &volume, false, true));
    assert_eq!(memory.begin_write("a", &[], now), NodeWrite::Now(listed.clone()));
    assert_eq!(memory.begin_write("b", &listed, now), NodeWrite::Now(Vec::new()));
    assert!(memory.may_be_writing("a", &volume) && !memory.may_be_writing("b", &volume));
    assert_eq!(memory.end_write("b", &[]), (Vec::new(), None));
    assert!(memory.may_be_writing("a", &volume), "the other node's write has not ended");
    assert_eq!(memory.end_write("a", &[]), (vec![volume], None));
}

/// Returns a pod with an inline EBS volume, whose plugin is migrated to CSI.
fn pod_with_inline(name: &str, id: &str) -> Pod {
    let mut raw = Vec::new();
    raw.put_str(aws_elastic_block_store::VOLUME_ID, id);
    let field = volume_source::AWS_ELASTIC_BLOCK_STORE;
    let mut pod = pod_with(name, &["data"]);
    let volumes = pod.volumes.as_mut().expect("it has volumes");
    volumes.claims = Box::default();
    volumes.in_tree = [InTreeVolume { name: "disk".into(), field, raw: raw.into() }].into();
    pod
}

#[tokio::test]
async fn volume_that_pods_define_themselves_is_wanted_where_they_run() {
    let mut cluster = Cluster::new();
    let mut elsewhere = pod_with_inline("other", "aws:///vol-7");
    elsewhere.node = "second".into();
    let mut unscheduled = pod_with_inline("waiting", "vol-7");
    unscheduled.node = "".into();
    let mut finished = pod_with_inline("finished", "vol-7");
    finished.phase = kinds::pod::Phase::Succeeded;
    cluster.pods =
        vec![pod_with_inline("web", "vol-7"), elsewhere, unscheduled, finished, pod_with_inline("x", "vol-8")];
    cluster.nodes.push(managed_node("second"));
    let (caches, memory) = cluster.caches();
    let name = of_csi("ebs.csi.aws.com", "vol-7");
    let plugin = Plugin::of(&name).expect("it is known");
    let observation = caches.observe(&caches.volume(&name, plugin), &Extent::ALL, &memory, Instant::now());
    assert_eq!(wanted(&observation), [("node", true), ("second", true)]);
    let inline = observation.inline.as_ref().expect("pods define it");
    assert!(observation.is_exclusive && observation.volume.is_none() && inline.spec.is_some());
    assert_eq!(&*observation.label, "ebs.csi.aws.com-vol-7");
    assert_eq!(caches.names_of_pod(&pod_with_inline("web", "vol-7")).collect::<Vec<_>>(), [name]);
}
