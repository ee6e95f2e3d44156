//! The candidacy of this process in a coordinated election: a LeaseCandidate with its versions.
//!
//! The API server selects the leader and writes the identity of that candidate into the Lease. Before the selection, it
//! pings the candidates and ignores those that do not renew their candidacy in time.
//! Upstream: client-go tools/leaderelection, LeaseCandidate.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use jiff::Timestamp;
use kube::core::Request;
use kube::core::params::{GetParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::ElectionConfig;
use super::store::{LeaseError, exchange, failed};
use crate::events::WallClock;

/// Interval between checks for a ping. The API server waits five seconds for the renewal.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between renewals without a ping.
const RENEW_INTERVAL: Duration = Duration::from_secs(5 * 60);
/// Interval between log lines about an error that does not change.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

const API_VERSION: &str = "coordination.k8s.io/v1beta1";
/// The strategy by which the API server selects the leader: the candidate with the oldest emulation version.
pub(super) const STRATEGY: &str = "OldestEmulationVersion";

/// The versions of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// Version of the binary, such as `1.37.0`.
    pub binary: String,
    /// Version whose behaviour is emulated.
    pub emulation: String,
}

/// The LeaseCandidate of a process.
pub trait CandidateStore: Send + Sync {
    /// Reads the LeaseCandidate.
    fn get(&self) -> BoxFuture<'_, Result<Value, LeaseError>>;

    /// Creates the LeaseCandidate.
    fn create(&self, candidate: Value) -> BoxFuture<'_, Result<(), LeaseError>>;

    /// Replaces the LeaseCandidate if its resource version is still that of `candidate`.
    fn update(&self, candidate: Value) -> BoxFuture<'_, Result<(), LeaseError>>;
}

/// A LeaseCandidate on the API server.
struct ApiCandidate {
    client: kube::Client,
    name: String,
    requests: Request,
}

impl ApiCandidate {
    async fn send<T: serde::de::DeserializeOwned>(
        &self,
        request: Result<http::Request<Vec<u8>>, LeaseError>,
    ) -> Result<T, LeaseError> {
        exchange(&self.client, request?).await
    }
}

impl CandidateStore for ApiCandidate {
    fn get(&self) -> BoxFuture<'_, Result<Value, LeaseError>> {
        self.send(self.requests.get(&self.name, &GetParams::default()).map_err(failed)).boxed()
    }

    fn create(&self, candidate: Value) -> BoxFuture<'_, Result<(), LeaseError>> {
        let body = candidate.to_string().into_bytes();
        let request = self.requests.create(&PostParams::default(), body).map_err(failed);
        async move { self.send::<Value>(request).await.map(drop) }.boxed()
    }

    fn update(&self, candidate: Value) -> BoxFuture<'_, Result<(), LeaseError>> {
        let body = candidate.to_string().into_bytes();
        let request = self.requests.replace(&self.name, &PostParams::default(), body).map_err(failed);
        async move { self.send::<Value>(request).await.map(drop) }.boxed()
    }
}

/// The next step of a candidacy.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create,
    Renew,
    Wait,
}

/// Decides on the next step; `age` is the time since the last renewal by this process, if there was one.
fn next_step(candidate: Option<&Value>, age: Option<Duration>) -> Step {
    let Some(candidate) = candidate else { return Step::Create };
    let time = |field: &str| candidate["spec"][field].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let is_pinged = time("pingTime").is_some_and(|pinged| time("renewTime").is_none_or(|renewed| pinged > renewed));
    let is_due = age.is_none_or(|age| age >= RENEW_INTERVAL);
    if is_pinged || is_due { Step::Renew } else { Step::Wait }
}

/// Maintains the LeaseCandidate of this process.
pub struct Candidacy {
    store: Arc<dyn CandidateStore>,
    identity: String,
    namespace: String,
    lease: String,
    versions: Versions,
    wall_clock: WallClock,
    /// The last renewal by this process.
    renewed: Option<Instant>,
}

impl Candidacy {
    /// Creates the candidacy of a process with these versions.
    ///
    /// The LeaseCandidate is in the namespace of the Lease, because the API server selects among the candidates of one
    /// namespace.
    ///
    /// Differs from upstream: cmd/kube-controller-manager/app, Run, whose candidates are always in kube-system. See
    /// docs/differences.md.
    pub(crate) fn new(client: kube::Client, config: &ElectionConfig, versions: Versions) -> Self {
        let path = format!("/apis/{API_VERSION}/namespaces/{}/leasecandidates", config.namespace);
        let store = ApiCandidate { client, name: config.identity.clone(), requests: Request::new(path) };
        Self::with_store(Arc::new(store), config, versions)
    }

    fn with_store(store: Arc<dyn CandidateStore>, config: &ElectionConfig, versions: Versions) -> Self {
        Self {
            store,
            identity: config.identity.clone(),
            namespace: config.namespace.clone(),
            lease: config.name.clone(),
            versions,
            wall_clock: Arc::new(Timestamp::now),
            renewed: None,
        }
    }

    /// Creates the LeaseCandidate, and renews it after each ping and every five minutes, until the future is dropped.
    /// Errors are logged and retried.
    pub(crate) async fn run(mut self) {
        let mut reported = ErrorLog::default();
        loop {
            let result = self.renew_if_due().await;
            if let Some(error) = reported.error_to_log(&result) {
                tracing::warn!(candidate = self.identity, error, "the LeaseCandidate was not created or renewed");
            }
            sleep(PING_INTERVAL).await;
        }
    }

    /// Creates or renews the candidacy, if that is due.
    async fn renew_if_due(&mut self) -> Result<(), LeaseError> {
        let candidate = match with_timeout(self.store.get()).await {
            Ok(candidate) => Some(candidate),
            Err(LeaseError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let started = Instant::now();
        let now = format!("{:.6}", (self.wall_clock)());
        match (next_step(candidate.as_ref(), self.renewed.map(|renewed| renewed.elapsed())), candidate) {
            (Step::Wait, _) => return Ok(()),
            (_, Some(mut candidate)) => {
                candidate["spec"]["renewTime"] = now.into();
                with_timeout(self.store.update(candidate)).await?;
            }
            (_, None) => with_timeout(self.store.create(self.candidate(&now))).await?,
        }
        self.renewed = Some(started);
        Ok(())
    }

    fn candidate(&self, now: &str) -> Value {
        json!({
            "apiVersion": API_VERSION, "kind": "LeaseCandidate",
            "metadata": {"name": self.identity, "namespace": self.namespace},
            "spec": {
                "leaseName": self.lease, "strategy": STRATEGY, "renewTime": now,
                "binaryVersion": self.versions.binary, "emulationVersion": self.versions.emulation,
            },
        })
    }
}

/// The last logged error: one that recurs every second is not logged each time.
#[derive(Default)]
struct ErrorLog {
    text: Option<String>,
    at: Option<Instant>,
}

impl ErrorLog {
    /// Returns the error to log: one that differs from the previous attempt's, or was last logged [`REPORT_INTERVAL`]
    /// ago.
    fn error_to_log(&mut self, result: &Result<(), LeaseError>) -> Option<&str> {
        let text = result.as_ref().err().map(ToString::to_string);
        let is_repeated = self.text == text && self.at.is_some_and(|at| at.elapsed() < REPORT_INTERVAL);
        self.text = text;
        if is_repeated {
            return None;
        }
        self.at = Some(Instant::now());
        self.text.as_deref()
    }
}

async fn with_timeout<T>(request: BoxFuture<'_, Result<T, LeaseError>>) -> Result<T, LeaseError> {
    let timed_out = |_| Err(LeaseError::Failed(format!("no response within {REQUEST_TIMEOUT:?}")));
    timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(timed_out)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Server {
        candidate: Mutex<Option<Value>>,
        writes: Mutex<Vec<&'static str>>,
    }

    impl CandidateStore for Server {
        fn get(&self) -> BoxFuture<'_, Result<Value, LeaseError>> {
            let candidate = self.candidate.lock().unwrap().clone();
            async { candidate.ok_or(LeaseError::NotFound) }.boxed()
        }

        fn create(&self, candidate: Value) -> BoxFuture<'_, Result<(), LeaseError>> {
            self.writes.lock().unwrap().push("create");
            *self.candidate.lock().unwrap() = Some(candidate);
            async { Ok(()) }.boxed()
        }

        fn update(&self, candidate: Value) -> BoxFuture<'_, Result<(), LeaseError>> {
            self.writes.lock().unwrap().push("update");
            *self.candidate.lock().unwrap() = Some(candidate);
            async { Ok(()) }.boxed()
        }
    }

    #[test]
    fn candidacy_is_renewed_when_it_is_pinged_or_old() {
        let candidate =
            |renewed: &str, pinged: Option<&str>| json!({"spec": {"renewTime": renewed, "pingTime": pinged}});
        let (early, late) = ("2026-01-01T00:00:00.000001Z", "2026-01-01T00:00:01.000000Z");
        let recently = Some(Duration::from_secs(10));
        for (name, candidate, age, expected) in [
            ("missing", None, recently, Step::Create),
            ("not renewed by this process yet", Some(candidate(early, None)), None, Step::Renew),
            ("renewed", Some(candidate(early, None)), recently, Step::Wait),
            ("pinged", Some(candidate(early, Some(late))), recently, Step::Renew),
            ("renewed after the ping", Some(candidate(late, Some(early))), recently, Step::Wait),
            ("old", Some(candidate(early, None)), Some(Duration::from_secs(300)), Step::Renew),
            ("time is unreadable", Some(candidate("x", Some(early))), recently, Step::Renew),
        ] {
            assert_eq!(next_step(candidate.as_ref(), age), expected, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn persistent_error_is_reported_once_a_minute_and_a_new_one_immediately() {
        let mut reported = ErrorLog::default();
        let failed = |text: &str| Err(LeaseError::Failed(text.to_owned()));
        let mut lines = 0;
        for _ in 0..120 {
            lines += usize::from(reported.error_to_log(&failed("forbidden")).is_some());
            tokio::time::advance(PING_INTERVAL).await;
        }
        assert_eq!(lines, 2, "an error of two minutes");
        assert!(reported.error_to_log(&failed("timeout")).is_some_and(|error| error.ends_with("timeout")));
        assert_eq!(reported.error_to_log(&Ok(())), None);
        assert!(reported.error_to_log(&failed("timeout")).is_some(), "it had succeeded in between");
    }

    #[test]
    fn logged_error_names_no_lease_because_the_object_is_a_candidate() {
        for (error, text) in [
            (LeaseError::NotFound, "not found"),
            (LeaseError::Conflict("modified".to_owned()), "changed by another process: modified"),
            (LeaseError::Failed("forbidden".to_owned()), "the request failed: forbidden"),
        ] {
            assert_eq!(ErrorLog::default().error_to_log(&Err(error)), Some(text));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn candidate_is_created_and_renewed_within_seconds_of_a_ping() {
        let server = Arc::new(Server::default());
        let versions = Versions { binary: "1.37.0".to_owned(), emulation: "1.36.0".to_owned() };
        let wall_clock = Timestamp::from_second(1_000_000).expect("in range");
        let config = ElectionConfig::new("elections", "kube-controller-manager", "us");
        let mut candidacy = Candidacy::with_store(server.clone(), &config, versions);
        let start = Instant::now();
        candidacy.wall_clock = Arc::new(move || wall_clock + start.elapsed());
        let running = tokio::spawn(candidacy.run());
        sleep(Duration::from_secs(10)).await;
        let created = server.candidate.lock().unwrap().clone().expect("it was created");
        assert_eq!(created["metadata"], json!({"name": "us", "namespace": "elections"}));
        let spec = &created["spec"];
        assert_eq!((&spec["leaseName"], &spec["strategy"]), (&json!("kube-controller-manager"), &json!(STRATEGY)));
        assert_eq!((&spec["binaryVersion"], &spec["emulationVersion"]), (&json!("1.37.0"), &json!("1.36.0")));
        assert_eq!(*server.writes.lock().unwrap(), ["create"]);
        let pinged = (wall_clock + Duration::from_secs(10)).to_string();
        server.candidate.lock().unwrap().as_mut().expect("it exists")["spec"]["pingTime"] = pinged.into();
        sleep(Duration::from_secs(3)).await;
        assert_eq!(*server.writes.lock().unwrap(), ["create", "update"]);
        sleep(RENEW_INTERVAL + Duration::from_secs(2)).await;
        assert_eq!(*server.writes.lock().unwrap(), ["create", "update", "update"]);
        running.abort();
    }
}
