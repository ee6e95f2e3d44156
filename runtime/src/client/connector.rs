//! Opens connections to the server.

use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::Uri;
use hyper_rustls::HttpsConnector;
use tower::{BoxError, Service};

/// Maximum time from the first packet to the end of the TLS handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects by TCP, through a proxy if there is one, and TLS within [`CONNECT_TIMEOUT`].
#[derive(Clone)]
pub(super) struct Connector<R>(pub(super) HttpsConnector<R>);

impl<R> Service<Uri> for Connector<R>
where
    HttpsConnector<R>: Service<Uri, Error = BoxError>,
    <HttpsConnector<R> as Service<Uri>>::Future: Send + 'static,
{
    type Response = <HttpsConnector<R> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let connecting = self.0.call(server);
        Box::pin(async move {
            tokio::time::timeout(CONNECT_TIMEOUT, connecting)
                .await
                .map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}"))?
        })
    }
}
