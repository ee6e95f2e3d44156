//! What controllers say about objects, as core/v1 Events: counted, combined, bounded, and never in a reconcile's way.
//!
//! The rules are those of upstream's `tools/record`. Messages are sent whole: the API server limits a message
//! to 1,024 bytes only for events that carry `eventTime`, which these don't, and upstream does not cut them either.

mod body;
mod correlate;
mod lru;
mod repeats;
#[cfg(test)]
mod tests;
mod writer_sink;

use std::borrow::Cow;
use std::collections::VecDeque;
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
use correlate::{Correlated, Correlator, Occurrence};
use repeats::Repeats;

use crate::journal::note;

const QUEUED: usize = 1000;
const TRIES: u32 = 12;
const BETWEEN_TRIES: Duration = Duration::from_secs(10);
const WITHOUT_ANSWER: Duration = Duration::from_secs(30);

/// A reading of the wall clock, passed in so that tests own the time.
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
    /// The version of the object that was looked at, or empty.
    pub resource_version: Arc<str>,
}

/// A reference to an object, for an event about it.
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
    /// Information.
    Normal,
    /// Something went wrong.
    Warning,
}

impl EventType {
    /// The API's word for the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Where events are written to. The bodies are JSON; a Writer is the API server.
pub trait EventSink: Send + Sync {
    /// Creates the event in `namespace` (POST of a core/v1 Event).
    fn create<'a>(&'a self, namespace: &'a str, event: Bytes) -> BoxFuture<'a, Result<(), SinkError>>;

    /// Changes count, last time and message of event `name` in `namespace` (strategic merge patch).
    fn patch<'a>(&'a self, namespace: &'a str, name: &'a str, patch: Bytes) -> BoxFuture<'a, Result<(), SinkError>>;
}

/// Why a sink did not take an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// There is no such event any more, or no such namespace.
    #[error("the event or its namespace does not exist")]
    NotFound,
    /// The server answered and refused: trying again would not help.
    #[error("the server rejected the event: {0}")]
    Rejected(String),
    /// No answer, or one that asks to come back later.
    #[error("the server could not be asked: {0}")]
    Unreachable(String),
}

/// What became of the occurrences so far; their sum trails what was recorded by what is still queued.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Written to the sink.
    pub written: u64,
    /// Never queued: the queue was full, or the recorder closed.
    pub dropped: u64,
    /// Filtered: the object's budget was used up.
    pub filtered: u64,
    /// Given up: rejected by the server, or out of tries.
    pub abandoned: u64,
}

#[derive(Debug, Default)]
struct Tally {
    written: AtomicU64,
    dropped: AtomicU64,
    filtered: AtomicU64,
    abandoned: AtomicU64,
}

/// Says things about objects on behalf of one component; cheap to clone, never waits.
#[derive(Clone)]
pub struct Recorder {
    component: &'static str,
    clock: WallClock,
    queue: mpsc::Sender<Occurrence>,
    closing: Arc<watch::Sender<bool>>,
    tally: Arc<Tally>,
}

impl Recorder {
    /// A recorder for `component` and its sender task, which the caller runs. The task ends when all clones of
    /// the recorder are dropped, or after `close`, once the queue is empty; bound it by a timeout at shutdown.
    pub fn new(component: &'static str, sink: Arc<dyn EventSink>) -> (Self, impl Future<Output = ()> + Send + 'static) {
        Self::with_clock(component, sink, Arc::new(Timestamp::now))
    }

    /// As `new`, with a wall clock of the caller's.
    pub fn with_clock(
        component: &'static str,
        sink: Arc<dyn EventSink>,
        clock: WallClock,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, queued) = mpsc::channel(QUEUED);
        let (closing, closed) = watch::channel(false);
        let tally = Arc::new(Tally::default());
        let sender = Sender {
            correlator: Correlator::new(component),
            firsts: VecDeque::new(),
            repeats: Repeats::default(),
            sink,
            clock: clock.clone(),
            tally: tally.clone(),
            closed,
        };
        let recorder = Self { component, clock, queue, closing: Arc::new(closing), tally };
        (recorder, sender.run(queued))
    }

    /// Queues an event about `about`. If 1,000 are waiting already, this one is dropped and counted
    /// (upstream: `tools/record`, a full broadcaster).
    pub fn event(&self, about: &ObjectReference, kind: EventType, reason: &'static str, message: String) {
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

    /// Takes no more events; what is queued is tried once each, then the sender task ends
    /// (upstream: `EventBroadcaster.Shutdown`).
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// On whose behalf it speaks.
    pub fn component(&self) -> &'static str {
        self.component
    }

    /// What became of the events of this component so far.
    pub fn counts(&self) -> EventCounts {
        EventCounts {
            written: self.tally.written.load(Ordering::Relaxed),
            dropped: self.tally.dropped.load(Ordering::Relaxed),
            filtered: self.tally.filtered.load(Ordering::Relaxed),
            abandoned: self.tally.abandoned.load(Ordering::Relaxed),
        }
    }
}

struct Sender {
    correlator: Correlator,
    /// Events that were not written yet, in order; at most as many as the queue holds.
    firsts: VecDeque<Event>,
    repeats: Repeats,
    sink: Arc<dyn EventSink>,
    clock: WallClock,
    tally: Arc<Tally>,
    closed: watch::Receiver<bool>,
}

/// A delivery under way; ends with whether the event was written.
type Delivery = Fuse<BoxFuture<'static, bool>>;

impl Sender {
    async fn run(mut self, mut queued: mpsc::Receiver<Occurrence>) {
        let mut closed = self.closed.clone();
        let (mut delivery, mut occurrences): (Delivery, u64) = (Fuse::terminated(), 0);
        loop {
            if delivery.is_terminated()
                && let Some((event, told)) = self.next(Some(Instant::now()))
            {
                (delivery, occurrences) = (self.deliver(event), told);
            }
            let due = self.repeats.due().filter(|_| delivery.is_terminated());
            tokio::select! {
                biased;
                () = until_closed(&mut closed) => break,
                written = &mut delivery => self.count(written, occurrences),
                // What is said is taken in while events are on their way, so that combining goes on however slow
                // the server is, and nothing is lost to a full queue that would be dropped as too much anyway.
                next = queued.recv(), if self.firsts.len() < QUEUED => match next {
                    Some(occurrence) => self.take_in(occurrence),
                    None => break,
                },
                () = until(due) => {}
            }
        }
        if !delivery.is_terminated() {
            let written = delivery.await;
            self.count(written, occurrences);
        }
        queued.close();
        while let Some(occurrence) = queued.recv().await {
            self.take_in(occurrence);
        }
        while let Some((event, told)) = self.next(None) {
            let written = self.deliver(event).await;
            self.count(written, told);
        }
    }

    /// Takes an occurrence in. A defect costs this one only, or else the component would fall silent.
    fn take_in(&mut self, occurrence: Occurrence) {
        if catch_unwind(AssertUnwindSafe(|| self.correlate(occurrence))).is_err() {
            tracing::error!("correlating an event panicked; it is abandoned");
            self.tally.abandoned.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn correlate(&mut self, occurrence: Occurrence) {
        let Correlated { event, spam } = self.correlator.correlate(occurrence, (self.clock)());
        if spam {
            self.tally.filtered.fetch_add(1, Ordering::Relaxed);
        } else if event.count > 1 {
            self.repeats.put(event);
        } else {
            self.firsts.push_back(event);
        }
    }

    /// What is to be sent next, and how many occurrences it tells of: first occurrences at once, and before the
    /// repeats that are due until then, or all.
    fn next(&mut self, until: Option<Instant>) -> Option<(Event, u64)> {
        self.firsts.pop_front().map(|event| (event, 1)).or_else(|| self.repeats.take(until))
    }

    fn deliver(&self, event: Event) -> Delivery {
        let delivery = AssertUnwindSafe(deliver(self.sink.clone(), event, self.closed.clone())).catch_unwind();
        let settled = delivery.map(|written| {
            written.unwrap_or_else(|_| {
                tracing::error!("writing an event panicked; it is abandoned");
                false
            })
        });
        settled.boxed().fuse()
    }

    fn count(&self, written: bool, occurrences: u64) {
        let outcome = if written { &self.tally.written } else { &self.tally.abandoned };
        outcome.fetch_add(occurrences, Ordering::Relaxed);
    }
}

/// Up to twelve tries ten seconds apart, the first pause at random within that (`recordToSink`);
/// a try without an answer within 30 seconds failed, so that one dead connection can't silence a component.
async fn deliver(sink: Arc<dyn EventSink>, event: Event, mut closed: watch::Receiver<bool>) -> bool {
    for tries in 1..=TRIES {
        let written = tokio::time::timeout(WITHOUT_ANSWER, write(&*sink, &event));
        let silence = |_| Err(SinkError::Unreachable(format!("no answer within {WITHOUT_ANSWER:?}")));
        match written.await.unwrap_or_else(silence) {
            Ok(()) => return true,
            Err(SinkError::Unreachable(error)) => {
                tracing::warn!(name = event.name, tries, error, "event not written");
            }
            Err(error) => {
                tracing::warn!(name = event.name, %error, "event given up");
                return false;
            }
        }
        let pause = match tries {
            1 => BETWEEN_TRIES.mul_f64(rand::random()),
            TRIES => return false,
            _ => BETWEEN_TRIES,
        };
        tokio::select! {
            biased;
            () = until_closed(&mut closed) => return false,
            () = tokio::time::sleep(pause) => {}
        }
    }
    false
}

/// Ends then, or never.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Ends when the recorder is closed; never when its clones are merely dropped.
async fn until_closed(closed: &mut watch::Receiver<bool>) {
    if closed.wait_for(|closed| *closed).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Patches an event that was written before, creates one that was not or is gone (`recordEvent`).
async fn write(sink: &dyn EventSink, event: &Event) -> Result<(), SinkError> {
    if event.count > 1 {
        let patched = sink.patch(event.namespace(), &event.name, event.patch_body()).await;
        if patched != Err(SinkError::NotFound) {
            return patched;
        }
    }
    sink.create(event.namespace(), event.create_body()).await
}
