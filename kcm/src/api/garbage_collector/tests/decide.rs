//! Tables of actions for an object, by the state of its owners.

use kinds::{Str, Uid};
use runtime::write::Propagation::{Background, Foreground, Orphan};

use super::super::decide::OwnerState::{Dangling, Solid, Waiting};
use super::super::decide::{OwnerState, Plan, plan};
use super::super::patch;
use super::{A, blocking, deleting, object, owner, uid};

/// Owners and their state, finalizers, whether the object has dependents, whether it may be in a cycle, and the plan.
type Case = (&'static [(u128, OwnerState)], &'static [&'static str], bool, bool, Plan);

#[test]
fn object_is_deleted_when_no_owner_exists() {
    let drop = |numbers: &[u128]| Plan::DropReferences(numbers.iter().copied().map(uid).collect());
    let table: &[Case] = &[
        (&[], &[], false, false, Plan::Keep),
        (&[(1, Solid)], &[], true, true, Plan::Keep),
        (&[(1, Solid), (2, Dangling)], &[], false, false, drop(&[2])),
        (&[(1, Solid), (2, Waiting), (3, Dangling)], &[], true, true, drop(&[2, 3])),
        (&[(1, Solid), (1, Dangling)], &[], false, false, Plan::Keep),
        (&[(1, Dangling)], &[], false, false, Plan::Delete(Background)),
        (&[(1, Dangling)], &[], true, true, Plan::Delete(Background)),
        (&[(1, Dangling), (2, Dangling)], &["other"], false, false, Plan::Delete(Background)),
        (&[(1, Dangling)], &["orphan"], false, false, Plan::Delete(Orphan)),
        (&[(1, Dangling)], &["foregroundDeletion"], false, false, Plan::Delete(Foreground)),
        (&[(1, Dangling)], &["orphan", "foregroundDeletion"], false, false, Plan::Delete(Orphan)),
        (&[(1, Waiting)], &[], false, false, Plan::Delete(Background)),
        (&[(1, Waiting)], &[], true, false, Plan::DeleteForeground { unblock: false }),
        (&[(1, Waiting), (2, Dangling)], &[], true, true, Plan::DeleteForeground { unblock: true }),
    ];
    for (owners, finalizers, has_dependents, in_cycle, expected) in table {
        let owners: Vec<(Uid, OwnerState)> = owners.iter().map(|(number, state)| (uid(*number), *state)).collect();
        let finalizers: Vec<Str> = finalizers.iter().map(|finalizer| Str::from(*finalizer)).collect();
        assert_eq!(plan(&owners, &finalizers, *has_dependents, || *in_cycle), *expected, "{owners:?} {finalizers:?}");
    }
}

/// A search of the owners for each owner would take seconds.
#[test]
fn half_of_many_owners_is_dropped() {
    let state = |number: u128| if number.is_multiple_of(2) { Solid } else { Dangling };
    let owners: Vec<(Uid, OwnerState)> = (0..20_000).map(|number| (uid(number), state(number))).collect();
    let Plan::DropReferences(dropped) = plan(&owners, &[], false, || false) else {
        panic!("the references were not dropped, although some owners exist")
    };
    assert_eq!((dropped.len(), &dropped[0]), (10_000, &uid(1)));
    let item = object(50_000, "n", (0..20_000).map(|number| owner(&A, number)).collect());
    let kept = patch::merge_drop_references(&item, &dropped);
    assert_eq!(kept["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(10_000));
}

#[test]
fn patches_have_preconditions() {
    let item = deleting(object(5, "n", vec![blocking(&A, 1), owner(&A, 2)]), &["a/x", "orphan"]);
    let uid_text = uid(2).to_string();
    assert_eq!(
        patch::strategic_drop_references(&item.uid, &[uid(2)]),
        serde_json::json!({"metadata": {
            "uid": uid(5).to_string(), "ownerReferences": [{"$patch": "delete", "uid": uid_text}],
        }})
    );
    assert_eq!(
        patch::merge_drop_references(&item, &[uid(1)]),
        serde_json::json!({"metadata": {"resourceVersion": "1", "ownerReferences": [
            {"apiVersion": "v1", "kind": "A", "name": "o2", "uid": uid_text},
        ]}})
    );
    assert_eq!(
        patch::merge_drop_references(&item, &[uid(1), uid(2)]),
        serde_json::json!({"metadata": {"resourceVersion": "1", "ownerReferences": null}})
    );
    let freed = serde_json::json!([{"apiVersion": "v1", "kind": "A", "name": "o1", "uid": uid(1).to_string(),
        "blockOwnerDeletion": false}]);
    assert_eq!(patch::strategic_unblock(&item)["metadata"]["ownerReferences"], freed);
    assert_eq!(patch::merge_unblock(&item)["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        patch::without_finalizer(&item, "orphan"),
        Some(serde_json::json!({"metadata": {"resourceVersion": "1", "finalizers": ["a/x"]}}))
    );
    assert_eq!(patch::without_finalizer(&item, "foregroundDeletion"), None);
}
