//! The Deployments that a change affects.

use std::sync::Arc;

use kinds::meta::OwnerRef;
use kinds::{Deployment, Pod, ReplicaSet, Time, Uid};
use runtime::children::{adoptable, owners_of};
use runtime::store::Change;

use super::builders::{labels, pod, set};
use crate::workloads::deployment::keys::stopped;

fn owned_by(kind: &str, name: &str) -> Arc<ReplicaSet> {
    let mut set = set("s", 1, 0, "v1");
    let owner = OwnerRef { kind: kind.into(), name: name.into(), ..set.meta.owners[0].clone() };
    set.meta.owners = Arc::from([owner]);
    Arc::new(set)
}

fn orphan(label: &str) -> Arc<ReplicaSet> {
    let mut set = set("s", 1, 0, "v1");
    set.meta.owners = Arc::from([]);
    set.meta.labels = labels(&[("app", label)]);
    Arc::new(set)
}

#[test]
fn set_change_requeues_old_and_new_owner() {
    let (web, db) = (owned_by("Deployment", "web"), owned_by("Deployment", "db"));
    let foreign = owned_by("Rollout", "web");
    let free = orphan("a");
    for (old, new, expected) in [
        (None, Some(&web), vec!["shop/web"]),
        (Some(&web), Some(&web), vec!["shop/web"]),
        (Some(&web), Some(&db), vec!["shop/web", "shop/db"]),
        (Some(&web), None, vec!["shop/web"]),
        (Some(&web), Some(&free), vec!["shop/web"]),
        (Some(&free), Some(&web), vec!["shop/web"]),
        (None, Some(&foreign), vec![]),
        (Some(&free), None, vec![]),
    ] {
        let keys = owners_of::<Deployment, _>(&Change { old, new });
        assert_eq!(keys.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{old:?} {new:?}");
    }
}

#[test]
fn orphan_requeues_deployments_that_may_select_it() {
    let web = owned_by("Deployment", "web");
    let free = orphan("a");
    let relabeled = orphan("b");
    let mut deleting = (*free).clone();
    deleting.meta.deletion = Time(1);
    let deleting = Arc::new(deleting);
    for (what, old, new, expected) in [
        ("new", None, Some(&free), true),
        ("released", Some(&web), Some(&free), true),
        ("relabeled", Some(&free), Some(&relabeled), true),
        ("unchanged", Some(&free), Some(&free), false),
        ("owned", None, Some(&web), false),
        ("being deleted", None, Some(&deleting), false),
        ("deleted", Some(&free), None, false),
    ] {
        assert_eq!(adoptable(&Change { old, new }).is_some(), expected, "{what}");
    }
}

#[test]
fn pod_requeues_its_deployment_when_it_ends() {
    let running = Arc::new(pod("Running"));
    let failed = Arc::new(pod("Failed"));
    let mut other: Pod = pod("Running");
    other.meta.uid = Uid::parse("other");
    let other = Arc::new(other);
    for (what, old, new, expected) in [
        ("deleted", Some(&running), None, true),
        ("replaced", Some(&running), Some(&other), true),
        ("finished", Some(&running), Some(&failed), true),
        ("unchanged", Some(&running), Some(&running), false),
        ("still finished", Some(&failed), Some(&failed), false),
        ("new", None, Some(&running), false),
    ] {
        assert_eq!(stopped(&Change { old, new }).is_some(), expected, "{what}");
    }
}
