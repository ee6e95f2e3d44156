//! The HTTPS server with many unknown clients, over real TLS connections.

use std::net::Ipv4Addr;
use std::pin::pin;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::*;
use crate::metrics::Metrics;

/// Maximum time for the response to a probe.
const SOON: Duration = Duration::from_secs(5);

/// A server whose reviews never end: its API server accepts connections and is silent.
struct Bed {
    server: Server,
    tls: TlsConnector,
    _folder: tempfile::TempDir,
    _silent: TcpListener,
}

type Client = SendRequest<Empty<Bytes>>;

impl Bed {
    async fn start() -> Self {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let folder = tempfile::tempdir().expect("a folder");
        let kubeconfig = folder.path().join("kubeconfig");
        let server = format!("https://{}", silent.local_addr().expect("an address"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": server, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "a", "user": {"token": "a"}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        });
        std::fs::write(&kubeconfig, config.to_string()).expect("a file");
        let options = ServeOptions {
            bind_address: Ipv4Addr::LOCALHOST.into(),
            tls: TlsOptions {
                cert_dir: Some(folder.path().to_owned()),
                pair_name: "manager".into(),
                ..TlsOptions::default()
            },
            authentication: AuthenticationOptions {
                kubeconfig: Some(kubeconfig.clone()),
                skip_lookup: true,
                ..AuthenticationOptions::default()
            },
            authorization: AuthorizationOptions { kubeconfig: Some(kubeconfig), ..AuthorizationOptions::default() },
            ..ServeOptions::default()
        };
        let content = ServedContent {
            health: Arc::new(Health::new(vec![Check::new("ping", || Some(Ok(())))], Vec::new())),
            metrics: Arc::new(Metrics::new()),
            configz: json!({}),
            zpages: Zpages::default(),
            pages: Vec::new(),
            page_runtime: None,
            explainer: None,
            set_verbosity: None,
        };
        let server = Server::start(options, content).await.expect("a server");
        let own = std::fs::read(folder.path().join("manager.crt")).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&own).expect("PEM")).expect("an authority");
        let mut tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Self { server, tls: TlsConnector::from(Arc::new(tls)), _folder: folder, _silent: silent }
    }

    /// Opens a connection; it stays open as long as the client exists.
    async fn connect(&self) -> Client {
        let tcp = TcpStream::connect(self.server.address()).await.expect("a connection");
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        let stream = self.tls.connect(name, tcp).await.expect("a handshake");
        let (client, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        client
    }
}

/// Opens a connection for HTTP/1.1.
async fn http1(bed: &Bed) -> tokio_rustls::client::TlsStream<TcpStream> {
    let tcp = TcpStream::connect(bed.server.address()).await.expect("a connection");
    let mut tls = (**bed.tls.config()).clone();
    tls.alpn_protocols = Vec::new();
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.expect("a handshake")
}

/// Runs `exchange` at one time of the paused clock, until the server has read what was sent. Otherwise the clock
/// advances to the next timer whenever a task waits for bytes that are on their way.
async fn without_passing_time<F: Future>(exchange: F) -> F::Output {
    // The clock does not advance by itself while a blocking task runs.
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let blocking = tokio::task::spawn_blocking(move || {
        let _ = receiver.recv();
        std::thread::sleep(Duration::from_millis(100));
    });
    let output = exchange.await;
    drop(sender);
    blocking.await.expect("no panic");
    output
}

#[tokio::test(start_paused = true)]
async fn idle_http1_connection_stays_open_for_a_scrape_a_minute() {
    let bed = Bed::start().await;
    let stream = without_passing_time(http1(&bed)).await;
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
    tokio::spawn(connection);
    for _ in 0..3 {
        let scrape = async {
            let request = Request::get("/healthz").header(header::HOST, "a").body(Empty::<Bytes>::new());
            let response = client.send_request(request.expect("a request")).await.expect("an open connection");
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().collect().await.expect("a body");
        };
        without_passing_time(scrape).await;
        sleep(Duration::from_secs(60)).await;
    }
    sleep(Duration::from_secs(40)).await;
    without_passing_time(async {}).await;
    assert!(client.is_closed(), "after 90 seconds without a request");
}

#[tokio::test(start_paused = true)]
async fn http1_connection_is_closed_when_its_first_request_is_not_received_in_time() {
    let bed = Bed::start().await;
    for beginning in ["", "GET /healthz HTTP/1.1\r\nHost:"] {
        let connect = async {
            let mut stream = http1(&bed).await;
            stream.write_all(beginning.as_bytes()).await.expect("an open connection");
            stream
        };
        let mut stream = without_passing_time(connect).await;
        // The end of the connection may be an error, because the server does not end TLS first.
        let mut buffer = [0; 1];
        let mut read = pin!(stream.read(&mut buffer));
        sleep(Duration::from_secs(30)).await;
        without_passing_time(async {}).await;
        assert!(futures::poll!(&mut read).is_pending(), "{beginning:?}: closed before 30 s");
        sleep(Duration::from_secs(5)).await;
        without_passing_time(async {}).await;
        assert!(futures::poll!(&mut read).is_ready(), "{beginning:?}: open after 35 s");
    }
}

#[tokio::test(start_paused = true)]
async fn connection_of_a_peer_that_reads_nothing_is_closed_after_the_close_timeout() {
    let bed = Bed::start().await;
    let mut stream = http1(&bed).await;
    let requests = "GET /healthz?verbose HTTP/1.1\r\nHost: a\r\n\r\n".repeat(100);
    let started = tokio::time::Instant::now();
    // The server stops reading once its responses fill the buffers of the connection, then the client cannot write.
    // The connection counts as idle, and is closed in order, for which the client would have to read.
    loop {
        let written = timeout(Duration::from_secs(300), stream.write_all(requests.as_bytes())).await;
        if written.expect("the end of the connection").is_err() {
            break;
        }
    }
    let open = started.elapsed().as_secs();
    assert!((90 + 35..90 + 40).contains(&open), "after {open} s");
}

/// Sends a request; returns the status of the response, or `None` if the connection ended first.
async fn status(client: &mut Client, path: &str, token: Option<&str>) -> Option<StatusCode> {
    let mut request = Request::get(format!("https://127.0.0.1{path}"));
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = client.send_request(request.body(Empty::new()).expect("a request")).await.ok()?;
    let status = response.status();
    // The body may be cut off by the end of the connection.
    let _ = response.into_body().collect().await;
    Some(status)
}

/// Sends requests with different invented tokens at the same time.
fn send_invented_tokens(client: &Client, of: usize, count: usize) -> JoinSet<Option<StatusCode>> {
    let mut requests = JoinSet::new();
    for number in 0..count {
        let mut client = client.clone();
        requests.spawn(async move { status(&mut client, "/metrics", Some(&format!("invented-{of}-{number}"))).await });
    }
    requests
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probe_is_answered_while_all_connections_wait_for_reviews() {
    let bed = Bed::start().await;
    let mut crowd = Vec::new();
    for of in 0..MAX_CONNECTIONS {
        let client = bed.connect().await;
        crowd.push((send_invented_tokens(&client, of, 2), client));
    }
    // After the pause, all of these requests have begun.
    sleep(Duration::from_millis(200)).await;
    let probe = async {
        let mut client = bed.connect().await;
        status(&mut client, "/healthz", None).await
    };
    let response = timeout(SOON, probe).await.expect("a response in time");
    assert_eq!(response, Some(StatusCode::OK));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_with_many_unknown_users_gets_refusals() {
    const REQUESTS: usize = 20;
    const REVIEWED: usize = 8;
    let bed = Bed::start().await;
    let client = bed.connect().await;
    let mut requests = send_invented_tokens(&client, 0, REQUESTS);
    for _ in REVIEWED..REQUESTS {
        let response = timeout(SOON, requests.join_next()).await.expect("a response in time");
        assert_eq!(response.expect("a request").expect("no panic"), Some(StatusCode::TOO_MANY_REQUESTS));
    }
    assert_eq!(requests.len(), REVIEWED, "these wait for their reviews");
}

#[tokio::test]
async fn error_of_an_unreadable_kubeconfig_names_the_flag_of_that_kubeconfig() {
    for flag in ["--authentication-kubeconfig", "--authorization-kubeconfig"] {
        let metrics = ReviewMetrics::new(&Metrics::new(), "authn");
        let refused = reviewer(flag, Some(Path::new("/does/not/exist")), "agent", metrics).await;
        let text = refused.err().expect("there is no such file").to_string();
        assert!(text.starts_with(&format!("{flag}: kubeconfig \"/does/not/exist\" cannot be read: ")), "{text}");
        assert!(text.ends_with(&format!("; name an existing, readable file in {flag}")), "{text}");
    }
}
