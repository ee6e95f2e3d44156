//! Metrics of authentication and authorization at the HTTPS port, under upstream's names.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::authorize::Denied;
use super::user::User;
use crate::lock::lock;
use crate::metrics::{Counts, Gauges, Histograms, Metrics, plain_counters, powers_of_two};

/// Upper bounds of histograms for which upstream sets none (prometheus, DefBuckets).
const DEFAULT_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counts requests by the results of their authentication and authorization: `authentication_*`, `authorization_*`,
/// `authenticated_user_requests`. Upstream: apiserver, endpoints/filters.
pub(super) struct RequestMetrics {
    attempts: Arc<Attempts>,
    authentication: Histograms<1>,
    authorizations: Counts<1>,
    authorization: Histograms<1>,
}

/// The counters whose names do not end in `_total`, by their label.
#[derive(Debug, Default)]
struct Attempts {
    results: Mutex<BTreeMap<&'static str, u64>>,
    users: Mutex<BTreeMap<String, u64>>,
}

/// Collects the counters whose names do not end in `_total`.
#[derive(Debug)]
struct AttemptsCollector(Arc<Attempts>);

impl Collector for AttemptsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let results = lock(&self.0.results).clone();
        let results = results.into_iter().map(|(result, count)| ([("result", result.to_owned())], count as f64));
        plain_counters(&mut encoder, "authentication_attempts", "Counter of authenticated attempts.", results)?;
        let users = lock(&self.0.users).clone();
        let users = users.into_iter().map(|(user, count)| ([("username", user)], count as f64));
        let help = "Counter of authenticated requests broken out by username.";
        plain_counters(&mut encoder, "authenticated_user_requests", help, users)
    }
}

impl RequestMetrics {
    /// Adds the families to a registry.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let attempts = Arc::<Attempts>::default();
        metrics.collect(AttemptsCollector(attempts.clone()));
        let bounds = || powers_of_two(0.001, 15);
        let by_result = |what: &str| format!("{what} duration in seconds broken out by result.");
        Self {
            attempts,
            authentication: metrics.histograms(
                "authentication_duration_seconds",
                &by_result("Authentication"),
                bounds(),
            ),
            authorizations: metrics.counts("authorization_attempts", "Counter of authorization attempts by result"),
            authorization: metrics.histograms("authorization_duration_seconds", &by_result("Authorization"), bounds()),
        }
    }

    /// Records the authentication of a request.
    pub(super) fn authenticated<E>(&self, user: &Result<User, E>, started: Instant) {
        let result = if user.is_ok() { "success" } else { "error" };
        *lock(&self.attempts.results).entry(result).or_default() += 1;
        if let Ok(user) = user {
            *lock(&self.attempts.users).entry(user_class(&user.name).to_owned()).or_default() += 1;
        }
        self.authentication.observe([("result", result.to_owned())], started.elapsed().as_secs_f64());
    }

    /// Records the authorization of a request. A refusal counts as `no-opinion`, because RBAC never denies explicitly.
    pub(super) fn authorized(&self, decision: &Result<(), Denied>, started: Instant) {
        let result = match decision {
            Ok(()) => "allowed",
            Err(Denied::Forbidden(_)) => "no-opinion",
            Err(Denied::Failed(_)) => "error",
        };
        self.authorizations.add([("result", result.to_owned())]);
        self.authorization.observe([("result", result.to_owned())], started.elapsed().as_secs_f64());
    }
}

/// Returns one of few classes for the name of any user, so that the number of series is limited. Upstream: apiserver,
/// endpoints/filters, compressUsername.
fn user_class(name: &str) -> &str {
    match name {
        "admin" | "client" | "kube_proxy" | "kubelet" | "system:serviceaccount:kube-system:default" => name,
        _ if name.contains('@') => "email_id",
        _ => "other",
    }
}

/// Counts requests with a bearer token: `authentication_token_cache_*`.
pub(super) struct TokenCacheMetrics {
    requests: Counts<1>,
    seconds: Histograms<1>,
    fetches: Counts<1>,
    active: Gauges<1>,
}

impl TokenCacheMetrics {
    /// Adds the families to a registry.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let name = |family: &str| format!("authentication_token_cache_{family}");
        Self {
            requests: metrics.counts(&name("request"), "Bearer tokens by whether their review was cached"),
            seconds: metrics.histograms(
                &name("request_duration_seconds"),
                "Time to authenticate a bearer token in seconds",
                DEFAULT_SECONDS.to_vec(),
            ),
            fetches: metrics.counts(&name("fetch"), "TokenReviews by their success"),
            active: metrics
                .gauges(&name("active_fetch_count"), "TokenReviews in flight, and requests that wait for one"),
        }
    }

    /// Records a request with a bearer token, whatever the result.
    pub(super) fn finished(&self, hit: bool, started: Instant) {
        let status = || [("status", if hit { "hit" } else { "miss" }.to_owned())];
        self.requests.add(status());
        self.seconds.observe(status(), started.elapsed().as_secs_f64());
    }

    /// Records the end of a TokenReview.
    pub(super) fn fetched(&self, ok: bool) {
        self.fetches.add([("status", if ok { "ok" } else { "error" }.to_owned())]);
    }

    /// Counts a TokenReview as in flight until the guard is dropped.
    pub(super) fn in_flight(&self) -> Active<'_> {
        Active::begin(&self.active, "in_flight")
    }

    /// Counts a request as waiting until the guard is dropped.
    pub(super) fn blocked(&self) -> Active<'_> {
        Active::begin(&self.active, "blocked")
    }
}

/// A guard that is counted by a gauge while it exists.
pub(super) struct Active<'a> {
    gauge: &'a Gauges<1>,
    status: &'static str,
}

impl<'a> Active<'a> {
    fn begin(gauge: &'a Gauges<1>, status: &'static str) -> Self {
        gauge.change([("status", status.to_owned())], 1.0);
        Self { gauge, status }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.gauge.change([("status", self.status.to_owned())], -1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_result_and_class_of_user() {
        let metrics = Metrics::default();
        let requests = RequestMetrics::new(&metrics);
        let user = |name: &str| Ok::<_, ()>(User { name: name.into(), ..User::default() });
        for name in ["admin", "ann@example.com", "system:serviceaccount:a:b", "system:anonymous"] {
            requests.authenticated(&user(name), Instant::now());
        }
        requests.authenticated(&Err::<User, _>(()), Instant::now());
        requests.authorized(&Ok(()), Instant::now());
        requests.authorized(&Err(Denied::Forbidden(String::new())), Instant::now());
        requests.authorized(&Err(Denied::Failed(String::new())), Instant::now());
        let text = metrics.text();
        for line in [
            "# TYPE authentication_attempts counter",
            "authentication_attempts{result=\"error\"} 1.0",
            "authentication_attempts{result=\"success\"} 4.0",
            "authenticated_user_requests{username=\"admin\"} 1.0",
            "authenticated_user_requests{username=\"email_id\"} 1.0",
            "authenticated_user_requests{username=\"other\"} 2.0",
            "authentication_duration_seconds_count{result=\"success\"} 4",
            "authorization_attempts_total{result=\"allowed\"} 1",
            "authorization_attempts_total{result=\"no-opinion\"} 1",
            "authorization_duration_seconds_count{result=\"error\"} 1",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn tokens_are_counted_under_upstreams_names() {
        let metrics = Metrics::default();
        let tokens = TokenCacheMetrics::new(&metrics);
        tokens.finished(true, Instant::now());
        tokens.fetched(false);
        let blocked = tokens.blocked();
        drop(tokens.in_flight());
        let text = metrics.text();
        for line in [
            "authentication_token_cache_request_total{status=\"hit\"} 1",
            "authentication_token_cache_fetch_total{status=\"error\"} 1",
            "authentication_token_cache_active_fetch_count{status=\"blocked\"} 1.0",
            "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0.0",
            "# TYPE authentication_token_cache_request_duration_seconds histogram",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
        drop(blocked);
    }
}
