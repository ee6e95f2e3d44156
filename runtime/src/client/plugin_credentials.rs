//! The credentials of an exec plugin, renewed in the background.
//!
//! The Lease and all controllers share them. Token and client certificate come from the same run of the plugin, so that
//! both are renewed together. While they are valid, no request waits for the plugin, which may be slow or hang.
//! Upstream runs the plugin when credentials have expired or were refused, and all requests wait for the plugin.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::exec::{Issued, MAX_RUN_TIME, Plugin};
use crate::lock::lock;

/// Fraction of the lifetime that is left when credentials are renewed; at most [`MAX_RENEW_BEFORE`] is left.
const RENEW_FRACTION: f64 = 0.2;
/// Maximum time between a renewal and the expiry of the credentials.
const MAX_RENEW_BEFORE: Duration = Duration::from_secs(300);
/// Age at which a certificate without an expiry time is renewed.
const CERTIFICATE_AGE: Duration = Duration::from_secs(600);
/// Age at which credentials are renewed if they had already expired when they were issued.
const EXPIRED_AGE: Duration = Duration::from_secs(60);
/// Minimum time from the end of a run to the next one, if the run failed while older credentials are still valid, or if
/// the API server has refused credentials that were valid when they were issued: a refusal may have other causes.
const PAUSE: Duration = Duration::from_secs(10);
/// Minimum time between two runs.
const SHORT_PAUSE: Duration = Duration::from_secs(1);
/// Time for the start of the program, in addition to [`MAX_RUN_TIME`]. The start hangs if the plugin's file system
/// hangs.
const START_TIME: Duration = Duration::from_secs(5);

/// The credentials of an exec plugin.
pub(super) struct PluginCredentials {
    plugin: Arc<Plugin>,
    /// Runs the renewals: the runtime of the control lane, because a controller may block the threads of the other one.
    runtime: Handle,
    state: Mutex<State>,
    /// Held during a renewal.
    renewing: Arc<tokio::sync::Mutex<()>>,
    renewed: Arc<Notify>,
}

struct State {
    issued: Arc<Issued>,
    /// `None`: the credentials are valid until the API server refuses them.
    validity: Option<Validity>,
    /// The end of the last renewal.
    renewed_at: Option<Instant>,
    /// The reason why the last renewal failed.
    problem: Option<String>,
}

#[derive(Clone, Copy)]
struct Validity {
    renew_at: Instant,
    /// `None`: the credentials are used until the API server refuses them.
    expires_at: Option<Instant>,
}

impl Validity {
    fn of(issued: &Issued) -> Option<Self> {
        let now = Instant::now();
        let Some(expires) = issued.expires else {
            let has_certificate = issued.identity.is_some();
            return has_certificate.then_some(Self { renew_at: now + CERTIFICATE_AGE, expires_at: None });
        };
        let left = Duration::try_from(expires.duration_since(Timestamp::now())).unwrap_or_default();
        if left < SHORT_PAUSE {
            // This machine's clock may differ from the API server's, which determines the validity. Upstream uses such
            // credentials, too.
            return Some(Self { renew_at: now + EXPIRED_AGE, expires_at: None });
        }
        let before = left.mul_f64(RENEW_FRACTION).min(MAX_RENEW_BEFORE);
        Some(Self { renew_at: now + (left - before), expires_at: Some(now + left) })
    }
}

/// The usability of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freshness {
    /// The credentials can be used.
    Fresh,
    /// The credentials can be used, and should be renewed.
    Aging,
    /// The credentials cannot be used.
    Expired,
}

impl State {
    fn new(issued: Issued) -> Self {
        Self { validity: Validity::of(&issued), issued: Arc::new(issued), renewed_at: None, problem: None }
    }

    fn freshness(&self) -> Freshness {
        let now = Instant::now();
        match self.validity {
            Some(Validity { expires_at: Some(expires_at), .. }) if expires_at <= now => Freshness::Expired,
            Some(Validity { renew_at, .. }) if renew_at <= now => Freshness::Aging,
            _ => Freshness::Fresh,
        }
    }

    /// Returns true if the credentials had expired when they were issued.
    fn was_expired(&self) -> bool {
        self.issued.expires.is_some() && self.validity.is_some_and(|validity| validity.expires_at.is_none())
    }

    /// Returns true if the last renewal ended less than `pause` ago.
    fn is_within(&self, pause: Duration) -> bool {
        self.renewed_at.is_some_and(|at| at.elapsed() < pause)
    }
}

impl PluginCredentials {
    /// Runs the plugin for the first time. Blocks the thread.
    ///
    /// # Errors
    /// Same as [`Plugin::run`].
    pub(super) fn issue(plugin: Arc<Plugin>, runtime: Handle) -> Result<Arc<Self>, String> {
        let first = plugin.run()?;
        Ok(Self::with_first(plugin, runtime, first))
    }

    /// Creates the state with the credentials of the first run.
    fn with_first(plugin: Arc<Plugin>, runtime: Handle, first: Issued) -> Arc<Self> {
        let state = Mutex::new(State::new(first));
        Arc::new(Self { plugin, runtime, state, renewing: Arc::default(), renewed: Arc::default() })
    }

    /// Returns the notification of each successful renewal.
    pub(super) fn renewed(&self) -> Arc<Notify> {
        self.renewed.clone()
    }

    /// Returns the credentials of the last successful run. Starts a renewal if one is due.
    pub(super) fn latest(self: &Arc<Self>) -> Arc<Issued> {
        self.renew_if_due();
        lock(&self.state).issued.clone()
    }

    /// Returns the credentials for the next request. Waits for the plugin only if the credentials have expired.
    ///
    /// # Errors
    /// The reason why there are no valid credentials.
    pub(super) async fn usable(self: &Arc<Self>) -> Result<Arc<Issued>, String> {
        if self.renew_if_due() == Freshness::Expired {
            drop(self.renewing.lock().await);
        }
        let state = lock(&self.state);
        match (state.freshness(), &state.problem) {
            (Freshness::Fresh | Freshness::Aging, _) => Ok(state.issued.clone()),
            (Freshness::Expired, Some(problem)) => Err(problem.clone()),
            (Freshness::Expired, None) => Err("the credentials of the exec plugin have expired".to_owned()),
        }
    }

    /// Renews the credentials because the API server has refused them, unless they were renewed since the request, or
    /// the last renewal ended a moment ago.
    pub(super) fn refused(self: &Arc<Self>, used: &Arc<Issued>) {
        let state = lock(&self.state);
        if Arc::ptr_eq(&state.issued, used) {
            let pause = if state.was_expired() { SHORT_PAUSE } else { PAUSE };
            drop(state);
            self.renew(pause);
        }
    }

    /// Starts a renewal if one is due. Returns the freshness before it.
    fn renew_if_due(self: &Arc<Self>) -> Freshness {
        let state = lock(&self.state);
        let (freshness, has_failed) = (state.freshness(), state.problem.is_some());
        drop(state);
        match freshness {
            Freshness::Fresh => {}
            Freshness::Aging if has_failed => self.renew(PAUSE),
            Freshness::Aging | Freshness::Expired => self.renew(SHORT_PAUSE),
        }
        freshness
    }

    /// Starts a renewal, unless one is running or has ended less than `pause` ago.
    fn renew(self: &Arc<Self>, pause: Duration) {
        let Ok(renewing) = self.renewing.clone().try_lock_owned() else { return };
        if lock(&self.state).is_within(pause) {
            return;
        }
        let credentials = self.clone();
        // A cancelled request must not cancel the renewal for other requests.
        self.runtime.spawn(async move {
            credentials.run().await;
            drop(renewing);
        });
    }

    async fn run(&self) {
        let plugin = self.plugin.clone();
        let run = tokio::task::spawn_blocking(move || plugin.run());
        let result = match timeout(MAX_RUN_TIME + START_TIME, run).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("running the exec plugin panicked".to_owned()),
            Err(_) => Err("the exec plugin could not be started".to_owned()),
        };
        let mut state = lock(&self.state);
        match result {
            Ok(issued) => {
                *state = State::new(issued);
                if state.was_expired() {
                    warn!("the exec plugin returned expired credentials; using them, as the local clock may be wrong");
                } else {
                    info!("the exec plugin returned new credentials");
                }
                self.renewed.notify_one();
            }
            Err(problem) => {
                warn!(problem, "credentials not renewed");
                state.problem = Some(problem);
            }
        }
        state.renewed_at = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::join_all;
    use http::HeaderValue;

    use super::*;
    use crate::client::exec::ClientIdentity;
    use crate::client::exec::tests::script;

    const LIFETIME: Duration = Duration::from_secs(900);

    /// Returns credentials with a token that is valid for [`LIFETIME`] and that this script renews.
    fn credentials(renewal: &str, limit: Duration) -> Arc<PluginCredentials> {
        let first = Issued {
            token: Some(HeaderValue::from_static("Bearer first")),
            expires: Some(Timestamp::now() + LIFETIME),
            identity: None,
        };
        PluginCredentials::with_first(Arc::new(script(renewal, limit)), Handle::current(), first)
    }

    fn header(issued: &Issued) -> &str {
        issued.token.as_ref().expect("a token").to_str().expect("text")
    }

    /// Returns the header that the next request gets without waiting.
    fn immediate(credentials: &Arc<PluginCredentials>) -> Option<Result<String, String>> {
        let issued = credentials.usable().now_or_never();
        issued.map(|issued| issued.map(|issued| header(&issued).to_owned()))
    }

    fn is_renewing(credentials: &PluginCredentials) -> bool {
        credentials.renewing.try_lock().is_err()
    }

    async fn renewed(credentials: &PluginCredentials) {
        drop(credentials.renewing.lock().await);
    }

    const SECOND: &str = r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "second"}}'"#;
    const EXPIRED: &str = r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "second",
        "expirationTimestamp": "2001-01-01T00:00:00Z"}}'"#;

    #[tokio::test(start_paused = true)]
    async fn valid_token_is_used_while_the_plugin_hangs() {
        let credentials = credentials("exec sleep 1000", Duration::from_millis(300));
        assert_eq!(immediate(&credentials), Some(Ok("Bearer first".to_owned())));
        assert!(!is_renewing(&credentials), "it is fresh");
        tokio::time::advance(LIFETIME.mul_f64(0.9)).await;
        assert_eq!(immediate(&credentials), Some(Ok("Bearer first".to_owned())));
        assert!(is_renewing(&credentials), "the plugin is running");
        assert_eq!(immediate(&credentials), Some(Ok("Bearer first".to_owned())), "during the run");
        renewed(&credentials).await;
        assert_eq!(immediate(&credentials), Some(Ok("Bearer first".to_owned())), "after a failed run");
        assert!(!is_renewing(&credentials), "the next run follows after a pause");
        tokio::time::advance(LIFETIME).await;
        let problem = credentials.usable().await.err().expect("it has expired");
        assert!(problem.contains("did not end"), "{problem}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_valid_token_share_one_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = folder.path().join("runs");
        let credentials = credentials(&format!("echo run >> '{}'; {SECOND}", runs.display()), MAX_RUN_TIME);
        tokio::time::advance(LIFETIME).await;
        assert_eq!(immediate(&credentials), None);
        let issued = join_all((0..20).map(|_| credentials.usable())).await;
        assert!(issued.iter().all(|issued| issued.as_ref().is_ok_and(|issued| header(issued) == "Bearer second")));
        assert_eq!(std::fs::read_to_string(runs).expect("it ran"), "run\n");
        tokio::time::advance(LIFETIME * 1000).await;
        assert_eq!(immediate(&credentials), Some(Ok("Bearer second".to_owned())), "it does not expire");
    }

    /// Credentials look expired if the clock of this machine is fast.
    #[tokio::test(start_paused = true)]
    async fn token_that_had_expired_when_it_was_issued_is_used_without_a_run_per_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = folder.path().join("runs");
        let count = || std::fs::read_to_string(&runs).expect("it ran").lines().count();
        let credentials = credentials(&format!("echo run >> '{}'; {EXPIRED}", runs.display()), MAX_RUN_TIME);
        tokio::time::advance(LIFETIME).await;
        let issued = credentials.usable().await.expect("credentials");
        for second in 0..50 {
            assert_eq!(immediate(&credentials), Some(Ok("Bearer second".to_owned())), "after {second} s");
            assert!(!is_renewing(&credentials), "after {second} s");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(count(), 1);
        credentials.refused(&issued);
        renewed(&credentials).await;
        let issued = credentials.usable().await.expect("credentials");
        credentials.refused(&issued);
        assert!(!is_renewing(&credentials), "the plugin ran a moment ago");
        tokio::time::advance(SHORT_PAUSE).await;
        credentials.refused(&issued);
        renewed(&credentials).await;
        assert_eq!(count(), 3);
        tokio::time::advance(EXPIRED_AGE).await;
        assert_eq!(immediate(&credentials), Some(Ok("Bearer second".to_owned())), "renewed in the background");
        renewed(&credentials).await;
        assert_eq!(count(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_token_is_renewed_once() {
        let credentials = credentials(SECOND, MAX_RUN_TIME);
        let used = credentials.usable().await.expect("a token");
        credentials.refused(&used);
        renewed(&credentials).await;
        assert_eq!(immediate(&credentials), Some(Ok("Bearer second".to_owned())));
        credentials.refused(&used);
        assert!(!is_renewing(&credentials), "the refused token was replaced since");
        let second = credentials.latest();
        credentials.refused(&second);
        assert!(!is_renewing(&credentials), "the plugin ran a moment ago");
        tokio::time::advance(PAUSE).await;
        credentials.refused(&second);
        assert!(is_renewing(&credentials), "the plugin is running");
        renewed(&credentials).await;
    }

    #[tokio::test(start_paused = true)]
    async fn certificate_without_expiry_is_renewed_by_its_age() {
        let identity = ClientIdentity { certificate: "c".into(), key: "k".into() };
        let first = Issued { token: None, expires: None, identity: Some(identity) };
        let credentials =
            PluginCredentials::with_first(Arc::new(script(SECOND, MAX_RUN_TIME)), Handle::current(), first);
        tokio::time::advance(CERTIFICATE_AGE - SHORT_PAUSE).await;
        assert!(credentials.latest().identity.is_some());
        assert!(!is_renewing(&credentials), "it is fresh");
        tokio::time::advance(SHORT_PAUSE).await;
        assert!(credentials.latest().identity.is_some(), "used during its renewal");
        renewed(&credentials).await;
        assert_eq!(immediate(&credentials), Some(Ok("Bearer second".to_owned())));
    }
}
