//! The recorder with an in-memory sink: events that are created, patched, combined, filtered, retried and dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use futures::future::FutureExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::*;

/// A sink in memory.
#[derive(Default)]
struct MemorySink {
    /// The errors of the next calls; further calls succeed.
    failures: Mutex<VecDeque<SinkError>>,
    calls: Mutex<Vec<(&'static str, Instant)>>,
    stored: Mutex<BTreeMap<String, Value>>,
}

impl MemorySink {
    fn failing(errors: impl IntoIterator<Item = SinkError>) -> Arc<Self> {
        Arc::new(Self { failures: Mutex::new(errors.into_iter().collect()), ..Self::default() })
    }

    fn call(&self, verb: &'static str) -> Result<(), SinkError> {
        self.calls.lock().unwrap().push((verb, Instant::now()));
        self.failures.lock().unwrap().pop_front().map_or(Ok(()), Err)
    }

    fn verbs(&self) -> Vec<&'static str> {
        self.calls.lock().unwrap().iter().map(|(verb, _)| *verb).collect()
    }

    fn sum(&self) -> u64 {
        let stored = self.stored.lock().unwrap();
        stored.values().map(|event| event["count"].as_u64().unwrap()).sum()
    }
}

impl EventSink for MemorySink {
    fn create<'a>(&'a self, namespace: &'a str, event: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async move {
            self.call("create")?;
            let event: Value = serde_json::from_slice(&event).unwrap();
            assert_eq!(event["metadata"]["namespace"], namespace);
            let name = event["metadata"]["name"].as_str().unwrap().to_owned();
            let before = self.stored.lock().unwrap().insert(name, event);
            assert_eq!(before, None, "an event was created twice");
            Ok(())
        }
        .boxed()
    }

    fn patch<'a>(&'a self, _: &'a str, name: &'a str, patch: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async move {
            self.call("patch")?;
            let patch: BTreeMap<String, Value> = serde_json::from_slice(&patch).unwrap();
            let mut stored = self.stored.lock().unwrap();
            let event = stored.get_mut(name).ok_or(SinkError::NotFound)?;
            for (field, value) in patch {
                event[field] = value;
            }
            Ok(())
        }
        .boxed()
    }
}

fn pod(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: "baz".into(),
        name: name.into(),
        uid: "bar".into(),
        resource_version: "7".into(),
    }
}

/// Returns a clock that advances by `step` with each reading, from 2026-11-21T05:50:36Z.
fn ticking(step: Duration) -> WallClock {
    let start: Timestamp = "2026-11-21T05:50:36Z".parse().unwrap();
    let next = Mutex::new(start);
    Arc::new(move || {
        let mut next = next.lock().unwrap();
        let now = *next;
        *next += step;
        now
    })
}

fn occurrence(message: &str, at: Timestamp) -> Occurrence {
    Occurrence { about: pod("p"), kind: EventType::Normal, reason: "Similar", message: message.to_owned(), at }
}

/// Records `messages` about one pod, one every `seconds`, and returns the result of the last one.
fn last_of(messages: impl IntoIterator<Item = String>, seconds: u64) -> Correlation {
    let clock = ticking(Duration::from_secs(seconds));
    let mut correlator = Correlator::new("c");
    let played = messages.into_iter().map(|message| {
        let now = clock();
        correlator.correlate(occurrence(&message, now), now)
    });
    played.last().unwrap()
}

#[test]
fn equal_events_are_counted_similar_ones_combined_and_surplus_dropped() {
    let same = |times: usize| vec!["same".to_owned(); times];
    let different = |times: usize| (0..times).map(|i| format!("m{i}")).collect::<Vec<_>>();
    let combined = |i: usize| format!("(combined from similar events): m{i}");
    let cases = [
        ("one", same(1), 5, Some(("same".into(), 1))),
        ("two equal", same(2), 5, Some(("same".into(), 2))),
        ("equal ones are not similar", same(11), 30, Some(("same".into(), 11))),
        ("the burst", same(25), 1, Some(("same".into(), 25))),
        ("above the burst", same(26), 1, None),
        ("a slow stream is within the budget", same(40), 300, Some(("same".into(), 40))),
        ("nine different", different(9), 5, Some(("m8".into(), 1))),
        ("the tenth is combined", different(10), 5, Some((combined(9), 1))),
        ("the eleventh counts the combined one", different(11), 5, Some((combined(10), 2))),
        ("ten minutes are still similar", different(10), 600, Some((combined(9), 1))),
        ("over ten minutes apart", different(10), 601, Some(("m9".into(), 1))),
    ];
    for (case, messages, seconds, wanted) in cases {
        let last = last_of(messages, seconds);
        let got = (!last.spam).then_some((last.event.message, last.event.count));
        assert_eq!(got, wanted, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn long_message_is_truncated_before_it_waits() {
    let sink = MemorySink::failing([]);
    let (recorder, sender) = Recorder::new("c", sink.clone());
    recorder.event(&pod("p"), EventType::Warning, "Long", "ä".repeat(1 << 20));
    recorder.close();
    timeout(Duration::from_secs(60), sender).await.unwrap();
    let stored = sink.stored.lock().unwrap();
    let message = stored.values().next().unwrap()["message"].as_str().unwrap();
    assert!(message.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8() && message.ends_with("ä…"), "{}", message.len());
}

#[test]
fn keys_separate_objects_types_and_reasons() {
    let now = Timestamp::UNIX_EPOCH;
    let base = occurrence("m", now);
    let other_uid = ObjectReference { uid: "other".into(), ..pod("p") };
    let cases = [
        ("same", base.clone(), 2),
        ("other name", Occurrence { about: pod("q"), ..base.clone() }, 1),
        ("other uid", Occurrence { about: other_uid, ..base.clone() }, 1),
        ("other reason", Occurrence { reason: "Other", ..base.clone() }, 1),
        ("other type", Occurrence { kind: EventType::Warning, ..base.clone() }, 1),
        ("other message", Occurrence { message: "n".into(), ..base.clone() }, 1),
    ];
    for (case, second, count) in cases {
        let mut correlator = Correlator::new("c");
        correlator.correlate(base.clone(), now);
        assert_eq!(correlator.correlate(second, now).event.count, count, "{case}");
    }
}

#[test]
fn budget_is_per_object_and_type_and_refills_every_five_minutes() {
    let start = Timestamp::UNIX_EPOCH;
    let mut correlator = Correlator::new("c");
    let mut spam = |kind: EventType, seconds: i64| {
        let now = Timestamp::from_second(seconds).unwrap();
        correlator.correlate(Occurrence { kind, ..occurrence("m", start) }, now).spam
    };
    for nth in 0..25 {
        assert!(!spam(EventType::Normal, 0), "occurrence {nth}");
    }
    let after = [
        (EventType::Normal, 0, true),
        (EventType::Warning, 0, false),
        (EventType::Normal, 299, true),
        (EventType::Normal, 301, false),
        (EventType::Normal, 302, true),
    ];
    for (kind, seconds, wanted) in after {
        assert_eq!(spam(kind, seconds), wanted, "{kind:?} after {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn event_bodies_equal_those_of_upstream() {
    let sink = MemorySink::failing([]);
    let (recorder, sender) = Recorder::with_clock("test-controller", sink.clone(), ticking(Duration::from_secs(1)));
    let node = ObjectReference { namespace: "".into(), uid: "".into(), resource_version: "".into(), ..pod("n1") };
    recorder.event(&pod("foo"), EventType::Warning, "Started", "a message".to_owned());
    recorder.event(&pod("foo"), EventType::Warning, "Started", "a message".to_owned());
    recorder.event(&node, EventType::Normal, "Seen", "n".to_owned());
    drop(recorder);
    sender.await;
    assert_eq!(sink.verbs(), ["create", "create", "patch"]);
    let stored = sink.stored.lock().unwrap();
    let nanos = "2026-11-21T05:50:36Z".parse::<Timestamp>().unwrap().as_nanosecond();
    let name = format!("foo.{nanos:x}");
    let counted = json!({
        "kind": "Event", "apiVersion": "v1",
        "metadata": {"name": &name, "namespace": "baz"},
        "involvedObject": {
            "kind": "Pod", "namespace": "baz", "name": "foo", "uid": "bar", "apiVersion": "v1", "resourceVersion": "7"
        },
        "reason": "Started", "message": "a message", "source": {"component": "test-controller"},
        "firstTimestamp": "2026-11-21T05:50:36Z", "lastTimestamp": "2026-11-21T05:50:37Z",
        "count": 2, "type": "Warning", "eventTime": null,
        "reportingComponent": "test-controller", "reportingInstance": "",
    });
    assert_eq!(stored[&name], counted);
    let (_, cluster_scoped) = stored.iter().find(|(name, _)| name.starts_with("n1.")).unwrap();
    assert_eq!(cluster_scoped["metadata"]["namespace"], "default");
    assert_eq!(cluster_scoped["involvedObject"], json!({"kind": "Pod", "name": "n1", "apiVersion": "v1"}));
}

#[tokio::test(start_paused = true)]
async fn expired_event_is_recreated_with_its_count() {
    let sink = MemorySink::failing([]);
    let (recorder, sender) = Recorder::with_clock("c", sink.clone(), ticking(Duration::from_secs(1)));
    recorder.event(&pod("p"), EventType::Normal, "R", "m".to_owned());
    let sender = tokio::spawn(sender);
    until(&recorder, |counts| counts.written == 1).await;
    sink.stored.lock().unwrap().clear();
    recorder.event(&pod("p"), EventType::Normal, "R", "m".to_owned());
    drop(recorder);
    sender.await.unwrap();
    assert_eq!(sink.verbs(), ["create", "patch", "create"]);
    assert_eq!(sink.sum(), 2);
}

async fn until(recorder: &Recorder, reached: impl Fn(EventCounts) -> bool) {
    let polled = async {
        while !reached(recorder.counts()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = timeout(Duration::from_secs(300), polled).await;
    assert!(waited.is_ok(), "never reached: {:?}", recorder.counts());
}

#[tokio::test(start_paused = true)]
async fn number_of_attempts_depends_on_the_error() {
    let unreachable = |times| vec![SinkError::Unreachable("down".to_owned()); times];
    let cases = [
        ("rejected", vec![SinkError::Rejected("no".to_owned())], 1, 0),
        ("namespace gone", vec![SinkError::NotFound], 1, 0),
        ("postponed", vec![SinkError::Postponed(Duration::from_secs(1), "busy".to_owned())], 2, 1),
        ("unreachable twice", unreachable(2), 3, 1),
        ("reachable at the last attempt", unreachable(11), 12, 1),
        ("unreachable at every attempt", unreachable(12), 12, 0),
    ];
    for (case, failures, attempts, written) in cases {
        let sink = MemorySink::failing(failures);
        let (recorder, sender) = Recorder::new("c", sink.clone());
        recorder.event(&pod("p"), EventType::Normal, "R", "m".to_owned());
        let counted = recorder.clone();
        drop(recorder);
        let sender = tokio::spawn(sender);
        until(&counted, |counts| counts.written + counts.abandoned == 1).await;
        drop(counted);
        sender.await.unwrap();
        assert_eq!(sink.verbs().len(), attempts, "{case}");
        assert_eq!(sink.stored.lock().unwrap().len(), written, "{case}");
        let calls = sink.calls.lock().unwrap();
        for (nth, pair) in calls.windows(2).enumerate() {
            let pause = (pair[1].1 - pair[0].1).as_secs_f64();
            let fits = match (case, nth) {
                ("postponed", _) => (1.0..1.1).contains(&pause),
                (_, 0) => pause < 10.1,
                _ => (10.0..10.1).contains(&pause),
            };
            assert!(fits, "{case}: pause {nth} was {pause} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn namespace_that_is_being_deleted_gets_one_event_in_ten_seconds() {
    let sink = MemorySink::failing([SinkError::NamespaceTerminating]);
    let (recorder, sender) = Recorder::new("c", sink.clone());
    let sender = tokio::spawn(sender);
    let mut recorded = 0_u64;
    let mut record = |namespace: &str| {
        recorded += 1;
        let about = ObjectReference { namespace: namespace.into(), ..pod(&format!("p{recorded}")) };
        recorder.event(&about, EventType::Normal, "R", "m".to_owned());
        recorded
    };
    for (namespace, wait, sent) in [("a", 0, 1), ("a", 0, 1), ("b", 0, 2), ("a", 9, 2), ("a", 1, 3)] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let recorded = record(namespace);
        until(&recorder, |counts| counts.written + counts.abandoned == recorded).await;
        assert_eq!(sink.verbs().len(), sent, "event {recorded}");
    }
    assert_eq!(recorder.counts(), EventCounts { written: 2, abandoned: 3, ..EventCounts::default() });
    drop(recorder);
    sender.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn full_queue_drops_and_counts_without_waiting() {
    let sink = MemorySink::failing([]);
    let (recorder, sender) = Recorder::with_clock("c", sink.clone(), ticking(Duration::from_nanos(1)));
    for i in 0..MAX_QUEUED + 7 {
        recorder.event(&pod(&format!("p{i}")), EventType::Normal, "R", "m".to_owned());
    }
    assert_eq!(recorder.counts().dropped, 7);
    recorder.close();
    recorder.event(&pod("late"), EventType::Normal, "R", "m".to_owned());
    sender.await;
    let wanted = EventCounts { written: MAX_QUEUED as u64, dropped: 8, ..EventCounts::default() };
    assert_eq!(recorder.counts(), wanted);
}

#[tokio::test(start_paused = true)]
async fn closed_recorder_tries_each_queued_event_once() {
    let sink = MemorySink::failing(vec![SinkError::Unreachable("down".to_owned()); 100]);
    let (recorder, sender) = Recorder::new("c", sink.clone());
    recorder.event(&pod("p"), EventType::Normal, "R", "m".to_owned());
    recorder.event(&pod("q"), EventType::Normal, "R", "m".to_owned());
    recorder.close();
    let start = Instant::now();
    sender.await;
    assert_eq!(sink.verbs(), ["create", "create"]);
    assert_eq!(recorder.counts().abandoned, 2);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// The first event is stuck at a server that does not respond; events recorded in the meantime are combined, not
/// dropped.
#[tokio::test(start_paused = true)]
async fn slow_server_loses_no_events_that_can_be_combined() {
    let sink =
        MemorySink::failing([SinkError::Unreachable("down".to_owned()), SinkError::Unreachable("down".to_owned())]);
    let (recorder, sender) = Recorder::with_clock("c", sink.clone(), ticking(Duration::from_nanos(1)));
    let sender = tokio::spawn(sender);
    for i in 0..3 * MAX_QUEUED {
        recorder.event(&pod("p"), EventType::Normal, "R", i.to_string());
        tokio::task::yield_now().await;
    }
    recorder.event(&pod("q"), EventType::Normal, "R", "the last".to_owned());
    until(&recorder, |counts| counts.written == 26).await;
    drop(recorder);
    sender.await.unwrap();
    let verbs = sink.verbs();
    let patches = verbs.iter().filter(|verb| **verb == "patch").count();
    assert_eq!((verbs.len() - patches, patches, sink.sum()), (2 + 9 + 1 + 1, 1, 26));
}

/// A sink with a rate limit: each call takes a tenth of a second.
struct Slow(Arc<MemorySink>);

impl EventSink for Slow {
    fn create<'a>(&'a self, namespace: &'a str, event: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        let create = self.0.create(namespace, event);
        tokio::time::sleep(Duration::from_millis(100)).then(|()| create).boxed()
    }

    fn patch<'a>(&'a self, namespace: &'a str, name: &'a str, patch: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        let patch = self.0.patch(namespace, name, patch);
        tokio::time::sleep(Duration::from_millis(100)).then(|()| patch).boxed()
    }
}

/// New events arrive faster than they can be written, for a minute.
#[tokio::test(start_paused = true)]
async fn repeat_is_written_in_time_while_new_events_arrive() {
    let sink = MemorySink::failing([]);
    let (recorder, sender) = Recorder::with_clock("c", Arc::new(Slow(sink.clone())), ticking(Duration::from_nanos(1)));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(sender);
    for number in 0..1200 {
        recorder.event(&pod(&format!("p{number}")), EventType::Normal, "R", "m".to_owned());
        if number % 60 == 0 {
            recorder.event(&pod("repeated"), EventType::Normal, "R", "m".to_owned());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let verbs = sink.verbs();
    let (patches, creations): (Vec<_>, Vec<_>) = verbs.into_iter().partition(|verb| *verb == "patch");
    assert!(patches.len() >= 15, "{} patches of 19", patches.len());
    assert!(creations.len() > 500, "{} new events", creations.len());
}

#[derive(Debug, Clone)]
struct ScriptedEvent {
    object: u8,
    reason: usize,
    message: u8,
    warning: bool,
    after_seconds: u16,
}

fn scripted() -> impl Strategy<Value = ScriptedEvent> {
    let fields = (0..3u8, 0..2usize, 0..14u8, prop::bool::weighted(0.2), prop_oneof![0..10u16, 0..400u16]);
    fields.prop_map(|(object, reason, message, warning, after_seconds)| ScriptedEvent {
        object,
        reason,
        message,
        warning,
        after_seconds,
    })
}

proptest! {
    /// Every occurrence is counted in exactly one event; only filtered occurrences are missing on the server.
    #[test]
    fn every_occurrence_is_counted_in_one_event(history in prop::collection::vec(scripted(), 1..150)) {
        let mut now = Timestamp::UNIX_EPOCH;
        let mut correlator = Correlator::new("c");
        let mut counted = BTreeMap::new();
        let mut written = BTreeMap::new();
        let mut filtered = 0u32;
        for scripted in &history {
            now += Duration::new(u64::from(scripted.after_seconds), 1);
            let occurrence = Occurrence {
                about: pod(&format!("p{}", scripted.object)),
                kind: if scripted.warning { EventType::Warning } else { EventType::Normal },
                reason: ["R", "S"][scripted.reason],
                message: scripted.message.to_string(),
                at: now,
            };
            let Correlation { event, spam } = correlator.correlate(occurrence, now);
            let before = counted.insert(event.name.clone(), event.count).unwrap_or(0);
            prop_assert_eq!(event.count, before + 1);
            if spam {
                filtered += 1;
            } else {
                written.insert(event.name, event.count);
            }
        }
        let recorded = u32::try_from(history.len()).unwrap();
        prop_assert_eq!(counted.values().sum::<u32>(), recorded);
        let sum = written.values().sum::<u32>();
        prop_assert!(sum <= recorded && sum + filtered >= recorded, "{} + {} of {}", sum, filtered, recorded);
    }
}

/// A sink whose first write panics.
#[derive(Default)]
struct Defective(std::sync::atomic::AtomicBool);

impl EventSink for Defective {
    fn create<'a>(&'a self, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        assert!(self.0.swap(true, Ordering::SeqCst), "a defect");
        async { Ok(()) }.boxed()
    }

    fn patch<'a>(&'a self, _: &'a str, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async { Ok(()) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_write_drops_only_its_event() {
    let (recorder, sender) = Recorder::new("test", Arc::new(Defective::default()));
    let sender = tokio::spawn(sender);
    recorder.event(&pod("a"), EventType::Normal, "First", "one".to_owned());
    recorder.event(&pod("b"), EventType::Normal, "Second", "two".to_owned());
    until(&recorder, |counts| counts.written == 1 && counts.abandoned == 1).await;
    assert!(!sender.is_finished());
}
