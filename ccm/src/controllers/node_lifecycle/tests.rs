//! Decisions as a table, and random histories in which only confirmed absence deletes a node.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::{Decode, Node, Sections, Uid};
use proptest::prelude::*;
use providers::{CloudError, ErrorKind, Instance, InstanceState, MockCloudProvider, MockInstances};
use runtime::events::Recorder;
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::stale;
use runtime::testing::{KeptEvents, deliver_undecodable, filled_store, recording_writer};
use runtime::worker::Reconcile as _;
use tokio::time::Instant;

use super::TO_CHECK;
use super::decide::*;
use super::metrics::Rounds;
use super::missing_instances::MissingInstances;
use super::sync::{Lifecycle, ROUND};
use crate::cloud::Cloud;
use crate::controllers::node::tests::node;

fn running() -> InstanceState {
    InstanceState::Running(Box::default() as Box<Instance>)
}

fn unknown(kind: ErrorKind) -> InstanceState {
    InstanceState::Unknown(CloudError::new(kind, "DescribeInstances", "as scripted"))
}

fn missing(times: u32, seconds: u64) -> Option<Missing> {
    Some(Missing { times, since: Duration::from_secs(seconds) })
}

#[test]
fn decisions_follow_the_instance_state() {
    let hour = 3600;
    for (ready, shut_down, age, missing, state, want) in [
        (true, false, hour, None, None, Verdict::Leave),
        (true, true, hour, None, None, Verdict::MarkStarted),
        (false, false, hour, None, Some(running()), Verdict::Leave),
        (false, true, hour, None, Some(running()), Verdict::Leave),
        (false, false, hour, None, Some(InstanceState::Stopped), Verdict::MarkShutDown),
        (false, true, hour, None, Some(InstanceState::Stopped), Verdict::Leave),
        (false, false, hour, missing(1, 0), Some(InstanceState::Gone), Verdict::Suspect),
        (false, false, hour, missing(2, 3), Some(InstanceState::Gone), Verdict::Suspect),
        (false, false, hour, missing(2, 5), Some(InstanceState::Gone), Verdict::Delete),
        (false, true, hour, missing(9, 99), Some(InstanceState::Gone), Verdict::Delete),
        (false, false, 59, missing(9, 50), Some(InstanceState::Gone), Verdict::Suspect),
        (false, false, 60, missing(9, 50), Some(InstanceState::Gone), Verdict::Delete),
        (false, false, hour, missing(9, 99), Some(unknown(ErrorKind::Transient)), Verdict::Leave),
        (false, false, hour, missing(9, 99), Some(unknown(ErrorKind::NotFound)), Verdict::Leave),
        (false, false, hour, missing(9, 99), Some(unknown(ErrorKind::Throttled { after: None })), Verdict::Leave),
        (false, false, hour, missing(9, 99), None, Verdict::Leave),
    ] {
        let facts = Facts { ready, shut_down, age: Duration::from_secs(age), missing };
        assert_eq!(verdict(&facts, state.as_ref()), want, "{facts:?} {state:?}");
    }
}

#[test]
fn results_count_as_the_calls_that_upstream_makes() {
    let metrics = Metrics::default();
    let rounds = Rounds::register(&metrics);
    for state in [running(), InstanceState::Stopped, InstanceState::Gone, unknown(ErrorKind::Transient)] {
        rounds.count_calls(&state);
    }
    let text = metrics.text();
    for (operation, result, count) in [
        ("instance_exists", "success", 2),
        ("instance_shutdown", "success", 2),
        ("instance_exists", "instance_not_found", 1),
        ("instance_exists", "error", 1),
    ] {
        let name = "cloud_node_lifecycle_controller_cloud_provider_calls_total";
        let line = format!("{name}{{operation=\"{operation}\",result=\"{result}\"}} {count}");
        assert!(text.lines().any(|one| one == line), "{line} is not in {text}");
    }
}

/// The instances of all nodes are missing.
#[tokio::test(start_paused = true)]
async fn node_that_cannot_be_decoded_does_not_delay_the_deletion_of_others() {
    let named = |name: &str| {
        let mut node = node(&[], None);
        (node.meta.name, node.meta.uid) = (name.into(), Uid::parse(name));
        node
    };
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let nodes = Arc::new(filled_store::<Node>(decode, vec![TO_CHECK], ["a", "b", "c"].map(named)));
    for name in ["b", "never-decoded"] {
        deliver_undecodable(&nodes, ObjectKey::new("", name));
    }
    let (writer, requests) = recording_writer("/api/v1/nodes").await;
    let events = Arc::<KeptEvents>::default();
    let (recorder, sender) = Recorder::new("test", events.clone());
    let mut provider = MockCloudProvider::new();
    provider.expect_name().return_const("mock");
    provider.expect_has_cluster_id().return_const(true);
    provider.expect_initialize().returning(|| Ok(()));
    let mut instances = MockInstances::new();
    instances.expect_describe().returning(|requested| vec![InstanceState::Gone; requested.len()]);
    let lifecycle = Lifecycle {
        cloud: Cloud::new(Arc::new(provider), false),
        instances: Arc::new(instances),
        annotations: Vec::new(),
        nodes,
        writer,
        recorder,
        consistency: Arc::default(),
        missing: Default::default(),
        queue: Queue::new(QueueOptions::named("test")),
        rounds: Rounds::register(&Metrics::default()),
        clock: Arc::new(|| Timestamp::from_second(1_000_000).expect("in range")),
        period: Duration::from_secs(5),
        workers: 1,
    };
    for _ in 0..3 {
        // The worker runs each reconcile like this: once the reconcile has read a stale record, the Writer refuses its
        // deletions.
        stale::separately(lifecycle.reconcile(&ROUND)).await.expect("a round never fails");
        tokio::time::advance(MIN_REPORT_SPAN).await;
    }
    let mut requests = lock(&requests).clone();
    requests.sort_unstable();
    assert_eq!(requests, ["DELETE a", "DELETE c"]);
    lifecycle.recorder.close();
    sender.await;
    assert_eq!(events.bodies().len(), 2, "no event about the node that is kept: {:?}", events.bodies());
}

proptest! {
    /// For any results of the cloud, a node is deleted only after two reports that its instance does not exist, with
    /// only errors in between.
    #[test]
    fn node_is_deleted_only_after_confirmed_absence(history in prop::collection::vec((0..5_u8, 0..8_u64), 1..30)) {
        let (node, begun) = (Uid::parse("a"), Instant::now());
        let (mut missing_instances, mut now) = (MissingInstances::default(), begun);
        let mut row: Vec<Instant> = Vec::new();
        for (result, pause) in history {
            now += Duration::from_secs(pause);
            let state = match result {
                0 => running(),
                1 => InstanceState::Stopped,
                2 => unknown(ErrorKind::Throttled { after: None }),
                _ => InstanceState::Gone,
            };
            let missing = match state {
                InstanceState::Gone => {
                    row.push(now);
                    Some(missing_instances.report_missing(&node, now))
                }
                InstanceState::Unknown(_) => None,
                InstanceState::Running(_) | InstanceState::Stopped => {
                    row.clear();
                    missing_instances.reset(&node);
                    None
                }
            };
            let facts = Facts { ready: false, shut_down: false, age: MIN_NODE_AGE, missing };
            let confirmed =
                state == InstanceState::Gone && row.len() >= 2 && now.duration_since(row[0]) >= MIN_REPORT_SPAN;
            prop_assert_eq!(verdict(&facts, Some(&state)) == Verdict::Delete, confirmed, "{:?}", row);
        }
    }
}
