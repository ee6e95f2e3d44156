//! The clients of one API server.

use std::sync::Arc;
use std::time::Duration;

use crate::metrics::RestClient;

/// Clients of the same server, one per identity and purpose.
#[derive(Clone)]
pub struct Clients {
    /// The process's own identity: watches, and all requests of [`Identity::Own`](super::Identity::Own).
    pub own: kube::Client,
    /// The process's own identity, over connections that only the Lease, TokenRequests and discovery use, driven by
    /// [`ConnectOptions::control_runtime`](super::ConnectOptions::control_runtime).
    pub control: kube::Client,
    /// No client certificate, `Authorization` header or impersonation: each request carries its own bearer token.
    pub bearer: kube::Client,
    /// The namespace of the kubeconfig's context or of the pod; `default` if neither names one.
    pub default_namespace: String,
    /// Metrics of all requests of both [pools](super::Pool).
    pub metrics: RestClient,
    pub(super) host: Arc<str>,
    pub(super) write_timeout: Duration,
    pub(super) user_agent: Arc<str>,
}

impl Clients {
    /// Returns the server's name and port, as metrics report them.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }
}
