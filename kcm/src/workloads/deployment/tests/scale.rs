//! Numbers of pods: bounds, rolling steps, and scaling in proportion.

use std::sync::Arc;

use kinds::deployment::Strategy;
use kinds::int_or_string::IntOrString;
use kinds::{Deployment, ReplicaSet};

use super::builders::{annotated, deployment, int, labels, plain, rolling, set, sets, text, with_available};
use crate::workloads::deployment::decide_scale::{
    DESIRED_REPLICAS, MAX_REPLICAS, Scale, active_or_latest, count_annotation, fenceposts, is_saturated, is_stale,
    max_surge, max_unavailable, new_replicas, resize, roll_new, roll_old, scale_annotations, scale_to, scaled_notice,
    share,
};
use crate::workloads::deployment::sets::Sets;

fn rolled(replicas: i32, surge: Option<IntOrString>, unavailable: Option<IntOrString>) -> Deployment {
    let mut deployment = deployment(replicas);
    deployment.strategy = rolling(surge, unavailable);
    deployment
}

#[test]
fn bounds_round_surge_up_and_unavailable_down_and_are_never_both_zero() {
    for (surge, unavailable, desired, expected) in [
        (text("0%"), text("0%"), 0, Some((0, 1))),
        (text("39%"), text("39%"), 10, Some((4, 3))),
        (text("oops"), text("39%"), 10, None),
        (text("55%"), text("urg"), 10, None),
        (None, text("39%"), 10, Some((0, 3))),
        (text("39%"), None, 10, Some((4, 0))),
        (None, None, 10, Some((0, 1))),
        (text("0%"), text("1%"), 2, Some((0, 1))),
        (text("1%"), text("25%"), 2, Some((1, 0))),
        (text("1%"), text("25%"), 1, Some((1, 0))),
        (text("1%"), text("0%"), 2, Some((1, 0))),
        (int(3), int(5), 2, Some((3, 5))),
    ] {
        assert_eq!(fenceposts(surge.as_ref(), unavailable.as_ref(), desired), expected, "{surge:?} {unavailable:?}");
    }
}

#[test]
fn max_unavailable_is_limited_to_the_scale() {
    for (replicas, unavailable, expected) in [
        (10, int(5), 5),
        (10, int(10), 10),
        (5, int(10), 5),
        (0, int(10), 0),
        (10, text("50%"), 5),
        (10, text("60%"), 6),
        (10, text("100%"), 10),
        (5, text("100%"), 5),
        (10, text("x"), 0),
    ] {
        assert_eq!(max_unavailable(&rolled(replicas, int(1), unavailable.clone())), expected, "{unavailable:?}");
    }
    let mut recreate = deployment(10);
    recreate.strategy = Strategy::Recreate;
    assert_eq!((max_surge(&recreate), max_unavailable(&recreate)), (0, 0));
}

#[test]
fn counts_are_read_from_annotations_when_they_are_plain_numbers() {
    for (value, expected) in [
        ("0", Some(0)),
        ("13", Some(13)),
        ("2147483647", Some(i32::MAX)),
        ("2147483648", None),
        ("4294967296", None),
        ("-1", None),
        ("+1", None),
        ("invalid", None),
        ("", None),
    ] {
        assert_eq!(count_annotation(&annotated(set("s", 1, 0, "v"), &[("n", value)]), "n"), expected, "{value:?}");
    }
    assert_eq!(count_annotation(&set("s", 1, 0, "v"), "n"), None);
}

#[test]
fn annotations_about_the_scale_are_refreshed() {
    let d = rolled(10, int(10), int(0));
    for (annotations, expected) in [
        (&[][..], vec![(DESIRED_REPLICAS, Some("10")), (MAX_REPLICAS, Some("20"))]),
        (&[(DESIRED_REPLICAS, "8"), (MAX_REPLICAS, "20")], vec![(DESIRED_REPLICAS, Some("10"))]),
        (&[(DESIRED_REPLICAS, "10"), (MAX_REPLICAS, "16")], vec![(MAX_REPLICAS, Some("20"))]),
        (&[(DESIRED_REPLICAS, "10"), (MAX_REPLICAS, "20")], vec![]),
    ] {
        let edits = scale_annotations(&d, &annotated(set("s", 1, 0, "v"), annotations));
        assert_eq!(plain(&edits), expected, "{annotations:?}");
    }
}

#[test]
fn scaling_sets_annotations_and_records_an_event() {
    let d = rolled(4, int(1), int(0));
    let set = Arc::new(set("web-1", 2, 0, "v"));
    assert_eq!(scale_to(&d, &set, 2), None, "changed annotations alone do not scale");
    let scale = scale_to(&d, &set, 4).expect("a change");
    assert_eq!(plain(&scale.annotations), [(DESIRED_REPLICAS, Some("4")), (MAX_REPLICAS, Some("5"))]);
    assert_eq!(scale.notice().expect("event").message, "Scaled up replica set web-1 from 2 to 4");
    let down = scaled_notice("web-1", 2, 0).expect("event");
    assert_eq!(
        (down.warning, down.reason, &*down.message),
        (false, "ScalingReplicaSet", "Scaled down replica set web-1 from 2 to 0")
    );
    assert_eq!(scaled_notice("web-1", 2, 2), None);
}

#[test]
fn a_new_set_grows_within_the_surge() {
    for (replicas, surge, total, current, expected) in
        [(1, 1, 5, 5, 5), (6, 10, 5, 2, 6), (10, 2, 10, 0, 2), (10, 2, 5, 0, 7), (10, 0, 10, 0, 0), (10, 2, 12, 2, 2)]
    {
        let got = new_replicas(&rolled(replicas, int(surge), int(1)), total, current);
        assert_eq!(got, expected, "{replicas}+{surge}, {total} of which {current}");
    }
    let mut recreate = deployment(3);
    recreate.strategy = Strategy::Recreate;
    assert_eq!(new_replicas(&recreate, 5, 1), 3);
}

#[test]
fn new_set_is_scaled_up_or_down_by_a_rolling_update() {
    for (surge, old, new, expected) in [
        (0, 10, 0, None),
        (2, 10, 0, Some(2)),
        (2, 5, 0, Some(7)),
        (2, 10, 2, None),
        (2, 2, 11, Some(10)),
        (2, 9, 10, None),
    ] {
        let sets = sets(Some(set("n", new, 9, "v1")), vec![set("o", old, 0, "v0")]);
        let scale = roll_new(&rolled(10, int(surge), int(0)), &sets, sets.new.as_ref().expect("new"));
        assert_eq!(scale.map(|scale| scale.replicas), expected, "surge {surge}, old {old}, new {new}");
    }
}

fn old_targets(d: &Deployment, sets: &Sets) -> Vec<(String, i32)> {
    named(roll_old(d, sets, sets.new.as_ref().expect("new")))
}

fn named(scales: Vec<Scale>) -> Vec<(String, i32)> {
    scales.into_iter().map(|scale| (scale.set.meta.name.to_string(), scale.replicas)).collect()
}

#[test]
fn old_sets_are_scaled_down_within_max_unavailable() {
    for (unavailable, old, old_available, new, new_available, expected) in [
        (0, 10, 10, 0, 0, Some(9)),
        (2, 10, 10, 0, 0, Some(8)),
        // Two are not available and are removed; the eight others are needed.
        (2, 10, 8, 0, 0, Some(8)),
        // One is not available, one more may be missing.
        (2, 10, 9, 0, 0, Some(8)),
        // The missing pods of the new set use up the bound.
        (2, 8, 8, 2, 0, None),
        (2, 0, 0, 10, 10, None),
        // Few pods are available: unavailable pods are removed up to the bound, and no available pods.
        (2, 10, 1, 0, 0, Some(8)),
        (2, 10, 10, 2, 1, Some(7)),
        // After a rollback: broken pods are removed although one good pod is missing (10 replicas, surge 3).
        (2, 5, 0, 8, 7, Some(1)),
    ] {
        let d = rolled(10, int(0), int(unavailable));
        let given = sets(
            Some(with_available(set("n", new, 9, "v1"), new_available)),
            vec![with_available(set("o", old, 0, "v0"), old_available)],
        );
        let expected: Vec<_> = expected.map(|target| ("o".to_owned(), target)).into_iter().collect();
        assert_eq!(old_targets(&d, &given), expected, "old {old_available}/{old}, new {new_available}/{new}");
    }
}

#[test]
fn unavailable_pods_are_removed_first_and_oldest_sets_before_newer_ones() {
    let d = rolled(10, int(5), int(2));
    let given = |available: [i32; 3]| {
        let old = ["a", "b", "c"].iter().zip(available).enumerate();
        let old = old.map(|(at, (name, ready))| with_available(set(name, 4, at as i64, name), ready)).collect();
        sets(Some(set("n", 0, 9, "v1")), old)
    };
    // Of twelve pods eight are needed: four may be removed.
    assert_eq!(old_targets(&d, &given([4, 4, 4])), [("a".to_owned(), 0)]);
    assert_eq!(old_targets(&d, &given([4, 4, 2])), [("a".to_owned(), 2), ("c".to_owned(), 2)]);
    assert_eq!(old_targets(&d, &given([4, 2, 2])), [("b".to_owned(), 2), ("c".to_owned(), 2)]);
    assert_eq!(old_targets(&d, &given([3, 0, 4])), [("a".to_owned(), 3), ("b".to_owned(), 1)]);
}

#[test]
fn surplus_pods_are_not_counted_as_available() {
    let d = rolled(10, int(3), int(2));
    // The status still reports ten old pods, but the set was already scaled to eight: only eight count as available.
    let given = sets(Some(with_available(set("n", 3, 9, "v1"), 1)), vec![with_available(set("o", 8, 0, "v0"), 10)]);
    assert_eq!(old_targets(&d, &given), [("o".to_owned(), 7)]);
    let given = sets(Some(with_available(set("n", 2, 9, "v1"), 9)), vec![with_available(set("o", 7, 0, "v0"), 7)]);
    assert_eq!(old_targets(&d, &given), [("o".to_owned(), 6)]);
}

#[test]
fn only_active_or_newest_set_is_scaled() {
    let pick = |new: Option<ReplicaSet>, old| active_or_latest(&sets(new, old)).map(|set| set.meta.name.to_string());
    let of = |name, replicas, age| set(name, replicas, age, name);
    assert_eq!(pick(None, vec![]), None);
    assert_eq!(pick(Some(of("n", 0, 9)), vec![of("o", 0, 0)]).as_deref(), Some("n"));
    assert_eq!(pick(Some(of("n", 0, 9)), vec![of("o", 1, 0)]).as_deref(), Some("o"));
    assert_eq!(pick(Some(of("n", 1, 9)), vec![of("o", 0, 0)]).as_deref(), Some("n"));
    assert_eq!(pick(None, vec![of("o", 0, 0), of("p", 0, 1)]).as_deref(), Some("p"));
    assert_eq!(pick(Some(of("n", 1, 9)), vec![of("o", 1, 0)]), None);
}

#[test]
fn saturation_needs_scale_annotation_and_availability() {
    let d = deployment(2);
    let full = annotated(set("n", 2, 0, "v1"), &[(DESIRED_REPLICAS, "2")]);
    assert!(is_saturated(&d, &full));
    assert!(!is_saturated(&d, &with_available(full.clone(), 1)));
    assert!(!is_saturated(&d, &annotated(full.clone(), &[(DESIRED_REPLICAS, "3")])));
    assert!(!is_saturated(&d, &annotated(full.clone(), &[])));
    assert!(!is_saturated(&deployment(3), &full));
}

/// Returns a set with the annotations of a Deployment with this scale and surge.
fn annotated_set(scale: i32, surge: i32, mut set: ReplicaSet) -> ReplicaSet {
    set.annotations = labels(&[(DESIRED_REPLICAS, &scale.to_string()), (MAX_REPLICAS, &(scale + surge).to_string())]);
    set
}

#[test]
fn sets_are_scaled_in_proportion() {
    // Replicas and surge before and after; sizes of the new and the old sets (newest first) before and after.
    type Case = ((i32, i32), (i32, i32), Option<i32>, &'static [i32], Option<i32>, &'static [i32]);
    let cases: &[Case] = &[
        ((10, 0), (12, 0), Some(10), &[], Some(12), &[]),
        ((10, 0), (5, 0), Some(10), &[], Some(5), &[]),
        ((5, 0), (10, 0), Some(2), &[3], Some(4), &[6]),
        ((5, 0), (3, 0), Some(2), &[3], Some(1), &[2]),
        ((9, 0), (4, 0), Some(8), &[1], Some(4), &[0]),
        ((7, 0), (10, 0), Some(2), &[3, 2], Some(3), &[4, 3]),
        ((13, 0), (8, 0), Some(2), &[8, 3], Some(1), &[5, 2]),
        ((3, 0), (4, 0), Some(1), &[1, 1], Some(2), &[1, 1]),
        ((3, 0), (2, 0), Some(1), &[1, 1], Some(1), &[1, 0]),
        ((4, 0), (5, 0), None, &[2, 2], None, &[3, 2]),
        ((6, 0), (0, 0), Some(3), &[2, 1], Some(0), &[0, 0]),
        ((6, 0), (6, 0), Some(0), &[0, 0], Some(6), &[0, 0]),
        ((10, 2), (20, 2), Some(6), &[6], Some(11), &[11]),
        ((10, 3), (50, 6), Some(5), &[8], Some(22), &[34]),
        ((10, 0), (14, 0), None, &[7, 3], None, &[10, 4]),
    ];
    for (at, ((was, was_surge), (is, surge), new, old, new_after, old_after)) in cases.iter().enumerate() {
        let d = rolled(*is, int(*surge), int(1));
        let count = old.len() as i64;
        let make =
            |name: &str, size, age| annotated_set(*was, *was_surge, with_available(set(name, size, age, name), 0));
        let old_sets = old.iter().enumerate().map(|(i, size)| make(&format!("o{i}"), *size, count - i as i64));
        let mut given = sets(new.map(|size| make("n", size, 99)), old_sets.collect());
        for scale in resize(&d, &given) {
            let mut changed = (*scale.set).clone();
            changed.replicas = scale.replicas;
            given.replace(Arc::new(changed));
        }
        assert_eq!(given.new.as_ref().map(|set| set.replicas), *new_after, "case {at}");
        assert_eq!(given.old.iter().rev().map(|set| set.replicas).collect::<Vec<_>>(), *old_after, "case {at}");
    }
}

#[test]
fn a_resize_that_failed_half_way_is_continued() {
    // Scaling from 3 to 5 with three sets of one pod: the new set was scaled, and the next one was not.
    let d = rolled(5, int(0), int(1));
    let given = sets(
        Some(annotated_set(5, 0, set("n", 2, 9, "v1"))),
        vec![annotated_set(3, 0, set("b", 1, 1, "b")), annotated_set(5, 0, set("a", 1, 0, "a"))],
    );
    assert_eq!(named(resize(&d, &given)), [("b".to_owned(), 2)]);
}

#[test]
fn a_saturated_new_set_empties_the_others_but_a_broken_one_does_not() {
    let d = rolled(2, int(1), int(1));
    let given = |available, old: &[(&str, i64)]| {
        let old = old.iter().map(|(name, age)| annotated_set(2, 1, set(name, 1, *age, name)));
        sets(Some(annotated_set(2, 1, with_available(set("n", 2, 9, "v1"), available))), old.collect())
    };
    let emptied = |name: &str| (name.to_owned(), 0);
    assert_eq!(named(resize(&d, &given(2, &[("o", 0)]))), [emptied("o")]);
    assert_eq!(named(resize(&d, &given(2, &[("o", 0), ("p", 1)]))), [emptied("p"), emptied("o")], "newest first");
    assert_eq!(named(resize(&d, &given(0, &[("o", 0)]))), []);
}

#[test]
fn all_sets_get_the_annotation_of_the_new_scale() {
    let d = rolled(4, int(0), int(1));
    let given = sets(
        Some(annotated_set(3, 0, with_available(set("n", 1, 9, "v1"), 0))),
        vec![annotated_set(3, 0, set("b", 1, 1, "b")), annotated_set(3, 0, set("a", 1, 0, "a"))],
    );
    let scales = resize(&d, &given);
    assert_eq!(scales.iter().map(|scale| scale.annotations.len()).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(scales.iter().filter(|scale| scale.notice().is_some()).count(), 1);
}

#[test]
fn a_set_with_the_right_scale_and_a_stale_annotation_is_corrected() {
    for (strategy, new, old) in [
        (rolling(int(0), int(1)), None, vec![annotated_set(5, 0, set("o", 4, 0, "v0"))]),
        (rolling(int(1), int(1)), Some(annotated_set(2, 0, set("n", 4, 9, "v1"))), vec![]),
        (
            Strategy::Recreate,
            Some(annotated_set(5, 0, set("n", 2, 9, "v1"))),
            vec![annotated_set(5, 0, set("o", 3, 0, "v0"))],
        ),
        (Strategy::Recreate, None, vec![annotated_set(5, 0, set("o", 4, 0, "v0"))]),
    ] {
        let mut d = deployment(4);
        d.strategy = strategy;
        let mut given = sets(new, old);
        let scales = resize(&d, &given);
        assert!(!scales.is_empty());
        for scale in scales {
            assert_eq!((scale.replicas, scale.notice()), (scale.set.replicas, None));
            let mut changed = (*scale.set).clone();
            changed.annotations = super::builders::edited(&changed.annotations, &scale.annotations);
            given.replace(Arc::new(changed));
        }
        assert!(given.active().all(|set| !is_stale(&d, set)));
        assert!(resize(&d, &given).is_empty(), "once is enough");
    }
}

#[test]
fn idle_set_and_older_maximum_are_not_changed() {
    let idle = sets(Some(annotated_set(5, 0, set("n", 0, 0, "v1"))), vec![]);
    assert_eq!(resize(&rolled(0, int(0), int(1)), &idle), []);
    let older = sets(Some(annotated_set(4, 0, set("n", 4, 0, "v1"))), vec![]);
    assert_eq!(resize(&rolled(4, int(2), int(1)), &older), []);
}

#[test]
fn a_share_keeps_the_proportion() {
    for (replicas, surge, pods, size, max, expected) in [
        (0, 0, 0, 10, None, -10),
        (10, 0, 0, 5, None, 0),
        (10, 0, 0, 5, Some("0"), 0),
        (120, 0, 100, 50, None, 10),
        (120, 0, 100, 50, Some("0"), 10),
        (120, 0, 0, 50, Some("100"), 10),
        (120, 10, 0, 50, Some("110"), 9),
        (10, 0, 0, 6, Some("12"), -1),
        (100, 10, 0, 50, Some("130"), -8),
        (2_000_000_000, 0, 0, 1_000_000_000, Some("1000000000"), 1_000_000_000),
    ] {
        let mut d = rolled(replicas, int(surge), int(1));
        d.status.replicas = pods;
        let mut set = set("s", size, 0, "v");
        set.annotations = max.map(|max| labels(&[(MAX_REPLICAS, max)])).unwrap_or_default();
        assert_eq!(share(&d, &set), expected, "{size} of {max:?} towards {replicas}+{surge}");
    }
}

#[test]
fn scale_near_the_largest_number_does_not_overflow() {
    const MAX: i32 = i32::MAX;
    for strategy in [rolling(text("100%"), text("100%")), rolling(int(MAX), int(MAX)), Strategy::Recreate] {
        for (replicas, new, old) in [(MAX, MAX, MAX), (MAX, 0, 1), (0, MAX, MAX), (1, MAX, 0), (MAX, 1, MAX)] {
            let mut d = deployment(replicas);
            d.strategy = strategy.clone();
            let make = |name, size, age| with_available(set(name, size, age, name), size);
            let given = sets(Some(make("n", new, 2)), vec![make("o", old, 1), make("p", old, 0)]);
            let set = given.new.clone().expect("a new set");
            let targets =
                [resize(&d, &given), roll_old(&d, &given, &set), roll_new(&d, &given, &set).into_iter().collect()];
            for scale in targets.iter().flatten() {
                assert!(scale.replicas >= 0, "{replicas} {new} {old}: {}", scale.replicas);
            }
            assert!(new_replicas(&d, given.total(), new) >= 0);
            let max = count_annotation(&annotated((*set).clone(), &[(MAX_REPLICAS, "2147483647")]), MAX_REPLICAS);
            assert_eq!(max, Some(MAX));
            let edits = scale_annotations(&d, &set);
            assert!(plain(&edits).iter().all(|(_, value)| !value.is_some_and(|value| value.starts_with('-'))));
        }
    }
}
