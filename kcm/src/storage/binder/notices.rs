//! Events of objects that wait: each is recorded when it changes, and repeated slowly.
//!
//! Differs from upstream, which repeats them at each resync, that is every 15 seconds; see docs/differences.md.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use kinds::Kind;
use kinds::meta::ObjectKey;
use runtime::events::{EventType, Recorder, about};
use runtime::lock::lock;
use tokio::time::Instant;

use super::decide_claim::Notice;

/// The same event is recorded again after this time.
const REPEAT: Duration = Duration::from_secs(5 * 60);

/// The last notice of each object, by kind and key, and its time.
type LastNotices = HashMap<(&'static str, ObjectKey), (Notice, Instant)>;

/// The last event of each object that waits.
pub struct Notices {
    recorder: Recorder,
    last: Mutex<LastNotices>,
}

impl Notices {
    /// Returns an empty memory of events.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, last: Mutex::default() }
    }

    /// Records an event.
    pub fn record<K: Kind>(&self, object: &K, notice: &Notice) {
        let kind = if notice.is_warning { EventType::Warning } else { EventType::Normal };
        self.recorder.event(&about(object), kind, notice.reason, notice.message.clone());
    }

    /// Records an event about an object that stays as it is, unless the same was recorded a short time ago.
    pub fn record_waiting<K: Kind>(&self, object: &K, notice: &Notice) {
        let key = (K::RESOURCE.kind, object.meta().key());
        let now = Instant::now();
        let mut last = lock(&self.last);
        if last.get(&key).is_some_and(|(known, at)| known == notice && now < *at + REPEAT) {
            return;
        }
        last.insert(key, (notice.clone(), now));
        drop(last);
        self.record(object, notice);
    }

    /// Forgets an object that was deleted or no longer waits.
    pub fn forget<K: Kind>(&self, key: &ObjectKey) {
        lock(&self.last).remove(&(K::RESOURCE.kind, key.clone()));
    }
}
