//! A hook around every request, with which a test can observe, delay, refuse or drop requests.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use kube::client::Body;
use tower::{BoxError, Service, ServiceExt as _};

/// The body of a response as a [`RequestLayer`] receives it.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// The result of one request: a response, or the reason why there is none.
pub type Exchange = BoxFuture<'static, Result<Response<ResponseBody>, BoxError>>;

/// The connection pool that a request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The process's own identity.
    Own,
    /// No client certificate; the request carries its bearer token.
    Bearer,
}

/// The layers below the hook. If this value is dropped without [`Next::send`], the request never leaves the process.
pub struct Next(Box<dyn FnOnce(Request<Body>) -> Exchange + Send>);

impl Next {
    /// Sends `request` and returns its response.
    ///
    /// # Errors
    /// When there is no response: no connection, or a connection lost while waiting.
    #[must_use = "nothing is sent until the response is awaited"]
    pub fn send(self, request: Request<Body>) -> Exchange {
        (self.0)(request)
    }
}

type Hook = dyn Fn(Pool, Request<Body>, Next) -> Exchange + Send + Sync;

/// A hook around every request of both pools.
///
/// It runs outside the layers that add the server's address and the credentials of the process's own identity, so it
/// receives relative paths. It may respond by itself, wait, or fail without calling [`Next::send`], which simulates a
/// request that was not sent. It may also call [`Next::send`] and drop the response, which simulates a lost response.
#[derive(Clone)]
pub struct RequestLayer(Arc<Hook>);

impl RequestLayer {
    /// Creates a layer that passes every request to `hook`.
    pub fn new(hook: impl Fn(Pool, Request<Body>, Next) -> Exchange + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }
}

impl fmt::Debug for RequestLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestLayer")
    }
}

/// A service with a [`RequestLayer`] around it.
#[derive(Clone)]
pub(super) struct Hooked<S> {
    pub(super) layer: RequestLayer,
    pub(super) pool: Pool,
    pub(super) inner: S,
}

impl<S, B> Service<Request<Body>> for Hooked<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = Exchange;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Exchange {
        let inner = self.inner.clone();
        let next = Next(Box::new(move |request| {
            Box::pin(async move {
                let response = inner.oneshot(request).await?;
                Ok(response.map(|body| body.map_err(Into::into).boxed_unsync()))
            })
        }));
        (self.layer.0)(self.pool, request, next)
    }
}
