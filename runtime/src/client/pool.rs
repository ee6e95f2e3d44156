//! Connections to the server by lane, over rustls: HTTP/2 with many requests per connection if the server supports it,
//! and HTTP/1.1 in the dedicated lane.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::{Body, ConfigExt as _};
use tokio::runtime::Handle;
use tower::{BoxError, Service, ServiceExt as _};

use super::body::{IncomingBody, send_dedicated};
use super::connect_error::ConnectError;
use super::connector::{CONNECT_TIMEOUT, Connector};
use super::exec::ClientIdentity;
use super::kubeconfig::{self, Source};
use super::lane::{Accepted, Lane};
use super::layer::Pool;
use super::plugin_credentials::PluginCredentials;
use super::polled::LongResponseConnector;
use super::proxy::{Proxy, Route};
use super::streams::Streams;
use crate::lock::{lock, read, write};
use crate::metrics::RestClient;

const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// All connections with the same credentials, by lane.
struct LaneConnections {
    short: Streams,
    control: Streams,
    watches: Streams,
    dedicated: Connector<LongResponseConnector>,
}

impl LaneConnections {
    async fn send(&self, request: Request<Body>) -> Result<Response<IncomingBody>, BoxError> {
        let accepted = request.extensions().get::<Accepted>().cloned().unwrap_or_default();
        match request.extensions().get::<Lane>() {
            None => send_shared(&self.short, request, &accepted).await,
            Some(Lane::Control) => send_shared(&self.control, request, &accepted).await,
            Some(Lane::Watch) => send_shared(&self.watches, request, &accepted).await,
            Some(Lane::Dedicated) => {
                let stream = self.dedicated.clone().oneshot(request.uri().clone()).await?;
                accepted.set(true);
                send_dedicated(stream, request).await
            }
        }
    }
}

async fn send_shared(
    streams: &Streams,
    request: Request<Body>,
    accepted: &Accepted,
) -> Result<Response<IncomingBody>, BoxError> {
    let (response, slot) = streams.send(request, accepted).await?;
    Ok(response.map(|body| IncomingBody::shared(body, slot)))
}

/// The runtimes that drive connections.
#[derive(Clone)]
pub(super) struct Runtimes {
    /// The runtime of [`Lane::Control`].
    pub(super) control: Handle,
    /// The runtime of all other lanes.
    pub(super) work: Handle,
}

/// The inputs of a pool's connections: runtimes, TLS configuration with its files, exec plugin, and proxy.
struct Credentials {
    runtimes: Runtimes,
    config: kube::Config,
    ca_file: Option<PathBuf>,
    /// The credentials of the exec plugin, which may have a client certificate.
    plugin: Option<Arc<PluginCredentials>>,
    proxy: Option<Proxy>,
}

impl Credentials {
    fn new(pool: Pool, source: &Source, plugin: Option<Arc<PluginCredentials>>, runtimes: Runtimes) -> Self {
        let mut config = source.config.clone();
        if pool == Pool::Bearer {
            config.auth_info = kube::config::AuthInfo::default();
        }
        let plugin = plugin.filter(|_| pool == Pool::Own);
        let (ca_file, proxy) = (source.ca_file.clone(), source.proxy.clone());
        Self { runtimes, config, ca_file, plugin, proxy }
    }

    /// Returns the files whose change requires new connections.
    fn files(&self) -> impl Iterator<Item = &Path> {
        let user = &self.config.auth_info;
        let certificate = (user.client_certificate.as_deref()).filter(|_| user.client_certificate_data.is_none());
        let key = (user.client_key.as_deref()).filter(|_| user.client_key_data.is_none());
        (self.ca_file.as_deref()).into_iter().chain(certificate.map(Path::new)).chain(key.map(Path::new))
    }

    /// Returns the client certificate of the exec plugin's last run.
    fn issued_identity(&self) -> Option<ClientIdentity> {
        self.plugin.as_ref()?.latest().identity.clone()
    }

    /// Returns a hash of the contents of the files and of this client certificate.
    fn fingerprint(&self, identity: Option<&ClientIdentity>) -> Result<u64, ConnectError> {
        let mut hash = DefaultHasher::new();
        identity.hash(&mut hash);
        for file in self.files() {
            let bytes = std::fs::read(file).map_err(|source| ConnectError::ReadFile {
                field: "certificate",
                file: file.to_owned(),
                source,
            })?;
            bytes.hash(&mut hash);
        }
        Ok(hash.finish())
    }

    /// Returns the TLS configuration, with the client certificate of the exec plugin if it has returned one.
    fn tls(&self, identity: Option<&ClientIdentity>) -> Result<rustls::ClientConfig, ConnectError> {
        let mut config = self.config.clone();
        if let Some(ClientIdentity { certificate, key }) = identity {
            config.auth_info.client_certificate_data = Some(BASE64.encode(certificate));
            config.auth_info.client_key_data = Some(BASE64.encode(key).into());
        }
        if let Some(file) = &self.ca_file {
            config.root_cert = Some(kubeconfig::authorities(file)?);
        }
        config.rustls_client_config().map_err(|error| ConnectError::Tls {
            files: self.files().map(Path::to_owned).collect(),
            problem: error.to_string(),
        })
    }

    /// Creates the connections of all lanes; each connects at its first request.
    fn lanes(&self, tls: rustls::ClientConfig) -> Result<Arc<LaneConnections>, ConnectError> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        tcp.set_keepalive_interval(Some(TCP_KEEPALIVE));
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let route = Route::new(self.proxy.as_ref(), tcp, &tls);
        let https = || -> Result<_, ConnectError> {
            let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
            let Some(name) = &self.config.tls_server_name else { return Ok(https) };
            let name = name.clone().try_into().map_err(|error| ConnectError::Server {
                value: name.clone(),
                problem: format!("tls-server-name: {error}"),
            })?;
            Ok(https.with_server_name_resolver(FixedServerNameResolver::new(name)))
        };
        let dedicated = Connector(https()?.enable_http1().wrap_connector(LongResponseConnector(route.clone())));
        let http1 = Connector(https()?.enable_http1().wrap_connector(route.clone()));
        let any = Connector(https()?.enable_all_versions().wrap_connector(route));
        let lane = |runtime: &Handle, retires_silent| {
            Streams::new(runtime.clone(), any.clone(), http1.clone(), retires_silent)
        };
        let Runtimes { control, work } = &self.runtimes;
        Ok(Arc::new(LaneConnections {
            short: lane(work, false),
            control: lane(control, true),
            watches: lane(work, false),
            dedicated,
        }))
    }
}

/// The connections of one pool. Changed certificates require new connections; old ones close after their last request.
pub(super) struct Connections {
    credentials: Credentials,
    current: RwLock<Arc<LaneConnections>>,
    /// The fingerprint of the files and of the certificate that the current connections were loaded from.
    loaded: Mutex<u64>,
}

impl Connections {
    /// Reads the certificates. Blocks the thread.
    pub(super) fn new(
        pool: Pool,
        source: &Source,
        plugin: Option<Arc<PluginCredentials>>,
        runtimes: Runtimes,
    ) -> Result<Self, ConnectError> {
        let credentials = Credentials::new(pool, source, plugin, runtimes);
        let identity = credentials.issued_identity();
        let loaded = Mutex::new(credentials.fingerprint(identity.as_ref())?);
        let tls = credentials.tls(identity.as_ref())?;
        Ok(Self { current: RwLock::new(credentials.lanes(tls)?), credentials, loaded })
    }

    /// Returns true if the credentials of the connections can change while the process runs.
    pub(super) fn reloads(&self) -> bool {
        self.credentials.plugin.is_some() || self.credentials.files().next().is_some()
    }

    /// Switches to new connections if a file or the certificate of the exec plugin changed. Blocks the thread. Returns
    /// true after a switch.
    ///
    /// # Errors
    /// When the files cannot be read or do not match, as in the middle of a rotation; the old connections stay in use.
    pub(super) fn reload(&self) -> Result<bool, ConnectError> {
        let identity = self.credentials.issued_identity();
        let fingerprint = self.credentials.fingerprint(identity.as_ref())?;
        if fingerprint == *lock(&self.loaded) {
            return Ok(false);
        }
        let tls = self.credentials.tls(identity.as_ref())?;
        *write(&self.current) = self.credentials.lanes(tls)?;
        *lock(&self.loaded) = fingerprint;
        Ok(true)
    }

    fn current(&self) -> Arc<LaneConnections> {
        read(&self.current).clone()
    }
}

/// Sends requests over the current connections and counts them.
#[derive(Clone)]
pub(super) struct Transport {
    pub(super) connections: Arc<Connections>,
    pub(super) metrics: RestClient,
}

impl Service<Request<Body>> for Transport {
    type Response = Response<IncomingBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<IncomingBody>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let lanes = self.connections.current();
        let metrics = self.metrics.clone();
        Box::pin(async move {
            let mut pending = PendingRequest::begin(&request, metrics);
            let response = lanes.send(request).await;
            pending.code = response.as_ref().ok().map(|response| response.status().as_u16());
            response
        })
    }
}

/// A request without a response. It is counted when it is dropped; a timeout drops it with the future of the request.
struct PendingRequest {
    metrics: RestClient,
    method: Method,
    host: String,
    is_watch: bool,
    started: Instant,
    /// The status of the response.
    code: Option<u16>,
}

impl PendingRequest {
    fn begin(request: &Request<Body>, metrics: RestClient) -> Self {
        let (method, host) = (request.method().clone(), host(request.uri()));
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        Self { metrics, method, host, is_watch, started: Instant::now(), code: None }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if !self.is_watch {
            self.metrics.took(self.method.as_str(), &self.host, self.started.elapsed());
        }
        self.metrics.responded(self.method.as_str(), &self.host, self.code);
    }
}

/// Returns the server's name and port, as metrics report them.
pub(super) fn host(server: &Uri) -> String {
    server.authority().map(ToString::to_string).unwrap_or_default()
}
