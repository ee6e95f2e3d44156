//! The reasons why a connection cannot be configured.

use std::path::PathBuf;

/// The reason why [`connect`](super::connect) failed. Each message names the fix; none contains a credential.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read.
    #[error("kubeconfig {file:?} cannot be read: {source}; name an existing, readable file in {setting}")]
    ReadKubeconfig {
        /// The file.
        file: PathBuf,
        /// [`ConnectOptions::kubeconfig_setting`](super::ConnectOptions::kubeconfig_setting).
        setting: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is not a kubeconfig.
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
    /// Neither `--kubeconfig` nor `--master` is set, and the process does not run in a pod.
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
    #[error("{variable}: {problem}; set it to a URL such as http://HOST:PORT, or name the API server in NO_PROXY")]
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
    /// TLS cannot be configured with the certificate authorities, the client certificate and its key.
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
