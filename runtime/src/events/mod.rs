//! Events of controllers, as core/v1 Events: counted, combined, bounded, and without delaying a reconcile.
//!
//! The rules are those of upstream's `tools/record`. The API server limits a message to 1,024 bytes only for events
//! with `eventTime`, which these events lack. Differs from upstream: messages are truncated to [`MAX_MESSAGE_BYTES`],
//! because thousands of events, and the delayed repeats of others, wait in memory.

mod body;
mod correlate;
mod lru;
mod repeats;
#[cfg(test)]
mod tests;
mod writer_sink;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Fuse, FusedFuture};
use jiff::Timestamp;
use kinds::Kind;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use body::Event;
pub(crate) use body::random_uuid;
use correlate::{Correlation, Correlator, Occurrence};
use repeats::Repeats;

use crate::journal::note;
use crate::text::{MAX_MESSAGE_BYTES, shortened};

/// Maximum number of events of a recorder that wait to be correlated, and of those that then wait to be sent.
const MAX_QUEUED: usize = 1000;
/// Maximum number of attempts to write an event.
const MAX_ATTEMPTS: u32 = 12;
/// Time between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time for a response.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which no event is sent to a namespace after the server refused one because the namespace is being deleted.
const TERMINATING_PAUSE: Duration = Duration::from_secs(10);

/// A source of the current time, so that tests can set it.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The object that an event is about; `namespace` is empty for cluster-scoped objects.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ObjectReference {
    /// Group and version, for example `apps/v1`.
    pub api_version: Cow<'static, str>,
    /// The kind, for example `ReplicaSet`.
    pub kind: Cow<'static, str>,
    /// The object's namespace, or empty.
    pub namespace: Arc<str>,
    /// The object's name.
    pub name: Arc<str>,
    /// The object's uid, or empty if unknown.
    pub uid: Arc<str>,
    /// The resourceVersion of the object that the decision was based on, or empty.
    pub resource_version: Arc<str>,
}

/// Returns a reference to an object, for an event about it.
pub fn about<K: Kind>(record: &K) -> ObjectReference {
    let meta = record.meta();
    ObjectReference {
        api_version: K::RESOURCE.api_version().into(),
        kind: K::RESOURCE.kind.into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.to_string().into(),
        resource_version: meta.version.to_string().into(),
    }
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// The event reports a regular action.
    Normal,
    /// The event reports a failure.
    Warning,
}

impl EventType {
    /// Returns the API's name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The destination of events. The bodies are JSON. A Writer sends them to the API server.
pub trait EventSink: Send + Sync {
    /// Creates the event in `namespace` (POST of a core/v1 Event).
    fn create<'a>(&'a self, namespace: &'a str, event: Bytes) -> BoxFuture<'a, Result<(), SinkError>>;

    /// Updates count, last time and message of event `name` in `namespace` (strategic merge patch).
    fn patch<'a>(&'a self, namespace: &'a str, name: &'a str, patch: Bytes) -> BoxFuture<'a, Result<(), SinkError>>;
}

/// The reason why a sink refused an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// The event or its namespace does not exist.
    #[error("the event or its namespace does not exist")]
    NotFound,
    /// The server refused the request, or this process must not send it: a retry would not help.
    #[error("the event cannot be written: {0}")]
    Rejected(String),
    /// The server refuses all creations in the namespace, because it is being deleted.
    #[error("the namespace is being deleted")]
    NamespaceTerminating,
    /// No response.
    #[error("the server could not be reached: {0}")]
    Unreachable(String),
    /// The server requests a retry after this time.
    #[error("the server requests a retry in {0:?}: {1}")]
    Postponed(Duration, String),
}

/// Results of the recorded events. Their sum excludes events that are still queued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Written to the sink.
    pub written: u64,
    /// Never sent: the queue was full, the recorder closed, or too many events were repeated.
    pub dropped: u64,
    /// Filtered: the object's budget was exhausted.
    pub filtered: u64,
    /// Discarded: refused by the server or by this process, not written by the last attempt or when the recorder was
    /// closed, recorded in a namespace that is being deleted, or lost by a panic.
    pub abandoned: u64,
}

/// The counts behind [`EventCounts`].
#[derive(Debug, Default)]
struct Tally {
    written: AtomicU64,
    dropped: AtomicU64,
    filtered: AtomicU64,
    abandoned: AtomicU64,
}

/// Records events for one component. Cheap to clone; never waits.
#[derive(Clone)]
pub struct Recorder {
    component: &'static str,
    clock: WallClock,
    queue: mpsc::Sender<Occurrence>,
    closing: Arc<watch::Sender<bool>>,
    tally: Arc<Tally>,
}

impl Recorder {
    /// Creates a recorder for `component` and its sender task, which the caller runs. The task ends when all clones of
    /// the recorder are dropped, or after `close`, once the queue is empty; limit it by a timeout at shutdown.
    pub fn new(component: &'static str, sink: Arc<dyn EventSink>) -> (Self, impl Future<Output = ()> + Send + 'static) {
        Self::with_clock(component, sink, Arc::new(Timestamp::now))
    }

    /// Like `new`, with a given wall clock.
    pub fn with_clock(
        component: &'static str,
        sink: Arc<dyn EventSink>,
        clock: WallClock,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, queued) = mpsc::channel(MAX_QUEUED);
        let (closing, closed) = watch::channel(false);
        let tally = Arc::new(Tally::default());
        let sender = Sender {
            correlator: Correlator::new(component),
            first_occurrences: VecDeque::new(),
            repeats: Repeats::default(),
            is_repeat_next: false,
            sink,
            clock: clock.clone(),
            tally: tally.clone(),
            terminating: HashMap::new(),
            closed,
        };
        let recorder = Self { component, clock, queue, closing: Arc::new(closing), tally };
        (recorder, sender.run(queued))
    }

    /// Queues an event about `about`. If 1,000 events are queued already, or the recorder is closed, this one is
    /// dropped and counted. Upstream: tools/record, a full broadcaster.
    pub fn event(&self, about: &ObjectReference, kind: EventType, reason: &'static str, message: String) {
        let message = shortened(message, MAX_MESSAGE_BYTES);
        tracing::debug!(
            component = self.component,
            kind = %about.kind, namespace = %about.namespace, name = %about.name,
            r#type = kind.as_str(), reason, message, "event occurred"
        );
        note(|| format!("event {reason}: {message}"));
        let occurrence = Occurrence { about: about.clone(), kind, reason, message, at: (self.clock)() };
        let accepted = !*self.closing.borrow() && self.queue.try_send(occurrence).is_ok();
        if !accepted {
            let dropped = self.tally.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                tracing::warn!(
                    component = self.component,
                    reason,
                    dropped,
                    "events dropped: the queue is full or closed"
                );
            }
        }
    }

    /// Accepts no further events. Queued events are tried once each, then the sender task ends. Upstream:
    /// EventBroadcaster.Shutdown.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Returns the component that the events name as their source.
    pub fn component(&self) -> &'static str {
        self.component
    }

    /// Returns the results of this component's events.
    pub fn counts(&self) -> EventCounts {
        EventCounts {
            written: self.tally.written.load(Ordering::Relaxed),
            dropped: self.tally.dropped.load(Ordering::Relaxed),
            filtered: self.tally.filtered.load(Ordering::Relaxed),
            abandoned: self.tally.abandoned.load(Ordering::Relaxed),
        }
    }
}

/// Correlates queued events and sends them.
struct Sender {
    correlator: Correlator,
    /// Events that were not written yet, in order; at most [`MAX_QUEUED`], or twice as many after the recorder was
    /// closed.
    first_occurrences: VecDeque<Event>,
    repeats: Repeats,
    /// The last event was a first occurrence: a repeat that is due comes before the next one.
    is_repeat_next: bool,
    sink: Arc<dyn EventSink>,
    clock: WallClock,
    tally: Arc<Tally>,
    /// Namespaces that are being deleted according to the server, with the time of its last refusal.
    terminating: HashMap<Arc<str>, Instant>,
    closed: watch::Receiver<bool>,
}

/// The result of the attempts to write an event.
#[derive(Debug, PartialEq, Eq)]
enum DeliveryResult {
    /// The event was written.
    Written,
    /// The event was rejected, all attempts failed, or no further one is made.
    Abandoned,
    /// The event was refused because this namespace is being deleted.
    Refused(Arc<str>),
}

/// A write in progress.
type Delivery = Fuse<BoxFuture<'static, DeliveryResult>>;

impl Sender {
    async fn run(mut self, mut queued: mpsc::Receiver<Occurrence>) {
        let mut closed = self.closed.clone();
        let (mut delivery, mut occurrences): (Delivery, u64) = (Fuse::terminated(), 0);
        loop {
            if delivery.is_terminated()
                && let Some((event, covered)) = self.next(Some(Instant::now()))
            {
                delivery = self.deliver(event);
                occurrences = covered;
            }
            let due = self.repeats.due().filter(|_| delivery.is_terminated());
            tokio::select! {
                biased;
                () = until_closed(&mut closed) => break,
                written = &mut delivery => self.count(written, occurrences),
                // Events are received and combined even during a write: otherwise a slow server would fill the queue
                // with events that can be combined.
                next = queued.recv(), if self.first_occurrences.len() < MAX_QUEUED => match next {
                    Some(occurrence) => self.apply(occurrence),
                    None => break,
                },
                () = sleep_until_due(due) => {}
            }
        }
        if !delivery.is_terminated() {
            let written = delivery.await;
            self.count(written, occurrences);
        }
        queued.close();
        while let Some(occurrence) = queued.recv().await {
            self.apply(occurrence);
        }
        while let Some((event, covered)) = self.next(None) {
            let written = self.deliver(event).await;
            self.count(written, covered);
        }
    }

    /// Applies an occurrence. A panic discards only this event, so that the component keeps recording.
    fn apply(&mut self, occurrence: Occurrence) {
        if catch_unwind(AssertUnwindSafe(|| self.correlate(occurrence))).is_err() {
            tracing::error!("correlating an event panicked; it is dropped");
            self.tally.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn correlate(&mut self, occurrence: Occurrence) {
        let Correlation { event, spam } = self.correlator.correlate(occurrence, (self.clock)());
        if spam {
            self.tally.filtered.fetch_add(1, Ordering::Relaxed);
        } else if event.count > 1 {
            let dropped = self.repeats.put(event);
            self.tally.dropped.fetch_add(dropped, Ordering::Relaxed);
        } else {
            self.first_occurrences.push_back(event);
        }
    }

    /// Returns the next event to send and the number of occurrences that it covers: a first occurrence and a repeat that
    /// is due at `now` in turn, so that neither delays the other. With `None`, every repeat is due, and first occurrences
    /// come first.
    fn next(&mut self, now: Option<Instant>) -> Option<(Event, u64)> {
        if std::mem::take(&mut self.is_repeat_next)
            && now.is_some()
            && let Some((repeat, covered)) = self.repeats.take(now)
        {
            let covered_firsts = self.remove_first_occurrence(&repeat);
            return Some((repeat, covered + covered_firsts));
        }
        let Some(first) = self.first_occurrences.pop_front() else { return self.repeats.take(now) };
        self.is_repeat_next = true;
        Some((first, 1))
    }

    /// Removes the first occurrence of an event if it waits behind a repeat of the event: the repeat creates the event
    /// and covers both. Returns the number of removed occurrences.
    fn remove_first_occurrence(&mut self, repeat: &Event) -> u64 {
        let is_first = |event: &Event| event.name == repeat.name && event.namespace() == repeat.namespace();
        let at = self.first_occurrences.iter().position(is_first);
        at.and_then(|at| self.first_occurrences.remove(at)).map_or(0, |_| 1)
    }

    /// Begins to write an event, unless its namespace is being deleted. A panic counts as a failure.
    fn deliver(&self, event: Event) -> Delivery {
        if self.terminating.get(event.namespace()).is_some_and(|refused| refused.elapsed() < TERMINATING_PAUSE) {
            return futures::future::ready(DeliveryResult::Abandoned).boxed().fuse();
        }
        let delivery =
            AssertUnwindSafe(write_with_retries(self.sink.clone(), event, self.closed.clone())).catch_unwind();
        let settled = delivery.map(|delivered| {
            delivered.unwrap_or_else(|_| {
                tracing::error!("writing an event panicked; it is dropped");
                DeliveryResult::Abandoned
            })
        });
        settled.boxed().fuse()
    }

    fn count(&mut self, delivered: DeliveryResult, occurrences: u64) {
        let is_written = delivered == DeliveryResult::Written;
        let outcome = if is_written { &self.tally.written } else { &self.tally.abandoned };
        outcome.fetch_add(occurrences, Ordering::Relaxed);
        if let DeliveryResult::Refused(namespace) = delivered {
            self.terminating.retain(|_, refused| refused.elapsed() < TERMINATING_PAUSE);
            self.terminating.insert(namespace, Instant::now());
        }
    }
}

/// Makes up to twelve attempts, ten seconds apart; the first pause is random, at most ten seconds (`recordToSink`). An
/// attempt without a response within 30 seconds counts as failed, so that a dead connection cannot block a component.
/// If the server requests a retry after a time, the next attempt follows after that time, at most ten seconds.
/// Upstream: client-go, request.go.
async fn write_with_retries(
    sink: Arc<dyn EventSink>,
    event: Event,
    mut closed: watch::Receiver<bool>,
) -> DeliveryResult {
    for tries in 1..=MAX_ATTEMPTS {
        let written = tokio::time::timeout(ATTEMPT_TIMEOUT, write(&*sink, &event));
        let timed_out = |_| Err(SinkError::Unreachable(format!("no response within {ATTEMPT_TIMEOUT:?}")));
        let pause = match written.await.unwrap_or_else(timed_out) {
            Ok(()) => return DeliveryResult::Written,
            Err(SinkError::NamespaceTerminating) => return DeliveryResult::Refused(event.namespace().into()),
            Err(error @ SinkError::Unreachable(_)) => {
                tracing::warn!(namespace = event.namespace(), name = event.name, tries, %error, "event not written");
                if tries == 1 { RETRY_INTERVAL.mul_f64(rand::random()) } else { RETRY_INTERVAL }
            }
            Err(SinkError::Postponed(delay, error)) => {
                tracing::warn!(
                    namespace = event.namespace(),
                    name = event.name,
                    tries,
                    ?delay,
                    error,
                    "event not written"
                );
                delay.min(RETRY_INTERVAL)
            }
            Err(error) => {
                tracing::warn!(namespace = event.namespace(), name = event.name, %error, "event dropped: a retry would not help");
                return DeliveryResult::Abandoned;
            }
        };
        if tries == MAX_ATTEMPTS {
            return DeliveryResult::Abandoned;
        }
        tokio::select! {
            biased;
            () = until_closed(&mut closed) => return DeliveryResult::Abandoned,
            () = tokio::time::sleep(pause) => {}
        }
    }
    DeliveryResult::Abandoned
}

/// Completes at the time `due`; never if it is `None`.
async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Completes when the recorder is closed; not when its clones are merely dropped.
async fn until_closed(closed: &mut watch::Receiver<bool>) {
    if closed.wait_for(|closed| *closed).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Patches an event that was written before; creates one that was not written yet or was deleted (`recordEvent`).
async fn write(sink: &dyn EventSink, event: &Event) -> Result<(), SinkError> {
    if event.count > 1 {
        let patched = sink.patch(event.namespace(), &event.name, event.patch_body()).await;
        if patched != Err(SinkError::NotFound) {
            return patched;
        }
    }
    sink.create(event.namespace(), event.create_body()).await
}
