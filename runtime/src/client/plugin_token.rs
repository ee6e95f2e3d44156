//! The bearer token of an exec plugin, renewed in the background.
//!
//! The Lease and all controllers share the token. While it is valid, no request waits for the plugin, which may be slow or
//! hang. Upstream runs the plugin when the token has expired or was refused, and all requests wait for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::exec::{Issued, MAX_RUN_TIME, Plugin};
use crate::lock::lock;

/// A token is renewed when this fraction of its lifetime is left, but no sooner than [`RENEW_AT_MOST_BEFORE`] its end.
const RENEW_BEFORE: f64 = 0.2;
const RENEW_AT_MOST_BEFORE: Duration = Duration::from_secs(300);
/// Minimum time between two runs while there is a token: a refusal may have other causes than the token.
const PAUSE: Duration = Duration::from_secs(10);
/// Minimum time between two runs without a valid token.
const PAUSE_WITHOUT_TOKEN: Duration = Duration::from_secs(1);
/// Time for the start and the end of a run in addition to its limit: both hang if the plugin is on a file system that
/// hangs.
const START_TIME: Duration = Duration::from_secs(5);

/// The token of an exec plugin.
pub(super) struct PluginToken {
    plugin: Arc<Plugin>,
    /// Runs the renewals: not that of the controllers, which may block their threads.
    runtime: Handle,
    state: Mutex<State>,
    /// Held during a renewal.
    renewing: Arc<tokio::sync::Mutex<()>>,
}

struct State {
    header: HeaderValue,
    /// `None`: the token is valid until the API server refuses it.
    validity: Option<Validity>,
    /// The time of the last renewal.
    renewed: Option<Instant>,
    /// The reason why the last renewal failed.
    problem: Option<String>,
}

#[derive(Clone, Copy)]
struct Validity {
    renew_at: Instant,
    expires_at: Instant,
}

impl Validity {
    fn of(expires: Timestamp) -> Self {
        let (now, left) = (Instant::now(), expires.duration_since(Timestamp::now()));
        let left = Duration::try_from(left).unwrap_or_default();
        let before = left.mul_f64(RENEW_BEFORE).min(RENEW_AT_MOST_BEFORE);
        Self { renew_at: now + (left - before), expires_at: now + left }
    }
}

/// The usability of a token.
enum Freshness {
    /// It can be used.
    Fresh(HeaderValue),
    /// It can be used, and should be renewed.
    Aging(HeaderValue),
    /// It cannot be used.
    Expired,
}

impl PluginToken {
    /// Creates the token from the first run of the plugin. `None` if that returned no token.
    pub(super) fn new(plugin: Arc<Plugin>, runtime: Handle, first: Issued) -> Option<Arc<Self>> {
        let state =
            State { header: first.token?, validity: first.expires.map(Validity::of), renewed: None, problem: None };
        Some(Arc::new(Self { plugin, runtime, state: Mutex::new(state), renewing: Arc::default() }))
    }

    /// Returns the `Authorization` header of the next request. Only without a valid token it waits for the plugin.
    ///
    /// # Errors
    /// The reason why there is no valid token.
    pub(super) async fn header(self: &Arc<Self>) -> Result<HeaderValue, String> {
        match self.freshness() {
            Freshness::Fresh(header) => Ok(header),
            Freshness::Aging(header) => {
                self.renew(PAUSE);
                Ok(header)
            }
            Freshness::Expired => {
                self.renew(PAUSE_WITHOUT_TOKEN);
                let _renewed = self.renewing.lock().await;
                match self.freshness() {
                    Freshness::Fresh(header) | Freshness::Aging(header) => Ok(header),
                    Freshness::Expired => {
                        let problem = lock(&self.state).problem.clone();
                        Err(problem.unwrap_or_else(|| "the exec plugin returned an expired token".to_owned()))
                    }
                }
            }
        }
    }

    /// Renews the token because the API server has refused it, unless it was renewed since the request.
    pub(super) fn refused(self: &Arc<Self>, used: &HeaderValue) {
        if lock(&self.state).header == *used {
            self.renew(PAUSE);
        }
    }

    fn freshness(&self) -> Freshness {
        let (state, now) = (lock(&self.state), Instant::now());
        match state.validity {
            Some(validity) if validity.expires_at <= now => Freshness::Expired,
            Some(validity) if validity.renew_at <= now => Freshness::Aging(state.header.clone()),
            _ => Freshness::Fresh(state.header.clone()),
        }
    }

    /// Starts a renewal, unless one is running or has ended less than `pause` ago.
    fn renew(self: &Arc<Self>, pause: Duration) {
        let Ok(renewing) = self.renewing.clone().try_lock_owned() else { return };
        if lock(&self.state).renewed.is_some_and(|at| at.elapsed() < pause) {
            return;
        }
        let token = self.clone();
        // A request that ends must not end the renewal for the others.
        self.runtime.spawn(async move {
            token.run().await;
            drop(renewing);
        });
    }

    async fn run(&self) {
        let plugin = self.plugin.clone();
        let run = tokio::task::spawn_blocking(move || plugin.run());
        let result = match timeout(MAX_RUN_TIME + START_TIME, run).await {
            Ok(Ok(result)) => result.and_then(|issued| {
                let header = issued.token.ok_or("the exec plugin returned no token")?;
                Ok((header, issued.expires.map(Validity::of)))
            }),
            Ok(Err(_)) => Err("running the exec plugin panicked".to_owned()),
            Err(_) => Err("the exec plugin could not be started".to_owned()),
        };
        let mut state = lock(&self.state);
        state.renewed = Some(Instant::now());
        match result {
            Ok((header, validity)) => {
                (state.header, state.validity, state.problem) = (header, validity, None);
                info!("the exec plugin returned new credentials");
            }
            Err(problem) => {
                warn!(problem, "credentials not renewed");
                state.problem = Some(problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use futures::future::join_all;

    use super::*;
    use crate::client::exec::tests::script;

    const LIFETIME: Duration = Duration::from_secs(900);

    /// Returns a token with [`LIFETIME`] that this script renews.
    fn token(renewal: &str, limit: Duration) -> Arc<PluginToken> {
        let first = Issued {
            token: Some(HeaderValue::from_static("Bearer first")),
            expires: Some(Timestamp::now() + LIFETIME),
            identity: None,
        };
        let plugin = Arc::new(script(renewal, limit));
        PluginToken::new(plugin, Handle::current(), first).expect("a token")
    }

    /// Returns the header that the next request gets without waiting.
    fn immediate(token: &Arc<PluginToken>) -> Option<Result<String, String>> {
        let header = token.header().now_or_never();
        header.map(|header| header.map(|header| header.to_str().expect("text").to_owned()))
    }

    async fn renewed(token: &Arc<PluginToken>) {
        drop(token.renewing.lock().await);
    }

    const SECOND: &str = r#"echo '{"apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "second"}}'"#;

    #[tokio::test(start_paused = true)]
    async fn valid_token_is_used_while_the_plugin_hangs() {
        let token = token("exec sleep 1000", Duration::from_millis(300));
        assert_eq!(immediate(&token), Some(Ok("Bearer first".to_owned())));
        assert!(token.renewing.try_lock().is_ok(), "it is fresh");
        tokio::time::advance(LIFETIME.mul_f64(0.9)).await;
        assert_eq!(immediate(&token), Some(Ok("Bearer first".to_owned())));
        assert!(token.renewing.try_lock().is_err(), "the plugin is running");
        assert_eq!(immediate(&token), Some(Ok("Bearer first".to_owned())), "during the run");
        renewed(&token).await;
        assert_eq!(immediate(&token), Some(Ok("Bearer first".to_owned())), "after a failed run");
        assert!(token.renewing.try_lock().is_ok(), "the next run follows after a pause");
        tokio::time::advance(LIFETIME).await;
        let problem = token.header().await.expect_err("it has expired");
        assert!(problem.contains("did not end"), "{problem}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_valid_token_share_one_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let runs = folder.path().join("runs");
        let token = token(&format!("echo run >> '{}'; {SECOND}", runs.display()), MAX_RUN_TIME);
        tokio::time::advance(LIFETIME).await;
        assert_eq!(immediate(&token), None);
        let headers = join_all((0..20).map(|_| token.header())).await;
        assert!(
            headers.iter().all(|header| header.as_ref().is_ok_and(|header| header == "Bearer second")),
            "{headers:?}"
        );
        assert_eq!(std::fs::read_to_string(runs).expect("it ran"), "run\n");
        tokio::time::advance(LIFETIME * 1000).await;
        assert_eq!(immediate(&token), Some(Ok("Bearer second".to_owned())), "it does not expire");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_token_is_renewed_once() {
        let token = token(SECOND, MAX_RUN_TIME);
        let used = token.header().await.expect("a token");
        token.refused(&used);
        renewed(&token).await;
        assert_eq!(immediate(&token), Some(Ok("Bearer second".to_owned())));
        token.refused(&used);
        assert!(token.renewing.try_lock().is_ok(), "the refused token was replaced since");
        token.refused(&HeaderValue::from_static("Bearer second"));
        assert!(token.renewing.try_lock().is_ok(), "the plugin ran a moment ago");
        tokio::time::advance(PAUSE).await;
        token.refused(&HeaderValue::from_static("Bearer second"));
        assert!(token.renewing.try_lock().is_err(), "the plugin is running");
        renewed(&token).await;
    }
}
