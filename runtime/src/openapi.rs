//! OpenAPI documents of the API server, one for each group and version.
//!
//! The API server forwards requests for the groups of aggregated API servers. Such a server may be slow or hostile:
//! time and size are limited, and each document is read over a separate connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt as _;
use serde::Deserialize;

use crate::client::{Clients, Identity, Lane, SendError, refusal, retry_after};
use crate::journal::note_retry_after;

const INDEX: &str = "/openapi/v3";
/// The start of the path of each document.
const DOCUMENTS: &str = "/openapi/v3/";
/// Maximum time to read a document, including its body.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of a document in bytes. The document of the core group has 2 MiB.
const MAX_BYTES: usize = 16 << 20;

/// The reason why a document could not be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenApiError {
    /// The request was not sent, has no response, or one that is too large.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The server refused the request.
    #[error("{path} was refused: {reason}")]
    Refused {
        /// The path.
        path: String,
        /// The server's reason.
        reason: String,
    },
    /// The response took too long or is malformed.
    #[error("{path} cannot be read: {problem}")]
    Unreadable {
        /// The path.
        path: String,
        /// The problem.
        problem: String,
    },
}

/// The documents that the API server has, and their paths.
#[derive(Debug, Default, Deserialize)]
pub struct Index {
    #[serde(default)]
    paths: HashMap<String, Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    #[serde(rename = "serverRelativeURL")]
    path: String,
}

impl Index {
    /// Returns the path of the document of a group and version; `None` if there is none, or if its path could be that
    /// of something else. The path changes with the content of the document.
    pub fn path(&self, group: &str, version: &str) -> Option<&str> {
        let name = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
        let path = self.paths.get(&name)?.path.as_str();
        // A proxy may normalize the path, and an aggregated server may have chosen it.
        let is_plain = |segment: &str| !matches!(segment, "." | "..") && !segment.contains('%');
        let segments = path.split('?').next().unwrap_or_default();
        (path.starts_with(DOCUMENTS) && segments.split('/').all(is_plain)).then_some(path)
    }
}

/// Reads OpenAPI documents.
#[derive(Clone)]
pub struct OpenApi {
    clients: Arc<Clients>,
}

impl OpenApi {
    /// Creates a reader. Sends no request yet.
    pub fn new(clients: Arc<Clients>) -> Self {
        Self { clients }
    }

    /// Reads the index of all documents.
    ///
    /// # Errors
    /// When the API server does not return the index, or the index is unreadable.
    pub async fn index(&self) -> Result<Index, OpenApiError> {
        let body = self.get(INDEX).await?;
        serde_json::from_slice(&body).map_err(|error| unreadable(INDEX, error.to_string()))
    }

    /// Reads the document with a path of the index.
    ///
    /// # Errors
    /// When the API server, or the aggregated server to which it forwards the request, does not return the document.
    pub async fn document(&self, path: &str) -> Result<Bytes, OpenApiError> {
        self.get(path).await
    }

    async fn get(&self, path: &str) -> Result<Bytes, OpenApiError> {
        match tokio::time::timeout(TIMEOUT, self.read(path)).await {
            Ok(body) => body,
            Err(_) => Err(unreadable(path, format!("no response within {TIMEOUT:?}"))),
        }
    }

    async fn read(&self, path: &str) -> Result<Bytes, OpenApiError> {
        let request = Request::builder().method(Method::GET).uri(path).header(header::ACCEPT, "application/json");
        let request = request.extension(Lane::Dedicated).body(Bytes::new());
        let request = request.map_err(|error| unreadable(path, error.to_string()))?;
        let response = self.clients.send(&Identity::Own, request, MAX_BYTES).await?;
        if response.status() != StatusCode::OK {
            let status = refusal(response).await;
            note_retry_after(retry_after(&status).unwrap_or_default());
            return Err(OpenApiError::Refused { path: path.to_owned(), reason: status.to_string() });
        }
        let body = response.into_body().collect().await;
        Ok(body.map_err(|error| unreadable(path, error.to_string()))?.to_bytes())
    }
}

fn unreadable(path: &str, problem: String) -> OpenApiError {
    OpenApiError::Unreadable { path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_index_is_read_or_refused(
            path in "(/openapi/v3/)?(api|apis)?[a-z/?=.:%]{0,20}", other in "null|1|\\[\\]|\\{\\}|\"x\"", is_broken: bool,
        ) {
            let entry = if is_broken { other } else { format!(r#"{{"serverRelativeURL": {path:?}}}"#) };
            let text = format!(r#"{{"paths": {{"api/v1": {entry}, "apis/g/v1": {entry}}}}}"#);
            if let Ok(index) = serde_json::from_str::<Index>(&text) {
                for found in [index.path("", "v1"), index.path("g", "v1")].into_iter().flatten() {
                    proptest::prop_assert!(found.starts_with(DOCUMENTS), "{found}");
                }
            }
        }
    }

    #[test]
    fn index_has_only_paths_of_documents() {
        let index = r#"{"paths": {
            "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=A"},
            "apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=B"},
            "apis/evil/v1": {"serverRelativeURL": "https://example.com/openapi/v3/"},
            "apis/secrets/v1": {"serverRelativeURL": "/api/v1/secrets"},
            "apis/parent/v1": {"serverRelativeURL": "/openapi/v3/../../api/v1/secrets"},
            "apis/encoded/v1": {"serverRelativeURL": "/openapi/v3/%2e%2e/%2e%2e/api/v1/secrets?hash=C"}
        }}"#;
        let index: Index = serde_json::from_str(index).expect("an index");
        assert_eq!(index.path("", "v1"), Some("/openapi/v3/api/v1?hash=A"));
        assert_eq!(index.path("apps", "v1"), Some("/openapi/v3/apis/apps/v1?hash=B"));
        for group in ["evil", "secrets", "parent", "encoded", "missing"] {
            assert_eq!(index.path(group, "v1"), None, "{group}");
        }
    }
}
