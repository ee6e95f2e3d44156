//! The sink that writes events to the API server through a controller's Writer.

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};

use super::{EventSink, SinkError};
use crate::write::{WriteError, Writer};

impl EventSink for Writer {
    fn create<'a>(&'a self, namespace: &'a str, event: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async move { self.post_event(namespace, event).await.map(drop).map_err(classify) }.boxed()
    }

    fn patch<'a>(&'a self, namespace: &'a str, name: &'a str, patch: Bytes) -> BoxFuture<'a, Result<(), SinkError>> {
        async move { self.patch_event(namespace, name, patch).await.map(drop).map_err(classify) }.boxed()
    }
}

/// Classifies an error: a response is final (`recordEvent`) unless it requests a later retry.
///
/// A 429 without Retry-After is final, too: EventRateLimit refuses the events of one namespace this way, and events of
/// other namespaces must not wait for these.
fn classify(error: WriteError) -> SinkError {
    let delay = error.retry_after();
    if error.is_namespace_terminating() {
        return SinkError::NamespaceTerminating;
    }
    match error {
        WriteError::Refused(status) => match (status.code, delay) {
            (404, _) => SinkError::NotFound,
            (429 | 500.., Some(delay)) => SinkError::Postponed(delay, status.to_string()),
            _ => SinkError::Rejected(status.to_string()),
        },
        // This process must not repeat the write later, because another one may lead then.
        WriteError::NotLeading | WriteError::InvalidName(_) | WriteError::InvalidRequest(_) => {
            SinkError::Rejected(error.to_string())
        }
        error => SinkError::Unreachable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kinds::envelope::ApiStatus;

    use super::*;

    #[test]
    fn refusal_is_final_unless_it_requests_a_retry() {
        for (code, retry_after, is_final) in
            [(403, None, true), (429, None, true), (429, Some(1), false), (500, None, true), (503, Some(2), false)]
        {
            let refusal = WriteError::Refused(ApiStatus { code, retry_after, ..ApiStatus::default() });
            let expected = retry_after.map(|seconds| Duration::from_secs(seconds.into()));
            match classify(refusal) {
                SinkError::Rejected(_) => assert!(is_final, "{code}"),
                SinkError::Postponed(delay, _) => assert_eq!(Some(delay), expected, "{code}"),
                other => panic!("{code}: {other:?}"),
            }
        }
    }

    #[test]
    fn namespace_that_is_being_deleted_is_recognized() {
        let causes = [("NamespaceTerminating".to_owned(), String::new())].into();
        let refusal = WriteError::Refused(ApiStatus { code: 403, causes, ..ApiStatus::default() });
        assert_eq!(classify(refusal), SinkError::NamespaceTerminating);
    }
}
