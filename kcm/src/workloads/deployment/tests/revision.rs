//! Revisions, annotations, names and rollbacks.

use std::sync::Arc;
use std::time::Duration;

use kinds::deployment::Strategy;
use kinds::template::POD_TEMPLATE_HASH;
use kinds::{ReplicaSet, Uid};
use runtime::testing::CpuTime;

use super::builders::{annotated, created, deployment, edited, int, labels, plain, rolling, set, sets, template};
use crate::workloads::deployment::decide_revision::{
    REVISION, REVISION_HISTORY, ROLLBACK_TO, appended_history, is_ours, last_revision, new_replica_set, new_set_update,
    next_revision, revision, revision_edit, rollback, set_name, synced_annotations,
};
use crate::workloads::deployment::decide_scale::{DESIRED_REPLICAS, MAX_REPLICAS};
use crate::workloads::deployment::sets::Sets;

fn of_revision(name: &str, age: i64, text: &str) -> ReplicaSet {
    annotated(set(name, 0, age, name), &[(REVISION, text)])
}

#[test]
fn revisions_are_read_and_ranked() {
    assert_eq!(revision(&set("a", 0, 0, "a")), Some(0));
    assert_eq!(revision(&of_revision("a", 0, "12")), Some(12));
    assert_eq!(revision(&of_revision("a", 0, "")), None);
    for (texts, next, last) in [
        (&[][..], 1, 0),
        (&["1"], 2, 0),
        (&["1", "2"], 3, 1),
        (&["3", "1", "2"], 4, 2),
        (&["3", "3"], 4, 3),
        (&["x", "5", "2"], 6, 2),
        (&["-4", "x"], 1, 0),
        (&["9223372036854775807"], i64::MAX, 0),
    ] {
        let old = texts.iter().enumerate().map(|(at, text)| of_revision(&format!("s{at}"), at as i64, text)).collect();
        let sets = sets(None, old);
        assert_eq!((next_revision(&sets), last_revision(&sets)), (next, last), "{texts:?}");
    }
}

proptest::proptest! {
    #[test]
    fn any_annotations_about_revisions_are_read(
        texts in proptest::collection::vec("-?[0-9]{0,20}|\\PC{0,6}", 1..4), history in "[0-9,]{0,40}|\\PC{0,40}", limit in 0..60usize,
    ) {
        let old = texts.iter().enumerate().map(|(at, text)| of_revision(&format!("s{at}"), at as i64, text)).collect();
        let sets = sets(None, old);
        proptest::prop_assert!(next_revision(&sets) >= last_revision(&sets));
        let kept = appended_history(&history, &texts[0], limit);
        proptest::prop_assert!(kept.is_none_or(|kept| kept.len() <= limit || history.is_empty()));
    }
}

#[test]
fn new_set_counts_for_the_last_revision_only() {
    let sets = sets(Some(of_revision("n", 9, "7")), vec![of_revision("o", 0, "3")]);
    assert_eq!((next_revision(&sets), last_revision(&sets)), (4, 3));
}

#[test]
fn history_drops_its_oldest_revisions() {
    for (history, text, limit, expected) in [
        ("", "1", 5, Some("1")),
        ("1", "2", 5, Some("1,2")),
        ("10", "11", 5, Some("10,11")),
        ("10,11", "12", 5, Some("11,12")),
        ("1,2,3", "14", 5, Some("3,14")),
        ("12345", "6", 5, Some("6")),
        ("1", "123456", 5, None),
        ("", "123456", 5, Some("123456")),
    ] {
        assert_eq!(appended_history(history, text, limit).as_deref(), expected, "{history} and {text}");
    }
}

#[test]
fn a_long_history_stays_below_its_limit() {
    let d = deployment(1);
    let mut set = set("n", 1, 0, "v1");
    for next in 1..=1000 {
        set.annotations = edited(&set.annotations, &synced_annotations(&d, &set, next));
    }
    let history = set.annotation(REVISION_HISTORY).expect("history");
    assert!(history.len() <= 2000 && history.len() > 1990, "{} bytes", history.len());
    assert!(history.ends_with(",998,999"));
    assert_eq!(set.annotation(REVISION), Some("1000"));
}

#[test]
fn an_existing_new_set_gets_annotations_and_revision() {
    let own = [
        (REVISION, "9"),
        (REVISION_HISTORY, "8"),
        (DESIRED_REPLICAS, "7"),
        (MAX_REPLICAS, "6"),
        (ROLLBACK_TO, "5"),
        ("team", "shop"),
    ];
    for (on_set, next, expected) in [
        (&[][..], 1, vec![("team", Some("shop")), (REVISION, Some("1"))]),
        (&[("team", "other"), (REVISION, "1")], 1, vec![("team", Some("shop"))]),
        (&[("team", "shop"), ("more", "x"), (REVISION, "1")], 1, vec![]),
        (&[("team", "shop"), (REVISION, "4")], 2, vec![]),
        (&[("team", "shop"), (REVISION, "1")], 3, vec![(REVISION, Some("3")), (REVISION_HISTORY, Some("1"))]),
        (
            &[("team", "shop"), (REVISION, "4"), (REVISION_HISTORY, "1,2")],
            5,
            vec![(REVISION, Some("5")), (REVISION_HISTORY, Some("1,2,4"))],
        ),
        (&[(REVISION, "x")], 5, vec![]),
        (&[("team", "shop"), (REVISION, "")], 5, vec![(REVISION, Some("5"))]),
    ] {
        let mut d = deployment(1);
        d.annotations = labels(&own);
        let edits = synced_annotations(&d, &annotated(set("n", 1, 0, "v1"), on_set), next);
        assert_eq!(plain(&edits), expected, "{on_set:?}");
    }
}

#[test]
fn update_is_needed_for_annotations_or_min_ready_seconds() {
    let current = |annotations: &[(&str, &str)]| sets(Some(annotated(set("n", 1, 0, "v1"), annotations)), vec![]);
    let mut d = deployment(1);
    assert_eq!(new_set_update(&d, &current(&[(REVISION, "1")])), None);
    assert_eq!(new_set_update(&d, &sets(None, vec![])), None);
    assert_eq!(new_set_update(&d, &current(&[])), Some(vec![(REVISION.into(), Some("1".into()))]));
    d.min_ready_seconds = 5;
    assert_eq!(new_set_update(&d, &current(&[(REVISION, "1")])), Some(vec![]));
}

#[test]
fn the_deployment_follows_the_revision_of_its_newest_set() {
    let with = |text| sets(Some(of_revision("n", 0, text)), vec![]);
    let mut d = deployment(1);
    assert_eq!(plain(&revision_edit(&d, &with("4"))), [(REVISION, Some("4"))]);
    assert_eq!(plain(&revision_edit(&d, &sets(None, vec![]))), []);
    assert_eq!(plain(&revision_edit(&d, &sets(Some(set("n", 1, 0, "v1")), vec![]))), []);
    d.annotations = labels(&[(REVISION, "4")]);
    assert_eq!(plain(&revision_edit(&d, &with("4"))), []);
    assert_eq!(plain(&revision_edit(&d, &with("x"))), [(REVISION, Some("x"))]);
}

#[test]
fn names_are_truncated_to_253_bytes() {
    let a = |count| "a".repeat(count);
    for (name, hash, expected) in [
        ("web".to_owned(), "abcde12345".to_owned(), "web-abcde12345".to_owned()),
        (a(242), "abcde12345".to_owned(), format!("{}-abcde12345", a(242))),
        (a(250), "abcde12345".to_owned(), format!("{}-abcde12345", a(242))),
        (a(252), "h".repeat(252), format!("{}-{}", a(252), "h".repeat(252))),
    ] {
        assert_eq!(set_name(&name, &hash), expected);
    }
}

#[test]
fn a_created_set_is_found_again_as_the_new_one() {
    let mut d = deployment(10);
    d.strategy = rolling(int(3), int(0));
    d.min_ready_seconds = 4;
    d.annotations = labels(&[("team", "shop"), (REVISION, "5"), (ROLLBACK_TO, "1")]);
    let given = sets(None, vec![annotated(set("o", 8, 0, "v0"), &[(REVISION, "5")])]);
    let new = new_replica_set(&d, &given).expect("template");
    let set = created(&d, &new);
    assert_eq!(new.name, format!("web-{}", new.hash));
    assert_eq!((set.replicas, set.min_ready_seconds), (5, 4));
    assert_eq!(
        set.annotations,
        labels(&[(DESIRED_REPLICAS, "10"), (MAX_REPLICAS, "13"), (REVISION, "6"), ("team", "shop")])
    );
    assert_eq!(kinds::intern::label(&set.meta.labels, POD_TEMPLATE_HASH), Some(&*new.hash));
    assert!(set.selector.matches(&set.meta.labels) && is_ours(&d, &set));
    let split = Sets::split(&d, &[Arc::new(set.clone())]);
    assert_eq!(split.new.as_deref(), Some(&set));
    assert_eq!(new_set_update(&d, &Sets { new: split.new, old: given.old }), None, "it needs no update");
}

#[test]
fn collision_is_detected_by_owner_and_template_and_changes_the_name() {
    let mut d = deployment(1);
    let ours = set("n", 1, 0, "v1");
    let mut foreign = ours.clone();
    foreign.meta.owners = Arc::from([]);
    assert!(is_ours(&d, &ours));
    assert!(!is_ours(&d, &foreign));
    assert!(!is_ours(&d, &set("n", 1, 0, "v2")));
    let before = new_replica_set(&d, &sets(None, vec![])).expect("template").name;
    d.status.collision_count = Some(1);
    assert_ne!(new_replica_set(&d, &sets(None, vec![])).expect("template").name, before);
    d.meta.uid = Uid::parse("re-created");
    assert!(!is_ours(&d, &ours));
    d.template = None;
    assert_eq!(new_replica_set(&d, &sets(None, vec![])), None);
}

#[test]
fn set_created_for_recreate_waits_for_old_pods() {
    let mut d = deployment(3);
    d.strategy = Strategy::Recreate;
    assert_eq!(new_replica_set(&d, &sets(None, vec![set("o", 0, 0, "v0")])).map(|new| new.replicas), Some(3));
    assert_eq!(new_replica_set(&d, &sets(None, vec![set("o", 3, 0, "v0")])).map(|new| new.replicas), Some(0));
}

#[test]
fn a_rollback_takes_template_and_annotations_from_a_revision() {
    let mut d = deployment(1);
    d.annotations = labels(&[("cause", "edit"), ("gone", "x"), ("same", "y"), (REVISION, "2"), (ROLLBACK_TO, "0")]);
    let mut old = annotated(set("o", 0, 0, "v0"), &[("cause", "create"), ("same", "y"), (REVISION, "1")]);
    old.template = Some(template("v0").with_label(POD_TEMPLATE_HASH, Some("abc")));
    let given = sets(Some(of_revision("v1", 9, "2")), vec![old]);
    for requested in [0, 1] {
        let done = rollback(&d, &given, requested);
        assert_eq!(done.template, Some(template("v0")), "without the hash label");
        assert_eq!(plain(&done.annotations), [("gone", None), ("cause", Some("create")), (ROLLBACK_TO, None)]);
        assert!(!done.notice.warning);
        assert_eq!(done.notice.reason, "DeploymentRollback");
        assert_eq!(done.notice.message, "Rolled back deployment \"web\" to revision 1");
    }
}

#[test]
fn a_rollback_that_cannot_be_done_only_drops_the_request() {
    let alone = sets(Some(of_revision("v1", 9, "2")), vec![]);
    for (requested, reason, message) in [
        (0, "DeploymentRollbackRevisionNotFound", "Unable to find last revision."),
        (7, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to."),
        (
            2,
            "DeploymentRollbackTemplateUnchanged",
            "The rollback revision contains the same template as current deployment \"web\"",
        ),
    ] {
        let refused = rollback(&deployment(1), &alone, requested);
        assert_eq!(refused.template, None);
        assert_eq!(plain(&refused.annotations), [(ROLLBACK_TO, None)]);
        assert_eq!((refused.notice.warning, refused.notice.reason), (true, reason));
        assert_eq!(refused.notice.message, message);
    }
}

/// The API server limits the annotations of an object to 256 KiB.
#[test]
fn annotations_are_copied_in_time_when_there_are_many() {
    let keys: Vec<String> = (0..50_000).map(|number| format!("{number:x}")).collect();
    let annotations = |value| labels(&keys.iter().map(|key| (&**key, value)).collect::<Vec<_>>());
    let mut old = deployment(1);
    old.annotations = annotations("1");
    let set = created(&old, &new_replica_set(&old, &sets(None, vec![])).expect("a template"));
    let mut changed = deployment(1);
    changed.annotations = annotations("2");
    let started = CpuTime::now();
    let edits = synced_annotations(&changed, &set, 1);
    assert_eq!(edits.len(), keys.len());
    assert!(set.update(1, 0, &edits).is_some());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}
