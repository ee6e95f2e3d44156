//! Changes of objects by full PUTs. Each PUT contains the version of the object for which the change was decided.
//!
//! The role of this controller has no patch verb, and unknown fields must be kept. Most records are only a part of
//! their object, so the whole object is read first. Records of pending claims and volumes contain the whole object:
//! their first writes need no read, and a cache that is behind causes a conflict.

use kinds::whole::WholeObject;
use kinds::wire::WireError;
use kinds::{Kind, PersistentVolume, PersistentVolumeClaim};
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
    /// Returns the result of a reconcile that stopped for this reason.
    pub fn into_outcome(self) -> Result<Outcome, ReconcileError> {
        match self {
            Self::Outdated => Ok(Outcome::RequeueWithBackoff),
            Self::Failed(error) => Err(error.into()),
            Self::Error(message) => Err(ReconcileError::new(message)),
        }
    }
}

/// A kind whose records contain the whole object for some time.
pub trait Whole: Kind + Clone {
    /// Returns the whole object, if the record contains it.
    fn whole(&self) -> Option<&WholeObject>;
}

impl Whole for PersistentVolumeClaim {
    fn whole(&self) -> Option<&WholeObject> {
        self.whole.as_deref()
    }
}

impl Whole for PersistentVolume {
    fn whole(&self) -> Option<&WholeObject> {
        self.whole.as_deref()
    }
}

/// An object that is being changed. No other draft of the object can be opened until this one is dropped.
pub struct Draft<'a, K: Kind> {
    store: &'a Store<K>,
    writer: &'a Writer,
    raw: Vec<u8>,
    /// The object as it was read or written last.
    pub record: K,
    _underway: WriteInProgress<'a, K>,
}

impl<'a, K: Whole> Draft<'a, K> {
    /// Begins a change of the object whose cached record is `record`, and reads the object from the API server only if
    /// the record does not contain the whole object.
    ///
    /// A write fails if the cache is behind. Use [`Draft::read`] if anything else depends on the object being current.
    ///
    /// # Errors
    /// `Outdated` if the object is known to have another version, or another write to it is in progress. If the object
    /// has to be read: as [`Draft::read`].
    pub async fn open(store: &'a Store<K>, writer: &'a Writer, record: &K) -> Result<Self, Stop> {
        let Some(object) = record.whole() else { return Self::read(store, writer, record).await };
        let meta = record.meta();
        let underway = store.begin_write(&meta.key(), meta.version).ok_or(Stop::Outdated)?;
        let raw = object.bytes().to_vec();
        Ok(Self { store, writer, raw, record: record.clone(), _underway: underway })
    }

    /// Reads the object whose cached record is `record` from the API server.
    ///
    /// # Errors
    /// `Outdated` if the object was deleted, has another version, or another write to it is in progress, or if another
    /// object has its name; otherwise the error of the request.
    pub async fn read(store: &'a Store<K>, writer: &'a Writer, record: &K) -> Result<Self, Stop> {
        let key = record.meta().key();
        let version = record.meta().version;
        let underway = store.begin_write(&key, version).ok_or(Stop::Outdated)?;
        let response = writer.get(&K::RESOURCE, &key).await?;
        let current: K = response.decode(store.decoding()).map_err(WriteError::from)?;
        if current.meta().version != version || current.meta().uid != record.meta().uid {
            return Err(Stop::Outdated);
        }
        let raw = response.object().map_err(WriteError::from)?.to_vec();
        Ok(Self { store, writer, raw, record: current, _underway: underway })
    }

    /// Writes the object as `edit` returns it; with `subresource`, only that part.
    ///
    /// # Errors
    /// `Outdated` if another client has written or deleted the object in between; otherwise the error of `edit` or of
    /// the request.
    pub async fn put(
        &mut self,
        subresource: Option<&str>,
        edit: impl FnOnce(&[u8]) -> Result<Vec<u8>, WireError>,
    ) -> Result<(), Stop> {
        let key = self.record.meta().key();
        let edited = edit(&self.raw)?;
        let response = self.writer.replace(&K::RESOURCE, &key, subresource, &edited).await?;
        self.record = response.decode(self.store.decoding()).map_err(WriteError::from)?;
        self.raw = response.object().map_err(WriteError::from)?.to_vec();
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
}
