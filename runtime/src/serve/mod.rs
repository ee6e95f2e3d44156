//! The HTTPS server of a manager: health, metrics, configuration and debug pages, with authentication and
//! authorization.
//!
//! It also serves before leadership is acquired, so that a standby can be probed and scraped. A request is
//! authenticated by front proxy, client certificate or bearer token, and, unless its path is open to all users,
//! authorized by the API server. Upstream: controller-manager/app; apiserver/pkg/server/options.

mod access_metrics;
mod authenticate;
mod authorize;
mod cache;
mod connection;
mod handshake;
mod health;
mod options;
mod peer;
mod response;
mod review;
mod review_metrics;
mod routes;
mod slots;
mod sni;
#[cfg(test)]
mod tests;
mod tls;
mod trust;
mod user;
mod zpages;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

pub use health::{Check, Health, Outcome, Probe};
pub use options::{
    AuthenticationOptions, AuthorizationOptions, RequestHeaderOptions, ServeError, ServeOptions, TlsOptions,
};
pub use routes::{ServedContent, SetVerbosity, configz};
pub use user::User;
pub use zpages::{ProcessStatus, Zpages};

use access_metrics::{RequestMetrics, TokenCacheMetrics};
use authenticate::Authenticator;
use authorize::Authorizer;
use connection::Protocol;
use review::Reviewer;
use review_metrics::ReviewMetrics;
use routes::Routes;
use slots::ConnectionSlots;
use tls::{Settings, Tls};
use trust::Trust;

use crate::client::{ConnectError, ConnectOptions, connect};

/// Maximum number of connections; beyond it, a new connection closes an old one without an authorized request.
///
/// Unit tests have both ends of all connections in one process.
const MAX_CONNECTIONS: usize = if cfg!(test) { 64 } else { 512 };
/// Interval between checks of certificate files for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Number of checks of certificate files for each read of the cluster's ConfigMap.
const LOOKUP_ROUNDS: u32 = 6;
/// Maximum time that running requests may take after a stop was requested.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// A running HTTPS server. Dropping it stops it immediately.
pub struct Server {
    address: SocketAddr,
    stop_sender: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Server {
    /// Listens and serves. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`ServeError`] when the port is in use, a file or flag is invalid, or the cluster's authentication settings
    /// cannot be read although they are required.
    pub async fn start(options: ServeOptions, served_content: ServedContent) -> Result<Self, ServeError> {
        // Bind the port first: if it is in use, the process must fail before it sends requests to the API server.
        let listener = listen(&options)?;
        let address = listener
            .local_addr()
            .map_err(|problem| ServeError::Listen { address: (options.bind_address, options.port).into(), problem })?;
        let settings = Settings::new(&options.tls, options.http1_only)?;
        let agent = &options.user_agent;
        let (authentication, authorization) = (&options.authentication, &options.authorization);
        let (authn, authz) = (
            ReviewMetrics::new(&served_content.metrics, "authn"),
            ReviewMetrics::new(&served_content.metrics, "authz"),
        );
        let tokens =
            reviewer("--authentication-kubeconfig", authentication.kubeconfig.as_deref(), agent, authn).await?;
        let access = reviewer("--authorization-kubeconfig", authorization.kubeconfig.as_deref(), agent, authz).await?;
        if access.is_none() {
            warn!(
                "no --authorization-kubeconfig: only system:masters and --authorization-always-allow-paths are allowed"
            );
        }
        let trust = Arc::new(Trust::new(authentication, tokens.clone(), settings.provider.clone()).await?);
        let (files, bound, named) = (options.tls.clone(), options.bind_address, subjects(&trust));
        let tls = blocking(move || Tls::new(&files, settings, bound, named)).await?;
        let tls = Arc::new(tls);
        let token_metrics = TokenCacheMetrics::new(&served_content.metrics);
        let metrics = RequestMetrics::new(&served_content.metrics);
        let routes = Arc::new(Routes {
            served_content,
            authenticator: Authenticator::new(trust.clone(), tokens, authentication.token_ttl, token_metrics)
                .reading_certificate_uid(authentication.reads_certificate_uid),
            authorizer: Authorizer::new(authorization, access)?,
            metrics,
        });
        let protocol =
            Protocol::new(options.http1_only, options.http2_max_streams, options.closes_unauthenticated_http2);
        let (stop_sender, stopping) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, tls.clone(), routes, protocol, stopping.clone()));
        tasks.spawn(reload_until_stopped(trust, tls, stopping));
        info!(%address, "serving securely");
        Ok(Self { address, stop_sender, tasks })
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no further connections, and closes the open ones within a second.
    pub async fn stop(mut self) {
        self.stop_sender.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
        info!(address = %self.address, "stopped serving");
    }
}

/// Runs work that reads files on another thread: a file system that hangs must not block the caller's thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// Returns the authorities that the handshake names to clients; `None` if it requests no certificate.
fn subjects(trust: &Trust) -> Option<Vec<rustls::DistinguishedName>> {
    trust.requests_certificates().then(|| trust.current().subjects())
}

/// Creates a reviewer from a kubeconfig, or else from the pod's own credentials; `None` without either.
async fn reviewer(
    flag: &'static str,
    kubeconfig: Option<&Path>,
    user_agent: &str,
    metrics: ReviewMetrics,
) -> Result<Option<Arc<Reviewer>>, ServeError> {
    let options = ConnectOptions {
        kubeconfig: kubeconfig.map(Path::to_owned),
        kubeconfig_setting: flag,
        user_agent: user_agent.to_owned(),
        ..ConnectOptions::default()
    };
    match connect(&options).await {
        Ok(clients) => Ok(Some(Arc::new(Reviewer::new(clients, metrics)))),
        Err(ConnectError::InCluster(reason)) => {
            debug!(%reason, "{flag} is not set and this process does not run in a pod");
            Ok(None)
        }
        Err(problem) => Err(ServeError::Kubeconfig { flag, problem }),
    }
}

/// Listens on the configured address. An unspecified address means all addresses of both families, if the system
/// supports both (Go, net.Listen).
fn listen(options: &ServeOptions) -> Result<TcpListener, ServeError> {
    let given = SocketAddr::new(options.bind_address, options.port);
    let wrong = |problem| ServeError::Listen { address: given, problem };
    if !options.bind_address.is_unspecified() {
        return bind(given, options.share_port).map_err(wrong);
    }
    let both = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), options.port);
    match bind(both, options.share_port) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), options.port);
            bind(v4, options.share_port).map_err(wrong)
        }
        bound => bound.map_err(wrong),
    }
}

fn bind(address: SocketAddr, share: bool) -> io::Result<TcpListener> {
    const BACKLOG: u32 = 1024;
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As Go does for every listener: connections that linger after a restart do not block the port.
    socket.set_reuseaddr(true)?;
    if share {
        socket.set_reuseport(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(
    listener: TcpListener,
    tls: Arc<Tls>,
    routes: Arc<Routes>,
    protocol: Protocol,
    mut stopping: watch::Receiver<bool>,
) {
    let slots = ConnectionSlots::new(MAX_CONNECTIONS);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let Some(slot) = slots.take(from.ip()) else {
                    debug!(%from, "connection refused: all connection slots serve authorized requests");
                    continue;
                };
                let local = stream.local_addr().ok().map(|local| local.ip());
                let (tls, routes, protocol, stopping) =
                    (tls.config(local), routes.clone(), protocol.clone(), stopping.clone());
                connections.spawn(async move {
                    if let Err(problem) = protocol.serve(stream, tls, routes, stopping, slot).await {
                        debug!(%from, problem, "connection failed");
                    }
                });
            }
            Err(error) => {
                // The error may persist, for example without free file descriptors: the pause prevents a busy loop.
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_TIMEOUT, all).await.is_err() {
        connections.shutdown().await;
    }
}

/// Reloads changed certificates and authorities until the server stops.
async fn reload_until_stopped(trust: Arc<Trust>, tls: Arc<Tls>, mut stopping: watch::Receiver<bool>) {
    let mut round: u32 = 0;
    loop {
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            () = tokio::time::sleep(FILE_CHECK_INTERVAL) => {}
        }
        round = round.wrapping_add(1);
        let refresh = trust.refresh(round.is_multiple_of(LOOKUP_ROUNDS));
        let refreshed = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            refreshed = refresh => refreshed,
        };
        if let Err(problem) = refreshed {
            warn!(problem, "authorities of client certificates not reloaded; keeping the old ones");
        }
        let (tls, subjects) = (tls.clone(), subjects(&trust));
        let refresh = tokio::task::spawn_blocking(move || tls.refresh(subjects));
        let refreshed = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return,
            refreshed = refresh => refreshed,
        };
        match refreshed {
            Ok(Ok(true)) => info!("certificates reloaded"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => warn!(%error, "certificate not reloaded; keeping the old one"),
            Err(error) => warn!(%error, "reloading the certificate panicked"),
        }
    }
}
