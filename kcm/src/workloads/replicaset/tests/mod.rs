//! Tables and property tests of decisions about a ReplicaSet's pods.

mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::meta::{OwnerRef, Uid};
use kinds::pod::Phase;
use kinds::replicaset::ReplicaSetStatus;
use kinds::schema::{object_meta, pod_template_spec, replica_set, replica_set_spec, replica_set_status};
use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, Meta, Pod, ReplicaSet, Sections, Time};
use proptest::prelude::*;
use runtime::children::{Urgency, adoptable};
use runtime::store::Change;

use super::decide::{BURST, Manage, REPLICA_FAILURE, manage, next_check, status, write_delay};
use super::keys::of_set;
use crate::pods::keys::owners_of_pod;
use crate::pods::ranking::Ranking;

pub const NOW: i64 = 1_000_000;

pub fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("in range")
}

fn owner(name: &str, kind: &str) -> OwnerRef {
    OwnerRef {
        api_version: "apps/v1".into(),
        kind: kind.into(),
        name: name.into(),
        uid: Uid::parse(name),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A running, ready, old pod on a node of its own, owned by `web`.
pub fn pod(name: &str) -> Pod {
    let interner = Interner::default();
    Pod {
        meta: Meta {
            namespace: "ns".into(),
            name: name.into(),
            uid: Uid::parse(name),
            version: 1,
            generation: 0,
            created: Time(NOW - 5000),
            deletion: Time(0),
            labels: interner.labels(vec![("app".into(), "web".into())]),
            owners: interner.owners(&[owner("web", "ReplicaSet")]),
            finalizers: interner.list(&[]),
        },
        node: format!("node-{name}").as_str().into(),
        phase: Phase::Running,
        ready: true,
        ready_since: Time(NOW - 4000),
        restarts: 0,
        sidecar_restarts: 0,
        deletion_cost: 0,
        ending: None,
        disruption: None,
        usage: None,
        tolerations: None,
        network: None,
        claims: None,
        target: None,
        requests: None,
        devices: None,
        volumes: None,
    }
}

fn set(replicas: i32, min_ready_seconds: i32) -> ReplicaSet {
    let mut object = Vec::new();
    object.put_message(replica_set::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, "web");
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        meta.put_int(object_meta::GENERATION, 3);
    });
    object.put_message(replica_set::SPEC, |spec| {
        spec.put_int(replica_set_spec::REPLICAS, replicas.into());
        spec.put_int(replica_set_spec::MIN_READY_SECONDS, min_ready_seconds.into());
        spec.put_message(replica_set_spec::TEMPLATE, |template| {
            template.put_message(pod_template_spec::METADATA, |meta| meta.put_entry(object_meta::LABELS, "app", "web"));
        });
    });
    object.put_message(replica_set::STATUS, |status| status.put_int(replica_set_status::REPLICAS, 1));
    let context = Decode { interner: Arc::default(), sections: ReplicaSet::TEMPLATE };
    ReplicaSet::decode(&context, &object).expect("well-formed")
}

fn arcs(pods: Vec<Pod>) -> Vec<Arc<Pod>> {
    pods.into_iter().map(Arc::new).collect()
}

/// Returns the names of the pods that are deleted to scale down to `replicas`.
fn victims(pods: Vec<Pod>, replicas: i32) -> Vec<String> {
    let pods = arcs(pods);
    match manage(&pods, replicas, || Ranking::new(&pods, true, now())) {
        Manage::Delete(victims) => victims.iter().map(|pod| pod.meta.name.to_string()).collect(),
        other => panic!("{other:?} instead of deletions"),
    }
}

#[test]
fn missing_pods_are_created_up_to_the_burst() {
    for (active, replicas, expected) in [(0, 0, 0), (0, 3, 3), (2, 3, 1), (0, 501, BURST), (1, 10_000, BURST)] {
        let pods = arcs((0..active).map(|at| pod(&at.to_string())).collect());
        let plan = manage(&pods, replicas, || panic!("nothing to rank"));
        let created = match plan {
            Manage::Nothing => 0,
            Manage::Create(count) => count,
            Manage::Delete(_) => panic!("deletes"),
        };
        assert_eq!(created, expected, "{active} of {replicas}");
    }
}

#[test]
fn pods_are_ranked_only_if_some_stay_and_deletions_are_limited_to_the_burst() {
    let pods = arcs((0..3).map(|at| pod(&at.to_string())).collect());
    assert!(matches!(manage(&pods, 0, || panic!("ranked")), Manage::Delete(victims) if victims.len() == 3));
    let pods = arcs((0..700).map(|at| pod(&at.to_string())).collect());
    assert!(
        matches!(manage(&pods, 0, || Ranking::new(&pods, true, now())), Manage::Delete(victims) if victims.len() == BURST)
    );
}

/// Each row changes one pod so that it is deleted before an unchanged one; the strongest reason is first.
#[test]
fn least_useful_pod_is_deleted_first() {
    type Worsen = fn(&mut Pod);
    let rows: [(&str, Worsen); 9] = [
        ("not on a node", |pod| pod.node = "".into()),
        ("pending", |pod| pod.phase = Phase::Pending),
        ("unknown", |pod| pod.phase = Phase::Unknown),
        ("not ready", |pod| pod.ready = false),
        ("cheap", |pod| pod.deletion_cost = -1),
        ("ready for less time", |pod| pod.ready_since = Time(NOW - 10)),
        ("restarted more", |pod| pod.restarts = 1),
        ("sidecar restarted more", |pod| pod.sidecar_restarts = 1),
        ("younger", |pod| pod.meta.created = Time(NOW - 10)),
    ];
    for (at, (reason, worsen)) in rows.iter().enumerate() {
        let mut worse = pod("worse");
        worsen(&mut worse);
        assert_eq!(victims(vec![pod("good"), worse.clone()], 1), ["worse"], "{reason}");
        for (weaker, worsen) in &rows[at + 1..] {
            let mut other = pod("other");
            worsen(&mut other);
            assert_eq!(victims(vec![other, worse.clone()], 1), ["worse"], "{reason} before {weaker}");
        }
    }
}

#[test]
fn deletion_cost_counts_only_with_its_gate() {
    let mut cheap = pod("cheap");
    cheap.deletion_cost = -1;
    cheap.ready_since = Time(NOW - 100_000);
    let pods = arcs(vec![cheap, pod("young")]);
    let first = |uses_cost| Ranking::new(&pods, uses_cost, now()).first(pods.clone(), 1)[0].meta.name.to_string();
    assert_eq!((first(true).as_str(), first(false).as_str()), ("cheap", "young"));
}

#[test]
fn pods_on_crowded_nodes_are_deleted_before_younger_ones() {
    let mut pods: Vec<Pod> = ["a", "b", "c"].map(pod).into();
    pods[0].node = "crowded".into();
    pods[1].node = "crowded".into();
    pods[2].ready_since = Time(NOW - 10);
    assert!(["a", "b"].contains(&victims(pods, 2)[0].as_str()));
}

#[test]
fn ages_of_the_same_magnitude_are_equal_and_an_unknown_age_is_young() {
    let with = |name: &str, since: i64| {
        let mut pod = pod(name);
        pod.ready_since = Time(since);
        pod
    };
    assert_eq!(victims(vec![with("a", NOW - 4000), with("b", NOW - 3999)], 1), ["a"], "by uid");
    assert_eq!(victims(vec![with("b", NOW - 4000), with("a", NOW - 3999)], 1), ["a"], "by uid");
    assert_eq!(victims(vec![with("a", NOW - 1), with("b", 0)], 1), ["b"], "unknown");
}

#[test]
fn status_counts_pods_by_their_state() {
    let mut unready = pod("b");
    unready.ready = false;
    let mut fresh = pod("c");
    fresh.ready_since = Time(NOW - 1);
    let mut strange = pod("d");
    strange.meta.labels = Arc::new([]);
    let status = status(&set(4, 10), &arcs(vec![pod("a"), unready, fresh, strange]), Some(2), None, now());
    assert_eq!(
        (status.replicas, status.fully_labeled_replicas, status.ready_replicas, status.available_replicas),
        (4, 3, 3, 2)
    );
    assert_eq!((status.terminating_replicas, status.observed_generation), (Some(2), 3));
}

#[test]
fn failure_condition_keeps_its_first_message_and_is_removed_on_success() {
    let mut set = set(2, 0);
    for (active, reason) in [(0, "FailedCreate"), (3, "FailedDelete"), (2, "")] {
        let pods = arcs((0..active).map(|at| pod(&at.to_string())).collect());
        let status = status(&set, &pods, None, Some("first"), now());
        let [condition] = &status.conditions[..] else { panic!("one condition") };
        assert_eq!((&*condition.kind, &*condition.status, &*condition.reason), (REPLICA_FAILURE, "True", reason));
        assert_eq!((&*condition.message, condition.last_transition), ("first", Time(NOW)));
    }
    let other = Condition {
        kind: "Other".into(),
        status: "True".into(),
        reason: "".into(),
        message: "".into(),
        last_update: Time(0),
        last_transition: Time(1),
    };
    set.status.conditions = vec![other.clone()];
    set.status.conditions = status(&set, &[], None, Some("first"), now()).conditions;
    assert_eq!(status(&set, &[], None, Some("second"), now()).conditions, set.status.conditions);
    assert_eq!(status(&set, &[], None, None, now()).conditions, [other]);
}

#[test]
fn next_check_is_when_the_first_pod_becomes_available() {
    let ready_since = |name: &str, since: i64| {
        let mut pod = pod(name);
        pod.ready_since = Time(since);
        pod
    };
    let check = |min: i32, pods: Vec<Pod>| {
        let pods = arcs(pods);
        let status = status(&set(3, min), &pods, None, None, now());
        next_check(&status, &pods, min, now())
    };
    assert_eq!(check(0, vec![ready_since("a", NOW)]), None, "ready is available");
    assert_eq!(check(10, vec![ready_since("a", NOW - 20)]), None, "all are available");
    let two = vec![ready_since("a", NOW - 3), ready_since("b", NOW - 7), ready_since("c", NOW - 70)];
    assert_eq!(check(10, two), Some(Duration::from_secs(3)));
    assert_eq!(check(10, vec![ready_since("a", 0)]), Some(Duration::from_secs(10)), "the time of readiness is unknown");
}

/// Rows: the written and the current counts of replicas, available and terminating pods; the delay in milliseconds.
#[test]
fn status_is_written_immediately_when_a_deployment_or_a_user_waits_for_it() {
    let counts = |(replicas, available, terminating): (i32, i32, i32)| ReplicaSetStatus {
        replicas,
        ready_replicas: available,
        available_replicas: available,
        terminating_replicas: Some(terminating),
        observed_generation: 3,
        ..ReplicaSetStatus::default()
    };
    for (what, replicas, was, is, millis) in [
        ("nothing new", 3, (3, 3, 0), (3, 3, 0), 0),
        ("all pods are available", 3, (3, 2, 0), (3, 3, 0), 0),
        ("the only pod is available", 1, (0, 0, 0), (1, 1, 0), 0),
        ("pods were created", 3, (0, 0, 0), (3, 0, 0), 2000),
        ("one of two became available", 2, (2, 0, 0), (2, 1, 0), 0),
        ("one of fifty became available", 50, (50, 0, 0), (50, 1, 0), 0),
        ("most of fifty became available", 50, (50, 0, 0), (50, 40, 0), 0),
        ("a pod was lost", 3, (3, 3, 0), (3, 2, 0), 0),
        ("a pod was lost while others start", 50, (50, 30, 0), (50, 29, 0), 0),
        ("surplus pods terminate", 10, (40, 40, 0), (10, 10, 30), 2000),
        ("three surplus pods terminate", 2, (5, 5, 0), (2, 2, 3), 240),
        ("surplus pods were deleted", 10, (40, 40, 0), (10, 10, 0), 0),
        ("the last pods terminate", 0, (3, 3, 0), (0, 0, 3), 0),
        ("the last terminating pod disappeared", 0, (0, 0, 3), (0, 0, 0), 0),
        ("one of several terminating pods disappeared", 0, (0, 0, 3), (0, 0, 2), 2000),
        ("pods of a complete set terminate", 3, (3, 3, 0), (3, 3, 2), 2000),
        ("none terminates while pods are missing", 3, (3, 2, 1), (3, 2, 0), 2000),
    ] {
        let mut set = set(replicas, 0);
        set.status = counts(was);
        assert_eq!(write_delay(&set, &counts(is)).as_millis(), millis, "{what}");
    }
    let mut set = set(3, 0);
    set.status = counts((1, 1, 0));
    let failed = status(&set, &arcs(vec![pod("a")]), Some(0), Some("no room"), now());
    assert_eq!(failed.conditions.len(), 1);
    assert_eq!(write_delay(&set, &failed), Duration::ZERO, "users read conditions");
}

#[test]
fn pod_change_requeues_its_owners_by_urgency() {
    let key = |name: &str, urgency| (format!("ns/{name}"), urgency);
    let base = pod("a");
    let changed = |change: fn(&mut Pod)| {
        let mut pod = pod("a");
        change(&mut pod);
        pod
    };
    let version_only = changed(|pod| pod.meta.version = 2);
    let unready = changed(|pod| pod.ready = false);
    let terminating = changed(|pod| pod.meta.deletion = Time(NOW));
    let failed = changed(|pod| pod.phase = Phase::Failed);
    let relabelled = changed(|pod| pod.meta.labels = Arc::new([]));
    let moved = changed(|pod| pod.meta.owners = Arc::new([owner("other", "ReplicaSet")]));
    let orphaned = changed(|pod| pod.meta.owners = Arc::new([]));
    let foreign = changed(|pod| pod.meta.owners = Arc::new([owner("job", "Job")]));
    use Urgency::{Now, Soon};
    for (old, new, expected) in [
        (None, Some(&base), vec![key("web", Soon)]),
        (Some(&base), Some(&version_only), vec![]),
        (Some(&base), Some(&unready), vec![key("web", Soon)]),
        (Some(&base), Some(&terminating), vec![key("web", Now)]),
        (Some(&base), Some(&failed), vec![key("web", Now)]),
        (Some(&base), Some(&relabelled), vec![key("web", Now)]),
        (Some(&base), Some(&moved), vec![key("web", Now), key("other", Soon)]),
        (Some(&base), Some(&orphaned), vec![key("web", Now)]),
        (Some(&base), None, vec![key("web", Now)]),
        (None, Some(&foreign), vec![]),
    ] {
        let (old, new) = (old.cloned().map(Arc::new), new.cloned().map(Arc::new));
        let change = Change { old: old.as_ref(), new: new.as_ref() };
        let keys: Vec<_> =
            owners_of_pod::<ReplicaSet>(&change).into_iter().map(|(key, urgency)| (key.to_string(), urgency)).collect();
        assert_eq!(keys, expected, "{change:?}");
    }
}

#[test]
fn only_a_changed_pod_without_controller_may_be_adopted() {
    let mut free = pod("a");
    free.meta.owners = Arc::new([]);
    let mut relabelled = free.clone();
    relabelled.meta.labels = Arc::new([]);
    let mut terminating = free.clone();
    terminating.meta.deletion = Time(NOW);
    for (old, new, expected) in [
        (None, &free, true),
        (Some(&free), &free, false),
        (Some(&free), &relabelled, true),
        (Some(&pod("a")), &free, true),
        (None, &terminating, false),
        (None, &pod("a"), false),
    ] {
        let old = old.cloned().map(Arc::new);
        let new = Arc::new(new.clone());
        assert_eq!(adoptable(&Change { old: old.as_ref(), new: Some(&new) }).is_some(), expected);
    }
}

#[test]
fn status_update_is_coalesced_and_spec_update_is_immediate() {
    let base = Arc::new(set(1, 0));
    let mut status_only = set(1, 0);
    status_only.meta.version = 8;
    let mut scaled = set(2, 0);
    scaled.meta.generation = 4;
    for (old, new, expected) in [
        (None, &base, Urgency::Now),
        (Some(&base), &Arc::new(status_only), Urgency::Soon),
        (Some(&base), &Arc::new(scaled), Urgency::Now),
    ] {
        assert_eq!(of_set(&Change { old, new: Some(new) }), expected);
    }
}

fn any_pod(name: usize) -> impl Strategy<Value = Pod> {
    let ages = || prop_oneof![Just(0), NOW - 5000..NOW + 5];
    (0..5u8, 0..3usize, any::<bool>(), ages(), ages(), 0..3i32, -1..2i32).prop_map(
        move |(phase, node, ready, ready_since, created, restarts, cost)| {
            let mut pod = pod(&name.to_string());
            pod.phase =
                [Phase::Pending, Phase::Unknown, Phase::Running, Phase::Running, Phase::Running][usize::from(phase)];
            pod.node = ["", "a", "b"][node].into();
            pod.ready = ready;
            pod.ready_since = Time(ready_since);
            pod.meta.created = Time(created);
            pod.restarts = restarts;
            pod.deletion_cost = cost;
            pod
        },
    )
}

fn any_pods() -> impl Strategy<Value = Vec<Pod>> {
    (0usize..12).prop_flat_map(|count| (0..count).map(any_pod).collect::<Vec<_>>())
}

proptest! {
    /// For any pods: exactly the surplus is deleted, the choice does not depend on their order, and of the
    /// running pods on nodes, no ready one is deleted while an unready one stays.
    #[test]
    fn choice_is_exact_stable_and_prefers_unready_pods(pods in any_pods(), replicas in 0i32..12) {
        let surplus = pods.len().saturating_sub(replicas as usize);
        prop_assume!(surplus > 0);
        let mut chosen = victims(pods.clone(), replicas);
        let mut reversed = victims(pods.iter().rev().cloned().collect(), replicas);
        chosen.sort();
        reversed.sort();
        prop_assert_eq!(&chosen, &reversed);
        prop_assert_eq!(chosen.len(), surplus);
        let running = |pod: &&Pod| pod.phase == Phase::Running && !pod.node.is_empty();
        let (deleted, kept): (Vec<&Pod>, Vec<&Pod>) =
            pods.iter().filter(running).partition(|pod| chosen.iter().any(|name| **name == *pod.meta.name));
        prop_assert!(!(deleted.iter().any(|pod| pod.ready) && kept.iter().any(|pod| !pod.ready)));
    }

    /// Creations and deletions as decided always end with the desired number of active pods, and never overshoot it.
    #[test]
    fn repeated_decisions_end_with_the_desired_number(pods in any_pods(), replicas in 0i32..12) {
        let mut active = arcs(pods);
        for step in 0.. {
            prop_assert!(step < 3, "no end");
            let before = active.len() as i32;
            match manage(&active, replicas, || Ranking::new(&active, true, now())) {
                Manage::Nothing => break,
                Manage::Create(count) => active.extend((0..count).map(|at| Arc::new(pod(&format!("new-{step}-{at}"))))),
                Manage::Delete(victims) => active.retain(|pod| !victims.iter().any(|victim| victim.meta.uid == pod.meta.uid)),
            }
            let after = active.len() as i32;
            prop_assert!((before..=replicas).contains(&after) || (replicas..=before).contains(&after));
        }
        prop_assert_eq!(active.len() as i32, replicas);
    }
}

#[test]
fn template_section_contains_all_that_a_put_needs() {
    assert!(ReplicaSet::TEMPLATE != Sections::default());
    assert!(set(1, 0).update(2, 0, &Vec::new()).is_some());
    assert_eq!(ReplicaSet::RESOURCE.path(Some("ns")), "/apis/apps/v1/namespaces/ns/replicasets");
}
