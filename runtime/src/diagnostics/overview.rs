//! The overview: each controller's queue, workers, failing keys and last decisions, and all caches.

use std::sync::atomic::Ordering;

use serde::Serialize;

use super::{Explainer, ReportedController};
use crate::journal::{Entry, MAX_FAILING};
use crate::queue::Waiting;

/// Maximum number of listed keys per controller.
const MAX_LISTED: usize = 50;

/// All controllers and stores.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Overview {
    pub(super) component: &'static str,
    /// Only a leader reconciles; other processes keep their caches filled.
    pub(super) leader: bool,
    pub(super) time: String,
    pub(super) controllers: Vec<Controller>,
    pub(super) stores: Vec<Store>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Controller {
    pub(super) name: &'static str,
    /// The kind of its keys, if they have one and it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    pub(super) queue: Queue,
    pub(super) workers: usize,
    pub(super) reconciles: Reconciles,
    /// Failing keys, the longest failing first.
    pub(super) failing: Vec<Failing>,
    /// The number of failing keys that are not listed here.
    pub(super) failing_not_listed: u64,
    /// The last decisions, the newest first.
    pub(super) recent: Vec<Decision>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Queue {
    pub(super) name: &'static str,
    /// Keys that wait for a worker, and keys that were added again while they are reconciled.
    pub(super) depth: usize,
    /// Keys whose delay has not passed.
    pub(super) delayed: usize,
    /// Keys that are being reconciled.
    pub(super) working: usize,
    /// The longest time that a worker has been busy with one key.
    pub(super) longest_working_seconds: f64,
    /// The keys that are being reconciled, the longest running first.
    pub(super) running: Vec<RunningReconcile>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunningReconcile {
    pub(super) key: String,
    pub(super) for_seconds: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reconciles {
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) panicked: u64,
    pub(super) waiting_for_cache: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failing {
    pub(super) key: String,
    pub(super) error: String,
    pub(super) since: String,
    pub(super) times: u32,
    /// `null` if no reconcile is scheduled: it is retried at the next change, or when the cache is up to date.
    pub(super) next_try_in_seconds: Option<f64>,
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Decision {
    pub(super) key: String,
    pub(super) at: String,
    pub(super) took_seconds: f64,
    pub(super) outcome: String,
    pub(super) did: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Store {
    pub(super) resource: String,
    pub(super) objects: usize,
    /// Its first list is complete.
    pub(super) synced: bool,
    pub(super) undecodable: usize,
    /// Undecodable objects of which the cache has an older state.
    pub(super) stale: usize,
    pub(super) restarts: u64,
}

/// Returns the seconds until the next reconcile of a key: zero if the key is ready or being reconciled, `None` if no
/// reconcile is scheduled.
pub(super) fn next_try(waiting: &[Waiting<String>], key: &str) -> Option<f64> {
    let waiting = waiting.iter().find(|waiting| waiting.key == key)?;
    if waiting.ready || waiting.working.is_some() {
        return Some(0.0);
    }
    waiting.due.map(|due| due.as_secs_f64())
}

impl Explainer {
    pub(super) fn overview(&self) -> Overview {
        let stores = self.stores.iter().map(|store| Store {
            resource: store.resource(),
            objects: store.objects(),
            synced: store.is_synced(),
            undecodable: store.undecodable(),
            stale: store.stale(),
            restarts: store.restarts(),
        });
        let mut stores: Vec<Store> = stores.collect();
        stores.sort_by(|a, b| a.resource.cmp(&b.resource));
        let mut controllers: Vec<Controller> =
            self.controllers.iter().map(|reported| self.controller(reported)).collect();
        controllers.sort_by_key(|controller| controller.name);
        Overview {
            component: self.component,
            leader: self.fence.is_leader(),
            time: seconds(jiff::Timestamp::now()),
            controllers,
            stores,
        }
    }

    fn controller(&self, reported: &ReportedController) -> Controller {
        let waiting = reported.queue.waiting();
        let count = |counts: fn(&Waiting<String>) -> bool| waiting.iter().filter(|waiting| counts(waiting)).count();
        let working = waiting.iter().filter_map(|waiting| Some((waiting.working?, &waiting.key)));
        let mut working: Vec<_> = working.collect();
        working.sort_unstable_by(|one, other| other.cmp(one));
        let running = working.iter().take(MAX_LISTED);
        let running =
            running.map(|(time, key)| RunningReconcile { key: (*key).clone(), for_seconds: time.as_secs_f64() });
        let counts = &reported.counts;
        let (failing, discarded) = counts.journal.failing();
        let hidden = failing.len().saturating_sub(MAX_LISTED) as u64;
        // Some of the discarded keys may have succeeded since; the reported number is an upper bound.
        let discarded = if failing.len() < MAX_FAILING { 0 } else { discarded };
        Controller {
            name: reported.name,
            kind: self.kind_of(reported),
            queue: Queue {
                name: reported.queue.name(),
                depth: count(|waiting| waiting.ready),
                delayed: count(|waiting| waiting.due.is_some()),
                working: working.len(),
                longest_working_seconds: working.first().map_or(0.0, |(time, _)| time.as_secs_f64()),
                running: running.collect(),
            },
            workers: reported.workers,
            reconciles: Reconciles {
                succeeded: counts.succeeded.load(Ordering::Relaxed),
                failed: counts.failed.load(Ordering::Relaxed),
                panicked: counts.panicked.load(Ordering::Relaxed),
                waiting_for_cache: counts.waiting_for_cache.load(Ordering::Relaxed),
            },
            failing: failing
                .into_iter()
                .take(MAX_LISTED)
                .map(|(key, failure)| Failing {
                    next_try_in_seconds: next_try(&waiting, &key).filter(|_| !failure.dropped),
                    key: key.into(),
                    error: failure.error.into(),
                    since: seconds(failure.since),
                    times: failure.times,
                })
                .collect(),
            failing_not_listed: hidden + discarded,
            recent: counts.journal.recent().into_iter().take(MAX_LISTED).map(Decision::from).collect(),
        }
    }
}

impl From<Entry> for Decision {
    fn from(entry: Entry) -> Self {
        Self {
            at: seconds(entry.at),
            took_seconds: entry.took.as_secs_f64(),
            outcome: entry.outcome(),
            key: entry.key.into(),
            did: entry.did.into(),
        }
    }
}

/// Formats a time to the second, as the API does.
pub(super) fn seconds(at: jiff::Timestamp) -> String {
    format!("{at:.0}")
}
