//! Elections under crashes, pauses, faults and skewed clocks: never two leaders, and always one in the end.

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use proptest::prelude::*;
use std::sync::Mutex;

use super::simulation::{Fault, FaultKind, LeaseServer, Process, candidate, run_for, until};
use super::*;
use crate::events::{EventSink, SinkError};

const SECOND: Duration = Duration::from_secs(1);

/// Maximum time between two attempts: 2.2 times the retry period of 2 s (see `Election::acquire`), plus 20 ms for the
/// calls.
const RETRY: Duration = Duration::from_millis(4_420);

fn led_by_client_go(renewed: &str) -> Lease {
    let lease = serde_json::json!({
        "metadata": {"name": "kube-controller-manager", "namespace": "kube-system", "uid": "u-1"},
        "spec": {
            "holderIdentity": "cp-1_7a5c", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-21T05:00:00.000001Z", "renewTime": renewed,
        }
    });
    serde_json::from_value(lease).unwrap()
}

fn transitions(server: &LeaseServer) -> Option<i32> {
    server.lease().spec.and_then(|spec| spec.lease_transitions)
}

#[tokio::test(start_paused = true)]
async fn successor_waits_for_the_lease_of_a_crashed_leader() {
    let server = LeaseServer::new();
    let a = Process::start(&server, "a", 0, 1);
    assert!(until(&server, 1, || a.fence.holds()).await < SECOND, "the first candidate waited for a missing lease");
    let b = Process::start(&server, "b", 0, 2);
    run_for(&server, 60).await;
    assert!(a.fence.holds() && !b.fence.is_leader());
    assert_eq!(transitions(&server), Some(0));
    a.crash();
    let took = until(&server, 60, || b.fence.holds()).await;
    assert!(took > 12 * SECOND && took < 15 * SECOND + 2 * RETRY, "{took:?}");
    assert_eq!((server.holder().as_str(), transitions(&server)), ("b", Some(1)));
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_has_a_closed_fence_on_resume() {
    let server = LeaseServer::new();
    let a = Process::start(&server, "a", 0, 1);
    until(&server, 1, || a.fence.holds()).await;
    let b = Process::start(&server, "b", 0, 2);
    run_for(&server, 10).await;
    a.gate.stop();
    until(&server, 30, || b.fence.holds()).await;
    run_for(&server, 5).await;
    a.gate.resume();
    assert!(!a.fence.holds(), "the fence is open after the pause");
    until(&server, 5, || !a.losses.lock().unwrap().is_empty()).await;
    assert!(!a.fence.is_leader());
    run_for(&server, 30).await;
    assert!(b.fence.holds());
}

#[tokio::test(start_paused = true)]
async fn lease_of_client_go_expires_by_the_local_clock() {
    for renewed in ["2026-11-21T05:50:36.123456Z", "2001-01-01T00:00:00.000000Z", "2099-01-01T00:00:00.000000Z"] {
        let server = LeaseServer::new();
        server.put(Some(led_by_client_go(renewed)));
        let a = Process::start(&server, "a", 0, 1);
        let took = until(&server, 60, || a.fence.holds()).await;
        assert!(took >= 15 * SECOND && took < 15 * SECOND + RETRY, "{renewed}: {took:?}");
        assert_eq!(transitions(&server), Some(4));
        assert_eq!(server.lease().metadata.uid.as_deref(), Some("u-1"), "the metadata of the lease is kept");
    }
}

#[tokio::test(start_paused = true)]
async fn live_leader_of_client_go_is_respected() {
    let server = LeaseServer::new();
    let a = Process::start(&server, "a", 0, 1);
    server.put(Some(led_by_client_go("2026-11-21T05:50:36.000000Z")));
    for tenths in 1..60 {
        run_for(&server, 2).await;
        server.put(Some(led_by_client_go(&format!("2026-11-21T05:50:36.{tenths:06}Z"))));
    }
    assert!(!a.fence.is_leader());
    assert_eq!(server.holder(), "cp-1_7a5c");
}

#[tokio::test(start_paused = true)]
async fn leadership_survives_short_faults_but_not_long_ones() {
    let kinds = [FaultKind::Refused, FaultKind::RequestLost, FaultKind::ResponseLost, FaultKind::ErrorAfterChange];
    for kind in kinds {
        let server = LeaseServer::new();
        let (mut election, fence) = candidate(&server, "a");
        election.acquire().await;
        server.fail_next(kind, 1);
        assert!(timeout(60 * SECOND, election.hold()).await.is_err(), "{kind:?} once");
        assert!(fence.holds(), "{kind:?} once");

        server.fail_next(kind, 1_000);
        let start = Instant::now();
        let lost = timeout(60 * SECOND, election.hold()).await.unwrap();
        assert!(matches!(lost, Lost::RenewDeadline { .. }), "{kind:?}: {lost}");
        assert!(start.elapsed() <= 12 * SECOND, "{kind:?}: {:?}", start.elapsed());
        assert!(!fence.holds() && !fence.is_leader(), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_responses_are_resolved_by_reading() {
    let server = LeaseServer::new();
    let (mut election, fence) = candidate(&server, "a");
    // The GET reports no lease, the response to the POST is lost.
    server
        .faults
        .lock()
        .unwrap()
        .extend([Fault::default(), Fault { kind: FaultKind::ResponseLost, ..Fault::default() }]);
    let start = Instant::now();
    election.acquire().await;
    assert!(fence.holds());
    assert_eq!(*server.calls.lock().unwrap(), ["get", "create", "get"]);
    assert_eq!(fence.last_renewed(), Some(start), "the time is that of the request that the server executed");

    server.fail_next(FaultKind::ResponseLost, 1);
    let sent = Instant::now();
    assert!(timeout(6 * SECOND, election.hold()).await.is_err());
    assert_eq!(server.calls.lock().unwrap()[3..], ["update", "get"]);
    assert_eq!(fence.last_renewed(), Some(sent));
    assert_eq!(fence.slow_renewals(), 0);
}

#[tokio::test(start_paused = true)]
async fn conflict_is_resolved_by_reading_and_renewing() {
    let server = LeaseServer::new();
    let (mut election, fence) = candidate(&server, "a");
    election.acquire().await;
    let mut touched = server.lease();
    touched.metadata.labels = Some([("who".to_owned(), "operator".to_owned())].into());
    server.put(Some(touched.clone()));
    assert!(timeout(SECOND, election.hold()).await.is_err());
    assert_eq!(server.calls.lock().unwrap()[2..], ["update", "get", "update"]);
    assert_eq!(fence.slow_renewals(), 1);
    assert_eq!(server.lease().metadata.labels, touched.metadata.labels);
}

#[tokio::test(start_paused = true)]
async fn leader_stops_immediately_when_it_reads_another_holder() {
    let server = LeaseServer::new();
    let (mut election, fence) = candidate(&server, "a");
    election.acquire().await;
    server.put(Some(led_by_client_go("2026-11-21T05:50:36.123456Z")));
    let lost = timeout(SECOND, election.hold()).await.unwrap();
    let holder = "cp-1_7a5c".to_owned();
    assert_eq!(lost, Lost::TakenOver { holder });
    assert!(!fence.holds());
    assert!(election.release().await);
    assert_eq!(server.holder(), "cp-1_7a5c", "the release overwrote the lease of another holder");
}

#[tokio::test(start_paused = true)]
async fn standby_that_never_led_sends_no_request_when_it_releases() {
    let server = LeaseServer::new();
    let a = Process::start(&server, "a", 0, 1);
    until(&server, 1, || a.fence.holds()).await;
    let (mut standby, fence) = candidate(&server, "b");
    tokio::select! {
        () = standby.acquire() => panic!("the lease is held"),
        () = sleep(SECOND * 5) => {}
    }
    // If a request were sent, the unreachable API server would delay the release until the renew deadline.
    server.fail_next(FaultKind::RequestLost, 100);
    let start = Instant::now();
    assert!(standby.release().await);
    assert_eq!((start.elapsed(), fence.is_leader()), (Duration::ZERO, false));
}

#[tokio::test(start_paused = true)]
async fn successor_leads_at_its_next_attempt_after_a_release() {
    let server = LeaseServer::new();
    let mut a = Process::start(&server, "a", 0, 1);
    until(&server, 1, || a.fence.holds()).await;
    let b = Process::start(&server, "b", 0, 2);
    run_for(&server, 10).await;
    a.exit();
    let took = until(&server, 10, || b.fence.holds()).await;
    assert!(took < RETRY, "{took:?}");
    assert!(a.task.await.unwrap());
    assert!(!a.fence.is_leader());
    assert_eq!(transitions(&server), Some(1));
}

#[tokio::test(start_paused = true)]
async fn release_survives_a_conflict_and_leaves_no_holder() {
    let server = LeaseServer::new();
    let (mut election, fence) = candidate(&server, "a");
    election.acquire().await;
    // The renewal reaches the server 500 ms late, between the release's GET and its PUT.
    let late = Fault { before: 500, ..Fault::default() };
    let slow_response = Fault { after: 800, ..Fault::default() };
    server.faults.lock().unwrap().extend([late, slow_response]);
    assert!(timeout(SECOND / 10, election.hold()).await.is_err());
    assert!(election.release().await);
    assert!(!fence.holds());
    assert_eq!(server.calls.lock().unwrap()[2..], ["update", "get", "update", "get", "update"]);
    let spec = server.lease().spec.unwrap();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
}

#[tokio::test(start_paused = true)]
async fn deleted_lease_is_recreated_by_its_holder() {
    let server = LeaseServer::new();
    let a = Process::start(&server, "a", 0, 1);
    until(&server, 1, || a.fence.holds()).await;
    let b = Process::start(&server, "b", 0, 2);
    for _ in 0..20 {
        run_for(&server, 3).await;
        server.put(None);
    }
    run_for(&server, 3).await;
    assert!(a.fence.holds() && !b.fence.is_leader());
    assert_eq!(server.holder(), "a");
}

#[derive(Default)]
struct RecordedEvents(Mutex<Vec<serde_json::Value>>);

impl EventSink for RecordedEvents {
    fn create<'a>(&'a self, _: &'a str, event: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        self.0.lock().unwrap().push(serde_json::from_slice(&event).unwrap());
        async { Ok(()) }.boxed()
    }

    fn patch<'a>(&'a self, _: &'a str, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async { Err(SinkError::NotFound) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn resigning_leader_records_its_event_before_the_release() {
    let server = LeaseServer::new();
    let recorded = Arc::new(RecordedEvents::default());
    let (recorder, sender) = Recorder::new("kube-controller-manager", recorded.clone());
    let (election, _) = candidate(&server, "a");
    let mut election = election.recording(recorder.clone());
    election.resign();
    election.acquire().await;
    election.resign();
    recorder.close();
    sender.await;
    assert!(election.release().await);
    let recorded = recorded.0.lock().unwrap();
    let messages: Vec<&str> = recorded.iter().map(|event| event["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["a became leader", "a stopped leading"], "a process that does not lead records no event");
}

#[tokio::test(start_paused = true)]
async fn leadership_changes_are_recorded_as_events() {
    let server = LeaseServer::new();
    let recorded = Arc::new(RecordedEvents::default());
    let (recorder, sender) = Recorder::new("kube-controller-manager", recorded.clone());
    let (election, _) = candidate(&server, "a");
    let mut election = election.recording(recorder);
    election.acquire().await;
    server.fail_next(FaultKind::Refused, 1_000);
    election.hold().await;
    drop(election);
    sender.await;
    let recorded = recorded.0.lock().unwrap();
    let messages: Vec<&str> = recorded.iter().map(|event| event["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["a became leader", "a stopped leading"]);
    for event in recorded.iter() {
        assert_eq!((&event["reason"], &event["type"]), (&"LeaderElection".into(), &"Normal".into()));
        let about = &event["involvedObject"];
        assert_eq!((&about["kind"], &about["apiVersion"]), (&"Lease".into(), &"coordination.k8s.io/v1".into()));
        assert_eq!((&about["namespace"], &about["name"]), (&"kube-system".into(), &"kube-controller-manager".into()));
    }
}

#[test]
fn inconsistent_settings_are_refused() {
    type Change = fn(&mut ElectionConfig);
    let cases: [(Change, Option<&str>); 7] = [
        (|_| {}, None),
        (|config| config.identity.clear(), Some("identity is empty")),
        (|config| config.retry_period = Duration::ZERO, Some("retry period is 0s")),
        (|config| config.lease_duration = SECOND / 2, Some("lease duration 500ms is out of range")),
        (|config| config.lease_duration = 10 * SECOND, Some("renew deadline 10s must be below lease duration 10s")),
        (|config| config.renew_deadline = 2 * SECOND, Some("renew deadline 2s must be above")),
        (|config| config.retry_period = 9 * SECOND, Some("1.2 times retry period 9s")),
    ];
    for (change, wanted) in cases {
        let mut config = ElectionConfig::new("n", "l", "a");
        change(&mut config);
        let got = config.check().err().map(|error| error.to_string());
        match wanted {
            None => assert_eq!(got, None),
            Some(part) => assert!(got.as_ref().is_some_and(|text| text.contains(part)), "{part}: {got:?}"),
        }
    }
    assert_ne!(unique_identity("h"), unique_identity("h"));
    assert!(unique_identity("h").starts_with("h_"));
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Stop(usize),
    Resume(usize),
    Crash(usize),
    Exit(usize),
    Wait,
}

fn action() -> impl Strategy<Value = (Action, u64)> {
    let slot = 0..2usize;
    let action = prop_oneof![
        2 => slot.clone().prop_map(Action::Stop),
        3 => slot.clone().prop_map(Action::Resume),
        1 => slot.clone().prop_map(Action::Crash),
        1 => slot.prop_map(Action::Exit),
        3 => Just(Action::Wait),
    ];
    (action, 0..25_000u64)
}

fn fault() -> impl Strategy<Value = Fault> {
    let kind = prop_oneof![
        4 => Just(FaultKind::None),
        1 => Just(FaultKind::Refused),
        1 => Just(FaultKind::RequestLost),
        1 => Just(FaultKind::ResponseLost),
        1 => Just(FaultKind::ErrorAfterChange),
    ];
    let late = || prop_oneof![3 => 0..50u64, 1 => 0..20_000u64];
    (late(), late(), kind).prop_map(|(before, after, kind)| Fault { before, after, kind })
}

async fn run_scenario(faults: Vec<Fault>, actions: Vec<(Action, u64)>, skews: [i64; 2], seed: u64) {
    let server = LeaseServer::new();
    server.faults.lock().unwrap().extend(faults);
    let mut started = 0;
    let mut start = |slot: usize| {
        started += 1;
        Process::start(&server, &format!("p{started}"), skews[slot], seed.wrapping_add(started))
    };
    let mut processes = [start(0), start(1)];
    for (action, wait) in actions {
        match action {
            Action::Stop(slot) => processes[slot].gate.stop(),
            Action::Resume(slot) => processes[slot].gate.resume(),
            Action::Crash(slot) => {
                processes[slot].crash();
                processes[slot] = start(slot);
            }
            Action::Exit(slot) => {
                processes[slot].exit();
                processes[slot] = start(slot);
            }
            Action::Wait => {}
        }
        let end = Instant::now() + Duration::from_millis(wait);
        while Instant::now() < end {
            sleep(Duration::from_millis(100)).await;
            server.assert_at_most_one_leader();
        }
    }
    server.faults.lock().unwrap().clear();
    processes.iter().for_each(|process| process.gate.resume());
    run_for(&server, 60).await;
    assert_eq!(server.assert_at_most_one_leader(), 1, "after the last fault there is a leader again");
    assert!(server.writes() > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After any pauses, kills, losses and delays, two fences are never open at the same time, and one is open in the
    /// end.
    #[test]
    fn two_never_lead_at_the_same_time_and_one_leads_in_the_end(
        faults in prop::collection::vec(fault(), 0..60),
        actions in prop::collection::vec(action(), 0..12),
        skews in [-100_000..100_000i64, -100_000..100_000i64],
        seed in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run_scenario(faults, actions, skews, seed));
    }
}

fn coordinated(server: &Arc<LeaseServer>, identity: &str) -> Election {
    let versions = Versions { binary: "1.37.0".to_owned(), emulation: "1.37.0".to_owned() };
    let config = ElectionConfig {
        coordinated: Some(versions),
        ..ElectionConfig::new("kube-system", "kube-controller-manager", identity)
    };
    Election::with_store(server.store(), config).expect("valid").0
}

fn assigned(holder: &str, preferred: Option<&str>) -> Lease {
    let lease = serde_json::json!({
        "metadata": {"name": "kube-controller-manager", "namespace": "kube-system", "uid": "u-1"},
        "spec": {
            "holderIdentity": holder, "leaseDurationSeconds": 15, "strategy": "OldestEmulationVersion",
            "renewTime": "2026-11-21T05:00:00.000001Z", "preferredHolder": preferred,
        }
    });
    serde_json::from_value(lease).expect("a lease")
}

#[tokio::test(start_paused = true)]
async fn coordinated_candidate_leads_only_when_the_lease_is_assigned_to_it() {
    let server = LeaseServer::new();
    let mut election = coordinated(&server, "us");
    assert!(timeout(60 * SECOND, election.acquire()).await.is_err(), "the candidate created a lease");
    server.put(Some(assigned("other", None)));
    assert!(timeout(60 * SECOND, election.acquire()).await.is_err(), "the candidate took over an expired lease");
    server.put(Some(assigned("us", None)));
    timeout(5 * SECOND, election.acquire()).await.expect("the assigned lease was not acquired");
    let spec = server.lease().spec.expect("a spec");
    assert_eq!(spec.strategy.as_deref(), Some("OldestEmulationVersion"));
    assert!(timeout(60 * SECOND, election.hold()).await.is_err(), "the lease was lost");
    server.put(Some(assigned("us", Some("older"))));
    let lost = timeout(5 * SECOND, election.hold()).await.expect("still leading after the end of term");
    assert_eq!(lost, Lost::EndOfTerm { preferred: "older".to_owned() });
}

/// A proxy that answers every request with an empty object.
struct EmptyResponses {
    has_lease: bool,
}

impl LeaseStore for EmptyResponses {
    fn get(&self) -> BoxFuture<'_, Result<Lease, LeaseError>> {
        let lease = if self.has_lease { Ok(Lease::default()) } else { Err(LeaseError::NotFound) };
        async { lease }.boxed()
    }

    fn create<'a>(&'a self, _: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        async { Ok(Lease::default()) }.boxed()
    }

    fn update<'a>(&'a self, _: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        async { Ok(Lease::default()) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn candidate_does_not_lead_when_the_response_lacks_its_identity() {
    for has_lease in [false, true] {
        let config = ElectionConfig::new("kube-system", "kube-controller-manager", "a");
        let (mut election, fence) =
            Election::with_store(Arc::new(EmptyResponses { has_lease }), config).expect("valid");
        assert!(timeout(60 * SECOND, election.acquire()).await.is_err(), "it leads");
        assert!(!fence.is_leader());
    }
}
