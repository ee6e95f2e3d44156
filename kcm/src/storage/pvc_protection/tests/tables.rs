//! Tables of the users of claims, the condition `Unused`, and relevant changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::Phase as ClaimPhase;
use kinds::pod::Phase;
use kinds::{PersistentVolumeClaim, Pod};
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Change;
use runtime::testing::CpuTime;

use crate::storage::pvc_protection::FINALIZER;
use crate::storage::pvc_protection::decide::{UnusedStep, blocks_deletion, unused_step};
use crate::storage::pvc_protection::keys::Keys;
use crate::storage::testing::{claim, deleting, own, pod_with, pod_with_ephemeral, recreated};
use crate::storage::unused::{is_tracked, refers};

fn edited(mut pod: Pod, edit: impl FnOnce(&mut Pod)) -> Pod {
    edit(&mut pod);
    pod
}

fn stopped(pod: &mut Pod) {
    pod.volumes.as_mut().expect("the pod has volumes").is_running = false;
}

fn pending(pod: &mut Pod) {
    stopped(pod);
    pod.phase = Phase::Pending;
}

fn without_grace(pod: &mut Pod) {
    deleting(&mut pod.meta, &[]);
    pod.volumes.as_mut().expect("the pod has volumes").has_no_grace = true;
}

/// Returns pods with the names of their cases, whether they block the deletion of claim `data`, and
/// whether they refer to it.
fn users() -> Vec<(&'static str, Pod, bool, bool)> {
    let user = || pod_with("web", &["data"]);
    vec![
        ("running on a node", user(), true, true),
        ("of another claim", pod_with("web", &["logs"]), false, false),
        ("without claims", pod_with("web", &[]), false, false),
        ("without a node", edited(user(), |pod| pod.node = "".into()), false, true),
        ("succeeded", edited(user(), |pod| pod.phase = Phase::Succeeded), true, false),
        ("failed", edited(user(), |pod| pod.phase = Phase::Failed), true, false),
        (
            "failed without a node",
            edited(user(), |pod| {
                pod.phase = Phase::Failed;
                pod.node = "".into();
            }),
            false,
            false,
        ),
        ("being deleted, still running", edited(user(), |pod| deleting(&mut pod.meta, &[])), true, true),
        (
            "being deleted, stopped",
            edited(user(), |pod| {
                deleting(&mut pod.meta, &[]);
                stopped(pod);
            }),
            true,
            false,
        ),
        ("pending, no container yet", edited(user(), pending), true, true),
        ("deleted with force", edited(user(), without_grace), true, true),
        ("in another namespace", edited(user(), |pod| pod.meta.namespace = "other".into()), false, false),
    ]
}

#[test]
fn pods_block_the_deletion_of_claims_that_they_use_on_a_node() {
    for (name, pod, blocks, _) in users() {
        assert_eq!(blocks_deletion(&pod, &claim("data")), blocks, "{name}");
    }
}

#[test]
fn pods_that_have_not_finished_refer_to_claims() {
    for (name, pod, _, is_user) in users() {
        assert_eq!(refers(&pod, &claim("data")), is_user, "{name}");
    }
}

#[test]
fn ephemeral_volume_counts_only_for_the_claim_that_its_pod_controls() {
    let pod = pod_with_ephemeral("web");
    let mut owned = claim("web-data");
    own(&mut owned.meta, &pod);
    let mut of_former = claim("web-data");
    own(&mut of_former.meta, &edited(pod_with_ephemeral("web"), |pod| recreated(&mut pod.meta)));
    let shut_down = edited(pod_with_ephemeral("web"), without_grace);
    for (name, pod, claim, blocks, is_user) in [
        ("controlled", &pod, &owned, true, true),
        ("of nothing", &pod, &claim("web-data"), false, false),
        ("of a former pod", &pod, &of_former, false, false),
        ("of a pod that was shut down", &shut_down, &owned, false, true),
    ] {
        assert_eq!((blocks_deletion(pod, claim), refers(pod, claim)), (blocks, is_user), "{name}");
    }
}

#[test]
fn condition_is_maintained_only_on_bound_claims_that_are_not_being_deleted() {
    for (name, phase, is_deleting, expected) in [
        ("pending", ClaimPhase::Pending, false, false),
        ("bound", ClaimPhase::Bound, false, true),
        ("lost", ClaimPhase::Lost, false, false),
        ("bound and being deleted", ClaimPhase::Bound, true, false),
    ] {
        let mut claim = claim("data");
        claim.phase = phase;
        if is_deleting {
            deleting(&mut claim.meta, &[FINALIZER]);
        }
        assert_eq!(is_tracked(&claim), expected, "{name}");
    }
}

/// Upstream's cases of the condition: users in the cache, and the reads and writes that follow.
#[test]
fn condition_follows_the_pods_with_as_few_lists_as_possible() {
    use UnusedStep::{AwaitUser, Keep, ListPods, Write};
    for (name, unused, in_cache, step) in [
        ("no condition, user in cache", None, true, Write(false)),
        ("no condition, no user in cache", None, false, ListPods),
        ("unused, user appears", Some(true), true, Write(false)),
        ("unused, still no user", Some(true), false, Keep),
        ("used, still used", Some(false), true, Keep),
        ("used, no user in cache", Some(false), false, AwaitUser),
    ] {
        let mut claim = claim("data");
        claim.unused = unused;
        assert_eq!(unused_step(&claim, in_cache), step, "{name}");
    }
}

fn keys(tracks_unused: bool) -> (Keys, Arc<Queue<ObjectKey>>) {
    let queue = Queue::new(QueueOptions::named("test"));
    (Keys { queue: queue.clone(), tracks_unused }, queue)
}

fn queued(queue: &Queue<ObjectKey>) -> BTreeSet<String> {
    queue.waiting().into_iter().map(|waiting| waiting.key.to_string()).collect()
}

fn names(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| format!("default/{key}")).collect()
}

#[test]
fn claims_are_reconciled_for_their_finalizer_or_condition() {
    let edit = |edit: fn(&mut PersistentVolumeClaim)| {
        let mut claim = claim("data");
        claim.meta.finalizers = Arc::new([FINALIZER.into()]);
        claim.unused = Some(true);
        edit(&mut claim);
        Arc::new(claim)
    };
    for (name, claim, gated, ungated) in [
        ("complete", edit(|_| {}), false, false),
        ("without finalizer", edit(|claim| claim.meta.finalizers = Arc::new([])), true, true),
        ("being deleted with it", edit(|claim| deleting(&mut claim.meta, &[FINALIZER])), true, true),
        ("being deleted without it", edit(|claim| deleting(&mut claim.meta, &["other"])), false, false),
        ("without condition", edit(|claim| claim.unused = None), true, false),
    ] {
        for (tracks_unused, expected) in [(true, gated), (false, ungated)] {
            let (keys, queue) = keys(tracks_unused);
            keys.claim_changed(&Change { old: None, new: Some(&claim) });
            assert_eq!(!queued(&queue).is_empty(), expected, "{name}, gate {tracks_unused}");
        }
    }
}

#[test]
fn condition_of_a_claim_is_checked_when_the_claim_is_tracked_for_the_first_time() {
    let in_phase = |phase| {
        let mut claim = claim("data");
        claim.meta.finalizers = Arc::new([FINALIZER.into()]);
        claim.unused = Some(true);
        claim.phase = phase;
        Arc::new(claim)
    };
    let (pending, bound) = (in_phase(ClaimPhase::Pending), in_phase(ClaimPhase::Bound));
    for (name, old, new, expected) in [
        ("at startup", None, &bound, true),
        ("becomes bound", Some(&pending), &bound, true),
        ("stays bound", Some(&bound), &bound, false),
        ("is not bound", Some(&pending), &pending, false),
    ] {
        for tracks_unused in [true, false] {
            let (keys, queue) = keys(tracks_unused);
            keys.claim_changed(&Change { old, new: Some(new) });
            assert_eq!(!queued(&queue).is_empty(), expected && tracks_unused, "{name}, gate {tracks_unused}");
        }
    }
}

#[test]
fn claims_of_a_pod_are_reconciled_when_its_use_changes() {
    let user = Arc::new(pod_with("web", &["data", "logs"]));
    let edit = |edit: fn(&mut Pod)| Arc::new(edited(pod_with("web", &["data", "logs"]), edit));
    let (unscheduled, failed) = (edit(|pod| pod.node = "".into()), edit(|pod| pod.phase = Phase::Failed));
    let ready = edit(|pod| pod.ready = true);
    let mut another = pod_with("web", &["cache"]);
    recreated(&mut another.meta);
    let another = Arc::new(another);
    let all = &["data", "logs"][..];
    let none = &[][..];
    for (name, old, new, gated, ungated) in [
        ("created on a node", None, Some(&user), all, none),
        ("created without a node", None, Some(&unscheduled), all, all),
        ("scheduled", Some(&unscheduled), Some(&user), all, none),
        ("failed", Some(&user), Some(&failed), all, all),
        ("deleted", Some(&user), None, all, all),
        ("became ready", Some(&user), Some(&ready), none, none),
        ("replaced by one with other claims", Some(&user), Some(&another), &["cache", "data", "logs"], all),
    ] {
        for (tracks_unused, expected) in [(true, gated), (false, ungated)] {
            let (keys, queue) = keys(tracks_unused);
            keys.pod_changed(&Change { old, new });
            assert_eq!(queued(&queue), names(expected), "{name}, gate {tracks_unused}");
        }
    }
}

#[test]
fn users_of_each_claim_of_a_large_pod_are_found_without_scans() {
    let names: Vec<String> = (0..20_000).map(|at| format!("data-{at}")).collect();
    let pod = pod_with("web", &names.iter().map(String::as_str).collect::<Vec<_>>());
    let started = CpuTime::now();
    assert!(names.iter().all(|name| refers(&pod, &claim(name)) && blocks_deletion(&pod, &claim(name))));
    // A scan of all volumes for each claim takes minutes in a debug build.
    assert!(started.elapsed() < Duration::from_secs(20), "took {:?}", started.elapsed());
}
