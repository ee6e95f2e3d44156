//! The StatefulSets that a change of a pod or a claim requeues.

use kinds::meta::{ObjectKey, OwnerRef};
use runtime::children::Urgency::{Now, Soon};
use runtime::children::adoptable;
use runtime::store::Change;

use super::*;
use crate::workloads::statefulset::keys::{is_member, of_claim, of_pod};

fn owner(kind: &str, name: &str) -> OwnerRef {
    OwnerRef {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: Uid::parse(name),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Returns a pod with this version and these controllers; it is ready if `is_ready`.
fn changed(version: u64, owners: &[OwnerRef], is_ready: bool) -> Arc<Pod> {
    let mut pod = pod(0, "a");
    pod.meta.version = version;
    pod.meta.owners = Interner::default().owners(owners);
    pod.ready = is_ready;
    Arc::new(pod)
}

#[test]
fn pod_change_requeues_its_old_and_new_set() {
    let (web, db, job) = (owner("StatefulSet", "web"), owner("StatefulSet", "db"), owner("Job", "job"));
    let of = |owner: &OwnerRef| changed(1, std::slice::from_ref(owner), true);
    let later = |owner: &OwnerRef, is_ready| changed(2, std::slice::from_ref(owner), is_ready);
    let (orphan, freed) = (changed(1, &[], true), changed(2, &[], true));
    for (name, old, new, expected) in [
        ("created", None, Some(of(&web)), vec![("web", Soon)]),
        ("deleted", Some(of(&web)), None, vec![("web", Now)]),
        ("no longer ready", Some(of(&web)), Some(later(&web, false)), vec![("web", Now)]),
        ("another version only", Some(of(&web)), Some(later(&web, true)), vec![]),
        ("another set", Some(of(&web)), Some(later(&db, true)), vec![("web", Now), ("db", Soon)]),
        ("released", Some(of(&web)), Some(freed), vec![("web", Now)]),
        ("without a controller", None, Some(orphan.clone()), vec![]),
        ("deleted without a controller", Some(orphan), None, vec![]),
        ("of a Job", None, Some(of(&job)), vec![]),
    ] {
        let change = Change { old: old.as_ref(), new: new.as_ref() };
        let found = of_pod(&change, |_| false);
        let expected: Vec<_> =
            expected.into_iter().map(|(name, urgency)| (ObjectKey::new("ns", name), urgency)).collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn orphan_requeues_sets_when_it_is_new_or_its_labels_changed() {
    let orphan = changed(1, &[], true);
    let mut labelled = Pod::clone(&orphan);
    labelled.meta.labels = Interner::default().labels(vec![("app".into(), "web".into())]);
    let labelled = Arc::new(labelled);
    for (name, old, new, is_offered) in [
        ("created", None, Some(&orphan), true),
        ("other labels", Some(&orphan), Some(&labelled), true),
        ("nothing new", Some(&orphan), Some(&orphan), false),
        ("deleted", Some(&orphan), None, false),
    ] {
        assert_eq!(adoptable(&Change { old, new }).is_some(), is_offered, "{name}");
    }
    let set = set(1);
    assert!(is_member(&set, &orphan.meta));
    let mut other = Pod::clone(&orphan);
    other.meta.name = "db-0".into();
    assert!(!is_member(&set, &other.meta));
}

#[test]
fn deleted_claim_requeues_the_set_of_its_owners() {
    for (owners, expected) in [
        (vec![owner("StatefulSet", "web")], vec!["web"]),
        (vec![owner("Pod", "web-12")], vec!["web"]),
        (vec![owner("Pod", "bare")], vec![]),
        (vec![owner("Job", "web")], vec![]),
        (vec![], vec![]),
    ] {
        let claim = changed(1, &owners, true);
        let names: Vec<String> = of_claim(&claim.meta).iter().map(|key| key.name.to_string()).collect();
        assert_eq!(names, expected, "{owners:?}");
    }
}
