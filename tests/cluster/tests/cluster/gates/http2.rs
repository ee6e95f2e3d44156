//! The gate that closes HTTP/2 connections of unauthenticated clients, tested with raw frames.

use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::programs::KCM;
use cluster_tests::{QUIET, Space};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::flag;
use crate::process::serving::{ManagerProcess, bare_control_plane};

/// RFC 9113, 3.4, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A HEADERS frame of stream 1 with `GET https://localhost/` that ends the stream: names and values are in HPACK's
/// table.
const REQUEST: &[u8] = b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x87\x84\x01\x09localhost";

const GOAWAY: u8 = 7;

/// Time for the server to close a connection.
const CLOSED_WITHIN: Duration = cluster_tests::DEADLINE;

/// Reads frames until one of this type, and returns the types of all.
async fn read_until(stream: &mut (impl AsyncRead + Unpin), wanted: u8) -> Vec<u8> {
    let mut types = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        types.push(head[3]);
        if head[3] == wanted || stream.read_exact(&mut vec![0; length]).await.is_err() {
            break;
        }
    }
    types
}

/// With the gate, the server sends GOAWAY after the first request; without the gate, it waits for further requests.
pub async fn connection_of_an_unknown_client_is_closed(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    for is_on in [true, false] {
        let gate = flag(&["UnauthenticatedHTTP2DOSMitigation"], is_on);
        let flags = ["--controllers=serviceaccount-controller".to_owned(), gate];
        let kcm = ManagerProcess::start(&cluster, KCM, &flags).await?;
        let mut stream = kcm.connect(None, &[b"h2"]).await?;
        stream.write_all(&[PREFACE, REQUEST].concat()).await?;
        if is_on {
            let frames = timeout(CLOSED_WITHIN, read_until(&mut stream, GOAWAY)).await?;
            ensure!(frames.last() == Some(&GOAWAY), "{frames:?}");
        } else {
            const DATA: u8 = 0;
            let frames = timeout(CLOSED_WITHIN, read_until(&mut stream, DATA)).await?;
            ensure!(frames.last() == Some(&DATA), "no response: {frames:?}");
            let more = timeout(QUIET, read_until(&mut stream, GOAWAY)).await;
            ensure!(more.is_err(), "the connection was closed: {more:?}");
        }
        kcm.terminate().await?;
    }
    Ok(())
}
