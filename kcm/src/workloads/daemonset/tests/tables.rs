//! Cases of upstream's tests, and further ones.

use std::collections::HashSet;
use std::time::Duration;

use kinds::controller_revision::Fingerprint;
use kinds::daemonset::{DaemonSetStatus, TEMPLATE_GENERATION_LABEL};
use kinds::schema::pod_spec;
use kinds::taint::{NO_EXECUTE, NO_SCHEDULE};
use kinds::{ControllerRevision, Str, Toleration};
use runtime::children::{Urgency, adoptable};
use runtime::store::Change;
use runtime::testing::CpuTime;

use super::*;
use crate::pods::keys::owners_of_pod;
use crate::workloads::daemonset::decide::{BURST, Backoff, Notice, attempt_order, delay, manage, next_check, status};
use crate::workloads::daemonset::decide_place::{fit, places};
use crate::workloads::daemonset::decide_revision::{RevisionsByTemplate, hash_of, surplus};
use crate::workloads::daemonset::decide_roll::{Bounds, bounds, roll};
use crate::workloads::daemonset::keys::{affects_fitness, has_same_fitness, of_revision, of_set};

#[test]
fn fitness_of_a_node_follows_from_name_labels_and_taints() {
    let none = Fit::NONE;
    let fitness =
        |spec: &dyn Fn(&mut Vec<u8>), node: &Node| fit(&set_with(0, spec).placement.expect("a template"), node, false);
    let plain = |_: &mut Vec<u8>| {};
    for (taints, expected) in [
        (&[][..], RUNS),
        (&[("x", NO_SCHEDULE)], STAYS),
        (&[("x", NO_EXECUTE)], none),
        (&[("x", NO_SCHEDULE), ("x", NO_EXECUTE)], none),
        (&[("x", "PreferNoSchedule")], RUNS),
        (&[("node.kubernetes.io/not-ready", NO_EXECUTE)], RUNS),
        (&[("node.kubernetes.io/not-ready", NO_SCHEDULE)], STAYS),
        (&[("node.kubernetes.io/unreachable", NO_EXECUTE)], RUNS),
        (&[("node.kubernetes.io/unschedulable", NO_SCHEDULE)], RUNS),
        (&[("node.kubernetes.io/disk-pressure", NO_SCHEDULE), ("node.kubernetes.io/pid-pressure", NO_SCHEDULE)], RUNS),
        (&[("node.kubernetes.io/memory-pressure", NO_SCHEDULE)], RUNS),
        (&[("node.kubernetes.io/network-unavailable", NO_SCHEDULE)], STAYS),
    ] {
        assert_eq!(fitness(&plain, &node("node-1", &[], taints)), expected, "{taints:?}");
    }
    let host = |spec: &mut Vec<u8>| spec.put_bool(pod_spec::HOST_NETWORK, true);
    let offline = node("node-1", &[], &[("node.kubernetes.io/network-unavailable", NO_SCHEDULE)]);
    assert_eq!(fitness(&host, &offline), RUNS);
    let tolerating = |spec: &mut Vec<u8>| Toleration::of("x", NO_SCHEDULE).put(spec, pod_spec::TOLERATIONS);
    assert_eq!(fitness(&tolerating, &node("node-1", &[], &[("x", NO_SCHEDULE)])), RUNS);
    assert_eq!(fitness(&tolerating, &node("node-1", &[], &[("x", NO_EXECUTE)])), none);

    let by_name = |spec: &mut Vec<u8>| spec.put_str(pod_spec::NODE_NAME, "node-1");
    assert_eq!(fitness(&by_name, &node("node-1", &[], &[])), RUNS);
    assert_eq!(fitness(&by_name, &node("node-2", &[], &[])), none);
    let by_label = |spec: &mut Vec<u8>| spec.put_entry(pod_spec::NODE_SELECTOR, "disk", "fast");
    assert_eq!(fitness(&by_label, &node("node-1", &[("disk", "fast")], &[])), RUNS);
    assert_eq!(fitness(&by_label, &node("node-1", &[("disk", "slow")], &[])), none);
}

#[test]
fn node_must_have_both_the_name_and_the_labels() {
    let both = |spec: &mut Vec<u8>| {
        spec.put_str(pod_spec::NODE_NAME, "node-1");
        spec.put_entry(pod_spec::NODE_SELECTOR, "disk", "fast");
    };
    let placement = set_with(0, both).placement.expect("a template");
    for (name, disk, expected) in [
        ("node-1", "fast", RUNS),
        ("node-1", "slow", Fit::NONE),
        ("node-2", "fast", Fit::NONE),
        ("node-2", "slow", Fit::NONE),
    ] {
        assert_eq!(fit(&placement, &node(name, &[("disk", disk)], &[]), false), expected, "{name} {disk}");
    }
}

#[test]
fn tolerations_compare_numbers_only_with_the_gate() {
    let above = |spec: &mut Vec<u8>| {
        Toleration { operator: "Gt", value: "5", ..Toleration::of("x", NO_SCHEDULE) }.put(spec, pod_spec::TOLERATIONS);
    };
    let placement = set_with(0, above).placement.expect("a template");
    let mut tainted = node("node-1", &[], &[("x", NO_SCHEDULE)]);
    tainted.taints[0].value = "9".into();
    assert_eq!([false, true].map(|compares_numbers| fit(&placement, &tainted, compares_numbers)), [STAYS, RUNS]);
}

#[test]
fn places_are_found_in_time_when_there_are_many_tolerations() {
    let many = |spec: &mut Vec<u8>| {
        for number in 0..20_000 {
            Toleration::of(&format!("k{number}"), NO_SCHEDULE).put(spec, pod_spec::TOLERATIONS);
        }
    };
    let set = set_with(0, many);
    let placement = set.placement.clone().expect("a template");
    let taint = |number| if number % 2 == 0 { "k19999" } else { "other" };
    let of = |number: usize| node(&format!("node-{number}"), &[], &[(taint(number), NO_SCHEDULE)]);
    let nodes: Vec<_> = (0..2_000).map(of).map(Arc::new).collect();
    let started = CpuTime::now();
    let places = places(&placement, &nodes, &[], false);
    assert!(started.elapsed() < std::time::Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(places.iter().filter(|place| place.runs()).count(), 1_000);
    for place in places.iter().take(2) {
        let node = nodes.iter().find(|node| node.meta.name == place.node).expect("its node");
        assert_eq!(place.fit, Some(fit(&placement, node, false)), "{}", place.node);
        let change = Change { old: Some(node), new: Some(node) };
        assert!(affects_fitness(&set, &change, false), "the reconcile compares it");
    }
}

#[test]
fn pods_are_assigned_by_binding_or_node_affinity() {
    let placement = set_with(0, |_| {}).placement.expect("a template");
    let nodes = [Arc::new(node("node-1", &[], &[])), Arc::new(node("node-2", &[], &[]))];
    let targeted = |name, node: &str| Pod { node: "".into(), target: Some(Box::new(node.into())), ..pod(name, NEW) };
    let pods: Vec<_> = [
        pod("bound", NEW),
        targeted("aimed", "node-2"),
        Pod { node: "".into(), ..pod("lost", NEW) },
        targeted("of a deleted node", "node-3"),
        ended(pod("failed", NEW), Phase::Failed),
        deleting(ended(pod("failed and being deleted", NEW), Phase::Failed)),
        deleting(pod("being deleted", NEW)),
    ]
    .into_iter()
    .map(Arc::new)
    .collect();
    let places = places(&placement, &nodes, &pods, false);
    let found: Vec<_> = places.iter().map(|place| (&*place.node, place.fit.is_some(), names(&place.pods))).collect();
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        found,
        [
            ("node-1", true, list(&["being deleted", "bound", "failed"])),
            ("node-2", true, list(&["aimed"])),
            ("node-3", false, list(&["of a deleted node"])),
        ]
    );
}

/// Returns the number of created pods and the deleted pods of one node.
fn managed(strategy: Strategy, fit: Option<Fit>, pods: Vec<Pod>) -> (usize, Vec<String>) {
    let plan = manage(&set(strategy), &[place(fit, pods)], REVISION, now(), |_| None);
    (plan.create.len(), names(&plan.delete))
}

#[test]
fn each_node_gets_its_pods() {
    let targeted = |name| Pod { node: "".into(), ..pod(name, NEW) };
    let runs = Some(RUNS);
    let stays = Some(STAYS);
    let none = Some(Fit::NONE);
    let missing = None;
    for (what, fit, pods, expected) in [
        ("missing", runs, vec![], (1, vec![])),
        ("there", runs, vec![pod("a", NEW)], (0, vec![])),
        ("old revision", runs, vec![pod("a", "old")], (0, vec![])),
        ("being deleted", runs, vec![deleting(pod("a", NEW))], (0, vec![])),
        ("failed", runs, vec![ended(pod("a", NEW), Phase::Failed)], (0, vec!["a"])),
        ("succeeded", runs, vec![ended(pod("a", NEW), Phase::Succeeded)], (0, vec!["a"])),
        ("two", runs, vec![born(pod("a", NEW), 5), born(pod("b", NEW), 9)], (0, vec!["a"])),
        ("two of the same age", runs, vec![pod("b", NEW), pod("a", NEW)], (0, vec!["b"])),
        ("the bound pod stays", runs, vec![born(targeted("a"), 9), born(pod("b", NEW), 5)], (0, vec!["a"])),
        ("may stay", stays, vec![pod("a", NEW)], (0, vec![])),
        ("may stay, and is missing", stays, vec![], (0, vec![])),
        ("failed where it may stay", stays, vec![ended(pod("a", NEW), Phase::Failed)], (0, vec!["a"])),
        ("unwanted", none, vec![pod("a", NEW), deleting(pod("b", NEW))], (0, vec!["a"])),
        ("unwanted and missing", none, vec![], (0, vec![])),
        ("bound to a deleted node", missing, vec![pod("a", NEW)], (0, vec![])),
        ("requires a deleted node", missing, vec![targeted("a"), deleting(targeted("b"))], (0, vec!["a"])),
    ] {
        let (create, delete) = expected;
        let delete: Vec<String> = delete.into_iter().map(String::from).collect();
        assert_eq!(managed(rolling(1, 0), fit, pods), (create, delete), "{what}");
    }
}

#[test]
fn with_surge_the_old_pod_stays_until_the_new_one_is_available() {
    let runs = Some(RUNS);
    for (what, fit, pods, expected) in [
        ("missing", runs, vec![], (1, vec![])),
        ("only one that is being deleted", runs, vec![deleting(pod("a", "old"))], (1, vec![])),
        (
            "only one that is being deleted, where it may stay",
            Some(STAYS),
            vec![deleting(pod("a", "old"))],
            (0, vec![]),
        ),
        ("failed", runs, vec![ended(pod("a", NEW), Phase::Failed)], (1, vec!["a"])),
        ("new is not ready", runs, vec![pod("a", "old"), unready(pod("b", NEW))], (0, vec![])),
        ("new is ready", runs, vec![pod("a", "old"), pod("b", NEW)], (0, vec!["a"])),
        ("neither is ready", runs, vec![unready(pod("a", "old")), unready(pod("b", NEW))], (0, vec!["a"])),
        ("two new ones", runs, vec![born(pod("a", NEW), 1), born(pod("b", NEW), 9)], (0, vec!["a"])),
        (
            "two of each",
            runs,
            vec![
                born(pod("a", NEW), 1),
                born(unready(pod("b", NEW)), 9),
                born(pod("c", "old"), 9),
                born(pod("d", "older"), 8),
            ],
            (0, vec!["a", "d"]),
        ),
    ] {
        let (create, delete) = expected;
        let delete: Vec<String> = delete.into_iter().map(String::from).collect();
        assert_eq!(managed(rolling(0, 1), fit, pods), (create, delete), "{what}");
    }
}

#[test]
fn with_surge_a_new_pod_counts_after_min_ready_seconds() {
    let ready_for = |seconds: i64| Pod { ready_since: Time(NOW - seconds), ..pod("new", NEW) };
    for (min_ready_seconds, ready_seconds, deleted) in
        [(10, 5, &[][..]), (10, 9, &[]), (10, 15, &["old"]), (0, 0, &["old"])]
    {
        let mut set = set_with(min_ready_seconds, |_| {});
        set.strategy = rolling(0, 1);
        let places = [place(Some(RUNS), vec![pod("old", "old"), ready_for(ready_seconds)])];
        let plan = manage(&set, &places, REVISION, now(), |_| None);
        assert_eq!(names(&plan.delete), deleted, "ready for {ready_seconds} of {min_ready_seconds} seconds");
        assert!(plan.create.is_empty());
    }
}

#[test]
fn failed_pods_are_kept_for_the_backoff_of_their_node() {
    let failed = |name| ended(pod(name, NEW), Phase::Failed);
    let wait = Duration::from_secs(4);
    for strategy in [rolling(1, 0), rolling(0, 1)] {
        let set = set(strategy);
        let pods = || vec![failed("a"), failed("b"), ended(pod("c", NEW), Phase::Succeeded)];
        let plan = manage(&set, &[place(Some(RUNS), pods())], REVISION, now(), |_| Some(wait));
        assert_eq!((plan.create.len(), names(&plan.delete), plan.again), (0, vec!["c".to_owned()], Some(wait)));
        let plan = manage(&set, &[place(Some(RUNS), pods())], REVISION, now(), |_| None);
        assert_eq!(names(&plan.delete), ["a", "c"], "one failed pod at a time");
        let notices = [Notice::Failed("a".into()), Notice::Succeeded("c".into())];
        assert_eq!(plan.notices.into_iter().map(|(_, notice)| notice).collect::<Vec<_>>(), notices);
        assert_eq!(
            (plan.create.len(), plan.again),
            (0, Some(Backoff::FIRST)),
            "the other failed pod blocks the creation"
        );
    }
}

#[test]
fn backoff_doubles_up_to_15_minutes_and_expires() {
    let mut backoff = Backoff::default();
    let node = Str::from("node-1");
    let at = |seconds: i64| Timestamp::from_second(NOW + seconds).expect("in range");
    assert_eq!(backoff.remaining(&node, now()), None);
    let mut time = 0;
    for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900] {
        backoff.grow(&node, at(time));
        assert_eq!(backoff.remaining(&node, at(time)), Some(Duration::from_secs(expected)));
        time += i64::try_from(expected).expect("small");
        assert_eq!(backoff.remaining(&node, at(time)), None);
        assert_eq!(backoff.remaining("node-2", at(time - 1)), None, "each node has its own backoff");
    }
    backoff.grow(&node, at(time + 901));
    assert_eq!(
        backoff.remaining(&node, at(time + 901)),
        Some(Duration::from_secs(1)),
        "long after the last failed pod"
    );
}

#[test]
fn bounds_round_up_and_are_never_both_zero() {
    let text = |text: &str| Some(IntOrString::Text(text.into()));
    let int = |count| Some(IntOrString::Int(count));
    let places: Vec<_> = (0..7).map(|at| named(at, Some(RUNS), vec![])).chain([place(Some(STAYS), vec![])]).collect();
    for (max_unavailable, max_surge, unavailable, surge) in [
        (int(2), None, 2, 0),
        (text("30%"), int(0), 3, 0),
        (int(0), text("1%"), 0, 1),
        (text("100%"), None, 7, 0),
        (int(0), int(0), 1, 0),
        (None, None, 1, 0),
    ] {
        let set = set(Strategy::RollingUpdate { max_unavailable, max_surge });
        assert_eq!(bounds(&set, &places), Ok(Some(Bounds { desired: 7, unavailable, surge })));
    }
    let bad = set(Strategy::RollingUpdate { max_unavailable: text("many"), max_surge: None });
    assert!(bounds(&bad, &places).expect_err("no percentage").starts_with("invalid value for maxUnavailable"));
    assert_eq!(bounds(&set(Strategy::OnDelete), &places), Ok(None));
}

/// Returns the nodes that get a pod and the pods that are deleted in the next step of a rolling update.
fn rolled(strategy: Strategy, places: &[Place]) -> (Vec<String>, Vec<String>) {
    let set = set(strategy);
    let bounds = bounds(&set, places).expect("numbers").expect("rolling");
    let plan = roll(&set, places, bounds, REVISION, now());
    (plan.create.iter().map(|node| node.to_string()).collect(), names(&plan.delete))
}

#[test]
fn old_pods_are_deleted_within_max_unavailable() {
    let old = |name: &str| pod(name, "old");
    let at = |number, pods| named(number, Some(RUNS), pods);
    for (what, unavailable, places, expected) in [
        ("one of two", 1, vec![at(1, vec![old("a")]), at(2, vec![old("b")])], vec!["a"]),
        ("both", 2, vec![at(1, vec![old("a")]), at(2, vec![old("b")])], vec!["a", "b"]),
        ("one is down already", 1, vec![at(1, vec![old("a")]), at(2, vec![unready(pod("b", NEW))])], vec![]),
        ("one is missing", 1, vec![at(1, vec![old("a")]), at(2, vec![])], vec![]),
        ("one is being deleted", 1, vec![at(1, vec![old("a")]), at(2, vec![deleting(old("b"))])], vec![]),
        ("an unavailable one first", 1, vec![at(1, vec![old("a")]), at(2, vec![unready(old("b"))])], vec!["b"]),
        (
            "all unavailable ones",
            1,
            vec![at(1, vec![unready(old("a"))]), at(2, vec![unready(old("b"))])],
            vec!["a", "b"],
        ),
        ("two on a node", 1, vec![at(1, vec![old("a")]), at(2, vec![old("b"), old("c")])], vec![]),
        ("where it may stay", 1, vec![named(1, Some(STAYS), vec![old("a")]), at(2, vec![pod("b", NEW)])], vec!["a"]),
        ("all are new", 1, vec![at(1, vec![pod("a", NEW)]), at(2, vec![pod("b", NEW)])], vec![]),
    ] {
        let (created, deleted) = rolled(rolling(unavailable, 0), &places);
        assert_eq!((created.len(), deleted), (0, expected.into_iter().map(String::from).collect()), "{what}");
    }
}

#[test]
fn surge_creates_new_pods_next_to_old_ones() {
    let old = |name: &str| pod(name, "old");
    let at = |number, pods| named(number, Some(RUNS), pods);
    let unwanted = |number, pods| named(number, Some(STAYS), pods);
    for (what, places, created, deleted) in [
        ("one of two", vec![at(1, vec![old("a")]), at(2, vec![old("b")])], vec!["node-1"], vec![]),
        (
            "an unavailable one does not count",
            vec![at(1, vec![unready(old("a"))]), at(2, vec![old("b")])],
            vec!["node-1", "node-2"],
            vec![],
        ),
        (
            "one new pod is not available yet",
            vec![at(1, vec![old("a"), unready(pod("b", NEW))]), at(2, vec![old("c")])],
            vec![],
            vec![],
        ),
        ("one is done", vec![at(1, vec![old("a"), pod("b", NEW)]), at(2, vec![old("c")])], vec!["node-2"], vec!["a"]),
        (
            "three on a node",
            vec![at(1, vec![old("a"), old("b"), pod("c", NEW)]), at(2, vec![old("d")])],
            vec![],
            vec![],
        ),
        ("unwanted, another node lacks its pod", vec![unwanted(1, vec![old("a")]), at(2, vec![])], vec![], vec![]),
        (
            "unwanted, the other node has its pod",
            vec![unwanted(1, vec![old("a")]), at(2, vec![pod("b", NEW)])],
            vec![],
            vec!["a"],
        ),
        ("unwanted and unavailable", vec![unwanted(1, vec![unready(old("a"))]), at(2, vec![])], vec![], vec!["a"]),
        (
            "on a deleted node",
            vec![named(1, None, vec![unready(old("a"))]), at(2, vec![old("b")])],
            vec!["node-2"],
            vec!["a"],
        ),
    ] {
        let (made, removed) = rolled(rolling(0, 1), &places);
        assert_eq!(made, created, "{what}");
        assert_eq!(removed, deleted, "{what}");
    }
}

#[test]
fn revision_of_a_pod_is_known_by_hash_or_template_generation() {
    let by_generation = |generation: &str| {
        let mut pod = pod("a", "old");
        pod.meta.labels = meta("a", &[(TEMPLATE_GENERATION_LABEL, generation)]).labels;
        pod
    };
    let revision = |generation| Revision { hash: NEW, generation };
    assert!(revision(None).is_of(&pod("a", NEW)) && !revision(None).is_of(&pod("a", "old")));
    assert!(revision(Some(4)).is_of(&by_generation("4")));
    assert!(!revision(Some(4)).is_of(&by_generation("5")) && !revision(None).is_of(&by_generation("4")));
    assert!(!Revision { hash: "", generation: None }.is_of(&pod("a", "")));
}

#[test]
fn status_counts_nodes() {
    let fresh = |name| Pod { ready_since: Time(NOW - 5), ..pod(name, NEW) };
    let places = [
        named(1, Some(RUNS), vec![pod("a", NEW)]),
        named(2, Some(RUNS), vec![pod("b", "old"), deleting(born(pod("c", NEW), 9000))]),
        named(3, Some(RUNS), vec![fresh("d")]),
        named(4, Some(RUNS), vec![unready(pod("e", "old"))]),
        named(5, Some(RUNS), vec![]),
        named(6, Some(STAYS), vec![pod("f", NEW)]),
        named(7, Some(Fit::NONE), vec![pod("g", NEW)]),
        named(8, Some(Fit::NONE), vec![]),
        named(9, None, vec![pod("h", NEW)]),
    ];
    let mut set = set_with(10, |_| {});
    set.status.collision_count = Some(2);
    let expected = DaemonSetStatus {
        current: 4,
        misscheduled: 2,
        desired: 5,
        ready: 3,
        observed_generation: 3,
        updated: 3,
        available: 2,
        unavailable: 3,
        collision_count: Some(2),
    };
    assert_eq!(status(&set, &places, REVISION, now(), true), expected);
    let unseen = DaemonSetStatus { observed_generation: 0, ..expected };
    assert_eq!(status(&set, &places, REVISION, now(), false), unseen);
    assert_eq!(next_check(&places, 10, now()), Some(Duration::from_secs(5)));
    assert_eq!(next_check(&places[..2], 10, now()), None);
    assert_eq!(next_check(&places, 0, now()), None);
}

#[test]
fn changing_counts_are_delayed_and_final_counts_and_losses_are_not() {
    let counts = |[current, ready, updated, available]: [i32; 4]| DaemonSetStatus {
        desired: 4,
        current,
        ready,
        updated,
        available,
        unavailable: 4 - available,
        ..DaemonSetStatus::default()
    };
    let update = rolling(1, 0);
    let by_hand = Strategy::OnDelete;
    for (what, strategy, was, is, seconds) in [
        ("nothing new", &update, [4, 4, 4, 4], [4, 4, 4, 4], 0),
        ("pods are created", &update, [0, 0, 0, 0], [3, 0, 3, 0], 3),
        ("and become ready", &update, [4, 0, 4, 0], [4, 3, 4, 3], 3),
        ("all are ready", &update, [4, 3, 4, 3], [4, 4, 4, 4], 0),
        ("ready, but not for long enough", &update, [4, 3, 4, 3], [4, 4, 4, 3], 3),
        ("lost without a rollout", &update, [4, 4, 4, 4], [4, 3, 4, 3], 0),
        ("replaced", &update, [4, 4, 1, 4], [4, 3, 2, 3], 3),
        ("lost, and the strategy does not roll", &by_hand, [4, 4, 1, 4], [4, 3, 1, 3], 0),
        ("one is missing", &by_hand, [4, 4, 1, 4], [3, 3, 1, 3], 3),
    ] {
        let mut set = set(strategy.clone());
        set.status = counts(was);
        assert_eq!(delay(&set, &counts(is)).as_secs(), seconds, "{what}");
    }
    let mut complete = set(update);
    complete.status = counts([4, 4, 4, 4]);
    for (what, change) in [
        ("another node", DaemonSetStatus { desired: 5, ..counts([4, 4, 4, 4]) }),
        ("an observed change", DaemonSetStatus { observed_generation: 1, ..counts([4, 4, 0, 4]) }),
        ("one too many", DaemonSetStatus { misscheduled: 1, ..counts([4, 4, 4, 4]) }),
    ] {
        assert_eq!(delay(&complete, &change), Duration::ZERO, "{what}");
    }
}

fn revision(name: &str, number: i64, data: &[u8], labels: &[(&str, &str)]) -> Arc<ControllerRevision> {
    Arc::new(ControllerRevision { meta: meta(name, labels), revision: number, data: Fingerprint::of(data) })
}

#[test]
fn newest_revision_of_the_template_is_the_current_one() {
    let all = vec![
        revision("a", 1, b"x", &[]),
        revision("b", 2, b"y", &[]),
        revision("c", 3, b"x", &[]),
        revision("d", 7, b"z", &[]),
    ];
    let named = |revisions: &[Arc<ControllerRevision>]| {
        revisions.iter().map(|revision| revision.meta.name.to_string()).collect::<Vec<_>>()
    };
    let sorted = RevisionsByTemplate::by(all.clone(), Fingerprint::of(b"x"));
    assert_eq!(sorted.current.as_ref().map(|current| &*current.meta.name), Some("c"));
    assert_eq!((named(&sorted.duplicates), named(&sorted.old)), (vec!["a".into()], vec!["b".into(), "d".into()]));
    assert_eq!(sorted.number(), 8, "it has to be the newest");
    let sorted = RevisionsByTemplate::by(all, Fingerprint::of(b"new"));
    assert_eq!((sorted.current, sorted.old.len()), (None, 4));
    assert_eq!(RevisionsByTemplate::by(Vec::new(), Fingerprint::of(b"x")).number(), 1);
}

#[test]
fn revisions_of_existing_pods_are_kept() {
    let hashed = |name, number| revision(name, number, b"", &[(REVISION_HASH_LABEL, name)]);
    let old = [hashed("a", 1), hashed("b", 2), revision("c", 3, b"", &[]), hashed("d", 4)];
    assert_eq!((hash_of(&old[0]), hash_of(&old[2])), ("a", "c"));
    for (live, limit, expected) in [
        (&[][..], 4, &[][..]),
        (&[], 2, &["a", "b"]),
        (&["a"], 2, &["b", "c"]),
        (&["a", "b", "c"], 1, &["d"]),
        (&["a", "b", "c", "d"], 0, &[]),
        (&["c"], 0, &["a", "b", "d"]),
    ] {
        let live: HashSet<&str> = live.iter().copied().collect();
        let removed: Vec<&str> = surplus(&old, &live, limit).into_iter().map(|revision| &*revision.meta.name).collect();
        assert_eq!(removed, expected, "{live:?} {limit}");
    }
}

#[test]
fn node_change_requeues_daemonsets_with_a_changed_fitness() {
    let unrestricted = set_with(0, |_| {});
    let selective = set_with(0, |spec| spec.put_entry(pod_spec::NODE_SELECTOR, "disk", "fast"));
    let plain = Arc::new(node("node-1", &[], &[]));
    let fast = Arc::new(node("node-1", &[("disk", "fast")], &[]));
    let other = Arc::new(node("node-1", &[("rack", "7")], &[]));
    let tainted = Arc::new(node("node-1", &[], &[("x", NO_SCHEDULE)]));
    for (old, new, same, to_unrestricted, to_selective) in [
        (None, Some(&plain), false, true, false),
        (None, Some(&fast), false, true, true),
        (Some(&plain), Some(&plain), true, false, false),
        (Some(&plain), Some(&other), false, false, false),
        (Some(&plain), Some(&fast), false, false, true),
        (Some(&plain), Some(&tainted), false, true, false),
        (Some(&fast), None, false, true, true),
    ] {
        let change = Change { old, new };
        assert_eq!(has_same_fitness(&change), same, "{change:?}");
        assert_eq!(
            [&unrestricted, &selective].map(|set| affects_fitness(set, &change, false)),
            [to_unrestricted, to_selective],
            "{change:?}"
        );
    }
}

fn owned(mut meta: Meta, kind: &str) -> Meta {
    meta.owners = Interner::default().owners(&[owner(kind)]);
    meta
}

#[test]
fn pod_changes_requeue_their_owners() {
    let ours = |pod: Pod| Arc::new(Pod { meta: owned(pod.meta.clone(), "DaemonSet"), ..pod });
    let (running, going) = (ours(pod("a", NEW)), ours(deleting(pod("a", NEW))));
    let orphan = Arc::new(pod("a", NEW));
    for (old, new, expected) in [
        (None, Some(&running), Some(Urgency::Soon)),
        (Some(&running), Some(&running), None),
        (Some(&running), Some(&ours(unready(pod("a", NEW)))), Some(Urgency::Soon)),
        (Some(&running), Some(&ours(ended(pod("a", NEW), Phase::Failed))), Some(Urgency::Now)),
        (Some(&running), Some(&going), Some(Urgency::Now)),
        (Some(&running), Some(&ours(pod("a", "old"))), Some(Urgency::Now)),
        (Some(&going), None, Some(Urgency::Now)),
        (Some(&running), Some(&orphan), Some(Urgency::Now)),
        (None, Some(&orphan), None),
        (None, Some(&Arc::new(Pod { meta: owned(meta("a", &[]), "ReplicaSet"), ..pod("a", NEW) })), None),
    ] {
        let keys = owners_of_pod::<DaemonSet>(&Change { old, new });
        assert_eq!(keys.first().map(|(_, urgency)| *urgency), expected, "{old:?} -> {new:?}");
        assert!(keys.iter().all(|(key, _)| *key.name == *"agent"));
    }
    assert!(adoptable(&Change { old: Some(&running), new: Some(&orphan) }).is_some());
    assert!(adoptable(&Change { old: Some(&orphan), new: Some(&orphan) }).is_none());
    assert!(adoptable(&Change { old: None, new: Some(&running) }).is_none());
}

#[test]
fn revision_and_set_changes_are_mapped_to_keys() {
    let ours = Arc::new(ControllerRevision {
        meta: owned(meta("agent-abc", &[]), "DaemonSet"),
        ..(*revision("agent-abc", 1, b"", &[])).clone()
    });
    assert!(of_revision(&Change { old: None, new: Some(&ours) }).is_empty(), "this controller has created it");
    assert_eq!(of_revision(&Change { old: Some(&ours), new: Some(&ours) }).len(), 1);
    assert_eq!(of_revision(&Change { old: Some(&ours), new: None }).len(), 1);

    let before = Arc::new(set(rolling(1, 0)));
    let mut reported = (*before).clone();
    reported.status.desired = 5;
    let mut changed = (*before).clone();
    changed.meta.generation += 1;
    for (new, expected) in [(reported, Urgency::Soon), (changed, Urgency::Now)] {
        assert_eq!(of_set(&Change { old: Some(&before), new: Some(&Arc::new(new)) }), expected);
    }
}

#[test]
fn attempt_begins_with_another_node_after_each_refusal() {
    let nodes = |names: &[&str]| names.iter().map(|name| kinds::Str::from(*name)).collect::<Vec<_>>();
    let rows = [(0, ["a", "b", "c"]), (1, ["b", "c", "a"]), (2, ["c", "a", "b"]), (3, ["a", "b", "c"])];
    for (refused, expected) in rows {
        assert_eq!(attempt_order(nodes(&["a", "b", "c"]), refused), nodes(&expected), "{refused} refusals");
    }
    assert!(attempt_order(Vec::new(), 7).is_empty());
    let many: Vec<_> = (0..BURST + 1).map(|at| kinds::Str::from(at.to_string().as_str())).collect();
    assert_eq!(attempt_order(many, 1).len(), BURST);
}
