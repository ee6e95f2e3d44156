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
/// Maximum time until the next attempt for which a new refusal is left to that attempt.
const NEAR: Duration = Duration::from_secs(120);
/// Maximum number of refusals that a text contains.
const MAX_TEXTS: usize = 5;

/// The refusals of one Service.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// The refusals since the last `begin`.
    current: BTreeSet<String>,
    /// The refusals that the last successful `ensure` returned as warnings.
    reported: BTreeSet<String>,
    /// The time of that `ensure`, and the time of the next attempt.
    reported_at: Option<(Instant, Instant)>,
    /// The next `ensure` comes after a pause or a change: the last one settled with refusals.
    is_retry: bool,
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

    /// Returns true if the last successful `ensure` has not reported one of the refusals of the current call. During a
    /// rollout, each new pod may be refused: for a minute, refusals are left to the next attempt, unless that is much
    /// later because of an older refusal.
    pub(crate) fn is_new(&self, now: Instant) -> bool {
        let is_recent = self.reported_at.is_some_and(|(at, next)| now < at + FIRST_PAUSE && next <= now + NEAR);
        !is_recent && !self.current.is_subset(&self.reported)
    }

    /// Returns true if the last successful `ensure` reported refusals.
    pub(crate) fn is_reported(&self) -> bool {
        !self.reported.is_empty()
    }

    /// Returns true once if the last `ensure` settled and reported refusals.
    pub(crate) fn take_retry(&mut self) -> bool {
        std::mem::take(&mut self.is_retry)
    }

    /// Returns the refusals of the current call as one text, if there are any: the first of them, and the number of the
    /// others.
    pub(crate) fn text(&self) -> Option<String> {
        let mut refusals: Vec<String> = self.current.iter().take(MAX_TEXTS).cloned().collect();
        if self.current.len() > MAX_TEXTS {
            refusals.push(format!("{} more refusals", self.current.len() - MAX_TEXTS));
        }
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
        self.is_retry = true;
        let pause = FIRST_PAUSE * 2_u32.pow(self.count.min(16));
        self.count = self.count.saturating_add(1);
        self.reported_at = Some((now, now + pause));
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
    fn refusal_is_new_if_the_next_attempt_is_much_later() {
        let (mut refusals, start) = (Refusals::default(), Instant::now());
        for attempt in 0..5 {
            refusals.begin();
            refusals.add(&texts(&["sg-1 is full"]));
            let pause = refusals.report(start).unwrap_or_default();
            refusals.begin();
            refusals.add(&texts(&["sg-1 is full", "sg-2 is full"]));
            assert_eq!(refusals.is_new(start), attempt > 1, "the next attempt is in {pause:?}");
        }
        assert_eq!(refusals.report(start), Some(FIRST_PAUSE), "the new refusal is tried again soon");
        refusals.begin();
        refusals.add(&texts(&["sg-1 is full", "sg-3 is full"]));
        assert!(!refusals.is_new(start), "the next attempt is soon");
    }

    #[test]
    fn text_contains_only_some_of_many_refusals() {
        let mut refusals = Refusals::default();
        refusals.add(&texts(&["a", "b", "c", "d", "e"]));
        assert_eq!(refusals.text().as_deref(), Some("a; b; c; d; e"));
        refusals.add(&texts(&["f", "g"]));
        assert_eq!(refusals.text().as_deref(), Some("a; b; c; d; e; 2 more refusals"));
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
