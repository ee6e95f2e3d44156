//! Counts, conditions and the time of the next reconcile.

use std::time::Duration;

use kinds::condition::Condition;
use kinds::deployment::{DeploymentStatus, Strategy};
use kinds::{Deployment, ReplicaSet, Time};

use super::builders::{DEADLINE, condition, deployment, int, rolling, set, sets};
use crate::workloads::deployment::decide_status::{
    self as decide, AVAILABLE, CREATE_FAILED, CREATED, FOUND, NEW_SET_AVAILABLE, PAUSED, PROGRESSING, REPLICA_FAILURE,
    RESUMED, SET_UPDATED, TIMED_OUT, is_complete, is_progress, is_timed_out, note_collision, note_create_failed,
    note_created, note_found, note_pause, recheck_after, remove_condition, set_condition, status, write_delay,
};
use crate::workloads::deployment::sets::Sets;

/// Times at which the conditions of these tests were written, and at which they are evaluated.
const THEN: i64 = 5_000;
const NOW: Time = Time(THEN + 1_000);

fn counts(replicas: i32, updated: i32, ready: i32, available: i32) -> DeploymentStatus {
    DeploymentStatus {
        replicas,
        updated_replicas: updated,
        ready_replicas: ready,
        available_replicas: available,
        observed_generation: 1,
        ..DeploymentStatus::default()
    }
}

fn observed(replicas: i32, status: DeploymentStatus, conditions: Vec<Condition>) -> Deployment {
    let mut deployment = deployment(replicas);
    deployment.strategy = Strategy::Recreate;
    deployment.status = DeploymentStatus { conditions, ..status };
    deployment
}

fn sized(name: &str, spec: i32, pods: i32, available: i32) -> ReplicaSet {
    let mut set = set(name, spec, 0, name);
    set.status.replicas = pods;
    set.status.ready_replicas = 0;
    set.status.available_replicas = available;
    set
}

fn reason(status: &DeploymentStatus, kind: &str) -> Option<String> {
    decide::condition(status, kind).map(|condition| condition.reason.to_string())
}

fn progressing(value: &str, reason: &str) -> Condition {
    condition(PROGRESSING, value, reason, THEN)
}

#[test]
fn conditions_change_only_with_value_or_reason() {
    let base = DeploymentStatus {
        conditions: vec![condition(PROGRESSING, "False", "Some", THEN), condition(AVAILABLE, "True", "Good", THEN)],
        ..DeploymentStatus::default()
    };
    for (new, update, transition) in [
        (condition(PROGRESSING, "False", "Some", 9), THEN, THEN),
        (condition(PROGRESSING, "False", "Other", 9), 9, THEN),
        (condition(PROGRESSING, "True", "Some", 9), 9, 9),
    ] {
        let mut status = base.clone();
        set_condition(&mut status, new.clone());
        let got = decide::condition(&status, PROGRESSING).expect("set");
        assert_eq!((got.last_update, got.last_transition), (Time(update), Time(transition)), "{new:?}");
        assert_eq!((&got.status, &got.reason), (&new.status, &new.reason));
        assert_eq!(status.conditions.len(), 2);
    }
    let mut status = base.clone();
    remove_condition(&mut status, AVAILABLE);
    remove_condition(&mut status, "Absent");
    assert_eq!(status.conditions, base.conditions[..1]);
    assert_eq!(decide::condition(&status, AVAILABLE), None);
    set_condition(&mut status, condition(AVAILABLE, "True", "Good", 9));
    assert_eq!(status.conditions.len(), 2);
}

#[test]
fn rollout_is_complete_when_all_pods_are_new_and_available() {
    for (desired, status, expected) in [
        (5, counts(5, 5, 5, 4), false),
        (5, counts(5, 5, 5, 3), false),
        (5, counts(5, 5, 5, 5), true),
        (5, counts(5, 4, 5, 5), false),
        (1, counts(2, 1, 1, 1), false),
        (1, counts(1, 1, 0, 0), false),
        (5, DeploymentStatus { observed_generation: 0, ..counts(5, 5, 5, 5) }, false),
    ] {
        assert_eq!(is_complete(&deployment(desired), &status), expected, "{desired}: {status:?}");
    }
}

#[test]
fn progress_is_more_new_fewer_old_more_ready_or_more_available_pods() {
    for (before, after, expected) in [
        (counts(10, 4, 4, 4), counts(10, 6, 4, 4), true),
        (counts(10, 4, 4, 4), counts(10, 4, 4, 4), false),
        (counts(10, 4, 6, 6), counts(8, 4, 6, 6), true),
        (counts(10, 7, 3, 3), counts(10, 6, 3, 3), false),
        (counts(10, 4, 7, 7), counts(8, 8, 5, 5), true),
        (counts(10, 10, 9, 8), counts(10, 10, 10, 8), true),
        (counts(10, 10, 10, 9), counts(10, 10, 10, 10), true),
    ] {
        assert_eq!(is_progress(&before, &after), expected, "{before:?} to {after:?}");
    }
}

#[test]
fn a_rollout_times_out_after_its_deadline() {
    let updated = progressing("True", SET_UPDATED);
    for (deadline, conditions, passed, expected) in [
        (None, vec![updated.clone()], 11, false),
        (Some(i32::MAX), vec![updated.clone()], 11, false),
        (Some(10), vec![updated.clone()], 11, true),
        (Some(10), vec![updated.clone()], 10, false),
        (Some(10), vec![updated], 9, false),
        (Some(10), vec![], 11, false),
        (Some(10), vec![progressing("True", NEW_SET_AVAILABLE)], 11, false),
        (Some(10), vec![progressing("False", TIMED_OUT)], 1, true),
    ] {
        let mut d = observed(3, counts(3, 3, 3, 1), conditions);
        d.progress_deadline_seconds = deadline;
        let got = is_timed_out(&d, &d.status, Time(THEN + passed));
        assert_eq!(got, expected, "{deadline:?} {:?} after {passed}", d.status.conditions);
    }
}

#[test]
fn stuck_rollout_is_reconciled_again_after_its_deadline() {
    let stuck = vec![progressing("True", "")];
    for (deadline, status, conditions, passed, expected) in [
        (None, counts(3, 3, 0, 2), stuck.clone(), 30, None),
        (Some(i32::MAX), counts(3, 3, 0, 2), stuck.clone(), 30, None),
        (Some(DEADLINE), counts(3, 3, 0, 2), vec![], 30, None),
        (Some(DEADLINE), counts(3, 3, 0, 3), stuck.clone(), 30, None),
        (Some(DEADLINE), counts(3, 3, 0, 0), vec![progressing("False", TIMED_OUT)], 30, None),
        (Some(DEADLINE), counts(3, 3, 0, 1), vec![progressing("True", NEW_SET_AVAILABLE)], 99, None),
        (Some(DEADLINE), counts(3, 3, 0, 1), stuck.clone(), 30, Some(31)),
        (Some(DEADLINE), counts(3, 3, 0, 1), stuck.clone(), 59, Some(2)),
        (Some(DEADLINE), counts(3, 3, 0, 1), stuck.clone(), 60, Some(1)),
        (Some(DEADLINE), counts(3, 3, 0, 1), stuck, 120, Some(1)),
    ] {
        let mut d = observed(3, status, conditions);
        d.progress_deadline_seconds = deadline;
        let got = recheck_after(&d, &d.status, Time(THEN + passed));
        assert_eq!(got, expected.map(Duration::from_secs), "{:?} after {passed}", d.status);
    }
}

#[test]
fn reconcile_after_the_deadline_finds_it_passed() {
    let d = observed(3, counts(3, 3, 0, 1), vec![progressing("True", SET_UPDATED)]);
    for passed in 0..=i64::from(DEADLINE) {
        let now = Time(THEN + passed);
        let delay = recheck_after(&d, &d.status, now).expect("stuck").as_secs() as i64;
        assert!(is_timed_out(&d, &d.status, Time(now.0 + delay)), "reconciled after {passed}");
    }
}

/// A case of the condition `Progressing`: a Deployment with its status and sets, and the expected condition.
struct ProgressCase {
    what: &'static str,
    /// True if the Deployment has a progress deadline.
    deadline: bool,
    desired: i32,
    before: DeploymentStatus,
    current: Option<Condition>,
    sets: Sets,
    /// Status, reason and message.
    expected: Option<(&'static str, &'static str, &'static str)>,
    /// True if the time of the last update changes.
    updated: bool,
    /// True if the time of the last transition changes.
    transitioned: bool,
}

#[test]
fn progress_condition_is_decided_by_precedence() {
    let updated = || Some(progressing("True", SET_UPDATED));
    let timed_out = || Some(progressing("False", TIMED_OUT));
    let available = || Some(progressing("True", NEW_SET_AVAILABLE));
    let gaining = || sets(Some(sized("foo", 3, 2, 2)), vec![sized("bar", 0, 1, 1)]);
    let stuck = || sets(Some(sized("foo", 3, 2, 2)), vec![]);
    let full = || sets(Some(sized("foo", 3, 3, 3)), vec![]);
    let moving = ("True", SET_UPDATED, "ReplicaSet \"foo\" is progressing.");
    let done = ("True", NEW_SET_AVAILABLE, "ReplicaSet \"foo\" has successfully progressed.");
    let cases = [
        ("no deadline removes the condition", false, 3, counts(2, 2, 0, 2), updated(), gaining(), None, false, false),
        (
            "a completed rollout keeps its condition",
            true,
            3,
            counts(3, 3, 0, 3),
            available(),
            sets(Some(sized("foo", 3, 3, 1)), vec![]),
            Some(("True", NEW_SET_AVAILABLE, "")),
            false,
            false,
        ),
        (
            "progress moves only the update time",
            true,
            3,
            counts(2, 2, 0, 2),
            updated(),
            gaining(),
            Some(moving),
            true,
            false,
        ),
        ("progress after a timeout", true, 3, counts(2, 2, 0, 2), timed_out(), gaining(), Some(moving), true, true),
        ("progress without a condition", true, 3, counts(2, 2, 0, 2), None, gaining(), Some(moving), true, true),
        ("completion keeps the transition", true, 3, counts(3, 3, 0, 3), updated(), full(), Some(done), true, false),
        ("completion after a timeout", true, 3, counts(3, 3, 0, 3), timed_out(), full(), Some(done), true, true),
        ("completion without a condition", true, 3, counts(3, 3, 0, 3), None, full(), Some(done), true, true),
        (
            "completion without a new set",
            true,
            0,
            counts(3, 3, 0, 3),
            updated(),
            sets(None, vec![sized("foo", 0, 0, 0)]),
            Some(("True", NEW_SET_AVAILABLE, "Deployment \"web\" has successfully progressed.")),
            true,
            false,
        ),
        (
            "no progress beyond the deadline",
            true,
            3,
            counts(2, 2, 0, 2),
            updated(),
            stuck(),
            Some(("False", TIMED_OUT, "ReplicaSet \"foo\" has timed out progressing.")),
            true,
            true,
        ),
        (
            "a timeout stays as it is",
            true,
            3,
            counts(2, 2, 0, 2),
            timed_out(),
            stuck(),
            Some(("False", TIMED_OUT, "")),
            false,
            false,
        ),
    ];
    for (what, deadline, desired, before, current, sets, expected, updated, transitioned) in cases {
        check(ProgressCase { what, deadline, desired, before, current, sets, expected, updated, transitioned });
    }
}

fn check(case: ProgressCase) {
    let what = case.what;
    let mut d = observed(case.desired, case.before, case.current.into_iter().collect());
    d.progress_deadline_seconds = case.deadline.then_some(DEADLINE);
    let after = status(&d, &d.status, &case.sets, true, NOW);
    let got = decide::condition(&after, PROGRESSING);
    let brief = got.map(|condition| (&*condition.status, &*condition.reason, &*condition.message));
    assert_eq!(brief, case.expected, "{what}");
    if let Some(got) = got {
        let expected = |moved| if moved { NOW } else { Time(THEN) };
        assert_eq!(got.last_update, expected(case.updated), "{what}: update");
        assert_eq!(got.last_transition, expected(case.transitioned), "{what}: transition");
    }
    let mut settled = d.clone();
    settled.status = after.clone();
    assert_eq!(status(&settled, &after, &case.sets, true, NOW), after, "{what}: a second reconcile changes nothing");
}

#[test]
fn counts_are_sums_and_missing_pods_are_counted_from_the_scale() {
    let mut d = deployment(4);
    d.strategy = rolling(int(1), int(1));
    d.meta.generation = 7;
    d.status.collision_count = Some(2);
    let given = sets(Some(sized("n", 3, 2, 1)), vec![sized("o", 2, 2, 2)]);
    let got = status(&d, &d.status, &given, true, NOW);
    assert_eq!((got.observed_generation, got.replicas, got.updated_replicas), (7, 4, 2));
    assert_eq!((got.available_replicas, got.unavailable_replicas, got.collision_count), (3, 2, Some(2)));
    assert_eq!(reason(&got, AVAILABLE).as_deref(), Some("MinimumReplicasAvailable"));
    let shrinking = sets(Some(sized("n", 1, 4, 4)), vec![]);
    assert_eq!(status(&d, &d.status, &shrinking, true, NOW).unavailable_replicas, 0);
    let few = sets(Some(sized("n", 4, 2, 2)), vec![]);
    let got = status(&d, &d.status, &few, true, NOW);
    let lacking = decide::condition(&got, AVAILABLE).expect("always set");
    assert_eq!(
        (&*lacking.status, &*lacking.reason, &*lacking.message),
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    );
}

#[test]
fn terminating_pods_are_known_when_every_synced_set_reports_them() {
    let of = |observed, terminating| {
        let mut set = sized("s", 1, 1, 1);
        set.status.observed_generation = observed;
        set.status.terminating_replicas = terminating;
        set
    };
    for (new, old, expected) in [
        (None, vec![], Some(0)),
        (Some(of(1, Some(2))), vec![of(1, Some(3))], Some(5)),
        (Some(of(0, None)), vec![of(1, Some(3))], Some(3)),
        (Some(of(0, Some(1))), vec![of(1, Some(3))], Some(4)),
        (Some(of(1, None)), vec![of(1, Some(3))], None),
        (Some(of(1, Some(1))), vec![of(2, None)], None),
    ] {
        let d = deployment(1);
        assert_eq!(status(&d, &d.status, &sets(new, old), true, NOW).terminating_replicas, expected);
    }
}

#[test]
fn failure_of_the_new_set_is_reported_before_those_of_others() {
    let failing = |name: &str, message: &str| {
        let mut set = sized(name, 1, 0, 0);
        let failure = Condition { message: message.into(), ..condition(REPLICA_FAILURE, "True", "FailedCreate", THEN) };
        set.status.conditions = vec![condition("Else", "True", "Other", 1), failure];
        set
    };
    let fine = |name| sized(name, 1, 1, 1);
    for (new, old, expected) in [
        (Some(failing("n", "quota")), vec![failing("o", "old")], Some("quota")),
        (Some(fine("n")), vec![failing("o", "old")], Some("old")),
        (None, vec![failing("o", "old")], Some("old")),
        (Some(fine("n")), vec![fine("o")], None),
    ] {
        let mut d = deployment(1);
        d.status.conditions =
            if expected.is_none() { vec![condition(REPLICA_FAILURE, "True", "X", 1)] } else { vec![] };
        let given = sets(new, old);
        let got = status(&d, &d.status, &given, true, NOW);
        let failure = decide::condition(&got, REPLICA_FAILURE);
        assert_eq!(failure.map(|failure| &*failure.message), expected);
        assert!(failure.is_none_or(|failure| failure.last_update == Time(THEN) && *failure.reason == *"FailedCreate"));
        let plain = status(&d, &d.status, &given, false, NOW);
        assert_eq!(reason(&plain, REPLICA_FAILURE), expected.is_none().then(|| "X".to_owned()), "no rollout");
    }
}

#[test]
fn progress_is_not_changed_outside_rollouts() {
    let mut d = observed(3, counts(3, 3, 3, 3), vec![progressing("Unknown", PAUSED)]);
    d.progress_deadline_seconds = None;
    let got = status(&d, &d.status, &sets(Some(sized("n", 3, 3, 3)), vec![]), false, NOW);
    assert_eq!(reason(&got, PROGRESSING).as_deref(), Some(PAUSED));
}

#[test]
fn pause_is_recorded_once_and_removed_by_a_resume() {
    for (deadline, paused, current, expected) in [
        (Some(60), true, None, Some((PAUSED, "Deployment is paused"))),
        (Some(60), true, Some(progressing("True", SET_UPDATED)), Some((PAUSED, "Deployment is paused"))),
        (Some(60), true, Some(progressing("Unknown", PAUSED)), Some((PAUSED, ""))),
        (Some(60), false, Some(progressing("Unknown", PAUSED)), Some((RESUMED, "Deployment is resumed"))),
        (Some(60), false, Some(progressing("True", SET_UPDATED)), Some((SET_UPDATED, ""))),
        (Some(60), true, Some(progressing("False", TIMED_OUT)), Some((TIMED_OUT, ""))),
        (None, true, None, None),
        (Some(i32::MAX), false, Some(progressing("Unknown", PAUSED)), Some((PAUSED, ""))),
    ] {
        let mut d = deployment(1);
        d.progress_deadline_seconds = deadline;
        d.paused = paused;
        d.status.conditions = current.into_iter().collect();
        let mut noted = d.status.clone();
        note_pause(&d, &mut noted, NOW);
        let got = decide::condition(&noted, PROGRESSING);
        assert_eq!(got.map(|got| (&*got.reason, &*got.message)), expected, "{:?}", d.status.conditions);
    }
}

#[test]
fn creation_and_failure_of_the_new_set_are_recorded_in_the_progress_condition() {
    let notes = |deadline: Option<i32>, conditions: Vec<Condition>| {
        let mut d = deployment(1);
        d.progress_deadline_seconds = deadline;
        let base = DeploymentStatus { conditions, ..DeploymentStatus::default() };
        let mut found = base.clone();
        let mut created = base.clone();
        let mut failed = base;
        note_found(&d, &mut found, "web-1", NOW);
        note_created(&d, &mut created, "web-1", NOW);
        let notice = note_create_failed(&d, &mut failed, "web-1", "no quota", NOW);
        assert_eq!((notice.warning, notice.reason), (true, CREATE_FAILED));
        assert_eq!(notice.message, "Failed to create new replica set \"web-1\": no quota");
        [found, created, failed].map(|status| {
            decide::condition(&status, PROGRESSING)
                .map(|got| (got.status.to_string(), got.reason.to_string(), got.message.to_string()))
        })
    };
    let note = |status: &str, reason: &str, message: &str| Some((status.into(), reason.into(), message.into()));
    let created = note("True", CREATED, "Created new replica set \"web-1\"");
    let failed = note("False", CREATE_FAILED, "Failed to create new replica set \"web-1\": no quota");
    let found = note("True", FOUND, "Found new replica set \"web-1\"");
    assert_eq!(notes(Some(60), vec![]), [found, created.clone(), failed.clone()]);
    let earlier = note("True", NEW_SET_AVAILABLE, "");
    assert_eq!(notes(Some(60), vec![progressing("True", NEW_SET_AVAILABLE)]), [earlier, created, failed]);
    assert_eq!(notes(None, vec![]), [None, None, None]);
}

#[test]
fn collisions_are_counted() {
    let mut noted = DeploymentStatus::default();
    for expected in [1, 2, 3] {
        note_collision(&mut noted);
        assert_eq!(noted.collision_count, Some(expected));
    }
}

#[test]
fn final_states_and_conditions_are_written_immediately_and_changing_counts_later() {
    let at_work = || observed(3, counts(4, 2, 3, 3), vec![progressing("True", SET_UPDATED)]);
    let delayed = Duration::from_secs(3);
    let immediate = Duration::ZERO;
    let with = |change: fn(&mut DeploymentStatus)| {
        let mut status = at_work().status;
        change(&mut status);
        status
    };
    for (what, status, expected) in [
        ("nothing new", with(|_| {}), immediate),
        ("counts moved", with(|status| status.updated_replicas = 3), delayed),
        ("only terminating pods", with(|status| status.terminating_replicas = Some(2)), delayed),
        (
            "counts changed, which is progress",
            with(|status| {
                status.updated_replicas = 3;
                status.conditions[0].last_update = NOW;
            }),
            delayed,
        ),
        (
            "progress after the new set was found",
            with(|status| status.conditions = vec![progressing("True", FOUND)]),
            delayed,
        ),
        ("the change was observed", with(|status| status.observed_generation = 2), immediate),
        ("a name was taken", with(|status| status.collision_count = Some(1)), immediate),
        ("the condition has another reason", with(|status| status.conditions[0].reason = TIMED_OUT.into()), immediate),
        (
            "a condition was added",
            with(|status| status.conditions.push(condition(AVAILABLE, "True", "Good", THEN))),
            immediate,
        ),
        ("a condition was removed", with(|status| status.conditions.clear()), immediate),
        (
            "it is complete",
            with(|status| {
                status.replicas = 3;
                status.updated_replicas = 3;
                status.available_replicas = 3;
            }),
            immediate,
        ),
    ] {
        assert_eq!(write_delay(&at_work(), &status), expected, "{what}");
    }
    let complete = observed(3, counts(3, 3, 3, 3), vec![progressing("True", NEW_SET_AVAILABLE)]);
    let fewer_terminating = DeploymentStatus { terminating_replicas: Some(0), ..complete.status.clone() };
    let mut known = complete.clone();
    known.status.terminating_replicas = Some(1);
    assert_eq!(write_delay(&known, &fewer_terminating), Duration::ZERO, "the last pod of the rollout was deleted");
    known.status.terminating_replicas = Some(3);
    let some_terminate = DeploymentStatus { terminating_replicas: Some(1), ..complete.status.clone() };
    assert_eq!(write_delay(&known, &some_terminate), delayed, "it was complete before, and pods still terminate");
}
