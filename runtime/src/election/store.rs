//! Storage of the lease: read, create, and update with its resource version.

use futures::future::{BoxFuture, FutureExt};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Resource;
use kube::client::Body;
use kube::core::Request;
use kube::core::params::{GetParams, PostParams};
use serde::de::DeserializeOwned;

use crate::client::refusal;

/// Maximum size of a response in bytes. An object with the largest metadata that the API server stores is smaller.
const MAX_BODY_BYTES: usize = 4 << 20;

/// Access to one Lease of the API. The future of a call may be dropped at any time; the API server may receive its
/// request all the same.
pub trait LeaseStore: Send + Sync {
    /// Reads the lease.
    fn get(&self) -> BoxFuture<'_, Result<Lease, LeaseError>>;

    /// Creates the lease and returns it as stored.
    fn create<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>>;

    /// Replaces the lease if its resource version is still that of `lease`, and returns it as stored.
    fn update<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>>;
}

/// The reason why a call returned no Lease or LeaseCandidate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// There is no such object.
    #[error("not found")]
    NotFound,
    /// Another process created or changed the object first.
    #[error("changed by another process: {0}")]
    Conflict(String),
    /// Any other failure; a change may or may not have been executed.
    #[error("the request failed: {0}")]
    Failed(String),
}

/// The lease `name` in `namespace` on the API server (coordination.k8s.io/v1).
pub(super) struct ApiLease {
    client: kube::Client,
    name: String,
    requests: Request,
}

impl ApiLease {
    pub(super) fn new(client: kube::Client, namespace: &str, name: &str) -> Self {
        Self { client, name: name.to_owned(), requests: Request::new(Lease::url_path(&(), Some(namespace))) }
    }

    async fn send(&self, request: Result<http::Request<Vec<u8>>, LeaseError>) -> Result<Lease, LeaseError> {
        exchange(&self.client, request?).await
    }
}

impl LeaseStore for ApiLease {
    fn get(&self) -> BoxFuture<'_, Result<Lease, LeaseError>> {
        self.send(self.requests.get(&self.name, &GetParams::default()).map_err(failed)).boxed()
    }

    fn create<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        let request = json(lease).and_then(|body| {
            let request = self.requests.create(&PostParams::default(), body);
            request.map_err(failed)
        });
        self.send(request).boxed()
    }

    fn update<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        let request = json(lease).and_then(|body| {
            let request = self.requests.replace(&self.name, &PostParams::default(), body);
            request.map_err(failed)
        });
        self.send(request).boxed()
    }
}

fn json(lease: &Lease) -> Result<Vec<u8>, LeaseError> {
    serde_json::to_vec(lease).map_err(failed)
}

pub(super) fn failed(error: impl std::fmt::Display) -> LeaseError {
    LeaseError::Failed(error.to_string())
}

/// Sends a request of the election, and reads its response up to [`MAX_BODY_BYTES`].
#[allow(clippy::disallowed_methods, reason = "the lease itself decides who may write")]
pub(super) async fn exchange<T: DeserializeOwned>(
    client: &kube::Client,
    request: http::Request<Vec<u8>>,
) -> Result<T, LeaseError> {
    let response = client.send(request.map(Body::from)).await.map_err(failed)?;
    if !response.status().is_success() {
        let status = refusal(response).await;
        return Err(match status.code {
            404 => LeaseError::NotFound,
            409 => LeaseError::Conflict(status.to_string()),
            _ => failed(status),
        });
    }
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await.map_err(failed)?;
    serde_json::from_slice(&body.to_bytes()).map_err(failed)
}
