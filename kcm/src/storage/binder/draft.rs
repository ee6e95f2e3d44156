//! Changes of objects by full PUTs, each based on the version that was decided on.
//!
//! The role of this controller has no patch verb. The cached record is only a part of the object, so the whole object is
//! read first: fields that this program does not know survive, and a cache that is behind is noticed before the write.

use kinds::Kind;
use kinds::wire::WireError;
use runtime::store::{Store, WriteInProgress};
use runtime::worker::{Outcome, ReconcileError};
use runtime::write::{WriteError, Writer};

/// Reason why a change was not written.
#[derive(Debug)]
pub enum Stop {
    /// The cache is behind, or another write to the object is in progress: decide again.
    Outdated,
    /// The write failed.
    Failed(WriteError),
    /// Something else failed.
    Error(String),
}

impl From<WriteError> for Stop {
    fn from(error: WriteError) -> Self {
        if error.is_conflict() || error.is_not_found() { Self::Outdated } else { Self::Failed(error) }
    }
}

impl From<WireError> for Stop {
    fn from(error: WireError) -> Self {
        Self::Error(error.to_string())
    }
}

impl Stop {
    /// Returns the result of a reconcile that stopped here.
    pub fn into_outcome(self) -> Result<Outcome, ReconcileError> {
        match self {
            Self::Outdated => Ok(Outcome::RequeueWithBackoff),
            Self::Failed(error) => Err(error.into()),
            Self::Error(message) => Err(ReconcileError::new(message)),
        }
    }
}

/// An object that is being changed. No other controller of this process writes it until this is dropped.
pub struct Draft<'a, K: Kind> {
    store: &'a Store<K>,
    writer: &'a Writer,
    raw: Vec<u8>,
    /// The object as it was read or written last.
    pub record: K,
    /// Whether a write of this draft succeeded.
    pub is_written: bool,
    _underway: WriteInProgress<'a, K>,
}

impl<'a, K: Kind> Draft<'a, K> {
    /// Reads the object whose cached record is `record`.
    ///
    /// # Errors
    /// `Outdated` if the object is another one, or has another version, by now.
    pub async fn read(store: &'a Store<K>, writer: &'a Writer, record: &K) -> Result<Self, Stop> {
        let (key, version) = (record.meta().key(), record.meta().version);
        let underway = store.begin_write(&key, version).ok_or(Stop::Outdated)?;
        let answer = writer.get(&K::RESOURCE, &key).await?;
        let current: K = answer.decode(store.decoding()).map_err(WriteError::from)?;
        if current.meta().version != version || current.meta().uid != record.meta().uid {
            return Err(Stop::Outdated);
        }
        let raw = answer.object().map_err(WriteError::from)?.to_vec();
        Ok(Self { store, writer, raw, record: current, is_written: false, _underway: underway })
    }

    /// Writes the object as `edit` returns it, or its status.
    ///
    /// # Errors
    /// `Outdated` if another client has written the object in between.
    pub async fn put(
        &mut self,
        subresource: Option<&str>,
        edit: impl FnOnce(&[u8]) -> Result<Vec<u8>, WireError>,
    ) -> Result<(), Stop> {
        let key = self.record.meta().key();
        let edited = edit(&self.raw)?;
        let answer = self.writer.replace(&K::RESOURCE, &key, subresource, &edited).await?;
        self.record = answer.decode(self.store.decoding()).map_err(WriteError::from)?;
        self.raw = answer.object().map_err(WriteError::from)?.to_vec();
        self.is_written = true;
        self.store.wrote(&key, self.record.meta().version);
        Ok(())
    }

    /// Writes the object's status; see [`Draft::put`].
    ///
    /// # Errors
    /// As [`Draft::put`].
    pub async fn put_status(&mut self, edit: impl FnOnce(&[u8]) -> Result<Vec<u8>, WireError>) -> Result<(), Stop> {
        self.put(Some("status"), edit).await
    }

    /// Returns the version of the last write; `None` if there was none.
    pub fn written_version(&self) -> Option<u64> {
        self.is_written.then(|| self.record.meta().version)
    }
}
