//! Connections to the API server: credentials, connection pools and rate limits.
//!
//! [`connect`] creates two pools of HTTP/2 connections. `own` carries the process's identity, with its client
//! certificate if it has one. `bearer` has no certificate, because the server prefers a certificate to a token.
//! Watches, short requests and the Lease share no connection (`lane`), and each lane opens as many connections as the
//! server's stream limit requires (`streams`). [`Clients::send`] sends one request under an [`Identity`] and
//! distinguishes requests that were certainly not sent from requests that may have been executed. No write is ever sent
//! twice.

mod authorized;
mod bearer;
mod body;
mod causes;
mod connector;
mod exec;
mod identity;
mod kubeconfig;
mod lane;
mod layer;
pub(crate) mod media;
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

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{HeaderValue, Request, Response};
use kube::client::{Body, ConfigExt as _};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tower::{BoxError, Service};

pub use identity::{Identity, ServiceAccountToken, TokenError};
pub use kubeconfig::inline_authority;
pub use layer::{Exchange, Next, Pool, RequestLayer, ResponseBody};
pub use proxy::ProxyEnvironment;
#[cfg(test)]
pub(crate) use send::READ_TIMEOUT;
pub use send::SendError;

use crate::metrics::RestClient;
use authorized::Credentials;
pub(crate) use lane::Lane;
use layer::Hooked;
use plugin_credentials::PluginCredentials;
use pool::{Connections, Runtimes};
pub(crate) use refusal::{refusal, retry_after};
use reload::{Reloaded, TokenFile};

const HOST_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
const PORT_VARIABLE: &str = "KUBERNETES_SERVICE_PORT";

/// The pod's connection to the API server and its service account.
#[derive(Debug, Clone)]
pub struct PodEnvironment {
    /// The server's name or address; empty outside a pod.
    pub host: String,
    /// The server's port; empty outside a pod.
    pub port: String,
    /// Holds `ca.crt`, `token` and `namespace`.
    pub folder: PathBuf,
}

impl Default for PodEnvironment {
    /// Reads the environment and the mount of the service account.
    fn default() -> Self {
        let variable = |name| std::env::var(name).unwrap_or_default();
        Self {
            host: variable(HOST_VARIABLE),
            port: variable(PORT_VARIABLE),
            folder: "/var/run/secrets/kubernetes.io/serviceaccount".into(),
        }
    }
}

/// Connection options.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The kubeconfig file. If it is empty or `None` and there is no `master`, the pod's service account is used.
    pub kubeconfig: Option<PathBuf>,
    /// The environment that the kubelet sets for a pod; used without `kubeconfig` and `master`.
    pub pod: PodEnvironment,
    /// The server's URL or `host:port`; overrides the kubeconfig's.
    pub master: Option<String>,
    /// The proxies of the environment; a kubeconfig's `proxy-url` takes precedence.
    pub proxies: ProxyEnvironment,
    /// The `User-Agent` of requests that do not set their own. The server derives the default field manager from the
    /// part before the first slash. Requests of a service account append `/` and its user name, as client-go
    /// `rest.AddUserAgent` does.
    pub user_agent: String,
    /// A hook around every request of both pools; `None` costs nothing.
    pub layer: Option<RequestLayer>,
    /// Maximum time for a write through [`Clients::send`], including its response. Default 30 s.
    pub write_timeout: Duration,
    /// Interval at which the files of certificates and tokens are checked for changes. Default 30 s.
    pub reload_interval: Duration,
    /// The runtime that drives the connections of [`Clients::control`], so that they work while controllers occupy all
    /// threads of theirs. Default: the runtime that connects.
    pub control_runtime: Option<Handle>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            pod: PodEnvironment::default(),
            master: None,
            proxies: ProxyEnvironment::of_process(),
            user_agent: concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")).into(),
            layer: None,
            write_timeout: Duration::from_secs(30),
            reload_interval: Duration::from_secs(30),
            control_runtime: None,
        }
    }
}

/// Clients of the same server, one per identity and purpose.
#[derive(Clone)]
pub struct Clients {
    /// The process's own identity: reads, watches.
    pub own: kube::Client,
    /// The process's own identity, over connections that only the Lease, TokenRequests and discovery use, driven by
    /// [`ConnectOptions::control_runtime`].
    pub control: kube::Client,
    /// No client certificate, `Authorization` header or impersonation: each request carries its own bearer token.
    pub bearer: kube::Client,
    /// The namespace of the kubeconfig's context or of the pod; `default` if neither names one.
    pub default_namespace: String,
    /// Metrics of all requests of both pools.
    pub metrics: RestClient,
    host: Arc<str>,
    write_timeout: Duration,
    user_agent: Arc<str>,
}

/// The reason why [`connect`] failed. Each message names the fix; none contains a credential.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {file:?} cannot be read: {source}; pass an existing, readable file with --kubeconfig")]
    ReadKubeconfig {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The kubeconfig is not a kubeconfig.
    #[error("kubeconfig {file:?} is malformed: {problem}; correct the file")]
    ParseKubeconfig {
        /// The file.
        file: PathBuf,
        /// The problem and its position.
        problem: String,
    },
    /// The kubeconfig is well-formed, but incomplete, or refers to something that does not exist.
    #[error("kubeconfig {file:?}: {problem}; {fix}")]
    UseKubeconfig {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
        /// The fix.
        fix: &'static str,
    },
    /// Neither flag is set and the process does not run in a pod.
    #[error(
        "neither --kubeconfig nor --master is set and there is no in-cluster configuration: {0}; \
         set --kubeconfig=FILE, or run in a pod with a service account"
    )]
    InCluster(String),
    /// The server's address cannot be used.
    #[error("server {value:?}: {problem}; use https://HOST:PORT in --master or the kubeconfig's cluster")]
    Server {
        /// The address as given.
        value: String,
        /// The problem.
        problem: String,
    },
    /// The environment's proxy cannot be used. Its URL may contain a password and is not repeated.
    #[error("{variable}: {problem}; set it to a URL as http://HOST:PORT, or name the API server in NO_PROXY")]
    Proxy {
        /// The name of the variable.
        variable: &'static str,
        /// The problem.
        problem: String,
    },
    /// A file with credentials cannot be read.
    #[error("{field} file {file:?} cannot be read: {source}; make it readable or correct its path")]
    ReadFile {
        /// The field that the file provides.
        field: &'static str,
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The certificate authority file contains no certificate.
    #[error("certificate authority file {file:?}: {problem}; put PEM certificates into it")]
    BadAuthority {
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The token file contains no token.
    #[error(
        "token file {file:?} is empty or contains characters that are not valid in a header; put one bearer token into it"
    )]
    BadToken {
        /// The file.
        file: PathBuf,
    },
    /// Certificates and key do not form a TLS identity.
    #[error(
        "TLS cannot be set up from {files:?} and the kubeconfig's inline data: {problem}; correct certificate and key"
    )]
    Tls {
        /// The files involved.
        files: Vec<PathBuf>,
        /// The problem.
        problem: String,
    },
    /// The user's credentials cannot be used, or their exec plugin failed.
    #[error("the kubeconfig's user has no usable credentials: {0}; correct the user's entry")]
    Credentials(String),
    /// The user agent is not a valid header value.
    #[error("user agent {0:?} contains characters that are not valid in a header; use printable ASCII")]
    UserAgent(String),
    /// The loading task panicked.
    #[error("loading the configuration panicked: {0}; this is a defect, please report it")]
    Panicked(#[source] tokio::task::JoinError),
}

/// Everything that is read before the first request.
struct Loaded {
    config: kube::Config,
    /// The connections of [`Pool::Own`].
    own: Arc<Connections>,
    /// The connections of [`Pool::Bearer`].
    bearer: Arc<Connections>,
    /// The token file of the process's own identity, if it has one.
    token: Option<Arc<TokenFile>>,
    /// The other credentials of the process's own identity.
    credentials: Option<Credentials>,
    /// Notified when the exec plugin, if there is one, has returned new credentials.
    renewed: Arc<Notify>,
}

impl Clients {
    /// Returns the server's name and port, as metrics report them.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }
}

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
        // The client's own task has to run there, too.
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

/// Reads files and runs the exec plugin. Blocks the thread.
fn load(options: &ConnectOptions, runtimes: &Runtimes) -> Result<Loaded, ConnectError> {
    let source = kubeconfig::load(options)?;
    let control = &runtimes.control;
    let plugin = source.plugin.clone().map(|plugin| PluginCredentials::issue(plugin, control.clone())).transpose();
    let plugin = plugin.map_err(ConnectError::Credentials)?;
    let credentials = match &plugin {
        Some(plugin) => Some(Credentials::Plugin(plugin.clone())),
        None => {
            let layer = source.config.auth_layer().map_err(|error| ConnectError::Credentials(error.to_string()))?;
            layer.map(|layer| Credentials::Fixed(Arc::new(layer)))
        }
    };
    Ok(Loaded {
        renewed: plugin.as_ref().map(|plugin| plugin.renewed()).unwrap_or_default(),
        own: Arc::new(Connections::new(Pool::Own, &source, plugin, runtimes.clone())?),
        bearer: Arc::new(Connections::new(Pool::Bearer, &source, None, runtimes.clone())?),
        token: (source.token_file.as_deref()).map(TokenFile::new).transpose()?.map(Arc::new),
        credentials: credentials.filter(|_| source.token_file.is_none()),
        config: source.config,
    })
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
