//! The comparison with the API server before the first creation in a namespace, and after a lost response.
//!
//! The previous leader may have created a claim that this process's cache does not contain yet. The name of a claim is
//! generated, so the API server would not refuse a second one. The creation time of an owner does not show whether
//! the previous leader processed the owner: that time is from the API server's clock, which may differ from this
//! process's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kinds::meta::Meta;
use kinds::wire::find;
use kinds::{DecodeError, Interner, Kind, ResourceClaim, Str};
use runtime::lock::lock;
use runtime::store::Progress;
use runtime::write::{WriteError, Writer};

/// Maximum number of namespaces whose comparison is recorded. With more of them, namespaces are compared again.
const MAX_NAMESPACES: usize = 10_000;

/// The newest resourceVersion among a namespace's claims. It is valid only in this history of the API server: a restore
/// from a backup begins another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newest {
    history: u64,
    version: u64,
}

/// The result of a namespace's comparison. Locked during the list, so that the workers share it.
type Comparison = Arc<tokio::sync::Mutex<Option<Newest>>>;

/// The namespaces that were compared in this leadership term.
#[derive(Debug, Default)]
pub struct Takeover {
    namespaces: Mutex<HashMap<Str, Comparison>>,
}

impl Takeover {
    /// Returns the version that the cache must have reached before claims are created in a namespace. The claims of the
    /// namespace are listed once in each history of the API server.
    ///
    /// # Errors
    /// When the list fails.
    pub async fn required_version(
        &self,
        namespace: &Str,
        progress: &Progress,
        writer: &Writer,
    ) -> Result<u64, WriteError> {
        let comparison = self.comparison(namespace);
        let mut known = comparison.lock().await;
        let history = progress.history();
        if let Some(known) = known.filter(|known| known.history == history) {
            return Ok(known.version);
        }
        let version = newest_version(namespace, writer).await?;
        *known = Some(Newest { history, version });
        Ok(version)
    }

    fn comparison(&self, namespace: &Str) -> Comparison {
        let mut namespaces = lock(&self.namespaces);
        if namespaces.len() >= MAX_NAMESPACES && !namespaces.contains_key(namespace) {
            namespaces.clear();
        }
        namespaces.entry(namespace.clone()).or_default().clone()
    }

    /// Creates the state after a namespace without claims was compared.
    #[cfg(test)]
    pub fn compared(namespace: &str, progress: &Progress) -> Self {
        let newest = Newest { history: progress.history(), version: 0 };
        Self { namespaces: Mutex::new(HashMap::from([(namespace.into(), Arc::new(Some(newest).into()))])) }
    }
}

/// Returns the newest version among the claims of a namespace; zero if there are none.
///
/// # Errors
/// When the list fails.
pub async fn newest_version(namespace: &str, writer: &Writer) -> Result<u64, WriteError> {
    let interner = Interner::default();
    let mut newest: Result<u64, DecodeError> = Ok(0);
    writer
        .list_each(&ResourceClaim::RESOURCE, namespace, |object| {
            let meta = Meta::decode(&interner, find(object, 1), |_, _| {});
            match (&mut newest, meta) {
                (Ok(version), Ok(meta)) => *version = meta.version.max(*version),
                (Ok(_), Err(error)) => newest = Err(error),
                (Err(_), _) => {}
            }
        })
        .await?;
    Ok(newest?)
}
