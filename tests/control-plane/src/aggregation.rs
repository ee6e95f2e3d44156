//! An HTTPS server behind APIServices: the common part of the aggregated APIs for tests.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, PostParams};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::cluster::ControlPlane;
use crate::identity::Identity;

/// Maximum time until the API server forwards requests for the groups.
const DEADLINE: Duration = Duration::from_secs(60);

/// The namespace of the Services that APIServices refer to.
const NAMESPACE: &str = "default";

/// A connection from the API server.
pub(crate) type Connection = TlsStream<TcpStream>;

/// Responds to requests.
pub(crate) trait Responder: Send + Sync + 'static {
    /// Writes the response to a GET of a path and query.
    fn respond(&self, connection: &mut Connection, path: &str, query: &str) -> impl Future<Output = Result<()>> + Send;
}

/// Serves API groups, given with their versions, to a control plane, until the async runtime of the caller ends.
/// `service` is the name of the Service that is created for them.
///
/// # Errors
/// If the groups do not become available.
pub(crate) async fn serve(
    cluster: &ControlPlane,
    service: &str,
    groups: &[(String, &str)],
    responder: Arc<impl Responder>,
) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let acceptor = acceptor()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, responder) = (acceptor.clone(), responder.clone());
            // An error closes the connection; the client repeats its request.
            tokio::spawn(async move { serve_connection(&acceptor, stream, &*responder).await.ok() });
        }
    });
    register(&cluster.client(Identity::Admin).await?, service, port, groups).await
}

/// Writes a response with a body.
pub(crate) async fn write_response(connection: &mut Connection, code: &str, body: &str) -> Result<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    connection.write_all(format!("{head}{body}").as_bytes()).await?;
    Ok(connection.flush().await?)
}

fn acceptor() -> Result<TlsAcceptor> {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Responds to the requests of one connection until it is closed.
async fn serve_connection(acceptor: &TlsAcceptor, stream: TcpStream, responder: &impl Responder) -> Result<()> {
    let mut connection = acceptor.accept(stream).await?;
    let mut read = Vec::new();
    loop {
        while !read.windows(4).any(|end| end == b"\r\n\r\n") {
            if connection.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8_lossy(&read).into_owned();
        read.clear();
        let target = head.split(' ').nth(1).context("no target")?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        responder.respond(&mut connection, path, query).await?;
    }
}

/// Makes the API server forward requests for the groups to a local port, and waits until it does.
async fn register(client: &Client, service: &str, port: u16, groups: &[(String, &str)]) -> Result<()> {
    let object = json!({
        "metadata": {"name": service},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    });
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    services.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create the Service")?;
    let apis: Api<APIService> = Api::all(client.clone());
    for (group, version) in groups {
        let api = json!({
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true, "service": {"namespace": NAMESPACE, "name": service, "port": port}},
        });
        apis.create(&PostParams::default(), &serde_json::from_value(api)?).await.with_context(|| group.clone())?;
    }
    let deadline = Instant::now() + DEADLINE;
    for (group, version) in groups {
        while !is_available(&apis.get(&format!("{version}.{group}")).await?) {
            ensure!(Instant::now() < deadline, "{group} was not available after {} s", DEADLINE.as_secs());
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

fn is_available(api: &APIService) -> bool {
    let conditions = api.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
}
