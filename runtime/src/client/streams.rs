//! HTTP/2 connections to one server, as many as its stream limit requires.
//!
//! A server states how many streams it allows per connection (SETTINGS_MAX_CONCURRENT_STREAMS; kube-apiserver: 100). A
//! request beyond that limit would wait in this process until another request ends, which for watches takes minutes.
//! Therefore each connection counts its open streams, and a request that finds no free slot opens another connection,
//! as Go's transport does. Surplus connections are closed when they are idle. Servers without HTTP/2 get HTTP/1.1.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::rt::Executor;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connection as _, capture_connection};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::client::Body;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tower::{BoxError, Service, ServiceExt as _};

use super::causes::with_causes;
use super::connector::Connector;
use super::lane::Accepted;
use super::proxy::Route;
use crate::lock::lock;

/// Time without data after which a connection is pinged: client-go's read idle timeout.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Time without a response to a ping after which a connection is considered dead: client-go's ping timeout.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum unread bytes of one stream.
const STREAM_WINDOW: u32 = 4 << 20;
/// Maximum unread bytes of all streams: large enough that one slow reader never blocks the other streams of its
/// connection.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Maximum number of idle HTTP/1.1 connections that are kept, for servers without HTTP/2.
const IDLE_CONNECTIONS: usize = 25;
/// Maximum time from the HTTP/2 handshake until the server has sent its stream limit.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two checks of a limit that has not been stated yet.
const SETTINGS_POLL: Duration = Duration::from_millis(1);
/// Time after which a request no longer waits for a connection that is being opened, but opens another one. One of
/// several servers behind an address may accept connections and never respond, and the Lease has to be renewed within
/// seconds.
const DIAL_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum number of connections that are tried for one request, if each of them closes before it accepts the request.
const ATTEMPTS: usize = 4;
/// Time after which HTTP/2 is offered again to a server that did not support it.
const HTTP1_FOR: Duration = Duration::from_secs(600);

/// Time for which a connection that was opened for HTTP/2 can be used for HTTP/1.1.
const USABLE_FOR: Duration = Duration::from_secs(5);

/// A connection to the server; each hop (to a proxy, to the server) with or without TLS.
type Stream = MaybeHttpsStream<MaybeHttpsStream<TokioIo<TcpStream>>>;

/// A connection, and the time at which it was opened.
type FoundStream = (Stream, Instant);

/// Connections of one lane with the same credentials.
#[derive(Clone)]
pub(super) struct Streams(Arc<Inner>);

struct Inner {
    /// Runs the sockets and tasks of all connections, whichever runtime a request comes from.
    runtime: Handle,
    connector: Connector<Route>,
    /// The client for servers without HTTP/2.
    http1: legacy::Client<Http1Connector, Body>,
    /// A connection that turned out to be HTTP/1.1, to be used by the HTTP/1.1 client.
    found_http1: Arc<Mutex<Option<FoundStream>>>,
    state: Mutex<State>,
    /// A connection on which a request was given up gets no more requests.
    retires_silent: bool,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    next_id: u64,
    /// The connection that is being opened, and since when.
    dialing: Option<(Dial, Instant)>,
    /// HTTP/1.1 is used until this time, because the server did not support HTTP/2.
    http1_until: Option<Instant>,
}

struct Connection {
    id: u64,
    sender: SendRequest<Body>,
    /// Streams that the server allows.
    limit: Arc<AtomicUsize>,
    /// Open streams.
    open: usize,
}

impl Connection {
    fn has_room(&self) -> bool {
        !self.sender.is_closed() && self.open < self.limit.load(Ordering::Acquire)
    }
}

/// The opening of a connection, which all requests without a slot wait for together.
type Dial = Shared<BoxFuture<'static, Result<(), String>>>;

/// The connection that was chosen for a request.
enum ConnectionChoice {
    Http2(SendRequest<Body>, Slot),
    Http1,
}

/// An open stream of a connection. Dropping it frees the slot.
pub(super) struct Slot {
    streams: Streams,
    id: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.streams.release(self.id);
    }
}

impl Streams {
    /// Creates an empty pool that connects on the first request; its connections live on `runtime`. `offering_http1`
    /// connects without offering HTTP/2. With `retires_silent`, a connection on which a request was given up before its
    /// response gets no more requests: it would be detected as dead only after 45 seconds.
    pub(super) fn new(
        runtime: Handle,
        connector: Connector<Route>,
        offering_http1: Connector<Route>,
        retires_silent: bool,
    ) -> Self {
        let found_http1 = Arc::default();
        let http1 =
            Http1Connector { runtime: runtime.clone(), found: Arc::clone(&found_http1), connector: offering_http1 };
        // The client repeats a request only if the connection returned it unread.
        let http1 = legacy::Client::builder(RuntimeExecutor(runtime.clone()))
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .build(http1);
        Self(Arc::new(Inner { runtime, connector, http1, found_http1, state: Mutex::default(), retires_silent }))
    }

    /// Sends a request over a connection with a free slot. Returns the response with the slot (`None` for HTTP/1.1),
    /// which is occupied until the body has been read. `accepted` records whether the connection took the request.
    ///
    /// # Errors
    /// When there is no connection, or it breaks before the head of the response.
    pub(super) async fn send(
        &self,
        mut request: Request<Body>,
        accepted: &Accepted,
    ) -> Result<(Response<Incoming>, Option<Slot>), BoxError> {
        for _ in 0..ATTEMPTS {
            let (mut sender, slot) = match self.choose_connection(request.uri()).await? {
                ConnectionChoice::Http2(sender, slot) => (sender, slot),
                ConnectionChoice::Http1 => {
                    accepted.capture(capture_connection(&mut request));
                    return Ok((self.0.http1.request(request).await?, None));
                }
            };
            accepted.set(true);
            let mut waiting = AwaitedResponse { streams: self, id: self.0.retires_silent.then_some(slot.id) };
            let response = sender.try_send_request(request).await;
            waiting.id = None;
            match response {
                Ok(response) => return Ok((response, Some(slot))),
                Err(mut error) => match error.take_message() {
                    // The connection was about to close and returned the request unsent.
                    Some(unsent) => {
                        accepted.set(false);
                        self.retire(slot.id);
                        request = unsent;
                    }
                    None => return Err(error.into_error().into()),
                },
            }
        }
        Err(format!("{ATTEMPTS} connections in a row closed before they accepted the request").into())
    }

    /// Returns a connection with a free slot; opens one if there is none.
    async fn choose_connection(&self, server: &Uri) -> Result<ConnectionChoice, BoxError> {
        loop {
            let dial = {
                let mut state = self.state();
                if state.http1_until.is_some_and(|until| Instant::now() < until) {
                    return Ok(ConnectionChoice::Http1);
                }
                state.connections.retain(|connection| !connection.sender.is_closed());
                if let Some(connection) = state.connections.iter_mut().find(|connection| connection.has_room()) {
                    connection.open += 1;
                    let slot = Slot { streams: self.clone(), id: connection.id };
                    return Ok(ConnectionChoice::Http2(connection.sender.clone(), slot));
                }
                match &state.dialing {
                    Some((dial, since)) if dial.peek().is_none() && since.elapsed() < DIAL_PATIENCE => dial.clone(),
                    _ => {
                        let dial = self.dial(server.clone());
                        state.dialing = Some((dial.clone(), Instant::now()));
                        dial
                    }
                }
            };
            // After [`DIAL_PATIENCE`], another request or this one opens another connection.
            if let Ok(opened) = timeout(DIAL_PATIENCE, dial).await {
                opened?;
            }
        }
    }

    /// Opens a connection in a separate task, so that it does not depend on the request that needed it first.
    fn dial(&self, server: Uri) -> Dial {
        let streams = self.clone();
        let opening =
            self.0.runtime.spawn(async move { streams.open(server).await.map_err(|error| with_causes(&*error)) });
        async move { opening.await.unwrap_or_else(|error| Err(format!("opening a connection: {error}"))) }
            .boxed()
            .shared()
    }

    async fn open(&self, server: Uri) -> Result<(), BoxError> {
        let stream = self.0.connector.clone().oneshot(server).await?;
        if !stream.connected().is_negotiated_h2() {
            *lock(&self.0.found_http1) = Some((stream, Instant::now()));
            self.state().http1_until = Some(Instant::now() + HTTP1_FOR);
            return Ok(());
        }
        let (sender, connection) = http2::Builder::new(RuntimeExecutor(self.0.runtime.clone()))
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // No stream is opened before the server has stated its limit.
            .initial_max_send_streams(0)
            .handshake(stream)
            .await?;
        let limit = Arc::new(AtomicUsize::new(0));
        let (stated, mut is_stated) = watch::channel(());
        self.0.runtime.spawn(drive(connection, limit.clone(), stated));
        match timeout(SETTINGS_TIMEOUT, is_stated.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err("the connection closed before the server allowed a stream on it".into()),
            Err(_) => return Err(format!("the server allowed no stream within {SETTINGS_TIMEOUT:?}").into()),
        }
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        state.connections.push(Connection { id, sender, limit, open: 0 });
        Ok(())
    }

    /// Frees a slot. Closes its connection if it is idle and another one is less than half full.
    fn release(&self, id: u64) {
        let mut state = self.state();
        let Some(at) = state.connections.iter().position(|connection| connection.id == id) else { return };
        let connection = &mut state.connections[at];
        connection.open = connection.open.saturating_sub(1);
        if connection.open > 0 {
            return;
        }
        let is_surplus = state
            .connections
            .iter()
            .any(|other| other.id != id && other.has_room() && other.open < other.limit.load(Ordering::Acquire) / 2);
        if is_surplus {
            state.connections.remove(at);
        }
    }

    /// Assigns no more requests to a connection. Its open streams continue to their end.
    fn retire(&self, id: u64) {
        self.state().connections.retain(|connection| connection.id != id);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

/// A request that waits for its response. If it is given up, its connection gets no more requests.
struct AwaitedResponse<'a> {
    streams: &'a Streams,
    /// The connection; `None` after the response, or if the connection stays in use.
    id: Option<u64>,
}

impl Drop for AwaitedResponse<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.streams.retire(id);
        }
    }
}

/// Drives a connection to its end, and updates `limit` to the server's value.
async fn drive(
    connection: http2::Connection<Stream, Body, RuntimeExecutor>,
    limit: Arc<AtomicUsize>,
    stated: watch::Sender<()>,
) {
    let mut connection = std::pin::pin!(connection);
    let mut watched = std::future::poll_fn(|cx| {
        let polled = connection.as_mut().poll(cx);
        limit.store(connection.current_max_send_streams(), Ordering::Release);
        polled
    });
    // The server's first settings do not wake this task, so the limit is polled.
    while limit.load(Ordering::Acquire) == 0 {
        match timeout(SETTINGS_POLL, &mut watched).await {
            Ok(_) => return,
            Err(_) if stated.is_closed() => return,
            Err(_) => {}
        }
    }
    stated.send_replace(());
    if let Err(error) = watched.await {
        tracing::debug!(error = with_causes(&error), "connection ended");
    }
}

/// Spawns the tasks of connections on a runtime, whichever runtime the request comes from.
#[derive(Clone)]
struct RuntimeExecutor(Handle);

impl<F> Executor<F> for RuntimeExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

/// Uses a connection that turned out to be HTTP/1.1 before it opens others.
#[derive(Clone)]
struct Http1Connector {
    runtime: Handle,
    found: Arc<Mutex<Option<FoundStream>>>,
    connector: Connector<Route>,
}

impl Service<Uri> for Http1Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Stream, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match lock(&self.found).take() {
            // The server may have closed an older connection.
            Some((stream, at)) if at.elapsed() < USABLE_FOR => Box::pin(std::future::ready(Ok(stream))),
            _ => {
                // A socket belongs to the runtime on which it was opened.
                let opening = self.runtime.spawn(self.connector.call(server));
                Box::pin(async move { opening.await? })
            }
        }
    }
}
