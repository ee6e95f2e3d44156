//! The `Authorization` header of the process's own identity. After a 401 response, the exec plugin is run again.
//!
//! A plugin may return a token without an expiry time. Such a token is used until the server refuses it. Upstream:
//! client-go plugin/pkg/client/auth/exec.

use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use kube::client::middleware::AuthLayer;
use kube::client::{Body, ConfigExt as _};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service, ServiceExt as _};
use tracing::{info, warn};

/// Minimum time between two runs of a plugin after a 401, which may have causes other than the token.
const PAUSE: Duration = Duration::from_secs(10);

/// The credentials that go into a header.
pub(super) struct Credentials {
    config: kube::Config,
    layer: RwLock<Arc<AuthLayer>>,
    /// When the plugin last ran after a 401.
    renewed: tokio::sync::Mutex<Option<Instant>>,
}

impl Credentials {
    pub(super) fn new(config: kube::Config, layer: AuthLayer) -> Arc<Self> {
        Arc::new(Self { config, layer: RwLock::new(Arc::new(layer)), renewed: tokio::sync::Mutex::default() })
    }

    fn current(&self) -> Arc<AuthLayer> {
        self.layer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs the plugin in the background, for later requests.
    fn renew(self: &Arc<Self>) {
        if self.config.auth_info.exec.is_none() {
            return;
        }
        let credentials = self.clone();
        tokio::spawn(async move {
            let Ok(mut renewed) = credentials.renewed.try_lock() else { return };
            if renewed.is_some_and(|at| at.elapsed() < PAUSE) {
                return;
            }
            let config = credentials.config.clone();
            match tokio::task::spawn_blocking(move || config.auth_layer()).await {
                Ok(Ok(Some(layer))) => {
                    *credentials.layer.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(layer);
                    info!("credentials were refused: the exec plugin returned new ones");
                }
                Ok(Ok(None)) => warn!("credentials were refused, and the exec plugin returned no token"),
                Ok(Err(error)) => warn!(%error, "credentials were refused, and the exec plugin failed"),
                Err(error) => warn!(%error, "running the exec plugin panicked"),
            }
            *renewed = Some(Instant::now());
        });
    }
}

/// Adds credentials, if there are any, to each request.
#[derive(Clone)]
pub(super) struct Authorized<S> {
    pub(super) credentials: Option<Arc<Credentials>>,
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

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        let Some(credentials) = self.credentials.clone() else {
            return Box::pin(inner.oneshot(request));
        };
        let service = credentials.current().layer(inner);
        Box::pin(async move {
            let response = service.oneshot(request).await?;
            if response.status() == StatusCode::UNAUTHORIZED {
                credentials.renew();
            }
            Ok(response)
        })
    }
}
