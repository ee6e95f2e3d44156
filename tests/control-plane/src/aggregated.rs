//! Aggregated APIs that misbehave: an HTTPS server behind APIServices, one group for each kind of misbehaviour.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use crate::aggregation::{self, Connection, Responder, write_response};
use crate::cluster::ControlPlane;

/// The response of an API group to lists and watches. Discovery of the group works, so managers watch its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misbehaviour {
    /// A list that never ends: objects arrive for as long as a client reads.
    Endless,
    /// A response of which only the head arrives.
    Silent,
    /// A response after a minute.
    Slow,
    /// An internal error.
    Error,
    /// Status 200 with a body that is not a list.
    Nonsense,
    /// A list whose object is nested 20,000 levels deep.
    Deep,
}

impl Misbehaviour {
    /// All kinds of misbehaviour.
    pub const ALL: [Self; 6] = [Self::Endless, Self::Silent, Self::Slow, Self::Error, Self::Nonsense, Self::Deep];

    /// Returns the API group with this misbehaviour.
    pub fn group(self) -> String {
        format!("{self:?}.hostile.example.com").to_lowercase()
    }
}

/// Delay of a slow response: as long as the API server waits for most requests.
const SLOW_DELAY: Duration = Duration::from_secs(60);
/// Pause between objects of an endless list.
const PAUSE: Duration = Duration::from_millis(5);
/// Levels of a nested object.
const NESTING: usize = 20_000;

/// Serves all groups to a control plane, until the async runtime of the caller ends.
///
/// # Errors
/// If the groups do not become available.
pub async fn serve(cluster: &ControlPlane) -> Result<()> {
    let groups = Misbehaviour::ALL.map(|kind| (kind.group(), "v1"));
    aggregation::serve(cluster, "hostile", &groups, Arc::new(HostileServer)).await
}

/// Responds to requests as the misbehaviour of their group requires.
struct HostileServer;

impl Responder for HostileServer {
    async fn respond(&self, connection: &mut Connection, path: &str, _: &str) -> Result<()> {
        respond(connection, path).await
    }
}

/// Responds to a request for a path: discovery works, lists and watches misbehave.
async fn respond(stream: &mut Connection, path: &str) -> Result<()> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let group = parts.get(1).copied().unwrap_or_default();
    let Some(misbehaviour) = Misbehaviour::ALL.into_iter().find(|kind| kind.group() == group) else {
        return write_response(stream, "404 Not Found", "404 page not found").await;
    };
    if parts.len() <= 3 {
        let list = json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1"),
            "resources": [{"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing",
                "verbs": ["get", "list", "watch", "create", "delete", "deletecollection", "patch", "update"]}],
        });
        return write_response(stream, "200 OK", &list.to_string()).await;
    }
    let start = format!(
        "{{\"kind\":\"ThingList\",\"apiVersion\":\"{group}/v1\",\"metadata\":{{\"resourceVersion\":\"1\"}},\"items\":["
    );
    match misbehaviour {
        Misbehaviour::Error => write_response(stream, "500 Internal Server Error", "out of order").await,
        Misbehaviour::Nonsense => write_response(stream, "200 OK", "<html>Hello</html>").await,
        Misbehaviour::Slow => {
            sleep(SLOW_DELAY).await;
            write_response(stream, "200 OK", &format!("{start}]}}")).await
        }
        Misbehaviour::Deep => {
            let (open, close) = ("{\"a\":".repeat(NESTING), "}".repeat(NESTING));
            let item =
                format!("{{\"metadata\":{{\"name\":\"deep\",\"namespace\":\"default\"}},\"spec\":{open}1{close}}}");
            write_response(stream, "200 OK", &format!("{start}{item}]}}")).await
        }
        Misbehaviour::Silent => {
            chunk_head(stream).await?;
            std::future::pending().await
        }
        Misbehaviour::Endless => {
            chunk_head(stream).await?;
            chunk(stream, &start).await?;
            for number in 0_u64.. {
                let item = json!({"metadata": {"name": format!("thing-{number}"), "namespace": "default"}});
                chunk(stream, &format!("{item},")).await?;
                sleep(PAUSE).await;
            }
            Ok(())
        }
    }
}

async fn chunk_head(stream: &mut Connection) -> Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    Ok(stream.flush().await?)
}

async fn chunk(stream: &mut Connection, text: &str) -> Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    Ok(stream.flush().await?)
}
