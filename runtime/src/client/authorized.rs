//! Adds the credentials of the process's own identity to each request.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::header::AUTHORIZATION;
use http::{Request, Response, StatusCode};
use kube::client::Body;
use kube::client::middleware::AuthLayer;
use tower::{BoxError, Layer, Service, ServiceExt as _};

use super::plugin_credentials::PluginCredentials;

/// The source of the credentials that go into a header.
#[derive(Clone)]
pub(super) enum Credentials {
    /// A password or a token of the kubeconfig.
    Fixed(Arc<AuthLayer>),
    /// An exec plugin, which may have returned a certificate only.
    Plugin(Arc<PluginCredentials>),
}

/// Adds credentials, if there are any, to each request.
#[derive(Clone)]
pub(super) struct Authorized<S> {
    pub(super) credentials: Option<Credentials>,
    pub(super) inner: S,
}

impl<S, B> Service<Request<Body>> for Authorized<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        match self.credentials.clone() {
            None => Box::pin(inner.oneshot(request)),
            Some(Credentials::Fixed(layer)) => Box::pin(layer.layer(inner).oneshot(request)),
            Some(Credentials::Plugin(plugin)) => Box::pin(async move {
                let issued = plugin.usable().await?;
                if let Some(token) = &issued.token {
                    request.headers_mut().insert(AUTHORIZATION, token.clone());
                }
                let response = inner.oneshot(request).await?;
                if response.status() == StatusCode::UNAUTHORIZED {
                    plugin.refused(&issued);
                }
                Ok(response)
            }),
        }
    }
}
