//! The cloud as the controllers see it: its provider, and whether that is ready to be asked.
//!
//! The provider makes its first calls on the leader, before any controller's. When these fail, the controllers wait
//! and try again with growing times: an operator may fix a network or a permission while the process runs.

pub mod instances;
pub(crate) mod retry;
pub mod taints;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use providers::{CloudError, CloudProvider, ErrorKind};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{error, info};

/// The pause after the first failure; it doubles up to [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is wrong with a provider that does not know its cluster (upstream: cloud-provider/app, `run`).
pub(crate) fn no_cluster_id(provider: &dyn CloudProvider) -> String {
    format!(
        "no ClusterID found: the cloud provider {} cannot tell this cluster's resources from others'; give it one in \
         --cloud-config, or pass --allow-untagged-cloud",
        provider.name()
    )
}

/// A provider, and whether it was initialised.
pub struct Cloud {
    provider: Arc<dyn CloudProvider>,
    /// It need not know its cluster.
    untagged: bool,
    ready: AtomicBool,
    attempt: Mutex<Attempt>,
}

/// When to initialise next.
struct Attempt {
    due: Instant,
    pause: Duration,
}

impl Cloud {
    /// A provider that was built and not initialised yet. Unless `untagged`, it must know its cluster once it is: some
    /// find that out in the cloud only.
    pub fn new(provider: Arc<dyn CloudProvider>, untagged: bool) -> Arc<Self> {
        let attempt = Attempt { due: Instant::now(), pause: SHORTEST_PAUSE };
        Arc::new(Self { provider, untagged, ready: AtomicBool::new(false), attempt: Mutex::new(attempt) })
    }

    /// The provider. What it has may be asked for at any time; calls wait for [`Cloud::ready`].
    pub fn provider(&self) -> &dyn CloudProvider {
        &*self.provider
    }

    /// Initialises the provider if nobody has. Every reconcile that calls the cloud begins with this.
    ///
    /// # Errors
    /// The time after which to ask again, when it is not ready; nothing of the cloud may be called before.
    pub async fn ready(&self) -> Result<(), Duration> {
        if self.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut attempt = self.attempt.lock().await;
        if self.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        let wait = attempt.due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Err(wait);
        }
        let mut initialized = self.provider.initialize().await;
        if initialized.is_ok() && !self.untagged && !self.provider.has_cluster_id() {
            initialized = Err(CloudError::new(ErrorKind::Invalid, "FindCluster", no_cluster_id(&*self.provider)));
        }
        match initialized {
            Ok(()) => {
                info!(provider = self.provider.name(), "the cloud provider is ready");
                self.ready.store(true, Ordering::Release);
                Ok(())
            }
            Err(failed) => {
                let pause = attempt.pause.max(failed.retry_after().unwrap_or_default());
                error!(
                    provider = self.provider.name(), kind = failed.kind.as_str(), error = %failed, ?pause,
                    "the cloud provider cannot be initialised; no cloud controller works until it can"
                );
                *attempt = Attempt { due: Instant::now() + pause, pause: (attempt.pause * 2).min(LONGEST_PAUSE) };
                Err(pause)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use providers::MockCloudProvider;

    use super::*;

    /// A provider whose first calls of `initialize` fail with these errors.
    fn failing(errors: Vec<ErrorKind>) -> Arc<Cloud> {
        let mut provider = MockCloudProvider::new();
        provider.expect_name().return_const("mock");
        provider.expect_has_cluster_id().return_const(true);
        let mut errors = errors.into_iter();
        provider.expect_initialize().returning(move || match errors.next() {
            Some(kind) => Err(CloudError::new(kind, "DescribeNetwork", "as scripted")),
            None => Ok(()),
        });
        Cloud::new(Arc::new(provider), false)
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_again_with_growing_times() {
        let cloud = failing(vec![
            ErrorKind::Denied,
            ErrorKind::Invalid,
            ErrorKind::Throttled { after: Some(Duration::from_secs(90)) },
        ]);
        for pause in [1, 2, 90] {
            assert_eq!(cloud.ready().await, Err(Duration::from_secs(pause)));
            tokio::time::advance(Duration::from_millis(pause * 1000 - 500)).await;
            assert_eq!(cloud.ready().await, Err(Duration::from_millis(500)), "nobody asks too early");
            tokio::time::advance(Duration::from_millis(500)).await;
        }
        assert_eq!(cloud.ready().await, Ok(()));
        assert_eq!(cloud.ready().await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_ask_and_one_tries() {
        let mut provider = MockCloudProvider::new();
        provider.expect_name().return_const("mock");
        provider.expect_has_cluster_id().return_const(true);
        provider.expect_initialize().times(1).returning(|| Ok(()));
        let cloud = Cloud::new(Arc::new(provider), false);
        let all = futures::future::join_all((0..20).map(|_| cloud.ready())).await;
        assert!(all.iter().all(Result::is_ok));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cloud_that_does_not_know_its_cluster_is_not_ready_unless_that_is_allowed() {
        for (untagged, expected) in [(false, Err(SHORTEST_PAUSE)), (true, Ok(()))] {
            let mut provider = MockCloudProvider::new();
            provider.expect_name().return_const("mock");
            provider.expect_has_cluster_id().return_const(false);
            provider.expect_initialize().returning(|| Ok(()));
            assert_eq!(Cloud::new(Arc::new(provider), untagged).ready().await, expected);
        }
    }
}
