//! Response bodies, either from a shared connection or with a dedicated connection that the reader of the body drives.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either, select};
use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::rt::{Read, Write};
use tower::BoxError;

use kube::client::Body as RequestBody;

use super::streams::Slot;

/// The body of a response.
pub(super) struct IncomingBody {
    body: Incoming,
    dedicated: Option<Dedicated>,
    /// The stream's slot on a shared connection; dropping the body frees it.
    _slot: Option<Slot>,
}

/// A connection for a single response. It is part of the body, so that no other task has to be woken for each piece.
struct Dedicated {
    connection: BoxFuture<'static, hyper::Result<()>>,
    /// The connection closes when this is dropped.
    _sender: SendRequest<RequestBody>,
}

impl IncomingBody {
    /// Wraps a body that arrives over a connection shared with other requests.
    pub(super) fn shared(body: Incoming, slot: Option<Slot>) -> Self {
        Self { body, dedicated: None, _slot: slot }
    }
}

/// Sends the request over a connection that is dedicated to its response.
pub(super) async fn send_dedicated(
    stream: impl Read + Write + Unpin + Send + 'static,
    request: Request<RequestBody>,
) -> Result<Response<IncomingBody>, BoxError> {
    let (mut sender, connection) = handshake(stream).await?;
    let connection = connection.boxed();
    let response = Box::pin(sender.send_request(origin_form(request)?));
    match select(response, connection).await {
        Either::Left((response, connection)) => {
            let dedicated = Some(Dedicated { connection, _sender: sender });
            Ok(response?.map(|body| IncomingBody { body, dedicated, _slot: None }))
        }
        // The connection has ended; the whole response may have been received before.
        Either::Right((ended, response)) => {
            ended?;
            Ok(response.await?.map(|body| IncomingBody::shared(body, None)))
        }
    }
}

/// Converts the URI to origin form, as a server that is not a proxy expects.
fn origin_form(mut request: Request<RequestBody>) -> Result<Request<RequestBody>, BoxError> {
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::try_from(authority.as_str())?;
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    Ok(request)
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // An error or the end of the connection is reported by the body.
        if self.dedicated.as_mut().is_some_and(|dedicated| dedicated.connection.poll_unpin(cx).is_ready()) {
            self.dedicated = None;
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
