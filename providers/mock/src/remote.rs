//! A provider over a mock cloud that another process serves.
//!
//! It reads annotations and features itself, because these need no call, and sends everything else.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use providers::{
    CloudError, CloudProvider, Deletion, Ensured, ErrorKind, Features, Followed, InstanceFeatures, InstanceRef,
    InstanceState, Instances, LoadBalancerId, LoadBalancerSpec, LoadBalancers, Observed, Owned, Route, RouteChange,
    Routes, Targeting, Targets, async_trait,
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::config::MockConfig;
use crate::instances;
use crate::settings;
use crate::wire::Call;

/// Maximum time for a call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Returns true for a character that a path can contain without an escape.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

struct Connection {
    base: String,
    cluster: String,
    client: Client<HttpConnector, Full<Bytes>>,
    config: OnceLock<MockConfig>,
}

impl Connection {
    async fn send(&self, method: Method, path: &str, body: Vec<u8>, operation: &str) -> Result<Bytes, CloudError> {
        let url = format!("{}{path}", self.base);
        let failed = |problem: String| CloudError::new(ErrorKind::Transient, operation, format!("{url}: {problem}"));
        let request = Request::builder().method(method).uri(&url).header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::from(body)).map_err(|error| failed(error.to_string()))?;
        let exchange = async {
            let response = self.client.request(request).await.map_err(|error| failed(error.to_string()))?;
            let status = response.status();
            let body = response.into_body().collect().await.map_err(|error| failed(error.to_string()))?.to_bytes();
            match status {
                StatusCode::OK => Ok(body),
                _ => Err(failed(format!("{status}: {}", String::from_utf8_lossy(&body).trim()))),
            }
        };
        timeout(TIMEOUT, exchange).await.map_err(|_| failed(format!("no response within {TIMEOUT:?}")))?
    }

    async fn call<T: DeserializeOwned>(&self, operation: &str, call: &Call) -> Result<T, CloudError> {
        let failed = |error: serde_json::Error| CloudError::new(ErrorKind::Transient, operation, error.to_string());
        let body = serde_json::to_vec(call).map_err(failed)?;
        let response = self.send(Method::POST, &format!("/provider/{}", self.cluster), body, operation).await?;
        serde_json::from_slice(&response).map_err(failed)
    }
}

/// A provider for one cluster.
pub(crate) struct RemoteProvider(Arc<Connection>);

impl RemoteProvider {
    /// Creates a provider over the cloud at a URL.
    ///
    /// # Errors
    /// A sentence with the fix, if the URL or the name of the cluster cannot be used.
    pub fn new(url: &str, cluster: &str) -> Result<Self, String> {
        let uri: Option<Uri> = url.parse().ok();
        let usable = uri.filter(|uri| uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/"));
        let Some(authority) = usable.as_ref().and_then(Uri::authority) else {
            return Err("use the address of the process that serves the cloud, such as http://127.0.0.1:9902".into());
        };
        if !cluster.chars().all(is_plain) {
            return Err(format!("--cluster-name is {cluster:?}: use letters, digits, '-', '_' and '.' with a url"));
        }
        let client = Client::builder(TokioExecutor::new()).build_http();
        let base = format!("http://{authority}");
        Ok(Self(Arc::new(Connection { base, cluster: cluster.to_owned(), client, config: OnceLock::new() })))
    }
}

#[async_trait]
impl CloudProvider for RemoteProvider {
    fn name(&self) -> &'static str {
        "mock"
    }

    fn has_cluster_id(&self) -> bool {
        !self.0.cluster.is_empty()
    }

    async fn initialize(&self) -> Result<(), CloudError> {
        if self.0.config.get().is_some() {
            return Ok(());
        }
        let body = self.0.send(Method::GET, "/config", Vec::new(), "GetConfig").await?;
        let config = serde_json::from_slice(&body)
            .map_err(|error| CloudError::new(ErrorKind::Transient, "GetConfig", error.to_string()))?;
        // A concurrent call may have stored the configuration; its value is the same.
        let _ = self.0.config.set(config);
        Ok(())
    }

    fn instances(&self) -> Option<Arc<dyn Instances>> {
        Some(Arc::new(Remote(self.0.clone())))
    }

    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        Some(Arc::new(Remote(self.0.clone())))
    }

    fn routes(&self) -> Option<Arc<dyn Routes>> {
        Some(Arc::new(Remote(self.0.clone())))
    }
}

struct Remote(Arc<Connection>);

#[async_trait]
impl Instances for Remote {
    fn instance_features(&self) -> InstanceFeatures {
        instances::features()
    }

    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState> {
        let described: Result<Vec<InstanceState>, _> =
            self.0.call("DescribeInstances", &Call::Describe(instances.to_vec())).await;
        described.unwrap_or_else(|error| vec![InstanceState::Unknown(error); instances.len()])
    }
}

#[async_trait]
impl LoadBalancers for Remote {
    fn features(&self) -> Features {
        settings::features()
    }

    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        let config = self.0.config.get().cloned().unwrap_or_default();
        Ok(settings::read(spec, &config)?.targeting)
    }

    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        self.0.call::<Result<_, _>>("Observe", &Call::Observe(id.clone())).await?
    }

    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError> {
        let call = Call::Ensure(Box::new(spec.clone()), targets.into());
        self.0.call::<Result<_, _>>("Ensure", &call).await?
    }

    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError> {
        let call = Call::SetTargets(Box::new(spec.clone()), targets.into());
        self.0.call::<Result<_, _>>("SetTargets", &call).await?
    }

    async fn follow_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Followed, CloudError> {
        let call = Call::FollowTargets(Box::new(spec.clone()), targets.into());
        self.0.call::<Result<_, _>>("FollowTargets", &call).await?
    }

    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        self.0.call::<Result<_, _>>("Delete", &Call::Delete(id.clone())).await?
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        self.0.call::<Result<_, _>>("ListOwned", &Call::ListOwned).await?
    }
}

#[async_trait]
impl Routes for Remote {
    async fn list(&self) -> Result<Vec<Route>, CloudError> {
        self.0.call::<Result<_, _>>("ListRoutes", &Call::ListRoutes).await?
    }

    async fn apply(&self, changes: &[RouteChange]) -> Vec<Result<(), CloudError>> {
        let applied: Result<Vec<Result<(), CloudError>>, _> =
            self.0.call("ApplyRoutes", &Call::ApplyRoutes(changes.to_vec())).await;
        applied.unwrap_or_else(|error| vec![Err(error); changes.len()])
    }
}
