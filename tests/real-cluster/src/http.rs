//! Single HTTP requests over plain TCP, for the mock cloud, health checks and test traffic.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// The largest response that is read, in bytes.
const MAX_RESPONSE_BYTES: u64 = 16 << 20;

/// Gets a path within a time; returns the response's body.
///
/// # Errors
/// When there is no response in time, or its status is not 200.
pub async fn get(server: SocketAddr, path: &str, deadline: Duration) -> Result<String> {
    get_through(TcpStream::connect(server), server, path, deadline).await
}

/// Same as [`get`], from the address and port that a socket is bound to.
///
/// # Errors
/// Same as [`get`].
pub async fn get_from(socket: TcpSocket, server: SocketAddr, path: &str, deadline: Duration) -> Result<String> {
    get_through(socket.connect(server), server, path, deadline).await
}

async fn get_through(
    connecting: impl Future<Output = io::Result<TcpStream>>,
    server: SocketAddr,
    path: &str,
    deadline: Duration,
) -> Result<String> {
    let response = async {
        let connection = connecting.await.with_context(|| format!("connect to {server}"))?;
        request(connection, server, path).await
    };
    timeout(deadline, response).await.with_context(|| format!("no response from {server} in {deadline:?}"))?
}

async fn request(mut connection: TcpStream, server: SocketAddr, path: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.with_context(|| format!("write to {server}"))?;
    let mut response = Vec::new();
    connection
        .take(MAX_RESPONSE_BYTES + 1)
        .read_to_end(&mut response)
        .await
        .with_context(|| format!("read from {server}"))?;
    ensure!(
        response.len() as u64 <= MAX_RESPONSE_BYTES,
        "the response from {server} is larger than {MAX_RESPONSE_BYTES} bytes"
    );
    let text = String::from_utf8_lossy(&response);
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("{server} closed the connection"))?;
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.split(' ').nth(1) == Some("200"), "{server}{path}: {status:?}");
    let length = head.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    ensure!(length.is_none_or(|length| body.len() >= length), "{server} closed the connection within the response");
    Ok(body.to_owned())
}
