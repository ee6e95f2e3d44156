//! Nodes that cannot be decoded: their pods are kept, and rolling updates count them.

use std::time::Duration;

use kinds::meta::ObjectKey;
use runtime::stale;
use runtime::testing::deliver_undecodable;
use runtime::worker::Outcome;

use super::reconcile::{Bench, agent, owned};
use super::*;
use crate::workloads::daemonset::decide::status;
use crate::workloads::daemonset::decide_roll::Bounds;
use crate::workloads::daemonset::decide_unknown::UnknownNodes;

fn unknown(names: &[&str]) -> UnknownNodes {
    UnknownNodes::new(names.iter().map(|name| ObjectKey::new("", *name)).collect())
}

fn on(node: &str, mut pod: Pod) -> Pod {
    pod.node = node.into();
    pod
}

fn outdated(name: &str) -> Pod {
    let mut pod = owned(name);
    pod.meta.labels = meta(name, &[("app", "agent"), (REVISION_HASH_LABEL, "old")]).labels;
    pod
}

/// Returns the names of the pods that a reconcile deletes while these nodes cannot be decoded, and whether it fails.
async fn deletions(bench: &Bench, undecodable: &[&str]) -> (Vec<String>, bool) {
    for name in undecodable {
        deliver_undecodable(&bench.reconciler.nodes, ObjectKey::new("", *name));
    }
    // The worker runs each reconcile like this: once the reconcile has read a stale record, the Writer refuses its
    // deletions.
    let outcome = stale::separately(bench.reconcile()).await;
    let mut deleted = bench.sent("DELETE");
    deleted.sort();
    (deleted, outcome.is_err())
}

#[tokio::test]
async fn surplus_pods_are_deleted_except_on_nodes_that_cannot_be_decoded() {
    let pods = || {
        let surplus = |number: usize| {
            let node = format!("node-{number}");
            [on(&node, owned(&format!("a-{number}"))), on(&node, owned(&format!("b-{number}")))]
        };
        (1..=3).flat_map(surplus)
    };
    for (undecodable, expected, fails) in [
        (&[][..], &["b-1", "b-2", "b-3"][..], false),
        (&["node-2"], &["b-1", "b-3"], true),
        (&["node-4"], &["b-1", "b-2", "b-3"], false),
    ] {
        let bench = Bench::new(agent(7), &["node-1", "node-2", "node-3"], pods(), "").await;
        assert_eq!(deletions(&bench, undecodable).await, (expected.iter().map(ToString::to_string).collect(), fails));
    }
}

#[tokio::test]
async fn unscheduled_pod_of_a_node_that_was_never_decoded_stays() {
    let waiting = |node: &str| {
        let mut pod = on("", owned(node));
        pod.target = Some(Box::new(node.into()));
        pod
    };
    let bench = Bench::new(agent(7), &[], [waiting("missing"), waiting("undecodable")], "").await;
    assert_eq!(deletions(&bench, &["undecodable"]).await, (vec!["missing".to_owned()], true));
}

#[tokio::test]
async fn rolling_update_continues_within_a_budget_that_counts_undecodable_nodes_without_a_pod() {
    for (max_unavailable, undecodable, deleted) in [
        (1, &[][..], 1),
        // The pod of node-3 is available, whatever the state of the node is.
        (1, &["node-3"], 1),
        // node-4 may be a node that should have a pod.
        (1, &["node-4"], 0),
        (2, &["node-4"], 1),
    ] {
        let mut set = agent(7);
        set.strategy = rolling(max_unavailable, 0);
        let pods = [on("node-1", outdated("a")), on("node-2", outdated("b")), on("node-3", owned("c"))];
        let bench = Bench::new(set, &["node-1", "node-2", "node-3"], pods, "").await;
        let (names, fails) = deletions(&bench, undecodable).await;
        assert_eq!((names.len(), fails), (deleted, false), "{max_unavailable} {undecodable:?}");
    }
}

#[tokio::test]
async fn rolling_update_skips_the_pods_of_nodes_that_cannot_be_decoded() {
    let mut set = agent(7);
    set.strategy = rolling(2, 0);
    let pods = [on("node-1", outdated("a")), on("node-2", outdated("b"))];
    let bench = Bench::new(set, &["node-1", "node-2"], pods, "").await;
    assert_eq!(deletions(&bench, &["node-1"]).await, (vec!["b".to_owned()], true));
}

#[tokio::test]
async fn failed_pods_of_undecodable_nodes_are_kept_and_not_replaced() {
    let failed = |name: &str| on("node-1", ended(owned(name), Phase::Failed));
    for pods in [vec![failed("a")], vec![failed("a"), failed("b")]] {
        let mut set = agent(7);
        set.strategy = rolling(0, 1);
        set.status =
            status(&set, &[named(1, Some(RUNS), vec![ended(owned("a"), Phase::Failed)])], REVISION, now(), true);
        let bench = Bench::new(set, &["node-1"], pods, "").await;
        deliver_undecodable(&bench.reconciler.nodes, ObjectKey::new("", "node-1"));
        let outcome = stale::separately(bench.reconcile()).await;
        assert_eq!(outcome, Ok(Outcome::RequeueAfter(Duration::from_secs(60))));
        assert!(bench.sent("POST").is_empty() && bench.sent("DELETE").is_empty());
    }
}

#[test]
fn bounds_count_undecodable_nodes_as_nodes_that_should_have_a_pod() {
    let bounds = Bounds { desired: 5, unavailable: 3, surge: 2 };
    let places = [
        named(1, Some(RUNS), vec![]),
        named(2, Some(STAYS), vec![pod("a", "old")]),
        named(3, Some(STAYS), vec![]),
        named(4, None, vec![pod("b", "old")]),
    ];
    for (names, desired, unavailable) in [
        (&[][..], 5, 3),
        (&["node-1"], 5, 3),
        (&["node-2"], 6, 3),
        (&["node-3"], 6, 2),
        (&["node-4"], 6, 3),
        (&["node-5"], 6, 2),
        (&["node-1", "node-2", "node-3", "node-4", "node-5", "node-6", "node-7"], 11, 0),
    ] {
        assert_eq!(unknown(names).limit(bounds, &places), Bounds { desired, unavailable, surge: 2 }, "{names:?}");
    }
}
