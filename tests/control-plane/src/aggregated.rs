//! Aggregated APIs that misbehave: an HTTPS server behind APIServices, one group for each kind of misbehaviour.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::metrics::{acceptor, is_available};
use crate::{ControlPlane, Identity};

/// The response of a group to lists and watches. Its discovery works, so that managers watch its kind.
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
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Endless, Self::Silent, Self::Slow, Self::Error, Self::Nonsense, Self::Deep];

    /// Returns the API group with this misbehaviour.
    pub fn group(self) -> String {
        format!("{self:?}.hostile.example.com").to_lowercase()
    }
}

/// Maximum time until the groups are available.
const DEADLINE: Duration = Duration::from_secs(60);
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
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let acceptor = acceptor()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            // An error is a client that has disconnected; it repeats its request.
            tokio::spawn(async move { serve_connection(&acceptor, stream).await.ok() });
        }
    });
    register(&cluster.client(Identity::Admin).await?, port).await
}

/// Responds to the requests of one connection until it is closed.
async fn serve_connection(acceptor: &TlsAcceptor, stream: TcpStream) -> Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut read = Vec::new();
    loop {
        while !read.windows(4).any(|end| end == b"\r\n\r\n") {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8_lossy(&read).into_owned();
        read.clear();
        let target = head.split(' ').nth(1).context("no target")?;
        respond(&mut stream, target.split('?').next().unwrap_or_default()).await?;
    }
}

async fn respond(stream: &mut TlsStream<TcpStream>, path: &str) -> Result<()> {
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

async fn write_response(stream: &mut TlsStream<TcpStream>, code: &str, body: &str) -> Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    Ok(stream.flush().await?)
}

async fn chunk_head(stream: &mut TlsStream<TcpStream>) -> Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    Ok(stream.flush().await?)
}

async fn chunk(stream: &mut TlsStream<TcpStream>, text: &str) -> Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    Ok(stream.flush().await?)
}

/// Registers the groups, and waits until they are available.
async fn register(client: &Client, port: u16) -> Result<()> {
    let (namespace, name) = ("default", "hostile");
    let service = json!({
        "metadata": {"name": name},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    });
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await.context("create the Service")?;
    let apis: Api<APIService> = Api::all(client.clone());
    let names: Arc<[String]> = Misbehaviour::ALL.iter().map(|kind| kind.group()).collect();
    for group in &*names {
        let api = json!({
            "metadata": {"name": format!("v1.{group}")},
            "spec": {"group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true, "service": {"namespace": namespace, "name": name, "port": port}},
        });
        apis.create(&PostParams::default(), &serde_json::from_value(api)?).await.with_context(|| group.clone())?;
    }
    let deadline = Instant::now() + DEADLINE;
    for group in &*names {
        while !is_available(&apis.get(&format!("v1.{group}")).await?) {
            ensure!(Instant::now() < deadline, "{group} was not available after {} s", DEADLINE.as_secs());
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}
