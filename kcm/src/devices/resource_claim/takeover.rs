//! The comparison with the API server before the first creation after a change of leader, or after a lost response.
//!
//! The previous leader may have created a claim that this process's cache does not contain yet. The name of a claim is
//! generated, so that the API server would not refuse a second one.

use std::collections::HashMap;
use std::sync::OnceLock;

use jiff::Timestamp;
use kinds::meta::Meta;
use kinds::wire::find;
use kinds::{DecodeError, Interner, Kind, ResourceClaim, Str};
use runtime::store::Progress;
use runtime::write::{WriteError, Writer};
use tokio::sync::Mutex;

/// The newest version among a namespace's claims, in a history of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newest {
    history: u64,
    version: u64,
}

/// The namespaces that were compared in this leadership term.
#[derive(Debug, Default)]
pub struct Takeover {
    term_start: OnceLock<Timestamp>,
    /// Held during a list, so that the workers share it.
    namespaces: Mutex<HashMap<Str, Newest>>,
}

impl Takeover {
    /// Notes when this process became leader. Claims of owners that were created later need no comparison.
    pub fn begin_term(&self, now: Timestamp) {
        self.term_start.get_or_init(|| now);
    }

    /// Returns the version that the cache must have reached before claims are created for the owner; `None` if there is no
    /// such version. The claims of the namespace are listed once.
    ///
    /// # Errors
    /// When the list fails.
    pub async fn required_version(
        &self,
        owner: &Meta,
        now: Timestamp,
        progress: &Progress,
        writer: &Writer,
    ) -> Result<Option<u64>, WriteError> {
        if owner.created.0 > self.term_start.get_or_init(|| now).as_second() {
            return Ok(None);
        }
        let mut namespaces = self.namespaces.lock().await;
        let history = progress.history();
        if let Some(known) = namespaces.get(&owner.namespace).filter(|known| known.history == history) {
            return Ok(Some(known.version));
        }
        let version = newest_version(&owner.namespace, writer).await?;
        namespaces.insert(owner.namespace.clone(), Newest { history, version });
        Ok(Some(version))
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
