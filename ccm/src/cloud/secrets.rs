//! The Secrets with the provider's credentials: read at each attempt to initialize the provider, and again while
//! controllers call the cloud.
//!
//! There is no watch. One read of each Secret per [`READ_INTERVAL`] costs little, and an initialized provider's Secrets
//! are not read while no controller calls the cloud. The process needs only the permission to get these Secrets. Calls
//! that begin [`READ_INTERVAL`] after a change use the new credentials, unless the read fails or still runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{Decode, Kind, Secret};
use providers::{CloudError, CloudProvider, ErrorKind, SecretData, SecretName, async_trait};
use runtime::write::{WriteError, Writer};
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

/// Minimum time between two reads of a Secret after the provider is initialized.
pub const READ_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum time that a caller with working credentials waits for newer ones.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The operation in errors.
const READ: &str = "ReadSecret";

/// A Secret as it was read: its version and data.
pub type ReadSecret = (u64, SecretData);

/// The source of Secrets.
#[async_trait]
pub trait SecretReader: Send + Sync {
    /// Returns the current state of a Secret; `None`: it does not exist.
    ///
    /// # Errors
    /// `Denied` if the process has no permission to read the Secret, otherwise `Transient`.
    async fn read(&self, name: &SecretName) -> Result<Option<ReadSecret>, CloudError>;
}

/// Secrets in the API server.
pub struct ApiSecrets {
    /// A writer with the process's own identity, to which a Role should allow only the verb `get` on these Secrets.
    pub writer: Writer,
}

fn unreadable(name: &SecretName, error: &WriteError) -> CloudError {
    match error.refused().map(|status| status.code) {
        Some(403) => {
            let fix =
                "grant the process's user or service account the verb get on it, with a Role in the Secret's namespace";
            CloudError::new(ErrorKind::Denied, READ, format!("the Secret {name}: {error}; {fix}"))
        }
        _ => CloudError::new(ErrorKind::Transient, READ, format!("the Secret {name}: {error}")),
    }
}

#[async_trait]
impl SecretReader for ApiSecrets {
    async fn read(&self, name: &SecretName) -> Result<Option<ReadSecret>, CloudError> {
        let key = ObjectKey::new(name.namespace.as_str(), name.name.as_str());
        let response = match self.writer.get(&Secret::RESOURCE, &key).await {
            Err(error) if error.is_not_found() => return Ok(None),
            response => response.map_err(|error| unreadable(name, &error))?,
        };
        let malformed =
            |error: String| CloudError::new(ErrorKind::Transient, READ, format!("the Secret {name}: {error}"));
        let context = Decode { interner: Arc::default(), sections: Secret::WHOLE };
        let secret: Secret = response.decode(&context).map_err(|error| malformed(error.to_string()))?;
        let entries = secret.entries().map(|entry| entry.map(|(key, value)| (key, value.to_vec())));
        let data = entries.collect::<Result<SecretData, _>>().map_err(|error| malformed(error.to_string()))?;
        Ok(Some((secret.meta.version, data)))
    }
}

/// The Secrets of one provider.
pub struct Secrets {
    names: Vec<SecretName>,
    reader: Box<dyn SecretReader>,
    reads: Mutex<Reads>,
}

/// The state of the reads.
struct Reads {
    /// Time of the next read.
    due: Instant,
    /// Versions of the Secrets that the provider has; `None`: the Secret did not exist, and the provider was informed
    /// of that.
    versions: BTreeMap<SecretName, Option<u64>>,
}

impl Secrets {
    /// Creates the state for a provider that has received no Secret yet.
    pub fn new(names: Vec<SecretName>, reader: Box<dyn SecretReader>) -> Self {
        Self { names, reader, reads: Mutex::new(Reads { due: Instant::now(), versions: BTreeMap::new() }) }
    }

    /// Passes all Secrets that the provider does not have yet, before it is initialized.
    ///
    /// # Errors
    /// The error of the first Secret that cannot be read or used.
    pub async fn load(&self, provider: &dyn CloudProvider) -> Result<(), CloudError> {
        let mut reads = self.reads.lock().await;
        self.pass_changed(provider, &mut reads).await
    }

    /// Passes changed Secrets to an initialized provider, if the last read was at least [`READ_INTERVAL`] ago. After an
    /// error the provider keeps its credentials until the next read.
    pub async fn refresh(&self, provider: &dyn CloudProvider) {
        // Another caller is reading the Secrets: this caller does not wait.
        let Ok(mut reads) = self.reads.try_lock() else { return };
        if Instant::now() < reads.due {
            return;
        }
        match tokio::time::timeout(READ_TIMEOUT, self.pass_changed(provider, &mut reads)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(%error, "the cloud provider keeps its credentials: a Secret could not be read or used")
            }
            Err(_) => {
                warn!("the cloud provider keeps its credentials: the API server did not return its Secrets in time")
            }
        }
    }

    async fn pass_changed(&self, provider: &dyn CloudProvider, reads: &mut Reads) -> Result<(), CloudError> {
        reads.due = Instant::now() + READ_INTERVAL;
        for name in &self.names {
            let read = self.reader.read(name).await?;
            let version = read.as_ref().map(|(version, _)| *version);
            if reads.versions.get(name) == Some(&version) {
                continue;
            }
            provider.receive_secret(name, read.map(|(_, data)| data))?;
            if reads.versions.insert(name.clone(), version).is_some() {
                info!(secret = %name, "the cloud provider uses a changed Secret");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex as StdMutex;

    use providers::MockCloudProvider;

    use super::*;

    type Stored = Arc<StdMutex<Result<Option<(u64, &'static str)>, ErrorKind>>>;

    /// The tokens that a provider has received; `None`: the Secret did not exist.
    type Received = Arc<StdMutex<Vec<Option<String>>>>;

    /// A Secret that tests change.
    struct Scripted(Stored);

    #[async_trait]
    impl SecretReader for Scripted {
        async fn read(&self, _: &SecretName) -> Result<Option<ReadSecret>, CloudError> {
            let stored = *self.0.lock().expect("no panic");
            let stored = stored.map_err(|kind| CloudError::new(kind, READ, "as scripted"))?;
            Ok(stored.map(|(version, token)| (version, [("token", token.as_bytes().to_vec())].into_iter().collect())))
        }
    }

    /// Returns a Secret that the test changes, its reader, a provider that refuses the token `bad`, and the tokens that
    /// the provider has received.
    fn scripted() -> (Stored, Secrets, MockCloudProvider, Received) {
        let stored: Stored = Arc::new(StdMutex::new(Ok(Some((1, "one")))));
        let name = SecretName { namespace: "kube-system".into(), name: "cloud".into() };
        let secrets = Secrets::new(vec![name], Box::new(Scripted(stored.clone())));
        let received = Received::default();
        let (mut provider, log) = (MockCloudProvider::new(), received.clone());
        provider.expect_receive_secret().returning(move |_, data| {
            let token = data.as_ref().and_then(|data| data.get("token"));
            let token = token.map(|token| String::from_utf8_lossy(token).into_owned());
            let is_bad = token.as_deref() == Some("bad");
            log.lock().expect("no panic").push(token);
            if is_bad { Err(CloudError::new(ErrorKind::Invalid, READ, "as scripted")) } else { Ok(()) }
        });
        (stored, secrets, provider, received)
    }

    #[tokio::test(start_paused = true)]
    async fn changed_secret_is_passed_on_after_the_interval() {
        let (stored, secrets, provider, received) = scripted();
        secrets.load(&provider).await.expect("it exists");
        *stored.lock().expect("no panic") = Ok(Some((2, "two")));
        secrets.refresh(&provider).await;
        assert_eq!(received.lock().expect("no panic").len(), 1, "the Secret was read a moment ago");
        for _ in 0..3 {
            tokio::time::advance(READ_INTERVAL).await;
            secrets.refresh(&provider).await;
        }
        assert_eq!(*received.lock().expect("no panic"), [Some("one".into()), Some("two".into())], "each version once");
        *stored.lock().expect("no panic") = Ok(None);
        tokio::time::advance(READ_INTERVAL).await;
        secrets.refresh(&provider).await;
        assert_eq!(received.lock().expect("no panic").last(), Some(&None), "the Secret was deleted");
    }

    #[tokio::test(start_paused = true)]
    async fn unusable_secret_is_passed_on_again_until_it_is_accepted() {
        let (stored, secrets, provider, received) = scripted();
        for broken in [Ok(Some((1, "bad"))), Err(ErrorKind::Denied)] {
            *stored.lock().expect("no panic") = broken;
            secrets.load(&provider).await.expect_err("the Secret cannot be used");
        }
        *stored.lock().expect("no panic") = Ok(Some((1, "bad")));
        secrets.load(&provider).await.expect_err("the version was not accepted before");
        *stored.lock().expect("no panic") = Ok(Some((2, "good")));
        secrets.load(&provider).await.expect("the Secret is usable");
        let expected = ["bad", "bad", "good"].map(|token| Some(token.to_owned()));
        assert_eq!(*received.lock().expect("no panic"), expected);
    }

    /// The reads of a hanging API server must not stop the controllers, whose credentials still work.
    #[tokio::test(start_paused = true)]
    async fn hanging_read_delays_one_caller_for_a_limited_time() {
        struct Hanging;
        #[async_trait]
        impl SecretReader for Hanging {
            async fn read(&self, _: &SecretName) -> Result<Option<ReadSecret>, CloudError> {
                std::future::pending().await
            }
        }
        let name = SecretName { namespace: "kube-system".into(), name: "cloud".into() };
        let (secrets, provider) = (Secrets::new(vec![name], Box::new(Hanging)), MockCloudProvider::new());
        let begun = Instant::now();
        tokio::join!(secrets.refresh(&provider), async {
            secrets.refresh(&provider).await;
            assert_eq!(begun.elapsed(), Duration::ZERO, "the second caller waits");
        });
        assert_eq!(begun.elapsed(), READ_TIMEOUT);
    }
}
