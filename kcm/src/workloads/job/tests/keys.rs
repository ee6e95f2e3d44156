//! Jobs that a change affects.

use std::sync::Arc;

use kinds::meta::OwnerRef;
use kinds::pod::Phase;
use kinds::{Pod, Uid};
use runtime::store::Change;

use super::builders::{a_job, a_pod, with};
use crate::workloads::job::keys::{is_urgent, jobs_to_release, owners};

fn owned_by(job: Option<&str>, phase: Phase) -> Arc<Pod> {
    let mut pod = a_pod("p", phase, None);
    let owner = |name: &str| OwnerRef { name: name.into(), uid: Uid::parse(name), ..pod.meta.owners[0].clone() };
    pod.meta.owners = job.map(owner).into_iter().collect();
    Arc::new(pod)
}

#[test]
fn change_of_a_pod_requeues_its_old_and_new_controllers() {
    use Phase::{Pending, Running};
    let (a, b, none) = (owned_by(Some("a"), Pending), owned_by(Some("b"), Pending), owned_by(None, Pending));
    let running = owned_by(Some("a"), Running);
    for (name, old, new, expected) in [
        ("new", None, Some(&a), &["default/a"][..]),
        ("new without a controller", None, Some(&none), &[]),
        ("changed", Some(&a), Some(&running), &["default/a"]),
        ("unchanged", Some(&a), Some(&a), &[]),
        ("other controller", Some(&a), Some(&b), &["default/a", "default/b"]),
        ("released", Some(&a), Some(&none), &["default/a"]),
        ("adopted", Some(&none), Some(&a), &["default/a"]),
        ("deleted", Some(&a), None, &["default/a"]),
        ("deleted without a controller", Some(&none), None, &[]),
    ] {
        let mut keys: Vec<String> = owners(&Change { old, new }).iter().map(ToString::to_string).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys, expected, "{name}");
    }
}

#[test]
fn change_of_a_job_is_urgent_when_its_spec_changes_and_releases_its_pods_when_it_ends() {
    let job = |generation, uid: &str, is_finished: bool| {
        Arc::new(with(a_job(1, Some(1)), |job| {
            job.meta.generation = generation;
            job.meta.uid = Uid::parse(uid);
            if is_finished {
                let condition = crate::workloads::job::decide::condition("Complete", "r", "m", super::builders::now());
                job.status.conditions.push(condition);
            }
        }))
    };
    let (first, second) = (job(1, "a", false), job(2, "a", false));
    let (finished, replaced) = (job(1, "a", true), job(1, "b", false));
    for (name, old, new, urgent, released) in [
        ("new", None, Some(&first), true, 0),
        ("other spec", Some(&first), Some(&second), true, 0),
        ("other status", Some(&first), Some(&first), false, 0),
        ("finishes", Some(&first), Some(&finished), false, 1),
        ("replaced", Some(&first), Some(&replaced), true, 1),
        ("deleted", Some(&first), None, true, 1),
    ] {
        let change = Change { old, new };
        assert_eq!((is_urgent(&change), jobs_to_release(&change).len()), (urgent, released), "{name}");
    }
}
