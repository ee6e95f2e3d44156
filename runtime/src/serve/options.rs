//! Options of the HTTPS server, and their errors.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::client::ConnectError;

/// Options of the server. The defaults are those of kube-controller-manager, except for the port: any free one.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// `--bind-address`; an unspecified address means all addresses of both families.
    pub bind_address: IpAddr,
    /// `--secure-port`; zero selects any free port. To serve nothing, do not call [`Server::start`].
    ///
    /// [`Server::start`]: super::Server::start
    pub port: u16,
    /// `--permit-port-sharing`: other processes may listen on the same port.
    pub share_port: bool,
    /// Certificates, versions, ciphers.
    pub tls: TlsOptions,
    /// `--disable-http2-serving`
    pub http1_only: bool,
    /// `--http2-max-streams-per-connection`; zero: 100.
    pub http2_max_streams: u32,
    /// Closes an HTTP/2 connection after an unauthenticated request (gate UnauthenticatedHTTP2DOSMitigation).
    pub closes_unauthenticated_http2: bool,
    /// Authentication.
    pub authentication: AuthenticationOptions,
    /// Authorization.
    pub authorization: AuthorizationOptions,
    /// The `User-Agent` of reviews.
    pub user_agent: String,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 0,
            share_port: false,
            tls: TlsOptions::default(),
            http1_only: false,
            http2_max_streams: 0,
            closes_unauthenticated_http2: true,
            authentication: AuthenticationOptions::default(),
            authorization: AuthorizationOptions::default(),
            user_agent: concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}

/// TLS options. Upstream: apiserver, options.SecureServingOptions.
#[derive(Debug, Clone, Default)]
pub struct TlsOptions {
    /// `--tls-cert-file`: PEM, the server's certificate first. Reloaded when it changes.
    pub cert_file: Option<PathBuf>,
    /// `--tls-private-key-file`: PEM.
    pub key_file: Option<PathBuf>,
    /// `--tls-sni-cert-key`: pairs for certain hosts, as `cert,key` or `cert,key:host,host`. Reloaded when they change.
    pub sni: Vec<String>,
    /// `--cert-dir`: stores a self-signed pair as `<pair_name>.crt` and `.key`; `None`: the pair stays in memory.
    pub cert_dir: Option<PathBuf>,
    /// The name of a stored pair.
    pub pair_name: String,
    /// `--tls-min-version`, such as `VersionTLS12`; empty: 1.2, which is the lowest supported version.
    pub min_version: String,
    /// `--tls-cipher-suites`, by IANA names; empty: all supported ones. They apply to TLS 1.2 only, as in Go.
    pub cipher_suites: Vec<String>,
    /// `--tls-curve-preferences`, as TLS group numbers; empty: all supported ones.
    pub curves: Vec<i32>,
}

/// Authentication. Upstream: apiserver, options.DelegatingAuthenticationOptions.
#[derive(Debug, Clone)]
pub struct AuthenticationOptions {
    /// `--authentication-kubeconfig`; `None`: the pod's own credentials; outside of a pod, no reviews.
    pub kubeconfig: Option<PathBuf>,
    /// `--authentication-skip-lookup`: do not read authorities from the cluster.
    pub skip_lookup: bool,
    /// `--authentication-tolerate-lookup-failure`: start even if the authorities in the cluster cannot be read.
    pub tolerate_lookup_failure: bool,
    /// `--authentication-token-webhook-cache-ttl`.
    pub token_ttl: Duration,
    /// `--client-ca-file`.
    pub client_ca_file: Option<PathBuf>,
    /// The subject of a client certificate may hold the user's UID (gate AllowParsingUserUIDFromCertAuth).
    pub reads_certificate_uid: bool,
    /// `--requestheader-*`; used only with a CA file, because the cluster's ConfigMap has its own settings.
    pub request_header: RequestHeaderOptions,
}

impl Default for AuthenticationOptions {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            skip_lookup: false,
            tolerate_lookup_failure: false,
            token_ttl: Duration::from_secs(10),
            client_ca_file: None,
            reads_certificate_uid: true,
            request_header: RequestHeaderOptions::default(),
        }
    }
}

/// The certificates of front proxies, and the headers in which they name users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeaderOptions {
    /// `--requestheader-client-ca-file`.
    pub client_ca_file: Option<PathBuf>,
    /// `--requestheader-allowed-names`; empty: any.
    pub allowed_names: Vec<String>,
    /// `--requestheader-username-headers`.
    pub username_headers: Vec<String>,
    /// `--requestheader-uid-headers`.
    pub uid_headers: Vec<String>,
    /// `--requestheader-group-headers`.
    pub group_headers: Vec<String>,
    /// `--requestheader-extra-headers-prefix`.
    pub extra_prefixes: Vec<String>,
}

impl Default for RequestHeaderOptions {
    fn default() -> Self {
        Self {
            client_ca_file: None,
            allowed_names: Vec::new(),
            username_headers: vec!["x-remote-user".into()],
            uid_headers: Vec::new(),
            group_headers: vec!["x-remote-group".into()],
            extra_prefixes: vec!["x-remote-extra-".into()],
        }
    }
}

/// Authorization. Upstream: apiserver, options.DelegatingAuthorizationOptions.
#[derive(Debug, Clone)]
pub struct AuthorizationOptions {
    /// `--authorization-kubeconfig`; `None`: the pod's own credentials; outside of a pod, no reviews.
    pub kubeconfig: Option<PathBuf>,
    /// `--authorization-always-allow-paths`; a trailing `*` makes a prefix.
    pub always_allow_paths: Vec<String>,
    /// `--authorization-webhook-cache-authorized-ttl`.
    pub authorized_ttl: Duration,
    /// `--authorization-webhook-cache-unauthorized-ttl`.
    pub unauthorized_ttl: Duration,
}

impl Default for AuthorizationOptions {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            always_allow_paths: ["/healthz", "/readyz", "/livez"].map(Into::into).into(),
            authorized_ttl: Duration::from_secs(10),
            unauthorized_ttl: Duration::from_secs(10),
        }
    }
}

/// The reason why the server cannot start. Each message names the flag to correct.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error(
        "cannot listen on {address} (--bind-address, --secure-port): {problem}; free the port or choose another --secure-port (0 serves nothing)"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        problem: io::Error,
    },
    /// Certificate and key cannot be used.
    #[error("{flag}: {files}: {problem}")]
    Pair {
        /// The flags of the files.
        flag: &'static str,
        /// The files.
        files: String,
        /// The problem and the fix.
        problem: String,
    },
    /// A TLS setting is invalid.
    #[error("{flag}: {problem}")]
    Setting {
        /// The flag.
        flag: &'static str,
        /// The problem and the valid values.
        problem: String,
    },
    /// A bundle of authorities cannot be used.
    #[error("{flag}: {file:?}: {problem}; put PEM certificates into it")]
    Authority {
        /// The flag.
        flag: &'static str,
        /// The file.
        file: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A kubeconfig cannot be used.
    #[error("{flag}: {problem}")]
    Kubeconfig {
        /// The flag.
        flag: &'static str,
        /// The problem.
        problem: ConnectError,
    },
    /// The cluster's authorities cannot be read.
    #[error(
        "the authentication settings in ConfigMap kube-system/extension-apiserver-authentication cannot be looked up: {problem}; \
         let the identity of --authentication-kubeconfig read it (Role kube-system/extension-apiserver-authentication-reader), \
         or set --authentication-skip-lookup or --authentication-tolerate-lookup-failure"
    )]
    Lookup {
        /// The problem.
        problem: String,
    },
    /// An always allowed path is invalid.
    #[error("--authorization-always-allow-paths: only a trailing * is allowed in {value:?}")]
    OpenPath {
        /// The path as given.
        value: String,
    },
}
