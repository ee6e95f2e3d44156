//! The services that add an identity to each request and send it over the connections of a pool.

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Request, Response};
use kube::client::{Body, ConfigExt as _};
use tower::{BoxError, Service, ServiceBuilder};

use super::authorized::Authorized;
use super::body::IncomingBody;
use super::connect_error::ConnectError;
use super::lane::Lane;
use super::load::Loaded;
use super::pool::Transport;
use crate::metrics::RestClient;

/// Returns the service of the process's own identity, with its token, its other credentials and its impersonation.
///
/// # Errors
/// [`ConnectError::Credentials`] if a header cannot contain the impersonation.
pub(super) fn own(
    loaded: &Loaded,
    agent: &HeaderValue,
    metrics: &RestClient,
) -> Result<
    impl Service<Request<Body>, Response = Response<IncomingBody>, Error = BoxError, Future: Send + 'static>
    + Clone
    + Send
    + use<>,
    ConnectError,
> {
    let headers = loaded.config.extra_headers_layer().map_err(|error| ConnectError::Credentials(error.to_string()))?;
    let (agent, token, credentials) = (agent.clone(), loaded.token.clone(), loaded.credentials.clone());
    Ok(ServiceBuilder::new()
        .map_request(move |mut request: Request<Body>| {
            set_default_user_agent(&mut request, &agent);
            if let Some(token) = &token {
                request.headers_mut().insert(AUTHORIZATION, token.header());
            }
            request
        })
        .layer(loaded.config.base_uri_layer())
        .layer_fn(move |inner| Authorized { credentials: credentials.clone(), inner })
        .layer(headers)
        .service(Transport { connections: loaded.own.clone(), metrics: metrics.clone() }))
}

/// Returns the service without an identity: each request carries its own bearer token.
pub(super) fn bearer(
    loaded: &Loaded,
    agent: &HeaderValue,
    metrics: &RestClient,
) -> impl Service<Request<Body>, Response = Response<IncomingBody>, Error = BoxError, Future: Send + 'static>
+ Clone
+ Send
+ use<> {
    let agent = agent.clone();
    ServiceBuilder::new()
        .map_request(move |mut request: Request<Body>| {
            set_default_user_agent(&mut request, &agent);
            request
        })
        .layer(loaded.config.base_uri_layer())
        .service(Transport { connections: loaded.bearer.clone(), metrics: metrics.clone() })
}

/// Returns the service over the connections of [`Lane::Control`].
pub(super) fn in_control_lane<S>(
    service: S,
) -> impl Service<Request<Body>, Response = S::Response, Error = S::Error, Future = S::Future> + Clone + Send
where
    S: Service<Request<Body>> + Clone + Send,
{
    ServiceBuilder::new()
        .map_request(|mut request: Request<Body>| {
            request.extensions_mut().insert(Lane::Control);
            request
        })
        .service(service)
}

/// Sets the `User-Agent` of a request that has none.
fn set_default_user_agent(request: &mut Request<Body>, agent: &HeaderValue) {
    request.headers_mut().entry(USER_AGENT).or_insert_with(|| agent.clone());
}
