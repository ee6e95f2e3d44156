//! Tables: the new set, the mode of a sync, the next step, the history to delete.

use std::sync::Arc;

use kinds::deployment::Strategy;
use kinds::selector::Selector;
use kinds::template::POD_TEMPLATE_HASH;
use kinds::wire::Put;
use kinds::{ReplicaSet, Time};

use super::builders::{annotated, deployment, int, labels, pod, rolling, set, sets};
use crate::workloads::deployment::decide::{Step, SyncMode, next_step, old_pods_running, surplus_history, sync_mode};
use crate::workloads::deployment::decide_revision::{REVISION, ROLLBACK_TO};
use crate::workloads::deployment::decide_scale::DESIRED_REPLICAS;
use crate::workloads::deployment::sets::{Sets, possible_match};

fn names<'a>(sets: impl IntoIterator<Item = &'a Arc<ReplicaSet>>) -> Vec<&'a str> {
    sets.into_iter().map(|set| &*set.meta.name).collect()
}

#[test]
fn set_written_by_another_version_of_the_api_server_is_a_possible_match() {
    let deployment = deployment(3);
    let with_unknown_field = |mut set: ReplicaSet, value: i64| {
        let template = set.template.as_mut().expect("decoded with it");
        let mut spec = template.spec.to_vec();
        spec.put_int(99, value);
        template.spec = spec.into();
        set
    };
    let split = |set: ReplicaSet| Sets::split(&deployment, &[Arc::new(set)]);
    let rewritten = split(with_unknown_field(set("old", 3, 0, "v1"), 0));
    assert!(rewritten.new.is_none());
    assert_eq!(names(possible_match(&deployment, &rewritten)), ["old"]);
    assert!(possible_match(&deployment, &split(with_unknown_field(set("old", 3, 0, "v1"), 1))).is_none());
    assert!(possible_match(&deployment, &split(set("old", 3, 0, "v0"))).is_none());
}

#[test]
fn oldest_set_with_the_template_is_the_new_one() {
    let hashed = |mut set: ReplicaSet, hash| {
        set.template = set.template.map(|template| template.with_label(POD_TEMPLATE_HASH, Some(hash)));
        Arc::new(set)
    };
    let late = hashed(set("late", 1, 20, "v1"), "a");
    let early = hashed(set("early", 1, 10, "v1"), "b");
    let other = hashed(set("other", 0, 0, "v0"), "c");
    let newer = hashed(set("newer", 0, 30, "v2"), "d");
    for (given, new, old) in [
        (vec![&late, &other], Some("late"), vec!["other"]),
        (vec![&newer, &late, &other], Some("late"), vec!["other", "newer"]),
        (vec![&late, &other, &early], Some("early"), vec!["other", "late"]),
        (vec![&other], None, vec!["other"]),
        (vec![&late], Some("late"), vec![]),
        (vec![], None, vec![]),
    ] {
        let given: Vec<_> = given.into_iter().cloned().collect();
        let split = Sets::split(&deployment(1), &given);
        assert_eq!(
            (split.new.as_ref().map(|set| &*set.meta.name), names(&split.old)),
            (new, old),
            "{:?}",
            names(&given)
        );
    }
}

#[test]
fn sets_of_the_same_age_are_ordered_by_name() {
    let given = [Arc::new(set("b", 1, 0, "v1")), Arc::new(set("a", 1, 0, "v1"))];
    let split = Sets::split(&deployment(1), &given);
    assert_eq!(split.new.map(|set| set.meta.name.to_string()).as_deref(), Some("a"));
}

#[test]
fn updated_records_replace_the_old_ones() {
    let mut split = sets(Some(set("n", 1, 10, "v1")), vec![set("o", 1, 0, "v0")]);
    split.replace(Arc::new(set("o", 5, 0, "v0")));
    split.replace(Arc::new(set("n", 7, 10, "v1")));
    assert_eq!(split.all().map(|set| set.replicas).collect::<Vec<_>>(), [5, 7]);
    assert_eq!(split.total(), 12);
    let mut none = sets(None, vec![]);
    none.replace(Arc::new(set("created", 2, 0, "v1")));
    assert_eq!(none.new.map(|set| set.replicas), Some(2));
}

#[test]
fn sync_mode_is_chosen_by_precedence() {
    let calm = sets(Some(annotated(set("n", 2, 0, "v1"), &[(DESIRED_REPLICAS, "2")])), vec![]);
    let scaled = sets(Some(annotated(set("n", 2, 0, "v1"), &[(DESIRED_REPLICAS, "3")])), vec![]);
    let idle = sets(Some(annotated(set("n", 0, 0, "v1"), &[(DESIRED_REPLICAS, "3")])), vec![]);
    let unread = sets(Some(annotated(set("n", 2, 0, "v1"), &[(DESIRED_REPLICAS, "x")])), vec![]);
    let mut steps = vec![];
    let mut d = deployment(2);
    steps.push((d.clone(), &calm, SyncMode::Rollout));
    steps.push((d.clone(), &idle, SyncMode::Rollout));
    steps.push((d.clone(), &unread, SyncMode::Rollout));
    steps.push((d.clone(), &scaled, SyncMode::Resize));
    d.annotations = labels(&[(ROLLBACK_TO, "x")]);
    steps.push((d.clone(), &scaled, SyncMode::Resize));
    d.annotations = labels(&[(ROLLBACK_TO, "")]);
    steps.push((d.clone(), &calm, SyncMode::Rollout));
    d.annotations = labels(&[(ROLLBACK_TO, "0")]);
    steps.push((d.clone(), &scaled, SyncMode::RollBack(0)));
    d.annotations = labels(&[(ROLLBACK_TO, "7")]);
    steps.push((d.clone(), &scaled, SyncMode::RollBack(7)));
    d.paused = true;
    steps.push((d.clone(), &scaled, SyncMode::Hold));
    d.meta.deletion = Time(1);
    steps.push((d.clone(), &scaled, SyncMode::Report));
    d.selector = Selector::All(Default::default());
    steps.push((d.clone(), &scaled, SyncMode::Refuse));
    for (at, (deployment, sets, expected)) in steps.into_iter().enumerate() {
        assert_eq!(sync_mode(&deployment, sets), expected, "step {at}");
    }
}

fn scaled(step: Step) -> Vec<(String, i32)> {
    match step {
        Step::Scale(scales) => scales.iter().map(|scale| (scale.set.meta.name.to_string(), scale.replicas)).collect(),
        other => panic!("no scaling, but {other:?}"),
    }
}

#[test]
fn recreate_empties_old_sets_waits_and_then_fills_the_new_one() {
    let mut d = deployment(3);
    d.strategy = Strategy::Recreate;
    let busy = sets(Some(set("n", 0, 9, "v1")), vec![set("o1", 3, 0, "v0"), set("o2", 1, 1, "v2")]);
    assert_eq!(scaled(next_step(&d, &busy, || false)), [("o1".to_owned(), 0), ("o2".to_owned(), 0)]);
    let empty = sets(Some(set("n", 0, 9, "v1")), vec![set("o1", 0, 0, "v0")]);
    assert_eq!(next_step(&d, &empty, || true), Step::Wait);
    assert_eq!(scaled(next_step(&d, &empty, || false)), [("n".to_owned(), 3)]);
    let none = sets(None, vec![set("o1", 0, 0, "v0")]);
    assert_eq!(next_step(&d, &none, || true), Step::Wait);
    assert_eq!(next_step(&d, &none, || false), Step::Create);
    let full = sets(Some(set("n", 3, 9, "v1")), vec![set("o1", 0, 0, "v0")]);
    assert_eq!(next_step(&d, &full, || false), Step::Settled);
}

#[test]
fn rolling_update_creates_then_scales_up_then_down() {
    let mut d = deployment(10);
    d.strategy = rolling(int(2), int(0));
    let not_called = || panic!("a rolling update does not wait for pods");
    assert_eq!(next_step(&d, &sets(None, vec![set("o", 10, 0, "v0")]), not_called), Step::Create);
    let begun = sets(Some(set("n", 0, 9, "v1")), vec![set("o", 10, 0, "v0")]);
    assert_eq!(scaled(next_step(&d, &begun, not_called)), [("n".to_owned(), 2)]);
    let surged = sets(Some(set("n", 2, 9, "v1")), vec![set("o", 10, 0, "v0")]);
    assert_eq!(scaled(next_step(&d, &surged, not_called)), [("o".to_owned(), 8)]);
    let done = sets(Some(set("n", 10, 9, "v1")), vec![set("o", 0, 0, "v0")]);
    assert_eq!(next_step(&d, &done, not_called), Step::Settled);
    d.strategy = Strategy::Other("Magic".to_owned());
    assert_eq!(next_step(&d, &done, not_called), Step::Unsupported("Magic".to_owned()));
}

#[test]
fn old_pods_run_until_all_are_finished() {
    let counted = |status| {
        let mut old = set("o", 0, 0, "v0");
        old.status.replicas = status;
        sets(None, vec![old])
    };
    for (status, phases, expected) in [
        (0, &[][..], false),
        (1, &[], true),
        (0, &["Failed", "Succeeded"], false),
        (0, &["Unknown"], true),
        (0, &["Pending"], true),
        (0, &[""], true),
        (0, &["Running"], true),
        (0, &["Failed", "Succeeded", "Pending"], true),
    ] {
        let pods: Vec<_> = phases.iter().map(|phase| pod(phase)).collect();
        assert_eq!(old_pods_running(&counted(status), &pods), expected, "{status} {phases:?}");
    }
    assert!(!old_pods_running(&sets(Some(set("n", 3, 0, "v1")), vec![]), []), "the new set's count does not matter");
}

#[test]
fn surplus_history_is_deleted_oldest_revision_first() {
    let old = |name, age, revision: &str| {
        let annotations = [(REVISION, revision)];
        annotated(set(name, 0, age, name), if revision.is_empty() { &[] } else { &annotations })
    };
    let busy = |mut set: ReplicaSet, spec, status| {
        set.replicas = spec;
        set.status.replicas = status;
        set
    };
    let fresh = |mut set: ReplicaSet| {
        set.meta.generation = 2;
        set
    };
    let being_deleted = |mut set: ReplicaSet| {
        set.meta.deletion = Time(1);
        set
    };
    for (at, (limit, given, expected)) in [
        (Some(1), vec![old("a", 1, "1"), old("b", 2, "2"), old("c", 3, "3")], vec!["a", "b"]),
        (Some(0), vec![old("a", 1, "1"), old("b", 2, "2")], vec!["a", "b"]),
        (Some(1), vec![old("a", 1, "2"), old("b", 2, "1")], vec!["b"]),
        (Some(1), vec![old("a", 1, "1"), old("b", 2, "")], vec!["b"]),
        (Some(1), vec![old("a", 1, ""), old("b", 2, "2")], vec!["a"]),
        (Some(1), vec![old("a", 1, "4"), old("b", 2, "4")], vec!["a"]),
        (Some(1), vec![old("a", 1, "10"), old("b", 2, "9")], vec!["b"]),
        (Some(2), vec![old("a", 1, "3"), old("b", 2, "1"), old("c", 3, "4"), old("d", 4, "2")], vec!["b", "d"]),
        (Some(1), vec![old("a", 1, "2"), old("b", 2, "1"), old("c", 3, "many")], vec!["b", "a"]),
        (Some(1), vec![old("a", 1, "2"), old("b", 2, "many"), old("c", 3, "1")], vec!["a", "b"]),
        (Some(1), vec![busy(old("a", 1, "1"), 1, 1), old("b", 2, "2"), old("c", 3, "3")], vec!["b"]),
        (Some(1), vec![busy(old("a", 1, "1"), 1, 1), busy(old("b", 2, "2"), 1, 1), old("c", 3, "3")], vec![]),
        (
            Some(0),
            vec![
                old("a", 1, ""),
                busy(old("b", 2, ""), 0, 1),
                busy(old("c", 3, ""), 1, 0),
                busy(old("d", 4, ""), 1, 1),
            ],
            vec!["a"],
        ),
        (Some(0), vec![fresh(old("a", 1, "1"))], vec![]),
        (Some(0), vec![being_deleted(old("a", 1, "1"))], vec![]),
        (Some(1), vec![being_deleted(old("a", 1, "1")), old("b", 2, "2")], vec![]),
        (Some(i32::MAX), vec![old("a", 1, "1"), old("b", 2, "2")], vec![]),
        (None, vec![old("a", 1, "1"), old("b", 2, "2")], vec![]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut d = deployment(1);
        d.revision_history_limit = limit;
        let given = sets(None, given);
        assert_eq!(names(&surplus_history(&d, &given)), expected, "case {at}");
        d.annotations = labels(&[(ROLLBACK_TO, "0")]);
        assert!(surplus_history(&d, &given).is_empty(), "case {at}: a rollback may need it");
    }
}
