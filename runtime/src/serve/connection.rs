//! One connection: handshake, requests, and its end when it is idle, unauthenticated or evicted, or the server stops.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use http::{Method, Request, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::handshake::StepLimit;
use super::response::{self, FullResponse};
use super::routes::{Reply, Routes};
use super::slots::ConnectionSlot;
use crate::lock::lock;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time for the head of the first request, except in HTTP/2. Upstream: apiserver, SecureServingInfo.Serve.
///
/// The heads of later requests have [`IDLE_TIMEOUT`]: hyper's limit begins with the end of the previous response.
const HEAD_TIMEOUT: Duration = Duration::from_secs(32);
/// Time without requests after which a connection is closed. Upstream: apiserver, SecureServingInfo.Serve.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Delay between the response to an unauthenticated client and the end of the connection: some clients drop a response
/// that arrives together with the end of the connection.
const CLOSE_DELAY: Duration = Duration::from_millis(100);
/// Maximum time for the running requests after a connection begins to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(35);
/// Streams per connection if no flag is set. Upstream: apiserver, SecureServingInfo.Serve.
const DEFAULT_MAX_STREAMS: u32 = 100;
/// Maximum number of requests of one connection whose users are being authenticated and authorized. Further requests
/// are refused: their heads stay in memory while a review waits, and no client needs more requests before its first
/// response.
const MAX_UNREVIEWED: u32 = 8;
/// Maximum unread bytes of request bodies per connection: the initial window of HTTP/2, which cannot be made smaller
/// for a connection. The only body that is read is a number.
const WINDOW_BYTES: u32 = 65_535;
/// Maximum size of a request's head, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// The HTTP settings of connections.
#[derive(Clone)]
pub(super) struct Protocol {
    builder: auto::Builder<TokioExecutor>,
    handshakes: StepLimit,
    closes_unauthenticated_http2: bool,
}

/// The activity on a connection, which decides when it is closed.
struct Activity {
    /// Number of running requests.
    open: AtomicU32,
    /// The head of a request was received.
    has_head: AtomicBool,
    /// Number of running requests whose users are not authorized yet.
    unreviewed: AtomicU32,
    /// The end of the last request, or the start of the connection.
    last: Mutex<Instant>,
    /// Notified after the response to an unauthenticated client.
    close_soon: Notify,
    slot: ConnectionSlot,
}

impl Activity {
    fn touch(&self) {
        *lock(&self.last) = Instant::now();
    }

    /// Completes when [`CLOSE_DELAY`] has passed since the response to an unauthenticated client.
    async fn close_delay(&self) {
        self.close_soon.notified().await;
        sleep(CLOSE_DELAY).await;
    }

    /// Completes when [`HEAD_TIMEOUT`] has passed without the head of a request.
    async fn without_head(&self) {
        sleep(HEAD_TIMEOUT).await;
        if self.has_head.load(Ordering::Acquire) {
            std::future::pending::<()>().await;
        }
    }

    /// Completes when there was no request for [`IDLE_TIMEOUT`].
    async fn idle(&self) {
        loop {
            let until = *lock(&self.last) + IDLE_TIMEOUT;
            if Instant::now() < until {
                sleep_until(until).await;
            } else if self.open.load(Ordering::Acquire) > 0 {
                sleep_until(Instant::now() + IDLE_TIMEOUT).await;
            } else {
                return;
            }
        }
    }
}

/// The state of a running request.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// Its user is being authenticated and authorized.
    Unreviewed,
    /// Its user is authenticated and authorized: the connection must not be evicted.
    Authorized,
    /// Its path is allowed without authentication.
    Open,
}

/// A running request; also ends when it is dropped because the client disconnected.
struct RunningRequest<'a> {
    activity: &'a Activity,
    stage: Stage,
}

impl<'a> RunningRequest<'a> {
    /// Begins a request. Returns `None` if the connection has too many unreviewed requests.
    fn begin(activity: &'a Activity) -> Option<Self> {
        activity.has_head.store(true, Ordering::Release);
        if activity.unreviewed.fetch_add(1, Ordering::AcqRel) >= MAX_UNREVIEWED {
            activity.unreviewed.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        activity.open.fetch_add(1, Ordering::AcqRel);
        Some(Self { activity, stage: Stage::Unreviewed })
    }

    /// Records that the request is allowed.
    fn allow(&mut self, is_authenticated: bool) {
        self.leave_stage();
        self.stage = if is_authenticated { Stage::Authorized } else { Stage::Open };
        if is_authenticated {
            // Requests of one connection may run on several threads: the slot counts them under its own lock.
            self.activity.slot.begin_request();
        }
    }

    fn leave_stage(&self) {
        match self.stage {
            Stage::Unreviewed => {
                self.activity.unreviewed.fetch_sub(1, Ordering::AcqRel);
            }
            Stage::Authorized => self.activity.slot.end_request(),
            Stage::Open => {}
        }
    }
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        self.leave_stage();
        self.activity.touch();
        self.activity.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Protocol {
    /// Creates the settings; `streams` of zero means the default. With `closes_unauthenticated_http2`, an HTTP/2
    /// connection ends after an unauthenticated request.
    pub(super) fn new(http1_only: bool, streams: u32, closes_unauthenticated_http2: bool) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        if http1_only {
            builder = builder.http1_only();
        }
        builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(if streams == 0 { DEFAULT_MAX_STREAMS } else { streams })
            .max_header_list_size(MAX_HEAD_BYTES as u32)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .keep_alive_interval(HEAD_TIMEOUT);
        Self { builder, handshakes: StepLimit::new(), closes_unauthenticated_http2 }
    }

    /// Serves a connection until it closes. Once `stopping` is true, only completes the running requests.
    ///
    /// # Errors
    /// Returns the reason of a failure.
    pub(super) async fn serve(
        self,
        stream: TcpStream,
        tls: Arc<ServerConfig>,
        routes: Arc<Routes>,
        mut stopping: watch::Receiver<bool>,
        slot: ConnectionSlot,
    ) -> Result<(), String> {
        // Responses are small: low latency matters more than throughput.
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let handshake = self.handshakes.run(TlsAcceptor::from(tls).accept(stream));
        let handshake = tokio::select! {
            biased;
            _ = stopping.wait_for(|stopping| *stopping) => return Ok(()),
            () = slot.evicted() => return Ok(()),
            handshake = timeout(HANDSHAKE_TIMEOUT, handshake) => handshake,
        };
        let stream = handshake
            .map_err(|_| format!("no handshake within {HANDSHAKE_TIMEOUT:?}"))?
            .map_err(|error| format!("TLS handshake: {error}"))?;
        let peer: Arc<[CertificateDer<'static>]> = stream.get_ref().1.peer_certificates().unwrap_or_default().into();
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let activity = Arc::new(Activity {
            open: AtomicU32::new(0),
            has_head: AtomicBool::new(false),
            unreviewed: AtomicU32::new(0),
            last: Mutex::new(Instant::now()),
            close_soon: Notify::new(),
            slot,
        });
        let service = service_fn(|request| {
            let (routes, peer, activity) = (routes.clone(), peer.clone(), activity.clone());
            async move { Ok::<_, Infallible>(respond(&routes, &peer, &activity, request).await) }
        });
        let mut connection = pin!(self.builder.serve_connection(TokioIo::new(stream), service));
        let result = tokio::select! {
            result = connection.as_mut() => Some(result),
            _ = stopping.wait_for(|stopping| *stopping) => None,
            () = activity.close_delay(), if self.closes_unauthenticated_http2 => None,
            () = activity.idle() => None,
            () = activity.without_head(), if !is_http2 => return Err(format!("no request within {HEAD_TIMEOUT:?}")),
            () = activity.slot.evicted() => return Ok(()),
        };
        let result = match result {
            Some(result) => result,
            None => {
                connection.as_mut().graceful_shutdown();
                // A client that does not read its responses must not keep the connection slot.
                let closed = tokio::select! {
                    closed = timeout(CLOSE_TIMEOUT, connection) => closed,
                    () = activity.slot.evicted() => return Ok(()),
                };
                closed.map_err(|_| format!("requests did not end within {CLOSE_TIMEOUT:?} after the close began"))?
            }
        };
        result.map_err(|error| error.to_string())
    }
}

/// Reviews a request, and responds to it if it is allowed.
async fn reply(
    routes: &Routes,
    peer: &[CertificateDer<'static>],
    activity: &Activity,
    request: Request<Incoming>,
) -> Reply {
    let Some(mut running) = RunningRequest::begin(activity) else {
        return Reply { response: response::too_many_requests(), closes: true };
    };
    let (head, body) = request.into_parts();
    match routes.review(&head, peer).await {
        Ok(allowed) => {
            running.allow(!allowed.is_anonymous);
            routes.respond(allowed, &head, body).await
        }
        Err(refused) => refused,
    }
}

async fn respond(
    routes: &Routes,
    peer: &[CertificateDer<'static>],
    activity: &Activity,
    request: Request<Incoming>,
) -> FullResponse {
    let (http2, without_body) = (request.version() == Version::HTTP_2, request.method() == Method::HEAD);
    let reply = AssertUnwindSafe(reply(routes, peer, activity, request)).catch_unwind().await;
    let (mut response, closes) = match reply {
        Ok(reply) => (reply.response, reply.closes),
        Err(_) => {
            tracing::error!("request handler panicked");
            (
                response::plain(StatusCode::INTERNAL_SERVER_ERROR, "the request made the server panic; see its log\n"),
                true,
            )
        }
    };
    if without_body {
        *response.body_mut() = http_body_util::Full::default();
    }
    if http2 && closes {
        // An unauthenticated client must not keep a multiplexed connection. Upstream: apiserver, gate
        // UnauthenticatedHTTP2DOSMitigation.
        activity.close_soon.notify_one();
    }
    response
}
