//! Tables and property tests of the pods to delete.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::pod::{Disruption, Phase};
use kinds::schema::{node, node_condition, node_spec, node_status, object_meta, pod as pod_fields, taint};
use kinds::wire::Put;
use kinds::{Decode, Kind, Node, Pod, Sections, Str, Time};
use proptest::prelude::*;
use runtime::lock::lock;
use runtime::queue::{Queue, QueueOptions};
use runtime::stale;
use runtime::testing::{deliver_undecodable, filled_store, recording_writer};
use runtime::worker::Reconcile as _;
use serde_json::{Value, json};

use super::ENDING;
use super::decide::{Census, Reason, failure, first_deleted, is_due_again, stuck, surplus};
use super::sync::{PodGc, Task};
use crate::pods::indexes::by_node;

fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

fn meta(name: &str) -> impl FnOnce(&mut Vec<u8>) {
    move |meta: &mut Vec<u8>| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.put_int(object_meta::GENERATION, 3);
    }
}

fn pod(name: &str, change: impl FnOnce(&mut Pod)) -> Pod {
    let mut object = Vec::new();
    object.put_message(pod_fields::METADATA, meta(name));
    let mut pod = Pod::decode(&context(), &object).expect("well-formed");
    change(&mut pod);
    pod
}

fn node(ready: &str, tainted: bool) -> Node {
    let mut object = Vec::new();
    object.put_message(node::METADATA, meta("a"));
    object.put_message(node::SPEC, |spec| {
        if tainted {
            spec.put_message(node_spec::TAINTS, |message| {
                message.put_str(taint::KEY, "node.kubernetes.io/out-of-service");
                message.put_str(taint::EFFECT, "NoExecute");
            });
        }
    });
    object.put_message(node::STATUS, |status| {
        status.put_message(node_status::CONDITIONS, |condition| {
            condition.put_str(node_condition::TYPE, "Ready");
            condition.put_str(node_condition::STATUS, ready);
        });
    });
    Node::decode(&context(), &object).expect("well-formed")
}

fn names(pods: &[Arc<Pod>]) -> Vec<&str> {
    pods.iter().map(|pod| &*pod.meta.name).collect()
}

#[test]
fn only_finished_pods_beyond_the_threshold_are_surplus() {
    for (finished, threshold, expected) in
        [(0, 1, 0), (2, 2, 0), (3, 2, 1), (5, 0, 0), (5, -1, 0), (20_000, 12_500, 7_500)]
    {
        assert_eq!(surplus(finished, threshold), expected, "{finished} of {threshold}");
    }
}

#[test]
fn evicted_pods_are_deleted_first_then_the_oldest_then_by_name() {
    let finished = |name: &str, created: i64, evicted: bool| {
        Arc::new(pod(name, |pod| {
            pod.phase = Phase::Failed;
            pod.meta.created = Time(created);
            pod.disruption = evicted.then(|| Box::new(Disruption { evicted, ..Disruption::default() }));
        }))
    };
    let pods = vec![
        finished("young", 9, false),
        finished("b", 5, false),
        finished("evicted", 8, true),
        finished("a", 5, false),
        finished("evicted-old", 7, true),
    ];
    assert_eq!(names(&first_deleted(pods.clone(), 5)), ["evicted-old", "evicted", "a", "b", "young"]);
    assert_eq!(names(&first_deleted(pods, 3)), ["evicted-old", "evicted", "a"]);
}

#[test]
fn terminating_pod_without_a_node_or_on_one_out_of_service_is_stuck() {
    let on = |node: &str, deleting: bool| {
        pod("p", |pod| {
            pod.node = node.into();
            pod.meta.deletion = Time(i64::from(deleting));
        })
    };
    let (unready, ready, unknown) = (node("False", true), node("True", true), node("Unknown", true));
    for (pod, node, expected) in [
        (on("", true), None, Some(Reason::Unscheduled)),
        (on("", false), None, None),
        (on("a", true), Some(&unready), Some(Reason::OutOfService)),
        (on("a", true), Some(&unknown), Some(Reason::OutOfService)),
        (on("a", true), Some(&ready), None),
        (on("a", true), Some(&node("False", false)), None),
        (on("a", false), Some(&unready), None),
        (on("a", true), None, None),
    ] {
        assert_eq!(stuck(&pod, node), expected, "{:?} {node:?}", pod.node);
    }
}

#[test]
fn pod_that_has_not_ended_is_marked_as_failed() {
    let now = Timestamp::from_second(1_000_000).expect("in range");
    let order = json!([{"type": "PodScheduled"}, {"type": "DisruptionTarget"}]);
    let expected = |conditions: Option<Value>| {
        let mut status = json!({"phase": "Failed", "observedGeneration": 3});
        if let Some(conditions) = conditions {
            // A condition that is new is placed after the others.
            if conditions[0].get("lastTransitionTime").is_some() {
                status["$setElementOrder/conditions"] = order.clone();
            }
            status["conditions"] = conditions;
        }
        Some(json!({"metadata": {"uid": "p"}, "status": status}))
    };
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "observedGeneration": 3,
        "message": "PodGC: node no longer exists", "lastTransitionTime": "1970-01-12T13:46:40Z",
    });
    let mut known = condition.clone();
    known.as_object_mut().expect("an object").remove("lastTransitionTime");
    let announced = pod("p", |pod| {
        pod.disruption = Some(Box::new(Disruption { target_since: Some(Time(5)), ..Disruption::default() }));
    });
    let running = pod("p", |pod| pod.phase = Phase::Running);
    for (pod, reason, expected) in [
        (&running, Reason::Unscheduled, expected(None)),
        (&running, Reason::OutOfService, expected(None)),
        (&running, Reason::Orphaned, expected(Some(json!([condition])))),
        (&announced, Reason::Orphaned, expected(Some(json!([known])))),
        (&pod("p", |pod| pod.phase = Phase::Succeeded), Reason::Orphaned, None),
        (&pod("p", |pod| pod.phase = Phase::Failed), Reason::Terminated, None),
    ] {
        assert_eq!(failure(pod, reason, now), expected, "{reason:?}");
    }
}

#[test]
fn force_deletion_is_retried_after_a_delay() {
    for (now, expected) in [(0, false), (599, false), (600, true)] {
        assert_eq!(is_due_again(Time(1000), Time(1000 + now)), expected, "{now}");
    }
}

/// A node that is out of service.
fn out_of_service(name: &str) -> Node {
    let mut node = node("False", true);
    (node.meta.name, node.meta.namespace) = (name.into(), "".into());
    node
}

/// A pod that is being deleted, and is bound to a node.
fn terminating(name: &str, node: &str) -> Pod {
    pod(name, |pod| {
        pod.phase = Phase::Running;
        pod.node = node.into();
        pod.meta.deletion = Time(1);
    })
}

/// Returns the sorted requests of three passes over a cluster in which the named objects cannot be decoded.
async fn requests_of_passes(
    pods: Vec<Pod>,
    nodes: Vec<Node>,
    undecodable_pods: &[&str],
    undecodable_nodes: &[&str],
) -> Vec<String> {
    let (writer, requests) = recording_writer("/api/v1/namespaces/ns/pods").await;
    let census = Arc::new(Census::default());
    pods.iter().for_each(|pod| census.apply(None, Some(pod)));
    let now = Timestamp::from_second(1_000_000).expect("in range");
    let pods = Arc::new(filled_store(context(), vec![ENDING, by_node()], pods));
    let nodes = Arc::new(filled_store(context(), vec![], nodes));
    undecodable_pods.iter().for_each(|name| deliver_undecodable(&pods, ObjectKey::new("ns", *name)));
    undecodable_nodes.iter().for_each(|name| deliver_undecodable(&nodes, ObjectKey::new("", *name)));
    let reconciler = PodGc {
        pods,
        nodes,
        census,
        counts: Default::default(),
        threshold: 1,
        writer,
        queue: Queue::new(QueueOptions::named("test")),
        clock: Arc::new(move || now),
        forced: Default::default(),
    };
    for _ in 0..3 {
        // The worker runs each reconcile like this: once the reconcile has read a stale record, the Writer refuses its
        // deletions.
        stale::separately(reconciler.reconcile(&Task::CheckAll)).await.expect("a pass never fails");
    }
    let mut requests = lock(&requests).clone();
    requests.sort();
    requests
}

#[tokio::test]
async fn node_that_cannot_be_decoded_delays_only_the_deletions_of_its_pods() {
    let pods = vec![terminating("a", "node-1"), terminating("b", "node-2"), terminating("c", "node-3")];
    let nodes = ["node-1", "node-2", "node-3"].map(out_of_service).into();
    let requests = requests_of_passes(pods, nodes, &[], &["node-2", "never-decoded"]).await;
    assert_eq!(requests, ["DELETE a", "DELETE c", "PATCH a/status", "PATCH c/status"]);
}

#[tokio::test]
async fn pod_that_cannot_be_decoded_is_not_marked_as_failed_and_delays_no_other_pod() {
    let finished = |name: &str| pod(name, |pod| pod.phase = Phase::Succeeded);
    let pods = vec![terminating("a", ""), terminating("b", ""), finished("c"), finished("d"), finished("e")];
    let requests = requests_of_passes(pods, Vec::new(), &["a", "c"], &[]).await;
    assert_eq!(requests, ["DELETE b", "DELETE d", "PATCH b/status"]);
}

proptest! {
    /// After any changes, the census equals a count of the existing pods.
    #[test]
    fn census_equals_a_count(changes in prop::collection::vec((0usize..6, 0usize..3, any::<bool>(), any::<bool>()), 0..60)) {
        let census = Census::default();
        let mut pods: Vec<Option<Pod>> = vec![None; 6];
        for (at, on, ended, gone) in changes {
            let new = (!gone).then(|| pod(&at.to_string(), |pod| {
                pod.node = ["", "a", "b"][on].into();
                pod.phase = if ended { Phase::Succeeded } else { Phase::Running };
            }));
            census.apply(pods[at].as_ref(), new.as_ref());
            pods[at] = new;
            let there = || pods.iter().flatten();
            prop_assert_eq!(census.finished(), there().filter(|pod| pod.is_terminal()).count());
            let used: HashSet<Str> = there().map(|pod| pod.node.clone()).filter(|node| !node.is_empty()).collect();
            let missing: HashSet<Str> = census.missing(|node| &**node == "a").into_iter().collect();
            prop_assert_eq!(missing, used.into_iter().filter(|node| &**node != "a").collect::<HashSet<_>>());
        }
    }
}
