//! The Lease is renewed and probes are answered while a controller blocks all threads of the controllers.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use runtime::client::{Clients, ConnectOptions, Identity, ProxyEnvironment, connect};
use runtime::election::ElectionConfig;
use runtime::manager::{ExitReason, Manager, ManagerOptions};
use runtime::queue::{Queue, QueueOptions};
use runtime::serve::{Check, Health, ServeOptions, ServedContent, Server, TlsOptions, Zpages};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::*;

const LEASE_DURATION: Duration = Duration::from_secs(7);
const RENEW_DEADLINE: Duration = Duration::from_secs(5);
const RETRY_PERIOD: Duration = Duration::from_millis(500);
/// Minimum time for which the threads are blocked: longer than a Lease lasts without a renewal.
const BLOCKED: Duration = Duration::from_secs(8);
/// Maximum time for the response to a probe, even on a busy host.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Blocks a thread with each key, until it is released.
#[derive(Default)]
struct Blocking {
    begun: AtomicUsize,
    is_released: AtomicBool,
}

/// Releases the threads at the end of a test that fails: otherwise the test would never end.
struct ReleaseOnDrop(Arc<Blocking>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.is_released.store(true, Ordering::SeqCst);
    }
}

impl Reconcile for Blocking {
    type Key = String;

    fn reconcile<'a>(
        &'a self,
        _: &'a String,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Outcome, ReconcileError>> + Send + 'a>> {
        Box::pin(async {
            self.begun.fetch_add(1, Ordering::SeqCst);
            while !self.is_released.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(10));
            }
            Ok(Outcome::Done)
        })
    }
}

/// Serves one Lease by HTTP/1.1, each connection on a separate thread.
fn serve_lease() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let lease = Arc::new(Mutex::new(None));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, lease) = (stream.expect("a connection"), lease.clone());
            thread::spawn(move || while respond(&stream, &lease).is_some() {});
        }
    });
    address
}

/// Responds to one request for the Lease; returns `None` at the end of the connection.
fn respond(stream: &TcpStream, lease: &Mutex<Option<Value>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let is_read = line.starts_with("GET");
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        match header.to_ascii_lowercase().trim().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().ok()?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut lease = lease.lock().expect("the lease");
    if !is_read {
        let mut stored: Value = serde_json::from_slice(&body).ok()?;
        stored["metadata"]["resourceVersion"] = "1".into();
        *lease = Some(stored);
    }
    let (status, text) = match &*lease {
        Some(lease) => ("200 OK", lease.to_string()),
        None => ("404 Not Found", r#"{"kind":"Status","status":"Failure","code":404,"reason":"NotFound"}"#.to_owned()),
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", text.len());
    let mut stream = stream;
    stream.write_all((head + &text).as_bytes()).ok()
}

/// Builds a manager with [`Blocking`] as its only controller.
async fn manager(server: SocketAddr, control: Handle, blocking: Arc<Blocking>) -> Manager {
    let options = ConnectOptions {
        master: Some(format!("http://{server}")),
        proxies: ProxyEnvironment::default(),
        control_runtime: Some(control),
        ..ConnectOptions::default()
    };
    let clients = Arc::new(connect(&options).await.expect("clients"));
    let election = ElectionConfig {
        lease_duration: LEASE_DURATION,
        renew_deadline: RENEW_DEADLINE,
        retry_period: RETRY_PERIOD,
        ..ElectionConfig::new("kube-system", "test", "us")
    };
    let options = ManagerOptions { election: Some(election), ..ManagerOptions::default() };
    let mut manager = Manager::new(clients, Builder::default().build(), options).expect("a manager");
    let queue = Queue::new(QueueOptions::named("blocking"));
    (0..WORKER_THREADS).for_each(|key| queue.add(key.to_string()));
    manager.add(WorkOptions { name: "blocking", workers: WORKER_THREADS }, queue, blocking);
    manager
}

/// Starts the HTTPS server of a manager, with a check that always passes.
async fn serve(manager: &Manager) -> Server {
    let options = ServeOptions {
        bind_address: Ipv4Addr::LOCALHOST.into(),
        tls: TlsOptions { pair_name: "test".into(), ..TlsOptions::default() },
        ..ServeOptions::default()
    };
    let content = ServedContent {
        health: Arc::new(Health::new(vec![Check::new("ping", || Some(Ok(())))], Vec::new())),
        metrics: manager.metrics().clone(),
        configz: Value::Null,
        zpages: Zpages::default(),
        pages: Vec::new(),
        page_runtime: Some(manager.runtime().clone()),
        explainer: None,
        set_verbosity: None,
    };
    Server::start(options, content).await.expect("a server")
}

/// Returns clients of the HTTPS server, which do not verify its certificate.
async fn clients_of(address: SocketAddr) -> Clients {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": format!("https://{address}"), "insecure-skip-tls-verify": true}}],
        "users": [{"name": "a", "user": {}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).expect("a file");
    let options = ConnectOptions {
        kubeconfig: Some(kubeconfig),
        proxies: ProxyEnvironment::default(),
        ..ConnectOptions::default()
    };
    connect(&options).await.expect("clients")
}

/// Probes the HTTPS server.
async fn probe(clients: &Clients) {
    let request = Request::get("/healthz").body(Bytes::new()).expect("a request");
    let response =
        timeout(PROBE_TIMEOUT, clients.send(&Identity::Own, request, 1024)).await.expect("a response in time");
    assert_eq!(response.expect("a response").status(), 200);
}

#[test]
fn lease_and_probes_survive_controllers_that_block_their_threads() {
    let threads = Threads::start().expect("threads");
    let server = serve_lease();
    let blocking = Arc::new(Blocking::default());
    let _release = ReleaseOnDrop(blocking.clone());
    let ended = threads.block_on(async {
        let manager = in_runtime(threads.workers(), manager(server, Handle::current(), blocking.clone())).await;
        let https = serve(&manager).await;
        let probing = clients_of(https.address()).await;
        let probes = async {
            while blocking.begun.load(Ordering::SeqCst) < WORKER_THREADS {
                sleep(Duration::from_millis(10)).await;
            }
            let blocked = Instant::now();
            while blocked.elapsed() < BLOCKED {
                probe(&probing).await;
                sleep(Duration::from_millis(500)).await;
            }
            blocking.is_released.store(true, Ordering::SeqCst);
        };
        let ended = manager.run(probes).await;
        https.stop().await;
        ended
    });
    assert_eq!(ended, ExitReason::Shutdown, "the Lease was lost although the control thread was free");
    threads.shutdown_background();
}
