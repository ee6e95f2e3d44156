//! A connection that is polled on a timer instead of by readiness events.
//!
//! The API server writes a long response in about ten thousand small pieces. A reader that waits for readiness is woken
//! for each of them, which costs the server as much as the reader. Polling makes a list of 20,000 pods 25 % faster.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, Sleep, sleep};
use tower::{BoxError, Service};

use super::proxy::Route;

/// Time between two polls. On a fast network about 200 KiB arrive per interval.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Bytes per read.
const READ_SIZE_BYTES: usize = 256 << 10;
/// Time without data after which a connection counts as dead. The API server ends every list request within a minute,
/// if only by an error.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(90);

/// A socket that is polled on a timer.
pub(super) struct PolledSocket {
    socket: TcpStream,
    poll_timer: Pin<Box<Sleep>>,
    last_data: Instant,
    buffer: Box<[u8]>,
    /// The part of the buffer that was filled and not consumed yet.
    unread: std::ops::Range<usize>,
}

impl PolledSocket {
    fn new(socket: tokio::net::TcpStream) -> io::Result<Self> {
        Ok(Self {
            socket: socket.into_std()?,
            poll_timer: Box::pin(sleep(POLL_INTERVAL)),
            last_data: Instant::now(),
            buffer: vec![0; READ_SIZE_BYTES].into(),
            unread: 0..0,
        })
    }

    /// Runs the operation, or schedules a poll if it would block.
    fn run_or_schedule_poll<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut operation: impl FnMut(&mut Self) -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        loop {
            match operation(self) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.last_data.elapsed() > SILENCE_TIMEOUT {
                        let message = format!("no data from the server for {SILENCE_TIMEOUT:?}");
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
                    }
                    if self.poll_timer.is_elapsed() {
                        self.poll_timer.as_mut().reset(Instant::now() + POLL_INTERVAL);
                    }
                    ready!(self.poll_timer.as_mut().poll_unpin(cx));
                }
                done => {
                    self.last_data = Instant::now();
                    return Poll::Ready(done);
                }
            }
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.unread = 0..self.socket.read(&mut self.buffer)?;
        Ok(())
    }
}

impl Read for PolledSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            ready!(self.run_or_schedule_poll(cx, Self::fill))?;
        }
        let taken = self.unread.len().min(into.remaining());
        let start = self.unread.start;
        into.put_slice(&self.buffer[start..start + taken]);
        self.unread.start += taken;
        Poll::Ready(Ok(()))
    }
}

impl Write for PolledSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.run_or_schedule_poll(cx, |this| this.socket.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(std::net::Shutdown::Write))
    }
}

/// A connection for one long response.
pub(super) enum LongResponse {
    /// Polled on a timer.
    Polled(PolledSocket),
    /// Read on readiness events: a TLS connection to a proxy cannot be polled as a plain socket.
    EventDriven(Box<MaybeHttpsStream<TokioIo<tokio::net::TcpStream>>>),
}

impl Connection for LongResponse {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for LongResponse {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Polled(socket) => pin!(socket).poll_read(cx, into),
            Self::EventDriven(stream) => pin!(stream).poll_read(cx, into),
        }
    }
}

impl Write for LongResponse {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Polled(socket) => pin!(socket).poll_write(cx, bytes),
            Self::EventDriven(stream) => pin!(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Polled(socket) => pin!(socket).poll_flush(cx),
            Self::EventDriven(stream) => pin!(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Polled(socket) => pin!(socket).poll_shutdown(cx),
            Self::EventDriven(stream) => pin!(stream).poll_shutdown(cx),
        }
    }
}

/// Opens connections for long responses.
#[derive(Clone)]
pub(super) struct LongResponseConnector(pub Route);

impl Service<Uri> for LongResponseConnector {
    type Response = LongResponse;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<LongResponse, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let connecting = self.0.call(server);
        async move {
            Ok(match connecting.await? {
                MaybeHttpsStream::Http(plain) => LongResponse::Polled(PolledSocket::new(plain.into_inner())?),
                secure @ MaybeHttpsStream::Https(_) => LongResponse::EventDriven(Box::new(secure)),
            })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Returns a polled connection and its peer.
    async fn pair() -> (TokioIo<PolledSocket>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let near = tokio::net::TcpStream::connect(address).await.expect("a connection");
        let (far, _) = listener.accept().expect("its other end");
        (TokioIo::new(PolledSocket::new(near).expect("a socket")), far)
    }

    #[tokio::test]
    async fn polled_socket_reads_data_that_arrives_in_pieces() {
        let (mut near, mut far) = pair().await;
        let sent: Vec<u8> = (0..3 * READ_SIZE_BYTES).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let server = std::thread::spawn(move || {
            let mut request = [0; 3];
            std::io::Read::read_exact(&mut far, &mut request).expect("a request");
            for (at, piece) in sent.chunks(4099).enumerate() {
                far.write_all(piece).expect("the piece is sent");
                if at % 20 == 0 {
                    std::thread::yield_now();
                }
            }
            request
        });
        near.write_all(b"ask").await.expect("the request is sent");
        let mut got = Vec::new();
        near.read_to_end(&mut got).await.expect("a response");
        assert_eq!(server.join().expect("a server"), *b"ask");
        assert_eq!(got, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn polled_socket_fails_when_no_data_arrives() {
        let (mut near, _far) = pair().await;
        let started = Instant::now();
        let error = near.read_u8().await.expect_err("no data");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("90s"), "{error}");
        assert!(
            (SILENCE_TIMEOUT..SILENCE_TIMEOUT + Duration::from_secs(1)).contains(&started.elapsed()),
            "{:?}",
            started.elapsed()
        );
    }
}
