//! An operator's process: connection, leader election, served endpoints, shutdown.

use std::path::PathBuf;
use std::sync::Arc;

use super::operator::Operator;
use crate::client::{ConnectError, ConnectOptions, connect};
use crate::election::{ElectionConfig, ElectionError, unique_identity};
use crate::health_checks;
use crate::manager::{ExitReason, Manager, ManagerOptions};
use crate::serve::{Health, ServeError, ServeOptions, ServedContent, Server, TlsOptions, Zpages, configz};
use crate::telemetry::{Controllers, Events, Leadership, Stores};

/// Settings of an operator's process.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The connection to the API server; the default is right in a pod. The default `User-Agent` is
    /// preceded by the name of the operator.
    pub connection: ConnectOptions,
    /// The only namespace to watch; `None`: all.
    pub namespace: Option<String>,
    /// Controllers run only while this process holds the Lease, so that other processes can stand by.
    pub leader_election: bool,
    /// The namespace of the Lease; `None`: the namespace of the pod or of the kubeconfig.
    pub lease_namespace: Option<String>,
    /// HTTPS port of `/metrics`, `/healthz`, `/livez`, `/readyz` and the debug pages; 0 disables serving.
    pub port: u16,
    /// Requests per second of each controller; its lists and watches are not limited by it.
    pub qps: f32,
    /// Burst of requests of each controller.
    pub burst: u32,
}

impl Default for Settings {
    fn default() -> Self {
        let ManagerOptions { qps, burst, .. } = ManagerOptions::default();
        Self {
            connection: ConnectOptions::default(),
            namespace: None,
            leader_election: true,
            lease_namespace: None,
            port: 8443,
            qps,
            burst,
        }
    }
}

/// The reason why an operator could not run, or must stop.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration of the connection cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The configuration of the election is invalid.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// The HTTPS port cannot be served.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Another process leads, or may lead: this process must exit immediately.
    #[error("the lease was lost: {0}")]
    LeaseLost(crate::election::Lost),
    /// A defect ended a watch: its store is out of date, and the process must exit.
    #[error("a watch ended; this is a defect, please report it")]
    WatchEnded,
    /// A controller blocks the threads of the runtime, and the process must exit.
    #[error("the threads of the controllers no longer run tasks: a reconcile blocks them or never ends")]
    Stalled,
}

impl Operator {
    /// Connects, acquires the Lease, and runs the controllers until `shutdown` completes; then shuts down in order.
    ///
    /// # Errors
    /// When the operator cannot start, loses the Lease, or stops because of a defect: the process must exit then.
    pub async fn run(self, settings: Settings, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
        let name = self.name;
        let user_agent = user_agent(name, &settings.connection.user_agent);
        let connection = ConnectOptions { user_agent: user_agent.clone(), ..settings.connection.clone() };
        let clients = Arc::new(connect(&connection).await?);
        let election = settings.leader_election.then(|| {
            let namespace = settings.lease_namespace.as_deref().unwrap_or(&clients.default_namespace);
            ElectionConfig::new(namespace, name, unique_identity(&hostname()))
        });
        let options = ManagerOptions {
            namespace: settings.namespace.clone(),
            election,
            qps: settings.qps,
            burst: settings.burst,
            ..ManagerOptions::default()
        };
        let manager = self.manager(clients, options)?;
        let server = match settings.port {
            0 => None,
            port => {
                let mut serve = ServeOptions {
                    port,
                    user_agent,
                    tls: TlsOptions { pair_name: name.to_owned(), ..TlsOptions::default() },
                    ..ServeOptions::default()
                };
                serve.authentication.kubeconfig = settings.connection.kubeconfig.clone();
                serve.authorization.kubeconfig = settings.connection.kubeconfig.clone();
                serve.authentication.tolerate_lookup_failure = true;
                Some(Server::start(serve, served_content(name, &manager)).await?)
            }
        };
        let ended = manager.run(shutdown).await;
        match ended {
            ExitReason::LeaseLost(lost) => Err(RunError::LeaseLost(lost)),
            ExitReason::WatchEnded => Err(RunError::WatchEnded),
            ExitReason::Stalled => Err(RunError::Stalled),
            ExitReason::Shutdown => {
                if let Some(server) = server {
                    server.stop().await;
                }
                Ok(())
            }
        }
    }
}

/// Returns the `User-Agent` of an operator's requests: the one in its settings. If that is the default one, the
/// operator's name precedes it, as client-go writes the name of a program without a version.
fn user_agent(name: &str, of_settings: &str) -> String {
    let default = ConnectOptions::default().user_agent;
    if of_settings == default { format!("{name}/unknown ({default})") } else { of_settings.to_owned() }
}

/// Returns the endpoints of an operator: health, diagnostics, and metrics of queues, watches, reconciles, requests and
/// the Lease.
pub fn served_content(name: &'static str, manager: &Manager) -> ServedContent {
    let registry = manager.registry();
    let checks = vec![
        health_checks::leader_election(manager.fence()),
        health_checks::watches(registry),
        health_checks::workers(manager.heartbeat()),
    ];
    let metrics = manager.metrics().clone();
    metrics.rest_client(&manager.clients().metrics);
    metrics.collect(manager.queues());
    metrics.collect(Leadership { lease: name.to_owned(), fence: manager.fence().clone() });
    let (running, fence) = (manager.work_counts(), manager.fence().clone());
    metrics.collect(Controllers { manager: name, running_as: &[], running, fence });
    metrics.collect(Stores { name, stores: registry.stats() });
    metrics.collect(Events(manager.recorders().to_vec()));
    ServedContent {
        health: Arc::new(Health::new(checks, vec![health_checks::stores(registry)])),
        metrics,
        configz: configz(name, serde_json::json!({})),
        zpages: Zpages::default(),
        pages: manager.pages().to_vec(),
        page_runtime: Some(manager.runtime().clone()),
        explainer: Some(Arc::new(manager.explainer(name, Vec::new(), Vec::new()))),
        set_verbosity: None,
    }
}

/// Completes when the process receives SIGTERM or SIGINT.
///
/// # Panics
/// When the process cannot listen for signals.
pub async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).expect("cannot listen for SIGTERM");
    let mut interrupt = signal(SignalKind::interrupt()).expect("cannot listen for SIGINT");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Returns the host name, which in a pod is the name of the pod; `localhost` if the kernel has none.
fn hostname() -> String {
    let name = std::fs::read_to_string(PathBuf::from("/proc/sys/kernel/hostname")).unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_agent_is_that_of_the_settings_or_begins_with_the_name() {
        let default = user_agent("echo-operator", &ConnectOptions::default().user_agent);
        assert!(default.starts_with("echo-operator/unknown (kubewright-runtime/"), "{default}");
        assert_eq!(user_agent("echo-operator", "echo/v2"), "echo/v2");
    }
}
