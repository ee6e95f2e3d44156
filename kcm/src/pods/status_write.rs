//! Writes of an owner's status, and the end of a reconcile.

use std::sync::Arc;
use std::time::Duration;

use kinds::Kind;
use kinds::meta::ObjectKey;
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::worker::{Outcome, ReconcileError};
use runtime::write::{ObjectResponse, WriteError, Writer};

/// The result of a status write.
#[derive(Debug)]
pub enum StatusWrite {
    /// The API server has the status.
    Written(ObjectResponse),
    /// The status was computed from an outdated object. The watch will deliver the newer one, which requeues the key.
    Outdated,
    /// The object no longer exists.
    Deleted,
}

/// Replaces the status of an object of kind `K`.
///
/// # Errors
/// When the write fails, except because of a conflict or because the object does not exist.
pub async fn replace_status<K: Kind>(writer: &Writer, key: &ObjectKey, body: &[u8]) -> Result<StatusWrite, WriteError> {
    match writer.replace(&K::RESOURCE, key, Some("status"), body).await {
        Ok(response) => Ok(StatusWrite::Written(response)),
        Err(error) if error.is_conflict() => Ok(StatusWrite::Outdated),
        Err(error) if error.is_not_found() => Ok(StatusWrite::Deleted),
        Err(error) => Err(error),
    }
}

/// Like [`replace_status`], and records the resulting version for the key's next reconcile.
///
/// # Errors
/// When [`replace_status`] fails.
pub async fn put_status<K: Kind>(
    writer: &Writer,
    consistency: &Consistency,
    store: &Store<K>,
    key: &ObjectKey,
    body: &[u8],
) -> Result<StatusWrite, WriteError> {
    let written = replace_status::<K>(writer, key, body).await?;
    if let StatusWrite::Written(response) = &written
        && let Ok(meta) = response.meta()
    {
        consistency.wrote(key, store, meta.version);
    }
    Ok(written)
}

/// Ends a reconcile: requeues the key after `next`, even if there is a `failure`.
///
/// The backoff of a failed key grows to 1,000 seconds. A write that is due earlier, such as a delayed status, must not
/// wait for it.
///
/// # Errors
/// `failure`, if there is one.
pub fn finish(
    queue: &Arc<Queue<ObjectKey>>,
    key: &ObjectKey,
    next: Option<Duration>,
    failure: Option<ReconcileError>,
) -> Result<Outcome, ReconcileError> {
    match (failure, next) {
        (None, Some(next)) => Ok(Outcome::RequeueAfter(next)),
        (None, None) => Ok(Outcome::Done),
        (Some(failure), next) => {
            if let Some(next) = next {
                queue.add_after(key.clone(), next);
            }
            Err(failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::queue::QueueOptions;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_reconcile_keeps_its_next_wake_up() {
        let (queue, key) = (Queue::new(QueueOptions::named("test")), ObjectKey::new("ns", "web"));
        let delayed_status = Duration::from_millis(27);
        assert_eq!(finish(&queue, &key, Some(delayed_status), None), Ok(Outcome::RequeueAfter(delayed_status)));
        assert_eq!(finish(&queue, &key, None, None), Ok(Outcome::Done));
        // The queue's backoff has reached its maximum, as after hours of refused creations.
        (0..20).for_each(|_| queue.add_rate_limited(key.clone()));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(queue.next().await.as_ref(), Some(&key));
        let failure = ReconcileError::new("exceeded quota");
        assert_eq!(finish(&queue, &key, Some(delayed_status), Some(failure.clone())), Err(failure));
        queue.add_rate_limited(key.clone());
        queue.done(&key);
        let due: Vec<_> = queue.waiting().into_iter().map(|waiting| waiting.due).collect();
        assert_eq!(due, [Some(delayed_status)]);
    }
}
