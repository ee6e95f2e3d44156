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
fn classify(error: WriteError) -> SinkError {
    match error {
        WriteError::Refused(status) => match status.code {
            404 => SinkError::NotFound,
            429 => SinkError::Unreachable(status.to_string()),
            500.. if status.retry_after.is_some() => SinkError::Unreachable(status.to_string()),
            _ => SinkError::Rejected(status.to_string()),
        },
        // This process must not repeat the write later, because another one may lead then.
        WriteError::NotLeading | WriteError::InvalidName(_) | WriteError::InvalidRequest(_) => {
            SinkError::Rejected(error.to_string())
        }
        error => SinkError::Unreachable(error.to_string()),
    }
}
