//! Connections to the API server: credentials, connection pools and rate limits.
//!
//! [`connect`] creates two pools of connections, which use HTTP/2 if the server supports it. `own` carries the
//! process's identity, with its client certificate if it has one. `bearer` has no certificate, because the server
//! prefers a certificate to a token. Watches, short requests and the Lease share no connection (`lane`), and each lane
//! opens as many connections as the server's stream limit requires (`streams`). [`Clients::send`] sends one request
//! under an [`Identity`] and distinguishes requests that were certainly not sent from requests that may have been
//! executed. A write is sent again only after a 401, which means that the server did not execute it.

mod authorized;
mod bearer;
mod body;
mod causes;
mod clients;
mod connect_error;
mod connector;
mod exec;
mod identity;
mod kubeconfig;
mod lane;
mod layer;
mod load;
pub(crate) mod media;
mod options;
mod plugin_credentials;
mod polled;
mod pool;
mod proxy;
pub mod rate;
mod refusal;
mod reload;
mod send;
mod services;
mod streams;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use kube::client::Body;
use tokio::runtime::Handle;
use tower::{BoxError, Service};

pub use clients::Clients;
pub use connect_error::ConnectError;
pub use identity::{Identity, ServiceAccountToken, TokenError};
pub use kubeconfig::inline_authority;
pub(crate) use lane::Lane;
pub use layer::{Exchange, Next, Pool, RequestLayer, ResponseBody};
pub use options::{ConnectOptions, PodEnvironment};
pub use proxy::ProxyEnvironment;
pub(crate) use refusal::{refusal, retry_after};
#[cfg(test)]
pub(crate) use send::READ_TIMEOUT;
pub use send::SendError;

use crate::metrics::RestClient;
use layer::Hooked;
use load::{Loaded, load};
use pool::Runtimes;
use reload::Reloaded;

/// Loads the configuration and prepares both pools. No connection is opened before the first request.
///
/// Must run inside a tokio runtime. Files that the configuration refers to are checked every
/// [`ConnectOptions::reload_interval`] until the last client is dropped.
///
/// # Errors
/// [`ConnectError`] when the configuration cannot be used.
pub async fn connect(options: &ConnectOptions) -> Result<Clients, ConnectError> {
    install_crypto();
    let agent =
        HeaderValue::from_str(&options.user_agent).map_err(|_| ConnectError::UserAgent(options.user_agent.clone()))?;
    let given = options.clone();
    let work = Handle::current();
    let runtimes = Runtimes { control: options.control_runtime.clone().unwrap_or_else(|| work.clone()), work };
    let control_runtime = runtimes.control.clone();
    let loaded =
        tokio::task::spawn_blocking(move || load(&given, &runtimes)).await.map_err(ConnectError::Panicked)??;
    let metrics = RestClient::default();
    for _ in [Pool::Own, Pool::Bearer] {
        metrics.transport_created();
    }
    reload_credentials(&loaded, &metrics, options.reload_interval);
    let namespace = &loaded.config.default_namespace;
    let own = services::own(&loaded, &agent, &metrics)?;
    let control = {
        // The task that the client itself starts has to run on this runtime, too.
        let _entered = control_runtime.enter();
        client(Pool::Own, services::in_control_lane(own.clone()), options, namespace)
    };
    Ok(Clients {
        own: client(Pool::Own, own, options, namespace),
        control,
        bearer: client(Pool::Bearer, services::bearer(&loaded, &agent, &metrics), options, namespace),
        default_namespace: namespace.clone(),
        metrics,
        host: pool::host(&loaded.config.cluster_url).into(),
        write_timeout: options.write_timeout,
        user_agent: options.user_agent.as_str().into(),
    })
}

/// Starts to reload the credentials of a configuration, if they can change.
fn reload_credentials(loaded: &Loaded, metrics: &RestClient, interval: Duration) {
    if loaded.token.is_some() || loaded.own.reloads() || loaded.bearer.reloads() {
        let reloaded = Reloaded {
            connections: [&loaded.own, &loaded.bearer].map(Arc::downgrade).into(),
            token: loaded.token.as_ref().map_or_else(Weak::new, Arc::downgrade),
            renewed: loaded.renewed.clone(),
            metrics: metrics.clone(),
        };
        tokio::spawn(reloaded.run(interval));
    }
}

fn client<S, B>(pool: Pool, service: S, options: &ConnectOptions, namespace: &str) -> kube::Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    match options.layer.clone() {
        None => kube::Client::new(service, namespace),
        Some(layer) => kube::Client::new(Hooked { layer, pool, inner: service }, namespace),
    }
}

/// Installs ring as the process's crypto provider, unless one is installed already.
fn install_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // If another thread installs a provider first, that one is used; any provider is acceptable.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
