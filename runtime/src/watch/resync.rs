//! Periodic resync: subscribers receive every record again, as if it had been updated without a change.
//!
//! It repairs omissions of a controller, for example after a subscriber has missed a change because of a panic. The
//! records are not read from the API server again. A pass is spread out, so that it neither delays the watch nor fills
//! all queues immediately. Upstream: client-go tools/cache, sharedProcessor.shouldResync;
//! cmd/kube-controller-manager/app, ResyncPeriod.

use std::time::Duration;

use kinds::meta::ObjectKey;
use tokio::time::Instant;

use super::watched_store::WatchedStore;

/// Number of records of a pass that subscribers receive without a pause.
const CHUNK: usize = 100;
/// Pause after each chunk.
const PAUSE: Duration = Duration::from_millis(100);

/// The resync of one kind.
#[derive(Debug)]
pub(super) struct Resync {
    period: Duration,
    /// The time at which the next chunk is due; `None` if there is no resync.
    due: Option<Instant>,
    /// Records of this pass that are left.
    left: Vec<ObjectKey>,
}

impl Resync {
    /// Creates the resync. Each pass begins between one and two periods after the previous one, at random; none begins
    /// if the period is zero.
    pub fn new(period: Duration) -> Self {
        let mut resync = Self { period, due: None, left: Vec::new() };
        resync.due = resync.next_pass();
        resync
    }

    fn next_pass(&self) -> Option<Instant> {
        let wait = self.period.checked_mul(2)?.mul_f64(rand::random_range(0.5..1.0));
        Instant::now().checked_add(wait).filter(|_| !self.period.is_zero())
    }

    /// Waits until [`Resync::step`] is due.
    pub async fn due(&self) {
        match self.due {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Passes the next records to the subscribers. Call it only from the task that applies the watch's events, so that
    /// no subscriber receives an older record after a newer one.
    pub fn step(&mut self, store: &dyn WatchedStore) {
        if self.left.is_empty() {
            self.left = store.keys().into_iter().collect();
        }
        for key in self.left.drain(self.left.len().saturating_sub(CHUNK)..) {
            store.repeat(&key);
        }
        self.due = if self.left.is_empty() {
            self.left = Vec::new();
            self.next_pass()
        } else {
            Some(Instant::now() + PAUSE)
        };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use kinds::{Decode, Sections};

    use super::*;
    use crate::testing::{filled_store, meta};
    use crate::watch::Metadata;

    #[tokio::test(start_paused = true)]
    async fn each_pass_repeats_every_record_once_in_chunks() {
        const RECORDS: usize = 250;
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        let records = (0..RECORDS).map(|number| Metadata(meta("ns", &format!("a{number}"), 1)));
        let store = filled_store(decode, Vec::new(), records);
        let repeated: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let counts = repeated.clone();
        store.subscribe(move |change| {
            let (Some(old), Some(new)) = (change.old, change.new) else { panic!("an update") };
            assert!(Arc::ptr_eq(old, new));
            *counts.lock().unwrap().entry(new.0.name.to_string()).or_default() += 1;
        });
        let period = Duration::from_secs(3600);
        let (started, mut resync) = (Instant::now(), Resync::new(period));
        for pass in 1..=2 {
            let before = Instant::now();
            resync.due().await;
            assert!((period..=period * 2).contains(&before.elapsed()), "{:?}", before.elapsed());
            let mut steps = 0;
            loop {
                resync.due().await;
                resync.step(&store);
                steps += 1;
                if resync.left.is_empty() {
                    break;
                }
            }
            assert_eq!(steps, 3);
            let counts = repeated.lock().unwrap();
            assert!(counts.len() == RECORDS && counts.values().all(|count| *count == pass));
        }
        assert!(started.elapsed() < period * 5);
    }

    #[tokio::test(start_paused = true)]
    async fn resync_never_begins_when_its_period_is_zero_or_endless() {
        for period in [Duration::ZERO, Duration::MAX] {
            let resync = Resync::new(period);
            assert!(tokio::time::timeout(Duration::from_secs(1 << 40), resync.due()).await.is_err(), "{period:?}");
        }
    }
}
