//! Events of objects that wait: each is recorded when it changes, and repeated at long intervals.
//!
//! Differs from upstream, which repeats them at each resync, by default every 15 seconds; see docs/differences.md.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{Kind, Uid};
use runtime::events::{EventType, Recorder, about};
use runtime::lock::lock;
use tokio::time::Instant;

use super::decide_claim::Notice;

/// Time after which the same event is recorded again.
const REPEAT: Duration = Duration::from_secs(5 * 60);

/// The last event of an object.
struct Last {
    /// Uid of the object: another one may have its name by now.
    uid: Uid,
    /// Hash of the event. Its text may name thousands of pods, and each of these pods may use thousands of claims.
    notice: u64,
    at: Instant,
}

/// The last event of each object, by kind and key.
type LastNotices = HashMap<(&'static str, ObjectKey), Last>;

/// The last event of each object that waits.
pub struct Notices {
    recorder: Recorder,
    last: Mutex<LastNotices>,
}

impl Notices {
    /// Returns an empty record of events.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder, last: Mutex::default() }
    }

    /// Records an event.
    pub fn record<K: Kind>(&self, object: &K, notice: &Notice) {
        let kind = if notice.is_warning { EventType::Warning } else { EventType::Normal };
        self.recorder.event(&about(object), kind, notice.reason, notice.message.clone());
    }

    /// Records an event about an object that waits, unless its last event was the same and was recorded within
    /// [`REPEAT`].
    pub fn record_waiting<K: Kind>(&self, object: &K, notice: &Notice) {
        let key = (K::RESOURCE.kind, object.meta().key());
        let now = Instant::now();
        let mut last = lock(&self.last);
        let (uid, notice_hash) = (&object.meta().uid, hash_of(notice));
        if last.get(&key).is_some_and(|last| last.uid == *uid && last.notice == notice_hash && now < last.at + REPEAT) {
            return;
        }
        last.insert(key, Last { uid: uid.clone(), notice: notice_hash, at: now });
        drop(last);
        self.record(object, notice);
    }

    /// Removes the last event of an object that was deleted or no longer waits.
    pub fn forget<K: Kind>(&self, key: &ObjectKey) {
        lock(&self.last).remove(&(K::RESOURCE.kind, key.clone()));
    }
}

fn hash_of(notice: &Notice) -> u64 {
    let mut hasher = DefaultHasher::new();
    notice.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use runtime::testing::KeptEvents;

    use super::*;
    use crate::storage::testing::{claim, recreated};

    #[tokio::test(start_paused = true)]
    async fn event_is_recorded_for_each_object_and_repeated_at_long_intervals() {
        let events = Arc::<KeptEvents>::default();
        let (recorder, sender) = Recorder::new("test", events.clone());
        let notices = Notices::new(recorder);
        let first = claim("data");
        let waits = Notice::normal("Waits", "waiting");
        let mut second = first.clone();
        recreated(&mut second.meta);
        notices.record_waiting(&first, &waits);
        notices.record_waiting(&first, &waits);
        // The claim was deleted and created again before it was reconciled.
        notices.record_waiting(&second, &waits);
        notices.record_waiting(&second, &waits);
        tokio::time::advance(REPEAT).await;
        notices.record_waiting(&second, &waits);
        notices.record_waiting(&second, &Notice::normal("Waits", "waiting for another pod"));
        notices.recorder.close();
        sender.await;
        let uid = |body: &String| {
            let event: serde_json::Value = serde_json::from_str(body).expect("JSON");
            event["involvedObject"]["uid"].as_str().unwrap_or_default().to_owned()
        };
        let bodies = events.bodies();
        let uids: Vec<String> = bodies.iter().map(uid).collect();
        assert_eq!(uids[..2], [first.meta.uid.to_string(), second.meta.uid.to_string()]);
        assert_eq!(bodies.iter().filter(|body| body.contains("another pod")).count(), 1, "a changed event is recorded");
    }
}
