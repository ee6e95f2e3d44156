//! Targets of a Service that AWS refused, security groups of targets that it did not allow to open, and the time of the
//! next attempt.
//!
//! An `ensure` returns them as warnings, and is repeated with backoff: each attempt costs calls for which all Services
//! share a limit.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Time until the next attempt after a new refusal. It doubles with each further one, up to the interval between two
/// checks for drift.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The refusals of one Service.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The refusals since the last `begin`.
    current: BTreeSet<String>,
    /// The refusals that the last successful `ensure` returned as warnings.
    reported: BTreeSet<String>,
    /// The time of that `ensure`.
    reported_at: Option<Instant>,
    /// Number of consecutive `ensure` calls with the same refusals.
    count: u32,
}

impl Refusals {
    /// Begins a call.
    pub(crate) fn begin(&mut self) {
        self.current.clear();
    }

    /// Adds refusals of the current call.
    pub(crate) fn add(&mut self, refusals: &[String]) {
        self.current.extend(refusals.iter().cloned());
    }

    /// Returns true if the last successful `ensure` has not reported one of the refusals of the current call, and was not
    /// made in the last minute: during a rollout, each new pod may be refused.
    pub(crate) fn is_new(&self, now: Instant) -> bool {
        let is_recent = self.reported_at.is_some_and(|at| now < at + FIRST_PAUSE);
        !is_recent && !self.current.is_subset(&self.reported)
    }

    /// Returns true if the last successful `ensure` reported refusals.
    pub(crate) fn is_reported(&self) -> bool {
        !self.reported.is_empty()
    }

    /// Returns the refusals of the current call as one text, if there are any.
    pub(crate) fn text(&self) -> Option<String> {
        let refusals: Vec<&str> = self.current.iter().map(String::as_str).collect();
        (!refusals.is_empty()).then(|| refusals.join("; "))
    }

    /// Ends an `ensure` that settled and returns the refusals as warnings. Returns the time until the next attempt, if
    /// there are refusals.
    pub(crate) fn report(&mut self, now: Instant) -> Option<Duration> {
        if !self.current.is_subset(&self.reported) {
            self.count = 0;
        }
        self.reported = std::mem::take(&mut self.current);
        if self.reported.is_empty() {
            self.reported_at = None;
            self.count = 0;
            return None;
        }
        self.reported_at = Some(now);
        let pause = FIRST_PAUSE * 2_u32.pow(self.count.min(16));
        self.count = self.count.saturating_add(1);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn pause_doubles_until_a_call_has_no_refusal_or_a_new_one() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let mut report = |texts: &[String]| {
            refusals.begin();
            refusals.add(texts);
            refusals.report(now).map(|pause| pause.as_secs())
        };
        let full = texts(&["sg-1 is full"]);
        assert_eq!([report(&full), report(&full), report(&full)], [Some(60), Some(120), Some(240)]);
        assert_eq!([report(&[]), report(&full)], [None, Some(60)]);
        let both = texts(&["sg-1 is full", "sg-2 is full"]);
        assert_eq!([report(&full), report(&both), report(&full)], [Some(120), Some(60), Some(120)]);
        assert!((0..40).filter_map(|_| report(&full)).all(|pause| pause >= 60), "no overflow");
    }

    #[test]
    fn refusal_is_new_until_an_ensure_reports_it() {
        let (mut refusals, mut now) = (Refusals::default(), Instant::now());
        assert!(!refusals.is_new(now));
        for (seconds, added, is_new, text) in [
            (0, &["sg-1 is full"][..], true, Some("sg-1 is full")),
            (60, &["sg-1 is full"], false, Some("sg-1 is full")),
            (59, &["sg-2 is full", "sg-1 is full"], false, Some("sg-1 is full; sg-2 is full")),
            (60, &["sg-3 is full"], true, Some("sg-3 is full")),
            (0, &[], false, None),
            (0, &["sg-1 is full"], true, Some("sg-1 is full")),
        ] {
            now += Duration::from_secs(seconds);
            refusals.begin();
            refusals.add(&texts(added));
            let found = (refusals.is_new(now), refusals.text());
            assert_eq!(found, (is_new, text.map(str::to_owned)), "{added:?} after {seconds} s");
            refusals.report(now);
        }
    }
}
