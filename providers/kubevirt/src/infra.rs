//! The connection to the infrastructure cluster: single requests with typed responses.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Limited};
use kinds::names::is_dns_label;
use providers::{CloudError, ErrorKind};
use runtime::client::{Clients, ConnectOptions, Identity, connect};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::error::{Status, refusal};
use crate::objects::{Object, Page};

/// Maximum size of a response, in bytes.
const MAX_BYTES: usize = 64 << 20;
/// Maximum size of an error's body, in bytes.
const MAX_ERROR_BYTES: usize = 1 << 20;
/// Maximum time to read an error's body.
const ERROR_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of objects per page of a list.
const PAGE_SIZE: usize = 250;
/// Maximum number of pages, in case the server's continue tokens never end.
const MAX_PAGES: usize = 400;

/// A collection of objects in the provider's namespace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Collection {
    /// The path of the group and version, without a slash at its end.
    pub group: &'static str,
    /// The plural name of the kind.
    pub plural: &'static str,
}

pub(crate) const VIRTUAL_MACHINE_INSTANCES: Collection =
    Collection { group: "/apis/kubevirt.io/v1", plural: "virtualmachineinstances" };
pub(crate) const VIRTUAL_MACHINES: Collection = Collection { group: "/apis/kubevirt.io/v1", plural: "virtualmachines" };
pub(crate) const SERVICES: Collection = Collection { group: "/api/v1", plural: "services" };
pub(crate) const ENDPOINTS: Collection = Collection { group: "/api/v1", plural: "endpoints" };
pub(crate) const SLICES: Collection = Collection { group: "/apis/discovery.k8s.io/v1", plural: "endpointslices" };

struct Connected {
    clients: Clients,
    namespace: String,
}

/// The infrastructure cluster, connected at the first use.
pub(crate) struct Infra {
    options: ConnectOptions,
    namespace: Option<String>,
    connected: OnceCell<Connected>,
}

/// The result of a creation.
pub(crate) enum Created<T> {
    /// The object as created.
    New(T),
    /// Another object has the name.
    NameTaken,
}

impl Infra {
    pub fn new(options: ConnectOptions, namespace: Option<String>) -> Self {
        Self { options, namespace, connected: OnceCell::new() }
    }

    async fn connected(&self) -> Result<&Connected, CloudError> {
        let connecting = self.connected.get_or_try_init(|| async {
            let failed = |message: String| CloudError::new(ErrorKind::Transient, "Connect", message);
            let clients = connect(&self.options).await.map_err(|error| failed(error.to_string()))?;
            let namespace = self.namespace.clone().unwrap_or_else(|| clients.default_namespace.clone());
            if !is_dns_label(&namespace) {
                let fix = "set namespace in --cloud-config";
                return Err(failed(format!("the kubeconfig's namespace {namespace:?} is not a valid name: {fix}")));
            }
            Ok(Connected { clients, namespace })
        });
        connecting.await
    }

    /// Returns the namespace of virtual machines and Services.
    pub async fn namespace(&self) -> Result<&str, CloudError> {
        Ok(&self.connected().await?.namespace)
    }

    /// Reads the namespace; `None` if it does not exist.
    pub async fn read_namespace(&self) -> Result<Option<Object>, CloudError> {
        let name = self.namespace().await?;
        self.read("GetNamespace", &format!("/api/v1/namespaces/{name}"), name).await
    }

    /// Reads a node of the infrastructure cluster; `None` if it does not exist.
    pub async fn node(&self, name: &str) -> Result<Option<Object>, CloudError> {
        self.read("GetNode", &format!("/api/v1/nodes/{}", encode(name)), name).await
    }

    /// Reads an object; `None` if the server proves that it does not exist.
    pub async fn get<T: DeserializeOwned>(
        &self,
        operation: &str,
        collection: Collection,
        name: &str,
    ) -> Result<Option<T>, CloudError> {
        let path = self.path(collection, Some(name)).await?;
        self.read(operation, &path, name).await
    }

    /// Reads all objects with these labels, page by page, as of one moment.
    pub async fn list<T: DeserializeOwned>(
        &self,
        operation: &str,
        collection: Collection,
        selector: &str,
    ) -> Result<Vec<T>, CloudError> {
        let path = self.path(collection, None).await?;
        let (mut items, mut next) = (Vec::new(), String::new());
        for _ in 0..MAX_PAGES {
            let query = format!("limit={PAGE_SIZE}&labelSelector={}&continue={}", encode(selector), encode(&next));
            let (code, body) = self.send(operation, Method::GET, &format!("{path}?{query}"), None).await?;
            let page: Page<T> = success(operation, code, &body)?;
            items.extend(page.items);
            next = page.metadata.next;
            if next.is_empty() {
                return Ok(items);
            }
        }
        let message = format!("the list of {} has more than {MAX_PAGES} pages", collection.plural);
        Err(CloudError::new(ErrorKind::Transient, operation, message))
    }

    /// Creates an object.
    pub async fn create<T: DeserializeOwned>(
        &self,
        operation: &str,
        collection: Collection,
        object: &Value,
    ) -> Result<Created<T>, CloudError> {
        let path = self.path(collection, None).await?;
        let (code, body) = self.send(operation, Method::POST, &path, Some((JSON, object))).await?;
        if code.code == 409 && Status::read(&body).is_taken() {
            return Ok(Created::NameTaken);
        }
        success(operation, code, &body).map(Created::New)
    }

    /// Changes an object by a merge patch; `Conflict` if it is no longer at the version in the patch.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        operation: &str,
        collection: Collection,
        name: &str,
        patch: &Value,
    ) -> Result<T, CloudError> {
        let path = self.path(collection, Some(name)).await?;
        let (code, body) = self.send(operation, Method::PATCH, &path, Some((MERGE_PATCH, patch))).await?;
        success(operation, code, &body)
    }

    /// Starts the deletion of exactly this object. It is a success if it does not exist.
    pub async fn delete(
        &self,
        operation: &str,
        collection: Collection,
        name: &str,
        uid: &str,
    ) -> Result<(), CloudError> {
        let path = self.path(collection, Some(name)).await?;
        let options = json!({"preconditions": {"uid": uid}});
        let (code, body) = self.send(operation, Method::DELETE, &path, Some((JSON, &options))).await?;
        match code.code {
            404 if Status::read(&body).proves_absence(name) => Ok(()),
            _ => success::<Value>(operation, code, &body).map(drop),
        }
    }

    async fn path(&self, collection: Collection, name: Option<&str>) -> Result<String, CloudError> {
        let namespace = self.namespace().await?;
        let all = format!("{}/namespaces/{namespace}/{}", collection.group, collection.plural);
        Ok(name.map_or(all.clone(), |name| format!("{all}/{}", encode(name))))
    }

    async fn read<T: DeserializeOwned>(
        &self,
        operation: &str,
        path: &str,
        name: &str,
    ) -> Result<Option<T>, CloudError> {
        let (code, body) = self.send(operation, Method::GET, path, None).await?;
        match code.code {
            404 if Status::read(&body).proves_absence(name) => Ok(None),
            _ => success(operation, code, &body).map(Some),
        }
    }

    async fn send(
        &self,
        operation: &str,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<(Code, Bytes), CloudError> {
        let lost = |problem: String| CloudError::new(ErrorKind::Transient, operation, problem);
        let mut request = Request::builder().method(method).uri(path).header(ACCEPT, JSON);
        let mut bytes = Bytes::new();
        if let Some((kind, value)) = body {
            request = request.header(CONTENT_TYPE, kind);
            bytes = Bytes::from(value.to_string());
        }
        let request = request.body(bytes).map_err(|error| lost(format!("{path} is not a path: {error}")))?;
        let clients = &self.connected().await?.clients;
        let response = clients.send(&Identity::Own, request, MAX_BYTES).await.map_err(|e| lost(e.to_string()))?;
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let code = Code { code: response.status().as_u16(), retry_after };
        if response.status().is_success() {
            let body = response.into_body().collect().await.map_err(|error| lost(error.to_string()))?;
            return Ok((code, body.to_bytes()));
        }
        // The status code is reported even if the body cannot be read.
        let body = timeout(ERROR_TIMEOUT, Limited::new(response.into_body(), MAX_ERROR_BYTES).collect()).await;
        Ok((code, body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default()))
    }
}

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// The HTTP status of a response, and the delay that it requests in seconds.
#[derive(Clone, Copy)]
struct Code {
    code: u16,
    retry_after: Option<u64>,
}

fn success<T: DeserializeOwned>(operation: &str, code: Code, body: &[u8]) -> Result<T, CloudError> {
    if !(200..300).contains(&code.code) {
        return Err(refusal(operation, code.code, &Status::read(body), code.retry_after));
    }
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the infrastructure cluster's response cannot be read: {error}");
        CloudError::new(ErrorKind::Transient, operation, message)
    })
}

/// Encodes a part of a path or a query.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_name_is_encoded_as_one_path_segment() {
        assert_eq!(encode("web-1.x_y"), "web-1.x_y");
        assert_eq!(encode("../a?b=c&d"), "..%2Fa%3Fb%3Dc%26d");
        assert_eq!(encode("ä"), "%C3%A4");
    }
}
