//! An answer's body: of a shared connection, or with the connection of its own that its reader drives.

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

use kube::client::Body as Question;

use super::streams::Slot;

/// What the server answers.
pub(super) struct Answer {
    body: Incoming,
    own: Option<Own>,
    /// The place of its stream on a shared connection, which is free when the body is dropped.
    _slot: Option<Slot>,
}

/// A connection for one answer. It is part of the body, so that nobody is woken to hand each piece over.
struct Own {
    connection: BoxFuture<'static, hyper::Result<()>>,
    /// The connection ends early without it.
    _sender: SendRequest<Question>,
}

impl Answer {
    /// A body that arrives over a connection that other requests share.
    pub(super) fn shared(body: Incoming, slot: Option<Slot>) -> Self {
        Self { body, own: None, _slot: slot }
    }
}

/// Asks over a connection that then belongs to the answer.
pub(super) async fn ask_alone(
    stream: impl Read + Write + Unpin + Send + 'static,
    request: Request<Question>,
) -> Result<Response<Answer>, BoxError> {
    let (mut sender, connection) = handshake(stream).await?;
    let connection = connection.boxed();
    let answering = Box::pin(sender.send_request(origin_form(request)?));
    match select(answering, connection).await {
        Either::Left((answer, connection)) => {
            let own = Some(Own { connection, _sender: sender });
            Ok(answer?.map(|body| Answer { body, own, _slot: None }))
        }
        Either::Right((ended, answering)) => {
            ended?;
            Ok(answering.await?.map(|body| Answer::shared(body, None)))
        }
    }
}

/// As a server is asked that is no proxy.
fn origin_form(mut request: Request<Question>) -> Result<Request<Question>, BoxError> {
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::try_from(authority.as_str())?;
        request.headers_mut().insert(HOST, host);
    }
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    Ok(request)
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // The end of the connection, orderly or not, is told by the body.
        if self.own.as_mut().is_some_and(|own| own.connection.poll_unpin(cx).is_ready()) {
            self.own = None;
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
