//! A server inside the test process: TLS, HTTP/2 or HTTP/1.1, and scripted responses.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A certificate authority of the test.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(super) pem: String,
    der: Vec<u8>,
}

/// A certificate with its key, both in PEM and in DER.
pub(super) struct Signed {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) der: Vec<u8>,
    key_der: Vec<u8>,
}

impl Signed {
    pub(super) fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key_der.clone()))
    }
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { pem: certificate.pem(), der: certificate.der().to_vec(), issuer: Issuer::new(params, key) }
    }

    pub(super) fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).expect("names");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Signed {
            certificate: certificate.pem(),
            der: certificate.der().to_vec(),
            key: key.serialize_pem(),
            key_der: key.serialize_der(),
        }
    }
}

/// One request as the server received it.
#[derive(Debug, Clone)]
pub(super) struct ReceivedRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The client certificate of its connection, in DER.
    pub(super) certificate: Option<Vec<u8>>,
    pub(super) version: http::Version,
}

/// Returns the server's response to a request; `None` closes the connection without a response.
pub(super) type Script =
    Arc<dyn Fn(ReceivedRequest) -> BoxFuture<'static, Option<Response<Full<Bytes>>>> + Send + Sync>;

/// A listening server. It stops with the test's runtime.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    pub(super) connections: Arc<AtomicUsize>,
    /// Number of open connections.
    pub(super) open: Arc<AtomicUsize>,
    /// Streams that a new connection allows.
    pub(super) streams: Arc<AtomicU32>,
    /// New HTTP/2 connections are closed by a GOAWAY as soon as they are open.
    pub(super) is_leaving: Arc<AtomicBool>,
    /// Number of new connections that get no response, not even to the TLS handshake.
    pub(super) silent: Arc<AtomicUsize>,
    tls: Arc<Mutex<Arc<rustls::ServerConfig>>>,
}

/// Returns a script that responds to everything with `status` and an empty object.
pub(super) fn always(status: u16) -> Script {
    Arc::new(move |_| Box::pin(async move { Some(response(status, "{}")) }))
}

pub(super) fn response(status: u16, body: &str) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::from(body.to_owned())).expect("a response")
}

impl Server {
    /// Serves TLS with `server` and requests client certificates of `clients`.
    pub(super) async fn start(server: &Signed, clients: &Authority, protocols: &[&str], script: Script) -> Self {
        super::super::install_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let started = Self {
            address: listener.local_addr().expect("an address"),
            seen: Arc::default(),
            connections: Arc::default(),
            open: Arc::default(),
            streams: Arc::new(AtomicU32::new(200)),
            is_leaving: Arc::default(),
            silent: Arc::default(),
            tls: Arc::new(Mutex::new(server_tls(server, clients, protocols))),
        };
        let (seen, connections, open) = (started.seen.clone(), started.connections.clone(), started.open.clone());
        let (tls, streams, is_leaving) = (started.tls.clone(), started.streams.clone(), started.is_leaving.clone());
        let silent = started.silent.clone();
        tokio::spawn(async move {
            let mut ignored = Vec::new();
            while let Ok((tcp, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                if silent.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
                    ignored.push(tcp);
                    continue;
                }
                let tls = tls.lock().expect("the configuration").clone();
                let (seen, open, script) = (seen.clone(), open.clone(), script.clone());
                let limits = (streams.load(Ordering::SeqCst), is_leaving.load(Ordering::SeqCst));
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::SeqCst);
                    connection(tcp, tls, seen, script, limits).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        started
    }

    /// Uses this certificate for new connections.
    pub(super) fn rotate(&self, server: &Signed, clients: &Authority) {
        *self.tls.lock().expect("the configuration") = server_tls(server, clients, &["h2"]);
    }

    pub(super) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().expect("the requests").clone()
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn server_tls(server: &Signed, clients: &Authority, protocols: &[&str]) -> Arc<rustls::ServerConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(clients.der.clone().into()).expect("an authority");
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build().expect("a verifier");
    let mut tls = rustls::ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server.der.clone().into()], server.private_key())
        .expect("a server certificate");
    tls.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(tls)
}

async fn connection(
    tcp: TcpStream,
    tls: Arc<rustls::ServerConfig>,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    script: Script,
    (streams, is_leaving): (u32, bool),
) {
    let mut session = rustls::ServerConnection::new(tls).expect("a session");
    let mut tcp = tcp;
    if !handshake(&mut tcp, &mut session).await {
        return;
    }
    let h2 = session.alpn_protocol() == Some(b"h2");
    let certificate =
        session.peer_certificates().and_then(|chain| chain.first()).map(|certificate| certificate.to_vec());
    let (clear, inner) = tokio::io::duplex(1 << 20);
    let (close, closed) = tokio::sync::oneshot::channel::<()>();
    let close = Arc::new(Mutex::new(Some(close)));
    let service = service_fn(move |request: Request<Incoming>| {
        let (seen, script, close) = (seen.clone(), script.clone(), close.clone());
        let certificate = certificate.clone();
        async move {
            let (head, body) = request.into_parts();
            let request = ReceivedRequest {
                method: head.method,
                path: head.uri.path().to_owned(),
                headers: head.headers,
                body: body.collect().await?.to_bytes(),
                certificate,
                version: head.version,
            };
            seen.lock().expect("the requests").push(request.clone());
            match script(request).await {
                Some(response) => Ok::<_, hyper::Error>(response),
                None => {
                    close.lock().expect("the switch").take();
                    std::future::pending().await
                }
            }
        }
    });
    let io = TokioIo::new(inner);
    let http = async {
        if h2 {
            let mut http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let mut connection = std::pin::pin!(http2.max_concurrent_streams(streams).serve_connection(io, service));
            if is_leaving {
                connection.as_mut().graceful_shutdown();
            }
            let _ = connection.await;
        } else {
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
        }
    };
    tokio::select! {
        () = http => {}
        () = pump(tcp, session, clear) => {}
        _ = closed => {}
    }
}

async fn handshake(tcp: &mut TcpStream, session: &mut rustls::ServerConnection) -> bool {
    let mut buffer = vec![0; 16 << 10];
    loop {
        flush(tcp, session).await;
        if !session.is_handshaking() {
            return true;
        }
        match tcp.read(&mut buffer).await {
            Ok(read @ 1..) => {
                session.read_tls(&mut &buffer[..read]).expect("TLS records");
                if session.process_new_packets().is_err() {
                    flush(tcp, session).await;
                    return false;
                }
            }
            _ => return false,
        }
    }
}

async fn flush(tcp: &mut TcpStream, session: &mut rustls::ServerConnection) {
    let mut records = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut records).expect("TLS records");
    }
    // A closed peer is detected at the next read.
    let _ = tcp.write_all(&records).await;
}

/// Carries bytes between the encrypted socket and the clear stream until either ends.
async fn pump(mut tcp: TcpStream, mut session: rustls::ServerConnection, mut clear: DuplexStream) {
    use std::io::{Read as _, Write as _};
    let mut encrypted = vec![0; 16 << 10];
    let mut plain = vec![0; 16 << 10];
    loop {
        flush(&mut tcp, &mut session).await;
        while let Ok(read @ 1..) = session.reader().read(&mut plain) {
            if clear.write_all(&plain[..read]).await.is_err() {
                return;
            }
        }
        tokio::select! {
            read = tcp.read(&mut encrypted) => match read {
                Ok(read @ 1..) => {
                    let mut rest = &encrypted[..read];
                    while !rest.is_empty() {
                        session.read_tls(&mut rest).expect("TLS records");
                        if session.process_new_packets().is_err() {
                            return;
                        }
                    }
                }
                _ => return,
            },
            read = clear.read(&mut plain) => match read {
                Ok(read @ 1..) => session.writer().write_all(&plain[..read]).expect("room"),
                _ => return,
            },
        }
    }
}

/// Writes `text` into `directory` under `name`. A previous file is replaced as a whole, because a client may reload it
/// at any time.
pub(super) fn file(directory: &Path, name: &str, text: &str) -> PathBuf {
    let (path, next) = (directory.join(name), directory.join(format!("{name}.next")));
    std::fs::write(&next, text).expect("a written file");
    std::fs::rename(&next, &path).expect("a replaced file");
    path
}

/// Returns an address that refuses connections. No other test can listen there as long as the socket exists.
pub(super) fn refusing_address() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = socket.local_addr().expect("an address");
    (socket, address)
}
