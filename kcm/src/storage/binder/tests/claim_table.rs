//! Decisions on claims, in upstream's cases (those with a number) and others. Upstream:
//! pkg/controller/volume/persistentvolume, binder and provision tests.

use std::sync::Arc;

use kinds::persistent_volume_claim::Phase;
use kinds::{PersistentVolume, PersistentVolumeClaim, StorageClass, Str};

use super::builders::{ClaimSpec, VolumeSpec, claim, class, volume};
use crate::storage::binder::decide_claim::{
    BindWrite, ClaimStep, Cluster, Search, bound_status, lost_status, next_bind_write, next_step, unbound_status,
};
use crate::storage::binder::volume_index::VolumeIndex;

const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const UNDECODABLE_CLASS: &str = "garbled";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A cluster that is read without caches.
#[derive(Default)]
struct FakeCluster {
    volumes: Vec<Arc<PersistentVolume>>,
    classes: Vec<Arc<StorageClass>>,
    pods: Vec<Str>,
    has_undecodable_volume: bool,
}

impl Cluster for FakeCluster {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.iter().find(|volume| *volume.meta.name == *name).cloned()
    }

    fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.iter().find(|class| *class.meta.name == *name).cloned()
    }

    fn is_class_undecodable(&self, name: &str) -> bool {
        name == UNDECODABLE_CLASS
    }

    fn may_have_undecodable_volume(&self, _: &PersistentVolumeClaim) -> bool {
        self.has_undecodable_volume
    }

    fn find(&self, claim: &PersistentVolumeClaim, is_limited: bool) -> Search {
        let mut index = VolumeIndex::default();
        self.volumes.iter().for_each(|volume| index.apply(None, Some(volume)));
        index.find(claim, is_limited).cloned().map_or(Search::Nothing, Search::Found)
    }

    fn default_class(&self) -> Option<Str> {
        self.classes.iter().find(|class| class.is_default).map(|class| class.meta.name.clone())
    }

    fn unscheduled_pods(&self, _: &PersistentVolumeClaim) -> Vec<Str> {
        self.pods.clone()
    }
}

fn classes() -> Vec<Arc<StorageClass>> {
    vec![
        class("gold", "csi.example.com", "Immediate", false, 0),
        class("silver", "csi.example.com", "Immediate", false, 0),
        class("wait", "csi.example.com", "WaitForFirstConsumer", false, 0),
        class("broken", "csi.example.com", "", false, 0),
    ]
}

/// Returns the step as text: `bind pv`, `pend`, `pend Reason`, `lose Reason`, `again`, `class name`, `provision class`,
/// `retry Reason`, `error`.
fn step(claim: &ClaimSpec, volumes: &[VolumeSpec]) -> String {
    text(claim, &cluster(volumes))
}

fn cluster(volumes: &[VolumeSpec]) -> FakeCluster {
    FakeCluster {
        volumes: volumes.iter().map(VolumeSpec::record).collect(),
        classes: classes(),
        ..FakeCluster::default()
    }
}

fn text(claim: &ClaimSpec, cluster: &FakeCluster) -> String {
    match next_step(&claim.record(), cluster) {
        Ok(ClaimStep::Bind { volume, .. }) => format!("bind {}", volume.meta.name),
        Ok(ClaimStep::Pend(None)) => "pend".to_owned(),
        Ok(ClaimStep::Pend(Some(notice))) => format!("pend {}", notice.reason),
        Ok(ClaimStep::Lose(notice)) => format!("lose {}", notice.reason),
        Ok(ClaimStep::DecideAgain) => "again".to_owned(),
        Ok(ClaimStep::AssignClass(class)) => format!("class {class}"),
        Ok(ClaimStep::Provision(class)) => format!("provision {class}"),
        Ok(ClaimStep::Retry(notice, _)) => format!("retry {}", notice.reason),
        Err(_) => "error".to_owned(),
    }
}

fn sized(name: &str, capacity: &'static str) -> VolumeSpec {
    volume(name).with(|volume| volume.capacity = capacity)
}

#[test]
fn unbound_claim_takes_the_best_volume_or_waits() {
    let big = || claim("data").with(|claim| claim.request = "10Gi");
    let wait = || claim("data").class("wait");
    let gold = |name: &str| volume(name).with(|volume| volume.class = "gold");
    let of_wait = || volume("a").with(|volume| volume.class = "wait");
    for (case, claim, volumes, expected) in [
        ("1-1 one volume", claim("data"), vec![volume("a")], "bind a"),
        ("1-2 too small", big(), vec![volume("a")], "pend FailedBinding"),
        ("1-4 smallest", claim("data"), vec![sized("a", "10Gi"), sized("b", "1Gi")], "bind b"),
        ("1-5 reserved by name", claim("data"), vec![sized("a", "10Gi").of("data", ""), sized("b", "1Gi")], "bind a"),
        (
            "1-6 reserved by uid",
            claim("data"),
            vec![sized("a", "10Gi").of("data", "uid-data"), sized("b", "1Gi")],
            "bind a",
        ),
        ("1-7 reserved for another uid", claim("data"), vec![volume("a").of("data", "other")], "pend FailedBinding"),
        (
            "1-11 selector matches",
            claim("data").with(|claim| claim.selector = Some(("k", "v"))),
            vec![volume("a").with(|volume| volume.head.labels = vec![("k", "v")])],
            "bind a",
        ),
        (
            "1-12 selector differs",
            claim("data").with(|claim| claim.selector = Some(("k", "v"))),
            vec![volume("a")],
            "pend FailedBinding",
        ),
        ("1-13 delayed, free volume", wait(), vec![of_wait()], "pend WaitForFirstConsumer"),
        ("1-14 delayed, reserved volume", wait(), vec![of_wait().of("data", "")], "bind a"),
        (
            "1-18 delayed, chosen by the scheduler",
            wait().annotated(SELECTED_NODE, "n"),
            vec![of_wait().of("data", "uid-data")],
            "bind a",
        ),
        (
            "11-23 delayed with node, free volume",
            wait().annotated(SELECTED_NODE, "n"),
            vec![of_wait()],
            "provision wait",
        ),
        ("delayed, the annotation is empty", wait().annotated(SELECTED_NODE, ""), vec![of_wait()], "provision wait"),
        (
            "1-17 phases other than Available",
            claim("data"),
            vec![
                volume("a").phase("Pending"),
                volume("b").phase("Failed"),
                volume("c").phase("Released"),
                volume("d").phase(""),
            ],
            "pend FailedBinding",
        ),
        (
            "deleted volume",
            claim("data"),
            vec![volume("a").with(|volume| volume.head.is_deleting = true)],
            "pend FailedBinding",
        ),
        (
            "13-1 class decides over size",
            claim("data").class("gold"),
            vec![sized("a", "1Gi"), gold("b").with(|volume| volume.capacity = "10Gi")],
            "bind b",
        ),
        ("13-4 empty class", claim("data").class(""), vec![gold("a"), volume("b")], "bind b"),
        ("class by annotation", claim("data").class("silver").annotated(BETA_CLASS, "gold"), vec![gold("a")], "bind a"),
        ("no volume of the class", claim("data").class("gold"), vec![volume("a")], "provision gold"),
        ("11-14 class does not exist", claim("data").class("none"), vec![], "provision none"),
        (
            "class does not exist, static volume",
            claim("data").class("none"),
            vec![volume("a").with(|volume| volume.class = "none")],
            "bind a",
        ),
        ("class is undecodable", claim("data").class(UNDECODABLE_CLASS), vec![], "error"),
        ("class without a mode", claim("data").class("broken"), vec![], "error"),
        (
            "14-3 volume modes differ",
            claim("data").with(|claim| claim.is_block = true),
            vec![volume("a")],
            "pend FailedBinding",
        ),
        (
            "14-8-1 reserved, modes differ",
            claim("data").with(|claim| claim.is_block = true),
            vec![volume("a").of("data", "")],
            "pend FailedBinding",
        ),
        (
            "14-1 both block",
            claim("data").with(|claim| claim.is_block = true),
            vec![volume("a").with(|volume| volume.is_block = true)],
            "bind a",
        ),
        (
            "attributes class differs",
            claim("data").with(|claim| claim.attributes_class = "fast"),
            vec![volume("a")],
            "pend FailedBinding",
        ),
        (
            "attributes class equal",
            claim("data").with(|claim| claim.attributes_class = "fast"),
            vec![volume("a"), volume("b").with(|volume| volume.attributes_class = "fast")],
            "bind b",
        ),
        (
            "access modes",
            claim("data").with(|claim| claim.modes = &["ReadWriteMany"]),
            vec![volume("a")],
            "pend FailedBinding",
        ),
    ] {
        assert_eq!(step(&claim, &volumes), expected, "{case}");
    }
}

#[test]
fn claim_takes_no_free_volume_while_a_volume_that_may_be_reserved_for_it_is_undecodable() {
    let wait = || claim("data").class("wait");
    for (case, claim, volumes, expected) in [
        ("free volume", claim("data"), vec![volume("a")], "pend FailedBinding"),
        ("reserved volume", claim("data"), vec![sized("a", "10Gi").of("data", ""), volume("b")], "bind a"),
        ("named volume", claim("data").names("a"), vec![volume("a")], "bind a"),
        ("no volume", claim("data").class("gold"), vec![], "pend FailedBinding"),
        ("delayed with node", wait().annotated(SELECTED_NODE, "n"), vec![], "pend FailedBinding"),
    ] {
        let cluster = FakeCluster { has_undecodable_volume: true, ..cluster(&volumes) };
        assert_eq!(text(&claim, &cluster), expected, "{case}");
    }
}

#[test]
fn claim_that_names_a_volume_only_takes_that_one() {
    let names = || claim("data").names("a");
    let by_controller = || names().annotated(BOUND_BY_CONTROLLER, "yes");
    for (case, claim, volumes, expected) in [
        ("2-1 no such volume", names(), vec![], "pend"),
        ("15-4 with a class", names().class("gold"), vec![], "pend"),
        ("1-15, 2-3 free", names(), vec![sized("a", "10Gi"), volume("b")], "bind a"),
        ("2-4 reserved by name", names(), vec![volume("a").of("data", "")], "bind a"),
        ("2-5 reserved by uid", names(), vec![volume("a").of("data", "uid-data")], "bind a"),
        (
            "reserved, but too small",
            names().with(|claim| claim.request = "9Gi"),
            vec![volume("a").of("data", "")],
            "bind a",
        ),
        ("2-6 of another claim", names(), vec![volume("a").of("logs", "uid-logs")], "pend FailedBinding"),
        (
            "2-7 of another claim, chosen by a controller",
            by_controller(),
            vec![volume("a").of("logs", "uid-logs")],
            "retry FailedBinding",
        ),
        (
            "2-8 selector is not checked",
            names().with(|claim| claim.selector = Some(("k", "v"))),
            vec![volume("a")],
            "bind a",
        ),
        ("phase is not checked", names(), vec![volume("a").phase("Released")], "bind a"),
        ("2-9 too small", names().with(|claim| claim.request = "9Gi"), vec![volume("a")], "pend VolumeMismatch"),
        ("2-10 class", names(), vec![volume("a").with(|volume| volume.class = "gold")], "pend VolumeMismatch"),
        (
            "2-11 attributes class",
            names(),
            vec![volume("a").with(|volume| volume.attributes_class = "fast")],
            "pend VolumeMismatch",
        ),
        (
            "2-12 attributes class",
            names().with(|claim| claim.attributes_class = "fast"),
            vec![volume("a").with(|volume| volume.attributes_class = "fast")],
            "bind a",
        ),
        ("14-8 volume mode", names().with(|claim| claim.is_block = true), vec![volume("a")], "pend VolumeMismatch"),
        (
            "1-16 access modes",
            names().with(|claim| claim.modes = &["ReadWriteMany"]),
            vec![volume("a")],
            "pend VolumeMismatch",
        ),
        ("deleted", names(), vec![volume("a").with(|volume| volume.head.is_deleting = true)], "pend VolumeMismatch"),
    ] {
        assert_eq!(step(&claim, &volumes), expected, "{case}");
    }
}

#[test]
fn bound_claim_is_lost_without_its_volume_and_recovers_with_it() {
    let bound = || claim("data").names("a").annotated(BIND_COMPLETED, "yes").with(|claim| claim.phase = "Bound");
    for (case, claim, volumes, expected) in [
        ("3-1 names no volume", bound().names(""), vec![], "lose ClaimLost"),
        ("3-2 volume is missing", bound(), vec![], "lose ClaimLost"),
        ("3-3 volume is free", bound(), vec![volume("a")], "bind a"),
        (
            "3-7 selector is not checked",
            bound().with(|claim| claim.selector = Some(("k", "v"))),
            vec![volume("a")],
            "bind a",
        ),
        ("3-5 own volume", bound(), vec![volume("a").of("data", "uid-data")], "bind a"),
        ("3-4 other uid", bound(), vec![volume("a").of("data", "other")], "lose ClaimMisbound"),
        ("3-6 other claim", bound(), vec![volume("a").of("logs", "uid-logs")], "lose ClaimMisbound"),
        ("by name without uid", bound(), vec![volume("a").of("data", "")], "lose ClaimMisbound"),
    ] {
        assert_eq!(step(&claim, &volumes), expected, "{case}");
    }
}

#[test]
fn claim_without_a_class_gets_the_default_one() {
    let defaults = vec![class("default", "csi.example.com", "Immediate", true, 0)];
    let cluster = |volumes: &[VolumeSpec]| FakeCluster {
        volumes: volumes.iter().map(VolumeSpec::record).collect(),
        classes: defaults.clone(),
        ..FakeCluster::default()
    };
    for (case, claim, volumes, expected) in [
        ("15-5 no class", claim("data"), vec![], "class default"),
        ("a volume without a class comes first", claim("data"), vec![volume("a")], "bind a"),
        ("15-6 has a class", claim("data").class("gold"), vec![], "provision gold"),
        ("has an empty class", claim("data").class(""), vec![], "pend FailedBinding"),
        ("15-7 has an empty annotation", claim("data").annotated(BETA_CLASS, ""), vec![], "pend FailedBinding"),
        ("15-3 was bound", claim("data").names("a").annotated(BIND_COMPLETED, "yes"), vec![], "lose ClaimLost"),
    ] {
        assert_eq!(text(&claim, &cluster(&volumes)), expected, "{case}");
    }
}

#[test]
fn event_of_a_delayed_claim_names_the_pods_that_it_waits_for() {
    for (pods, expected) in [
        (&[][..], "waiting for first consumer to be created before binding"),
        (&["web-0"], "waiting for pod web-0 to be scheduled"),
        (&["web-0", "web-1"], "waiting for pods web-0,web-1 to be scheduled"),
    ] {
        let cluster = FakeCluster {
            classes: classes(),
            pods: pods.iter().map(|pod| Str::from(*pod)).collect(),
            ..FakeCluster::default()
        };
        match next_step(&claim("data").class("wait").record(), &cluster) {
            Ok(ClaimStep::Pend(Some(notice))) => {
                assert_eq!((notice.message.as_str(), notice.is_warning), (expected, false))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn binding_continues_after_the_last_write_that_succeeded() {
    let done = || claim("data").names("a").annotated(BIND_COMPLETED, "yes");
    let referring = || volume("a").of("data", "uid-data");
    for (case, claim, volume, expected) in [
        ("nothing", claim("data"), volume("a"), BindWrite::VolumeReference { by_controller: true }),
        (
            "reserved by name",
            claim("data"),
            volume("a").of("data", ""),
            BindWrite::VolumeReference { by_controller: false },
        ),
        ("1-8 after the first", claim("data"), referring(), BindWrite::VolumePhase),
        (
            "1-9 after the second",
            claim("data"),
            referring().phase("Bound"),
            BindWrite::ClaimReference { by_controller: true },
        ),
        (
            "named by the user",
            claim("data").names("a"),
            referring().phase("Bound"),
            BindWrite::ClaimReference { by_controller: false },
        ),
        ("1-10 after the third", done(), referring().phase("Bound"), BindWrite::ClaimStatus),
    ] {
        assert_eq!(next_bind_write(&claim.record(), &volume.record()), expected, "{case}");
    }
}

#[test]
fn capacity_of_a_claim_is_set_only_when_it_becomes_bound() {
    const PRE_RESIZE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
    let bound = |capacity: &'static str| {
        claim("data").with(|claim| {
            claim.phase = "Bound";
            claim.capacity = capacity;
        })
    };
    for (case, claim, volume, phase, capacity) in [
        ("becomes bound", claim("data"), sized("a", "10Gi"), Some(Phase::Bound), Some("10Gi")),
        (
            "5-2-3 waits for a resize",
            claim("data"),
            sized("a", "2Gi").annotated(PRE_RESIZE, "1Gi"),
            Some(Phase::Bound),
            Some("1Gi"),
        ),
        (
            "invalid annotation",
            claim("data"),
            sized("a", "2Gi").annotated(PRE_RESIZE, "x"),
            Some(Phase::Bound),
            Some("2Gi"),
        ),
        ("bound before", bound("1Gi"), sized("a", "10Gi"), None, None),
    ] {
        let (claim, volume) = (claim.record(), volume.record());
        let edit = bound_status(&claim, &volume).expect("has a capacity").expect("access modes are missing");
        assert_eq!((edit.phase, edit.capacity), (phase, capacity), "{case}");
        assert_eq!(edit.access_modes, Some(&*volume.access_modes), "{case}");
    }
    let error = bound_status(&claim("data").record(), &sized("a", "").record()).expect_err("no capacity");
    assert_eq!(error, "PersistentVolume \"a\" is without a storage capacity");
    let fast = volume("a").with(|volume| volume.attributes_class = "fast").record();
    let pending = claim("data").record();
    assert_eq!(
        bound_status(&pending, &fast).expect("valid").expect("an edit is needed").attributes_class,
        Some("fast")
    );
    let lost = claim("data").with(|claim| claim.phase = "Lost").record();
    assert_eq!(bound_status(&lost, &fast).expect("valid").expect("an edit is needed").attributes_class, None);
}

#[test]
fn status_of_an_unbound_claim_is_cleared() {
    let stale = claim("data")
        .with(|claim| {
            claim.phase = "Bound";
            claim.capacity = "1Gi";
        })
        .record();
    let edit = unbound_status(&stale, Phase::Pending).expect("an edit is needed");
    assert_eq!((edit.phase, edit.capacity, edit.access_modes), (Some(Phase::Pending), Some(""), None));
    assert_eq!(unbound_status(&claim("data").record(), Phase::Pending), None);
    assert_eq!(lost_status(&stale).map(|edit| (edit.phase, edit.capacity)), Some((Some(Phase::Lost), Some(""))));
    let lost = claim("data").with(|claim| (claim.phase, claim.capacity) = ("Lost", "1Gi")).record();
    assert_eq!(lost_status(&lost), None, "upstream leaves the status of such a claim");
}
