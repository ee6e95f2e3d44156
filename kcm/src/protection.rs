//! Finalizers that block the deletion of an object while something uses it.

use std::time::Duration;

use kinds::{Decode, DecodeError, Kind, Meta, metadata_edit};
use runtime::consistency::Consistency;
use runtime::store::Store;
use runtime::write::{WriteError, Writer};

/// Delay before an object is reconciled again whose user is on the API server but not in the cache yet.
///
/// Usually the user reaches the cache soon, and its deletion requeues the object. But a user that is created and
/// deleted while the watch is interrupted never reaches the cache.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The change that an object's protecting finalizer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// None: the finalizer is set, or the object is being deleted without it.
    Nothing,
    /// It is missing and has to be added.
    Addition,
    /// The object is being deleted: the finalizer has to be removed once nothing uses the object.
    Removal,
}

/// Returns the change that a finalizer of an object needs.
pub fn need(meta: &Meta, finalizer: &str) -> Need {
    let is_set = meta.finalizers.iter().any(|name| &**name == finalizer);
    match (meta.is_deleting(), is_set) {
        (false, false) => Need::Addition,
        (true, true) => Need::Removal,
        _ => Need::Nothing,
    }
}

/// A finalizer of the objects of one kind.
pub struct Guard<'a, K: Kind> {
    /// The finalizer.
    pub finalizer: &'static str,
    /// Writes it.
    pub writer: &'a Writer,
    /// The objects.
    pub store: &'a Store<K>,
    /// Own writes that the cache may not contain yet.
    pub consistency: &'a Consistency,
}

impl<K: Kind> Guard<'_, K> {
    /// Adds or removes the finalizer, if the API server still has the object `cached` and it still has this need. A
    /// removal also requires that `is_unused` holds for the object that was read.
    ///
    /// The PUT is made from the object that the API server returned, so that fields that this program does not know are
    /// kept.
    pub async fn write(&self, cached: &Meta, need: Need, is_unused: impl Fn(&K) -> bool) -> Result<(), WriteError> {
        let key = cached.key();
        let response = match self.writer.get(&K::RESOURCE, &key).await {
            Err(error) if error.is_not_found() => return Ok(()),
            response => response?,
        };
        let fresh: K = response.decode(self.store.decoding())?;
        let is_current = fresh.meta().uid == cached.uid && self::need(fresh.meta(), self.finalizer) == need;
        if !is_current || need == Need::Removal && !is_unused(&fresh) {
            return Ok(());
        }
        let object = response.object()?;
        let edited = match need {
            Need::Nothing => return Ok(()),
            Need::Addition => metadata_edit::with_finalizer(object, self.finalizer),
            Need::Removal => metadata_edit::without_finalizers(object, &[self.finalizer]),
        };
        let response = self.writer.replace(&K::RESOURCE, &key, None, &edited.map_err(DecodeError::from)?).await;
        match response {
            Ok(response) => {
                self.consistency.wrote(&key, self.store, response.meta()?.version);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the decoding of objects that are read once and not stored.
pub fn decode_once(sections: kinds::Sections) -> Decode {
    Decode { interner: std::sync::Arc::default(), sections }
}

#[cfg(test)]
mod tests {
    use kinds::Time;
    use runtime::testing::meta;

    use super::*;

    #[test]
    fn finalizer_is_added_to_existing_objects_and_removed_from_deleted_ones() {
        for (deleting, finalizers, expected) in [
            (false, &[][..], Need::Addition),
            (false, &["other"], Need::Addition),
            (false, &["other", "ours"], Need::Nothing),
            (true, &["ours", "other"], Need::Removal),
            (true, &["other"], Need::Nothing),
        ] {
            let mut object = meta("", "a", 1);
            object.deletion = Time(i64::from(deleting));
            object.finalizers = finalizers.iter().map(|name| (*name).into()).collect();
            assert_eq!(need(&object, "ours"), expected, "{deleting} {finalizers:?}");
        }
    }
}
