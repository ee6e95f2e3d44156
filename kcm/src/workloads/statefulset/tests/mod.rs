//! Tables of plans and statuses, and random histories that must keep order and bounds.

mod histories;
mod keys;
mod reconcile;

use std::sync::Arc;

use jiff::Timestamp;
use kinds::int_or_string::IntOrString;
use kinds::pod::Phase;
use kinds::schema::{object_meta, stateful_set, stateful_set_spec};
use kinds::statefulset::{Rolling, Strategy as Update};
use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, Meta, Pod, Sections, StatefulSet, Time, Uid};

use super::decide::{
    Defects, Gates, Plan, PlanInput, PodRevision, Recreation, Step, max_unavailable, revision_of_missing,
};
use super::identity::{self, Member, REVISION_LABEL};
use super::status::{self, Revisions, SyncProgress};

const NOW: i64 = 1_800_000_000;
const GATES: Gates = Gates { max_unavailable: true, recreate: false, semantic: true };

fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("a time")
}

fn set(replicas: i32) -> StatefulSet {
    let mut object = Vec::new();
    object.put_message(stateful_set::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, "set");
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        meta.put_int(object_meta::GENERATION, 3);
    });
    object.put_message(stateful_set::SPEC, |spec| spec.put_int(stateful_set_spec::REPLICAS, replicas.into()));
    let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
    let mut set = StatefulSet::decode(&context, &object).expect("well-formed");
    set.rolling = Some(Rolling::default());
    set
}

fn parallel(mut set: StatefulSet) -> StatefulSet {
    set.parallel = true;
    set
}

fn rolling(mut set: StatefulSet, partition: i32, unavailable: IntOrString) -> StatefulSet {
    set.rolling = Some(Rolling { partition, max_unavailable: Some(unavailable) });
    set
}

fn strategy(mut set: StatefulSet, strategy: Update) -> StatefulSet {
    set.strategy = strategy;
    set
}

/// Returns a pod that runs and has been ready for a long time.
fn pod(ordinal: i32, revision: &str) -> Pod {
    let interner = Interner::default();
    let name = format!("web-{ordinal}");
    Pod {
        meta: Meta {
            namespace: "ns".into(),
            name: name.as_str().into(),
            uid: Uid::parse(&name),
            version: 1,
            generation: 0,
            created: Time(NOW - 5000),
            deletion: Time(0),
            labels: interner.labels(vec![
                (REVISION_LABEL.into(), revision.into()),
                (identity::NAME_LABEL.into(), name.as_str().into()),
            ]),
            owners: interner.owners(&[]),
            finalizers: interner.list(&[]),
        },
        node: "node".into(),
        phase: Phase::Running,
        ready: true,
        ready_since: Time(NOW - 4000),
        restarts: 0,
        sidecar_restarts: 0,
        deletion_cost: 0,
        ending: None,
        target: None,
        tolerations: None,
        disruption: None,
        usage: None,
        requests: None,
        devices: None,
        volumes: None,
        network: None,
        claims: None,
    }
}

/// Parses `0:r@a`: ordinal, state and revision. States: `r` ready, `n` running and not ready, `y` ready for one second,
/// `p` pending, `f` failed, `t` ready and being deleted, `x` failed and being deleted.
fn member(text: &str) -> Member {
    let (ordinal, rest) = text.split_once(':').expect("an ordinal");
    let (state, revision) = rest.split_once('@').expect("a revision");
    let ordinal = ordinal.parse().expect("a number");
    let mut pod = pod(ordinal, revision);
    match state {
        "r" => {}
        "n" => pod.ready = false,
        "y" => pod.ready_since = Time(NOW - 1),
        "p" => (pod.ready, pod.phase) = (false, Phase::Pending),
        "f" => (pod.ready, pod.phase) = (false, Phase::Failed),
        "t" => pod.meta.deletion = Time(NOW),
        "x" => (pod.ready, pod.phase, pod.meta.deletion) = (false, Phase::Failed, Time(NOW)),
        other => panic!("no state {other}"),
    }
    Member { ordinal, pod: Arc::new(pod) }
}

fn members(text: &str) -> Vec<Member> {
    text.split_whitespace().map(member).collect()
}

fn plan_with(set: &StatefulSet, members: &[Member], gates: Gates, defects: &dyn Fn(&Member) -> Defects) -> Plan {
    let is_stale = &|_: i32| false;
    PlanInput { set, members, current: "a", update: "b", defects, is_stale, gates, now: now() }.plan()
}

fn plan(set: &StatefulSet, members: &[Member], gates: Gates) -> Plan {
    plan_with(set, members, gates, &|_| Defects::default())
}

/// Returns the steps as text: `+0a` creates at the current revision, `+0b` at the newest, `-0` deletes, `~0` repairs;
/// `|` separates stages.
fn text(plan: &Plan) -> String {
    let step = |step: &Step| match step {
        Step::Create(ordinal, PodRevision::Current) => format!("+{ordinal}a"),
        Step::Create(ordinal, PodRevision::Update) => format!("+{ordinal}b"),
        Step::Delete(pod) => format!("-{}", identity::parse(&pod.meta.name).expect("an ordinal").1),
        Step::Repair(member, _) => format!("~{}", member.ordinal),
    };
    let stage = |steps: &[Step]| steps.iter().map(step).collect::<Vec<_>>().join(" ");
    plan.stages.iter().map(|each| stage(&each.steps)).collect::<Vec<_>>().join(" | ")
}

#[test]
fn ordered_pods_are_created_one_by_one_and_deleted_from_the_end() {
    for (replicas, pods, expected) in [
        (3, "", "+0b"),
        (3, "0:p@b", ""),
        (3, "0:n@b", ""),
        (3, "0:r@b", "+1b"),
        (3, "0:r@b 2:r@b", "+1b"),
        (3, "0:t@b 1:r@b", ""),
        (3, "0:f@b 1:r@b", "-0"),
        (3, "0:x@b", ""),
        (3, "0:r@b 1:r@b 2:r@b", ""),
        (1, "0:r@b 1:r@b 2:r@b", "-2"),
        (1, "0:r@b 1:r@b 2:t@b", ""),
        (1, "0:r@b 1:n@b 2:r@b", "-2"),
        (1, "0:r@b 1:n@b 2:n@b", ""),
        (1, "0:r@b 1:r@b 2:n@b", "-2"),
        (1, "0:r@b 1:f@b 2:f@b", "-2"),
        (1, "0:n@b 1:r@b 2:r@b", ""),
        (1, "1:r@b 2:r@b", "+0b"),
        (0, "0:f@b", "-0"),
        (0, "", ""),
    ] {
        assert_eq!(text(&plan(&set(replicas), &members(pods), GATES)), expected, "{replicas} of {pods}");
    }
}

#[test]
fn ordered_update_respects_max_unavailable() {
    let one = |partition| rolling(set(4), partition, IntOrString::Int(1));
    for (set, pods, expected) in [
        (one(0), "0:r@a 1:r@a 2:r@a 3:r@a", "-3"),
        (one(0), "0:r@a 1:r@a 2:r@a 3:r@b", "-2"),
        (one(0), "0:r@a 1:r@a 2:r@a 3:n@b", ""),
        (one(0), "0:r@a 1:r@a 2:r@a", "+3b"),
        (one(0), "0:n@a 1:r@a 2:r@a 3:r@a", ""),
        (one(2), "0:r@a 1:r@a 2:r@a 3:r@b", "-2"),
        (one(2), "0:r@a 1:r@a 2:r@b 3:r@b", ""),
        (one(2), "0:r@a 2:r@b 3:r@b", "+1a"),
        (one(9), "0:r@a 1:r@a 2:r@a 3:r@a", ""),
        (rolling(set(4), 0, IntOrString::Int(2)), "0:r@a 1:r@a 2:r@a 3:r@a", "-3 -2"),
        (rolling(set(4), 3, IntOrString::Int(2)), "0:r@a 1:r@a 2:r@a 3:r@a", "-3"),
        (rolling(set(4), 0, IntOrString::Text("74%".into())), "0:r@a 1:r@a 2:r@a 3:r@a", "-3 -2"),
        (rolling(set(4), 0, IntOrString::Text("1%".into())), "0:r@a 1:r@a 2:r@a 3:r@a", "-3"),
        (strategy(one(0), Update::OnDelete), "0:r@a 1:r@a 2:r@a 3:r@a", ""),
    ] {
        assert_eq!(text(&plan(&set, &members(pods), GATES)), expected, "{pods}");
    }
}

#[test]
fn parallel_pods_are_created_and_deleted_concurrently() {
    let two = |partition| parallel(rolling(set(4), partition, IntOrString::Int(2)));
    for (set, pods, expected) in [
        (two(0), "", "+0b +1b +2b +3b"),
        (two(0), "0:n@b 1:p@b 2:f@b", "-2 +3b"),
        (two(0), "0:t@b 1:r@b 2:r@b 3:r@b", ""),
        (two(0), "0:r@b 1:r@b 2:r@b 3:r@b 4:r@b 5:t@b 6:n@b", "-6 -4"),
        (two(0), "0:r@a 1:r@a 2:r@a 3:r@a", "-3 -2"),
        (two(0), "0:n@a 1:n@a 2:n@a 3:r@a", "-2 -1 -0"),
        (two(0), "0:n@a 1:r@a 2:r@a 3:r@a", "-0 -3"),
        (two(1), "0:n@a 1:r@a 2:r@a 3:r@a", "-3"),
        (two(0), "0:t@a 1:n@b 2:r@a 3:r@a", ""),
        (two(0), "0:f@a 1:r@a 2:r@a 3:r@a", "-0 | -3"),
        (two(2), "2:r@b 3:r@b", "+0a +1a"),
    ] {
        assert_eq!(text(&plan(&set, &members(pods), GATES)), expected, "{pods}");
    }
}

#[test]
fn largest_scale_costs_a_bounded_number_of_steps() {
    for partition in [0, i32::MAX] {
        for gates in [GATES, Gates { max_unavailable: false, ..GATES }] {
            let mut huge = rolling(set(i32::MAX), partition, IntOrString::Int(2));
            let ordered = plan(&huge, &members("0:r@a 1:n@a"), gates);
            assert_eq!(text(&ordered), "", "waits for the second pod");
            assert_eq!(text(&plan(&huge, &members("0:r@b 7:r@b"), gates)).split(' ').count(), 1, "one after the other");
            huge = parallel(huge);
            let all = plan(&huge, &members("0:r@b 2:r@b 900000:r@b"), gates);
            assert_eq!((all.creations(), all.deletes()), (500, false));
            assert!(text(&all).starts_with(if partition == 0 { "+1b +3b +4b" } else { "+1a +3a +4a" }));
            huge.start = 5;
            assert_eq!(plan(&huge, &members("2147483646:r@b"), gates).creations(), 500, "the last ordinal is i32::MAX");
        }
    }
    let counted = plan(&parallel(rolling(set(2000), 0, IntOrString::Int(2))), &members("0:r@b 1999:n@b"), GATES);
    assert_eq!(counted.unavailable, Some(1999), "missing pods beyond the planned ones count, too");
}

#[test]
fn without_the_gate_one_pod_is_replaced_at_a_time() {
    let gates = Gates { max_unavailable: false, ..GATES };
    let many = |partition| parallel(rolling(set(3), partition, IntOrString::Int(3)));
    for (set, pods, expected) in [
        (many(0), "0:r@a 1:r@a 2:r@a", "-2"),
        (many(0), "0:r@a 1:r@a 2:n@b", ""),
        (many(0), "0:r@a 1:r@a 2:t@a", ""),
        (many(0), "0:r@a 1:r@a 2:r@b", "-1"),
        (many(2), "0:r@a 1:r@a 2:r@b", ""),
        (many(0), "0:r@a 1:n@a 2:r@b", "-1"),
        (many(0), "0:r@a 1:r@a", "+2b"),
    ] {
        assert_eq!(text(&plan(&set, &members(pods), gates)), expected, "{pods}");
    }
}

#[test]
fn recreate_update_deletes_all_pods_and_then_creates_all() {
    let gates = Gates { recreate: true, ..GATES };
    let set = strategy(set(2), Update::Recreate);
    for (pods, expected, recreation) in [
        ("0:r@a 1:t@a", "-0", Some(Recreation::Deleting)),
        ("0:r@b 1:t@a", "", Some(Recreation::Deleting)),
        ("0:r@b 1:r@b 5:r@a", "-5", Some(Recreation::Deleting)),
        ("", "+0b", Some(Recreation::Creating)),
        ("0:r@b", "+1b", Some(Recreation::Creating)),
    ] {
        let plan = plan(&set, &members(pods), gates);
        assert_eq!((&*text(&plan), plan.recreation), (expected, recreation), "{pods}");
    }
}

#[test]
fn first_ordinal_is_configurable() {
    let mut set = set(2);
    set.start = 5;
    for (pods, expected) in
        [("", "+5b"), ("5:r@b", "+6b"), ("0:r@b 1:r@b 5:r@b 6:r@b", "-1"), ("4:r@b 5:r@b 6:r@b 7:r@b", "-7")]
    {
        assert_eq!(text(&plan(&set, &members(pods), GATES)), expected, "{pods}");
    }
}

#[test]
fn next_pod_waits_until_the_previous_one_is_available() {
    let mut set = set(2);
    set.min_ready_seconds = 10;
    assert_eq!(text(&plan(&set, &members("0:y@b"), GATES)), "");
    set.min_ready_seconds = 1;
    assert_eq!(text(&plan(&set, &members("0:y@b"), GATES)), "+1b");
}

#[test]
fn scaling_down_and_updates_wait_for_min_ready_seconds() {
    let two = |seconds: i32, strategy: Update, partition: i32| {
        let mut set = rolling(set(2), partition, IntOrString::Int(1));
        set.min_ready_seconds = seconds;
        set.strategy = strategy;
        set
    };
    let update = Update::RollingUpdate;
    for (name, set, pods, expected) in [
        ("scaling down waits", two(10, update, 0), "0:r@b 1:y@b 2:r@b", ""),
        ("scaling down, all available", two(1, update, 0), "0:r@b 1:y@b 2:r@b", "-2"),
        ("an update waits", two(10, update, 0), "0:r@a 1:y@b", ""),
        ("an update continues", two(1, update, 0), "0:r@a 1:y@b", "-0"),
        ("an update without a minimum", two(0, update, 0), "0:r@a 1:y@b", "-0"),
        ("an update above the partition waits", two(10, update, 1), "0:y@a 1:r@a", ""),
        ("an update above the partition", two(10, update, 1), "0:r@a 1:r@a", "-1"),
        ("an update below the partition", two(0, update, 1), "0:r@a 1:r@b", ""),
        ("nothing is deleted for OnDelete", two(10, Update::OnDelete, 0), "0:r@a 1:r@a", ""),
    ] {
        assert_eq!(text(&plan(&set, &members(pods), GATES)), expected, "{name}");
    }
}

#[test]
fn next_check_is_when_the_first_pod_becomes_available() {
    let mut four = parallel(set(4));
    four.min_ready_seconds = 5;
    for (pods, seconds) in [("0:r@b 1:y@b 2:n@b", Some(4)), ("0:r@b 1:n@b", None), ("0:r@b 1:r@b", None)] {
        let members = members(pods);
        let status = status::status(&four, &members, &revisions(), &SyncProgress::default(), now());
        let next = status::next_check(&four, &status, &members, now());
        assert_eq!(next.map(|next| next.as_secs()), seconds, "{pods}");
    }
    four.min_ready_seconds = 0;
    let members = members("0:y@b");
    let status = status::status(&four, &members, &revisions(), &SyncProgress::default(), now());
    assert_eq!(status::next_check(&four, &status, &members, now()), None);
}

#[test]
fn revision_of_a_missing_pod_follows_from_the_partition() {
    let mut set = rolling(set(5), 2, IntOrString::Int(1));
    set.start = 3;
    assert_eq!([4, 5].map(|ordinal| revision_of_missing(&set, ordinal)), [PodRevision::Current, PodRevision::Update]);
    set.rolling = None;
    set.status.current_replicas = 1;
    assert_eq!([3, 4].map(|ordinal| revision_of_missing(&set, ordinal)), [PodRevision::Current, PodRevision::Update]);
    set.strategy = Update::OnDelete;
    assert_eq!(revision_of_missing(&set, 3), PodRevision::Update);
}

#[test]
fn at_least_one_pod_may_be_unavailable() {
    for (bound, expected) in [
        (IntOrString::Int(3), Some(3)),
        (IntOrString::Int(0), Some(1)),
        (IntOrString::Text("50%".into()), Some(5)),
        (IntOrString::Text("19%".into()), Some(1)),
        (IntOrString::Text("5%".into()), Some(1)),
        (IntOrString::Text("many".into()), None),
    ] {
        assert_eq!(max_unavailable(&rolling(set(10), 0, bound.clone())), expected, "{bound:?}");
    }
}

#[test]
fn defects_that_a_plan_repairs_depend_on_the_state_of_the_pod() {
    let all = Defects { claims: true, owners: true, conflict: true, pod: true };
    let pending = Defects { pod: false, ..all };
    let rest = Defects { claims: false, conflict: false, ..all };
    for (set, pods, expected) in [
        (set(1), "0:r@b", Some(rest)),
        (set(1), "0:n@b", None),
        (set(1), "0:p@b", Some(pending)),
        (parallel(set(1)), "0:p@b", Some(all)),
        (parallel(set(1)), "0:n@b", Some(rest)),
        (set(1), "0:f@b", None),
    ] {
        let plan = plan_with(&set, &members(pods), GATES, &|_| all);
        let repairs = plan.stages.iter().flat_map(|stage| &stage.steps).filter_map(|step| match step {
            Step::Repair(_, defects) => Some(*defects),
            _ => None,
        });
        assert_eq!(repairs.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>(), "{pods}");
    }
    // Owners of claims are set before any pod is deleted.
    let owners = |_: &Member| Defects { owners: true, ..Defects::default() };
    for (set, expected) in [(set(0), "~1 ~0 -1"), (parallel(set(0)), "~1 ~0 | -1 -0")] {
        assert_eq!(text(&plan_with(&set, &members("0:r@b 1:r@b"), GATES, &owners)), expected);
    }
}

#[test]
fn pod_waits_for_the_deletion_of_its_stale_claim() {
    let no_defects = &|_: &Member| Defects::default();
    let plan_with_stale_claim = |set: &StatefulSet, stale: i32| {
        let is_stale = &move |ordinal: i32| ordinal == stale;
        let input = PlanInput {
            set,
            members: &members("0:r@b"),
            current: "a",
            update: "b",
            defects: no_defects,
            is_stale,
            gates: GATES,
            now: now(),
        };
        text(&input.plan())
    };
    assert_eq!(plan_with_stale_claim(&set(3), 1), "");
    assert_eq!(plan_with_stale_claim(&parallel(set(3)), 1), "+2b");
}

fn revisions() -> Revisions {
    Revisions { current: "a".into(), update: "b".into(), collisions: 0 }
}

#[test]
fn status_counts_pods_by_state_and_revision() {
    let done = |created: &[&str], deleted: &[&str]| SyncProgress {
        created: created.iter().map(|name| (*name).into()).collect(),
        deleted: deleted.iter().map(|name| Uid::parse(name)).collect(),
        ..SyncProgress::default()
    };
    // (replicas wanted, pods, done) -> replicas, ready, available, current, updated, current revision
    for (wanted, pods, done, expected, revision) in [
        (3, "", done(&["b"], &[]), [1, 0, 0, 0, 1], "a"),
        (3, "0:r@a 1:y@a 2:n@b", done(&[], &[]), [3, 2, 1, 2, 1], "a"),
        (3, "0:r@a 1:r@a 2:t@a", done(&[], &[]), [3, 3, 3, 2, 0], "a"),
        (3, "0:r@a 1:r@a 2:r@a", done(&[], &["web-2"]), [3, 3, 3, 2, 0], "a"),
        (2, "0:r@b 1:r@b", done(&[], &[]), [2, 2, 2, 2, 2], "b"),
        (2, "0:r@b 1:r@b 2:r@b", done(&[], &[]), [3, 3, 3, 0, 3], "a"),
        (2, "0:r@b 1:f@b", done(&[], &[]), [2, 1, 1, 0, 2], "a"),
        (0, "", done(&[], &[]), [0; 5], "b"),
    ] {
        let mut set = set(wanted);
        set.min_ready_seconds = 10;
        let status = status::status(&set, &members(pods), &revisions(), &done, now());
        let counts = [
            status.replicas,
            status.ready_replicas,
            status.available_replicas,
            status.current_replicas,
            status.updated_replicas,
        ];
        assert_eq!((counts, &*status.current_revision), (expected, revision), "{pods}");
        assert_eq!((status.observed_generation, &*status.update_revision), (3, "b"));
        assert!(status.conditions.is_empty());
    }
}

#[test]
fn changing_counts_are_delayed_and_final_counts_and_losses_are_not() {
    let same = Revisions { current: "a".into(), update: "a".into(), collisions: 0 };
    let (immediate, soon, later) = (0, 2, 3);
    let partitioned = |set: StatefulSet| rolling(set, 2, IntOrString::Int(1));
    for (name, set, revisions, before, after, seconds) in [
        ("nothing new", set(3), &same, "0:r@a", "0:r@a", immediate),
        ("a pod is created", set(3), &same, "0:r@a", "0:r@a 1:n@a", later),
        ("the last one is created", set(3), &same, "0:r@a 1:r@a", "0:r@a 1:r@a 2:n@a", later),
        ("all are available", set(3), &same, "0:r@a 1:r@a 2:n@a", "0:r@a 1:r@a 2:r@a", immediate),
        ("lost without an update", set(3), &same, "0:r@a 1:r@a 2:r@a", "0:r@a 1:r@a 2:n@a", immediate),
        ("deleted without an update", set(3), &same, "0:r@a 1:r@a 2:r@a", "0:r@a 1:n@a 2:r@a", immediate),
        ("is being deleted", set(3), &same, "0:r@a 1:r@a 2:r@a", "0:r@a 1:r@a 2:t@a", soon),
        ("all are being deleted", set(3), &same, "0:r@a 1:r@a 2:r@a", "0:t@a 1:t@a 2:t@a", soon),
        ("scaled in", set(1), &same, "0:r@a 1:r@a 2:r@a", "0:r@a 1:r@a", later),
        ("scaled down completely", set(1), &same, "0:r@a 1:r@a", "0:r@a", immediate),
        ("replaced", set(3), &revisions(), "0:r@a 1:r@a 2:r@a", "0:r@a 1:r@a 2:n@b", later),
        ("all but one are replaced", set(3), &revisions(), "0:r@a 1:n@b 2:r@b", "0:r@a 1:r@b 2:r@b", later),
        ("the update ends", set(3), &revisions(), "0:n@b 1:r@b 2:r@b", "0:r@b 1:r@b 2:r@b", immediate),
        (
            "the partition is reached",
            partitioned(set(3)),
            &revisions(),
            "0:r@a 1:r@a 2:n@b",
            "0:r@a 1:r@a 2:r@b",
            immediate,
        ),
        (
            "lost below the partition",
            partitioned(set(3)),
            &revisions(),
            "0:r@a 1:r@a 2:r@b",
            "0:r@a 1:n@a 2:r@b",
            immediate,
        ),
        (
            "lost, no rolling update",
            strategy(set(3), Update::OnDelete),
            &revisions(),
            "0:r@a 1:r@a 2:r@b",
            "0:r@a 1:n@a 2:r@b",
            immediate,
        ),
    ] {
        let of =
            |set: &StatefulSet, pods| status::status(set, &members(pods), revisions, &SyncProgress::default(), now());
        let mut set = set;
        set.status = of(&set, before);
        let delay = status::delay(&set, &of(&set, after));
        assert_eq!(delay.as_secs(), seconds, "{name}: {before} -> {after}");
    }
    let mut unobserved = set(3);
    unobserved.status = status::status(&unobserved, &members("0:r@a"), &same, &SyncProgress::default(), now());
    unobserved.meta.generation += 1;
    let status = status::status(&unobserved, &members("0:r@a 1:n@a"), &same, &SyncProgress::default(), now());
    assert_eq!(
        status::delay(&unobserved, &status),
        std::time::Duration::ZERO,
        "users wait for the observed generation"
    );
}

fn unready(ordinal: i32, revision: &str, since: i64) -> Member {
    let mut pod = pod(ordinal, revision);
    pod.ready = false;
    pod.ready_since = Time(NOW - since);
    Member { ordinal, pod: Arc::new(pod) }
}

#[test]
fn update_that_waits_for_a_broken_pod_is_reported() {
    let reported_message = |set: &StatefulSet, waits_for: &Member| {
        let done = SyncProgress { waits_for: Some(waits_for.clone()), ..SyncProgress::default() };
        let status = status::status(set, std::slice::from_ref(waits_for), &revisions(), &done, now());
        let message = status::new_report(&set.status, &status).map(str::to_owned);
        let mut again = set.clone();
        again.status = status.clone();
        assert_eq!(status::new_report(&again.status, &status), None, "it is reported once");
        message
    };
    let broken = unready(2, "x", 31);
    let message = reported_message(&set(3), &broken).expect("it is blocked");
    assert!(message.contains("kubectl delete pod web-2 -n ns"), "{message}");
    for (what, set, member) in [
        ("parallel", parallel(set(3)), broken.clone()),
        ("OnDelete", strategy(set(3), Update::OnDelete), broken.clone()),
        ("below the partition", rolling(set(3), 3, IntOrString::Int(1)), broken.clone()),
        ("of the newest revision", set(3), unready(2, "b", 31)),
        ("not for the minimum time", set(3), unready(2, "x", 29)),
        ("being deleted", set(3), member("2:t@x")),
    ] {
        assert_eq!(reported_message(&set, &member), None, "{what}");
    }
    let report_delay = status::report_delay(&set(3), "b", Some(&unready(2, "x", 29)), now());
    assert_eq!(report_delay, Some(std::time::Duration::from_secs(1)));
    assert_eq!(status::report_delay(&set(3), "b", Some(&broken), now()), None);

    let mut blocked = set(3);
    let done = SyncProgress { waits_for: Some(broken.clone()), ..SyncProgress::default() };
    blocked.status = status::status(&blocked, &[broken], &revisions(), &done, now());
    assert_eq!(blocked.status.conditions.len(), 1);
    let unblocked = status::status(&blocked, &[], &revisions(), &SyncProgress::default(), now());
    assert!(unblocked.conditions.is_empty(), "the condition is removed when its cause ends");
}

#[test]
fn recreate_update_is_reported_in_a_condition() {
    let mut set = strategy(set(1), Update::Recreate);
    let mut reported = Vec::new();
    for (pods, recreation) in
        [("0:r@a", Some(Recreation::Deleting)), ("", Some(Recreation::Creating)), ("0:r@b", Some(Recreation::Creating))]
    {
        let done = SyncProgress { recreation, ..SyncProgress::default() };
        set.status = status::status(&set, &members(pods), &revisions(), &done, now());
        let condition = &set.status.conditions[0];
        reported.push(format!("{} {} {}", condition.status, condition.reason, condition.message));
    }
    assert_eq!(
        reported,
        [
            "True RecreateInProgress Deleting old revision pods",
            "True RecreateInProgress Waiting for new-revision pods to be created",
            "False RecreateCompleted All pods recreated successfully",
        ]
    );
}

#[test]
fn postponed_creations_keep_the_steps_before_them() {
    use super::decide::Stage;
    let create = |ordinal| Step::Create(ordinal, PodRevision::Update);
    let delete = |ordinal| Step::Delete(Arc::new(pod(ordinal, "old")));
    let stage = |steps: Vec<Step>, concurrent| Stage { steps, concurrent };
    let rows = [
        (
            "ordered: nothing after the first creation",
            vec![stage(vec![delete(5), create(1), delete(6)], false), stage(vec![delete(7)], false)],
            vec![stage(vec![delete(5)], false)],
        ),
        (
            "parallel: the others of the stage",
            vec![stage(vec![create(0), delete(5), create(1)], true), stage(vec![delete(7)], true)],
            vec![stage(vec![delete(5)], true)],
        ),
        ("nothing to create", vec![stage(vec![delete(5)], false)], vec![stage(vec![delete(5)], false)]),
    ];
    for (name, stages, expected) in rows {
        let mut plan = Plan { stages, ..Plan::default() };
        plan.postpone_creations();
        assert_eq!((plan.creations(), plan.stages), (0, expected), "{name}");
    }
}
