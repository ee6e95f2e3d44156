//! The options of a connection.

use std::path::PathBuf;
use std::time::Duration;

use tokio::runtime::Handle;

use super::layer::RequestLayer;
use super::proxy::ProxyEnvironment;

pub(super) const HOST_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
pub(super) const PORT_VARIABLE: &str = "KUBERNETES_SERVICE_PORT";

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
    /// The flag or field that `kubeconfig` is the value of, for error messages. Default `--kubeconfig`.
    pub kubeconfig_setting: &'static str,
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
    /// A hook around every request of both pools.
    pub layer: Option<RequestLayer>,
    /// Maximum time for a write through [`Clients::send`](super::Clients::send), including its response. Default 30 s.
    pub write_timeout: Duration,
    /// Interval at which the files of certificates and tokens are checked for changes. Default 30 s.
    pub reload_interval: Duration,
    /// The runtime that drives the connections of [`Clients::control`](super::Clients::control), so that the
    /// Lease is renewed while controllers occupy all threads of theirs. Default: the runtime that calls
    /// [`connect`](super::connect).
    pub control_runtime: Option<Handle>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            kubeconfig_setting: "--kubeconfig",
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
