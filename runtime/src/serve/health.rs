//! Health checks and their pages. Upstream: apiserver, server/healthz.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Mutex;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::lock::lock;
use crate::metrics::{Exposition, Format, Restrictions, StartTime, exposition};
use crate::text::{query, quoted};

/// The result of a check; `None` if it does not apply now, so that it is not listed.
pub type Outcome = Option<Result<(), String>>;

/// A named check. It must not block.
pub struct Check {
    name: String,
    run: Box<dyn Fn() -> Outcome + Send + Sync>,
}

impl Check {
    /// Creates a check that runs `run` for each request.
    pub fn new(name: impl Into<String>, run: impl Fn() -> Outcome + Send + Sync + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// Runs the check.
    pub(crate) fn outcome(&self) -> Outcome {
        (self.run)()
    }
}

/// The pages of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// `/healthz`; upstream has only this one.
    Health,
    /// `/livez`.
    Live,
    /// `/readyz`.
    Ready,
}

impl Probe {
    /// All pages.
    pub const ALL: [Self; 3] = [Self::Health, Self::Live, Self::Ready];

    /// Returns the page's name, which is also its path after a slash.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Health => "healthz",
            Self::Live => "livez",
            Self::Ready => "readyz",
        }
    }
}

/// The checks of a process and the record of their results (`/metrics/slis`).
///
/// `/healthz` and `/livez` have the same checks. `/readyz` also has the checks that only report whether the process
/// could take over; their failure must not cause a restart.
#[derive(Default)]
pub struct Health {
    checks: Vec<Check>,
    /// Additional checks of `/readyz`.
    ready_only: Vec<Check>,
    record: Mutex<Record>,
    /// The restrictions on the metrics of the record.
    restrictions: Restrictions,
}

/// The response of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) healthy: bool,
    pub(super) text: String,
}

impl Health {
    /// Creates the pages from the checks of all pages, in their order, and the checks of `/readyz` only.
    #[must_use]
    pub fn new(checks: Vec<Check>, ready_only: Vec<Check>) -> Self {
        Self { checks, ready_only, ..Self::default() }
    }

    /// Restricts the metrics of the record.
    #[must_use]
    pub fn restricted(self, restrictions: Restrictions) -> Self {
        Self { restrictions, ..self }
    }

    /// Returns the names of the checks of a page.
    #[cfg(test)]
    pub(crate) fn names(&self, probe: Probe) -> Vec<&str> {
        let ready_only = self.ready_only.iter().filter(|_| probe == Probe::Ready);
        self.checks.iter().chain(ready_only).map(|check| check.name.as_str()).collect()
    }

    /// Runs the checks that apply now; returns a ping if there are none.
    fn run_checks(&self, probe: Probe) -> Vec<(&str, Result<(), String>)> {
        let ready_only = self.ready_only.iter().filter(|_| probe == Probe::Ready);
        let mut found: Vec<_> = self
            .checks
            .iter()
            .chain(ready_only)
            .filter_map(|check| check.outcome().map(|outcome| (check.name.as_str(), outcome)))
            .collect();
        if found.is_empty() {
            found.push(("ping", Ok(())));
        }
        found
    }

    /// Returns the page of all checks for a query: `verbose`, and `exclude` any number of times.
    pub(super) fn page(&self, probe: Probe, query_text: &str) -> Page {
        let pairs = query(query_text);
        let mut unknown: BTreeSet<&str> =
            pairs.iter().filter(|(key, _)| key == "exclude").map(|(_, value)| value.as_str()).collect();
        let excluded = unknown.clone();
        let (mut text, mut failed) = (String::new(), Vec::new());
        for (name, outcome) in self.run_checks(probe) {
            if excluded.contains(name) {
                unknown.remove(name);
                let _ = writeln!(text, "[+]{name} excluded: ok");
                continue;
            }
            self.record().observe(name, probe, outcome.is_ok());
            match outcome {
                Ok(()) => {
                    let _ = writeln!(text, "[+]{name} ok");
                }
                // The page needs no authorization, so the reason is only logged.
                Err(reason) => {
                    let _ = writeln!(text, "[-]{name} failed: reason withheld");
                    failed.push(format!("{name}: {reason}"));
                }
            }
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.iter().map(|name| quoted(name)).collect();
            let names = names.join(",");
            let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {names}");
        }
        let page = probe.name();
        if !failed.is_empty() {
            tracing::warn!(failed = failed.join("; "), "{page} check failed");
            return Page { healthy: false, text: format!("{text}{page} check failed\n") };
        }
        let verbose = pairs.iter().any(|(key, _)| key == "verbose");
        Page { healthy: true, text: if verbose { format!("{text}{page} check passed\n") } else { "ok".into() } }
    }

    /// Returns the page of one check, with the reason of a failure; `None` if there is no such check now.
    pub(super) fn single(&self, probe: Probe, name: &str) -> Option<Page> {
        let (_, outcome) = self.run_checks(probe).into_iter().find(|(known, _)| *known == name)?;
        Some(match outcome {
            Ok(()) => Page { healthy: true, text: "ok".into() },
            Err(reason) => Page { healthy: false, text: format!("internal server error: {reason}\n") },
        })
    }

    /// Returns the recorded results as metrics in a format.
    pub(super) fn slis(&self, format: Format) -> Exposition {
        exposition(&self.record().registry, &self.restrictions, format)
    }

    /// Resets the recorded results.
    pub(super) fn reset_slis(&self) {
        let record = self.record();
        record.last.clear();
        record.total.clear();
    }

    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        lock(&self.record)
    }
}

type Labels<const N: usize> = [(&'static str, String); N];

/// Metrics of health checks. Upstream: component-base, metrics/prometheus/slis.
struct Record {
    registry: Registry,
    /// The last result of each check.
    last: Family<Labels<2>, Gauge>,
    total: Family<Labels<3>, Counter>,
}

impl Default for Record {
    fn default() -> Self {
        let (last, total) = (Family::default(), Family::default());
        let mut registry = Registry::default();
        registry.register(
            "kubernetes_healthcheck",
            "Result of a single health check: 1 passed, 0 failed",
            last.clone(),
        );
        registry.register("kubernetes_healthchecks", "Results of all health checks", total.clone());
        registry.register_collector(Box::new(StartTime));
        Self { registry, last, total }
    }
}

impl Record {
    fn observe(&self, name: &str, probe: Probe, passed: bool) {
        let status = if passed { "success" } else { "error" };
        let labels = || [("name", name.to_owned()), ("type", probe.name().to_owned())];
        self.last.get_or_create_owned(&labels()).set(passed.into());
        let [name, probe] = labels();
        self.total.get_or_create_owned(&[name, probe, ("status", status.to_owned())]).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn passes(name: &str) -> Check {
        Check::new(name, || Some(Ok(())))
    }

    fn fails(name: &str) -> Check {
        Check::new(name, || Some(Err("the secret reason".into())))
    }

    #[test]
    fn health_pages_equal_those_of_upstream() {
        let health = |checks| Health::new(checks, Vec::new());
        for (checks, query_text, healthy, text) in [
            (vec![], "", true, "ok"),
            (vec![], "verbose", true, "[+]ping ok\nhealthz check passed\n"),
            (vec![passes("a"), passes("b")], "", true, "ok"),
            (vec![passes("a"), passes("b")], "verbose=1", true, "[+]a ok\n[+]b ok\nhealthz check passed\n"),
            (vec![passes("a"), fails("b")], "", false, "[+]a ok\n[-]b failed: reason withheld\nhealthz check failed\n"),
            (vec![passes("a"), fails("b")], "exclude=b", true, "ok"),
            (
                vec![passes("a"), fails("b")],
                "verbose&exclude=b",
                true,
                "[+]a ok\n[+]b excluded: ok\nhealthz check passed\n",
            ),
            (
                vec![passes("a")],
                "verbose&exclude=z&exclude=c",
                true,
                "[+]a ok\nwarn: some health checks cannot be excluded: no matches for \"c\",\"z\"\nhealthz check passed\n",
            ),
        ] {
            let page = health(checks).page(Probe::Health, query_text);
            assert_eq!(page, Page { healthy, text: text.into() }, "{query_text:?}");
        }
    }

    #[test]
    fn single_check_returns_its_reason() {
        let health = Health::new(vec![passes("a"), fails("b")], vec![passes("stores")]);
        assert_eq!(health.single(Probe::Health, "a"), Some(Page { healthy: true, text: "ok".into() }));
        let failed = health.single(Probe::Health, "b").expect("known");
        assert_eq!((failed.healthy, failed.text.as_str()), (false, "internal server error: the secret reason\n"));
        assert_eq!(health.single(Probe::Health, "stores"), None, "only /readyz has it");
        assert!(health.single(Probe::Ready, "stores").is_some());
        assert_eq!(health.single(Probe::Health, "none"), None);
    }

    #[test]
    fn check_that_does_not_apply_is_not_listed() {
        let applies = Arc::new(AtomicBool::new(false));
        let seen = applies.clone();
        let check = Check::new("late", move || seen.load(Ordering::Relaxed).then_some(Ok(())));
        let health = Health::new(vec![passes("a"), check], Vec::new());
        assert_eq!(health.page(Probe::Live, "verbose").text, "[+]a ok\nlivez check passed\n");
        applies.store(true, Ordering::Relaxed);
        assert_eq!(health.page(Probe::Live, "verbose").text, "[+]a ok\n[+]late ok\nlivez check passed\n");
    }

    #[test]
    fn results_are_recorded_until_reset() {
        let health = Health::new(vec![passes("a"), fails("b")], Vec::new());
        let slis = || String::from_utf8(health.slis(Format::default()).body).expect("a text");
        let has_start = || slis().lines().any(|line| line.starts_with("process_start_time_seconds "));
        assert!(has_start(), "{}", slis());
        health.page(Probe::Health, "");
        health.page(Probe::Health, "exclude=b");
        for line in [
            "# TYPE kubernetes_healthchecks_total counter",
            "kubernetes_healthcheck{name=\"a\",type=\"healthz\"} 1",
            "kubernetes_healthcheck{name=\"b\",type=\"healthz\"} 0",
            "kubernetes_healthchecks_total{name=\"a\",type=\"healthz\",status=\"success\"} 2",
            "kubernetes_healthchecks_total{name=\"b\",type=\"healthz\",status=\"error\"} 1",
        ] {
            assert!(slis().lines().any(|own| own == line), "{line} is not in\n{}", slis());
        }
        health.reset_slis();
        assert!(!slis().contains("name=") && has_start());
    }
}
