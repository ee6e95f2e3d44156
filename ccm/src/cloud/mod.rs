//! The cloud provider of the controllers, and its initialization.
//!
//! The leader initializes the provider before any controller calls the cloud. If the initialization fails, it is
//! retried with backoff, and the controllers wait: an operator may fix a network or a permission while the process
//! runs.

pub mod instances;
pub(crate) mod retry;
pub mod secrets;
pub mod taints;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use providers::{CloudError, CloudProvider, ErrorKind};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{error, info};

use self::secrets::{SecretReader, Secrets};

/// The delay after the first failure; it doubles up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Returns the error about a provider without a cluster ID. Upstream: cloud-provider/app, run.
pub(crate) fn no_cluster_id(provider: &dyn CloudProvider) -> String {
    format!(
        "no ClusterID found: the cloud provider {} cannot distinguish this cluster's resources from those of others; \
         set one in --cloud-config, or pass --allow-untagged-cloud",
        provider.name()
    )
}

/// A provider, and whether it is initialized.
pub struct Cloud {
    provider: Arc<dyn CloudProvider>,
    /// `--allow-untagged-cloud`: the provider may have no cluster ID.
    untagged: bool,
    /// The provider's Secrets, if it has any.
    secrets: OnceLock<Secrets>,
    ready: AtomicBool,
    attempt: Mutex<Attempt>,
}

/// The next attempt to initialize the provider.
struct Attempt {
    due: Instant,
    /// The delay after this attempt, if it fails.
    pause: Duration,
}

impl Cloud {
    /// Wraps a provider that is not initialized yet. Unless `untagged`, it must have a cluster ID after initialization:
    /// some providers read it from the cloud.
    pub fn new(provider: Arc<dyn CloudProvider>, untagged: bool) -> Arc<Self> {
        let attempt = Attempt { due: Instant::now(), pause: MIN_PAUSE };
        Arc::new(Self {
            provider,
            untagged,
            secrets: OnceLock::new(),
            ready: AtomicBool::new(false),
            attempt: Mutex::new(attempt),
        })
    }

    /// Sets the source of the provider's Secrets; only the first call has an effect.
    pub fn read_secrets(&self, reader: Box<dyn SecretReader>) {
        let names = self.provider.secrets();
        if !names.is_empty() {
            let _ = self.secrets.set(Secrets::new(names, reader));
        }
    }

    /// Returns the provider. Its capabilities may be read at any time; calls wait for [`Cloud::ready`].
    pub fn provider(&self) -> &dyn CloudProvider {
        &*self.provider
    }

    /// Initializes the provider if necessary, and refreshes its Secrets. Every reconcile that calls the cloud starts
    /// with this call.
    ///
    /// # Errors
    /// The delay before the next attempt if the provider is not initialized. Until then the cloud must not be called.
    pub async fn ready(&self) -> Result<(), Duration> {
        if self.ready.load(Ordering::Acquire) {
            if let Some(secrets) = self.secrets.get() {
                secrets.refresh(&*self.provider).await;
            }
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
        match self.initialize().await {
            Ok(()) => {
                info!(provider = self.provider.name(), "the cloud provider is ready");
                self.ready.store(true, Ordering::Release);
                Ok(())
            }
            Err(failed) => {
                let pause = attempt.pause.max(failed.retry_after().unwrap_or_default());
                error!(
                    provider = self.provider.name(), kind = failed.kind.as_str(), error = %failed, ?pause,
                    "cloud provider not initialized; all cloud controllers wait"
                );
                *attempt = Attempt { due: Instant::now() + pause, pause: (attempt.pause * 2).min(MAX_PAUSE) };
                Err(pause)
            }
        }
    }

    async fn initialize(&self) -> Result<(), CloudError> {
        if let Some(secrets) = self.secrets.get() {
            secrets.load(&*self.provider).await?;
        }
        self.provider.initialize().await?;
        if !self.untagged && !self.provider.has_cluster_id() {
            return Err(CloudError::new(ErrorKind::Invalid, "FindCluster", no_cluster_id(&*self.provider)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use providers::MockCloudProvider;

    use super::*;

    /// Returns a cloud whose provider fails the first calls of `initialize` with these errors.
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
    async fn initialization_is_retried_with_backoff() {
        let cloud = failing(vec![
            ErrorKind::Denied,
            ErrorKind::Invalid,
            ErrorKind::Throttled { after: Some(Duration::from_secs(90)) },
        ]);
        for pause in [1, 2, 90] {
            assert_eq!(cloud.ready().await, Err(Duration::from_secs(pause)));
            tokio::time::advance(Duration::from_millis(pause * 1000 - 500)).await;
            assert_eq!(cloud.ready().await, Err(Duration::from_millis(500)), "no attempt before its delay");
            tokio::time::advance(Duration::from_millis(500)).await;
        }
        assert_eq!(cloud.ready().await, Ok(()));
        assert_eq!(cloud.ready().await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_initialization() {
        let mut provider = MockCloudProvider::new();
        provider.expect_name().return_const("mock");
        provider.expect_has_cluster_id().return_const(true);
        provider.expect_initialize().times(1).returning(|| Ok(()));
        let cloud = Cloud::new(Arc::new(provider), false);
        let all = futures::future::join_all((0..20).map(|_| cloud.ready())).await;
        assert!(all.iter().all(Result::is_ok));
    }

    #[tokio::test(start_paused = true)]
    async fn cloud_without_a_cluster_id_is_ready_only_when_allowed() {
        for (untagged, expected) in [(false, Err(MIN_PAUSE)), (true, Ok(()))] {
            let mut provider = MockCloudProvider::new();
            provider.expect_name().return_const("mock");
            provider.expect_has_cluster_id().return_const(false);
            provider.expect_initialize().returning(|| Ok(()));
            assert_eq!(Cloud::new(Arc::new(provider), untagged).ready().await, expected);
        }
    }
}
