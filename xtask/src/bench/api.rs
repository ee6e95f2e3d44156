//! The bench's own requests: objects as JSON, many requests in parallel.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};

/// Maximum number of parallel requests.
const PARALLEL: usize = 24;

/// Media type of a response without spec and status, which are not needed here.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// The interval at which an awaited state is polled.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Creates an object as `writer` (its field manager); returns its uid.
pub async fn create(client: &Client, collection: &str, writer: &str, object: &Value) -> Result<String> {
    let path = format!("{collection}?fieldManager={writer}");
    let response = send(client, Method::POST, &path, "application/json", object).await?;
    let uid = response.pointer("/metadata/uid").and_then(Value::as_str);
    uid.map(String::from).with_context(|| format!("POST {path}: the response has no uid"))
}

/// The type of a patch.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    /// JSON merge patch: a list replaces the existing list.
    Merge,
    /// Strategic merge patch: items of lists are merged by their merge keys.
    Strategic,
}

/// Sends a patch as `writer`.
pub async fn patch(client: &Client, path: &str, writer: &str, kind: Patch, patch: &Value) -> Result<()> {
    let path = format!("{path}?fieldManager={writer}");
    let content = match kind {
        Patch::Merge => "application/merge-patch+json",
        Patch::Strategic => "application/strategic-merge-patch+json",
    };
    send(client, Method::PATCH, &path, content, patch).await?;
    Ok(())
}

/// Deletes an object without a grace period.
pub async fn delete(client: &Client, path: &str) -> Result<()> {
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0 });
    send(client, Method::DELETE, path, "application/json", &options).await?;
    Ok(())
}

/// Creates namespaces, each with the default service account that a manager would create.
pub async fn create_namespaces(client: &Client, names: impl IntoIterator<Item = String>) -> Result<()> {
    for name in names {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        create(client, "/api/v1/namespaces", "bench", &namespace).await?;
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
        create(client, &format!("/api/v1/namespaces/{name}/serviceaccounts"), "bench", &account).await?;
    }
    Ok(())
}

/// Requests an object's deletion with its own grace period.
pub async fn delete_gracefully(client: &Client, path: &str) -> Result<()> {
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1" });
    send(client, Method::DELETE, path, "application/json", &options).await?;
    Ok(())
}

async fn send(client: &Client, method: Method, path: &str, content: &str, body: &Value) -> Result<Value> {
    let what = format!("{method} {path}");
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, content)
        .header(header::ACCEPT, METADATA)
        .body(serde_json::to_vec(body)?)?;
    client.request(request).await.context(what)
}

/// Calls `call` with every item, many in parallel, until the first failure. `label` is the text of progress lines,
/// before the number of completed items.
pub async fn each<I, O>(
    label: &str,
    items: impl ExactSizeIterator<Item = I>,
    call: impl AsyncFn(I) -> Result<O>,
) -> Result<Vec<O>> {
    let count = items.len();
    let mut progress = Progress::new();
    let mut results = Vec::with_capacity(count);
    let mut running = stream::iter(items).map(|item| call(item)).buffered(PARALLEL);
    while let Some(result) = running.try_next().await? {
        results.push(result);
        progress.report(|| format!("{label}: {} of {count}", results.len()));
    }
    Ok(results)
}

/// Lines of progress on standard error, at most one every two seconds.
pub struct Progress {
    next: Instant,
}

impl Progress {
    /// Creates a progress report whose first line is due in two seconds.
    pub fn new() -> Self {
        Self { next: Instant::now() + PROGRESS_INTERVAL }
    }

    /// Prints a line if one is due.
    pub fn report(&mut self, line: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            eprintln!("    {}", line());
            self.next = Instant::now() + PROGRESS_INTERVAL;
        }
    }
}
