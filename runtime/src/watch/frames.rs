//! Frames of a watch body. Each is a length of four bytes and a `WatchEvent`, or a line of JSON.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures::{FutureExt, Stream, StreamExt};
use kinds::Form;
use tokio::time::{Instant, timeout};

use super::json;

/// Maximum size of a frame in bytes, far above that of any object (etcd accepts 1.5 MB): a longer frame is damaged.
pub(super) const MAX_FRAME_BYTES: usize = 64 << 20;

/// Maximum time from the first to the last byte of a frame, or of an object of a list. A proxy or server that sends a
/// byte now and then is not silent, but would block the watch of the kind forever.
pub(super) const MAX_FRAME_TIME: Duration = Duration::from_secs(60);

/// The reason why a body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The connection failed.
    #[error("the connection broke: {0}")]
    Body(String),
    /// Nothing arrived, not even a bookmark.
    #[error("no data from the server for {0:?}")]
    Silent(Duration),
    /// A frame, an object, a page or a list takes too long.
    #[error("an event, object or list was incomplete after {0:?}: the server or a proxy is too slow")]
    Slow(Duration),
    /// A frame is longer than the limit.
    #[error("a frame of {0} bytes is too long: the body is damaged or in another format")]
    Length(usize),
    /// A body is not the requested list.
    #[error("not a valid list: {0}")]
    NoList(&'static str),
    /// A list cannot be decoded.
    #[error("not a valid list: {0}")]
    Damaged(#[from] kinds::DecodeError),
    /// A line is not a watch event.
    #[error("a line is not a watch event: {0}")]
    Line(#[from] serde_json::Error),
}

/// Reads frames from the chunks of a body.
pub struct Frames<S> {
    chunks: S,
    buffer: BytesMut,
    /// Frames are lines of JSON.
    lines: bool,
    /// Number of bytes in the buffer that are known to contain no line end.
    scanned: usize,
    /// The time at which the incomplete frame in the buffer began.
    begun: Option<Instant>,
    /// Pause after all received data was read, so that later data is read in one batch.
    pub pause: Duration,
    /// Maximum time without any data.
    pub silence: Duration,
}

impl<S, E> Frames<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    /// Creates frames from a body's chunks. JSON is converted to the layout of protobuf.
    pub fn new(form: Form, chunks: S, silence: Duration) -> Self {
        let lines = form == Form::Json;
        Self { chunks, buffer: BytesMut::new(), lines, scanned: 0, begun: None, pause: Duration::ZERO, silence }
    }

    /// Returns the next frame; `None` at the regular end of the body.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        loop {
            if let Some(frame) = if self.lines { self.line()? } else { self.buffered()? } {
                self.begun = None;
                return Ok(Some(frame));
            }
            let silence = self.silence;
            let mut limit = (silence, FrameError::Silent(silence));
            if self.buffer.is_empty() {
                // Releases the memory of the buffer: hundreds of watches wait at the same time.
                self.buffer = BytesMut::new();
            } else {
                let left = MAX_FRAME_TIME.saturating_sub(self.begun.get_or_insert_with(Instant::now).elapsed());
                if left < silence {
                    limit = (left, FrameError::Slow(MAX_FRAME_TIME));
                }
            }
            match timeout(limit.0, self.chunk()).await.map_err(|_| limit.1)? {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => return Err(FrameError::Body(error.to_string())),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(FrameError::Body("it ended inside a frame".to_owned())),
            }
        }
    }

    /// Returns the next chunk of the body, after [`Frames::pause`] if none has arrived yet.
    async fn chunk(&mut self) -> Option<Result<Bytes, E>> {
        if self.pause.is_zero() {
            return self.chunks.next().await;
        }
        match self.chunks.next().now_or_never() {
            Some(chunk) => chunk,
            None => {
                tokio::time::sleep(self.pause).await;
                self.chunks.next().await
            }
        }
    }

    /// Removes a line from the buffer and converts it to a frame; `None` if it is not complete.
    fn line(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(end) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') else {
            self.scanned = self.buffer.len();
            return if self.scanned > MAX_FRAME_BYTES { Err(FrameError::Length(self.scanned)) } else { Ok(None) };
        };
        let line = self.buffer.split_to(self.scanned + end + 1);
        self.scanned = 0;
        Ok(Some(json::frame(&line)?))
    }

    /// Removes a frame from the buffer; `None` if it is not complete.
    fn buffered(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(prefix) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*prefix) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(FrameError::Length(length));
        }
        if self.buffer.len() < 4 + length {
            self.buffer.reserve(4 + length - self.buffer.len());
            return Ok(None);
        }
        self.buffer.advance(4);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use proptest::prelude::*;

    use super::*;

    const SILENCE: Duration = Duration::from_secs(60);

    fn run<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(future)
    }

    #[tokio::test(start_paused = true)]
    async fn frames_fail_when_the_body_is_silent() {
        let (send, chunks) = futures::channel::mpsc::unbounded::<Result<Bytes, String>>();
        let mut frames = Frames::new(Form::Protobuf, chunks, SILENCE);
        let started = tokio::time::Instant::now();
        assert!(matches!(frames.next().await, Err(FrameError::Silent(SILENCE))));
        assert!(started.elapsed() >= SILENCE, "{:?}", started.elapsed());
        send.unbounded_send(Ok(Bytes::from_static(&[0, 0, 0, 1, 7]))).expect("a reader");
        assert_eq!(frames.next().await.expect("a frame").as_deref(), Some(&[7][..]), "no data is lost by the timeout");
    }

    #[tokio::test(start_paused = true)]
    async fn frame_fails_when_it_arrives_byte_by_byte() {
        for (form, begin) in [(Form::Protobuf, &[0, 0, 1, 0][..]), (Form::Json, b"{\"type\":\"")] {
            let (send, chunks) = futures::channel::mpsc::unbounded::<Result<Bytes, String>>();
            let mut frames = Frames::new(form, chunks, Duration::from_secs(180));
            send.unbounded_send(Ok(Bytes::from_static(begin))).expect("a reader");
            tokio::spawn(async move {
                while send.unbounded_send(Ok(Bytes::from_static(b"x"))).is_ok() {
                    tokio::time::sleep(Duration::from_secs(20)).await;
                }
            });
            let started = Instant::now();
            let read =
                tokio::time::timeout(Duration::from_secs(600), frames.next()).await.expect("the frame never ends");
            assert!(matches!(read, Err(FrameError::Slow(_))), "{read:?}");
            assert!(started.elapsed() <= Duration::from_secs(61), "{:?}", started.elapsed());
        }
    }

    async fn read(body: Vec<u8>, chunk: usize) -> Result<Vec<Bytes>, FrameError> {
        read_as(Form::Protobuf, &body, chunk).await
    }

    async fn read_as(form: Form, body: &[u8], chunk: usize) -> Result<Vec<Bytes>, FrameError> {
        let chunks: Vec<Result<Bytes, String>> =
            body.chunks(chunk.max(1)).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        let mut frames = Frames::new(form, stream::iter(chunks), SILENCE);
        let mut read = Vec::new();
        while let Some(frame) = frames.next().await? {
            read.push(frame);
        }
        Ok(read)
    }

    #[tokio::test(start_paused = true)]
    async fn data_that_arrives_in_a_pause_is_read_in_one_batch() {
        let (send, chunks) = futures::channel::mpsc::unbounded();
        let mut frames = Frames::new(Form::Protobuf, chunks, SILENCE);
        frames.pause = Duration::from_millis(250);
        tokio::spawn(async move {
            for _ in 0..100 {
                let frame = Bytes::from_static(&[0, 0, 0, 1, 7]);
                send.unbounded_send(Ok::<_, String>(frame)).expect("a reader");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let (mut moments, mut count) = (std::collections::BTreeSet::new(), 0);
        let started = tokio::time::Instant::now();
        while frames.next().await.expect("whole frames").is_some() {
            moments.insert(started.elapsed().as_millis());
            count += 1;
        }
        assert_eq!(count, 100);
        assert!(moments.len() <= 6, "{moments:?}");
    }

    /// Random bytes; frames with random contents, of which the last one may be cut off; and lines of JSON-like text.
    fn body() -> impl Strategy<Value = Vec<u8>> {
        let framed = |contents: Vec<Vec<u8>>, cut: usize| {
            let frame = |content: Vec<u8>| [(content.len() as u32).to_be_bytes().to_vec(), content].concat();
            let mut body: Vec<u8> = contents.into_iter().flat_map(frame).collect();
            body.truncate(body.len().saturating_sub(cut));
            body
        };
        let contents = proptest::collection::vec(any::<Vec<u8>>(), 0..4);
        let lines = r#"(\{"type":"(ADDED|BOOKMARK|ERROR|x)","object":(\{\}|\{"metadata":\{"name":"[a-z]{0,3}"\}\}|1)\}\n|[ -~]{0,9}\n?){0,4}"#;
        prop_oneof![
            any::<Vec<u8>>(),
            (contents, 0usize..6).prop_map(move |(contents, cut)| framed(contents, cut)),
            lines.prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn frames_are_complete_for_every_chunk_size(sent: Vec<Vec<u8>>, chunk in 1usize..9) {
            let body: Vec<u8> = sent.iter().flat_map(|frame| {
                (frame.len() as u32).to_be_bytes().into_iter().chain(frame.iter().copied())
            }).collect();
            let read = run(read(body, chunk)).expect("whole frames");
            prop_assert_eq!(read, sent);
        }

        #[test]
        fn any_bytes_in_any_chunks_are_read_or_refused(body in body(), chunk in 1usize..9) {
            for form in [Form::Protobuf, Form::Json] {
                let whole = run(read_as(form, &body, body.len()));
                let pieces = run(read_as(form, &body, chunk));
                prop_assert_eq!(whole.as_ref().ok(), pieces.as_ref().ok(), "chunks change nothing");
                if let (Form::Protobuf, Ok(frames)) = (form, whole) {
                    let length: usize = frames.iter().map(|frame| 4 + frame.len()).sum();
                    prop_assert_eq!(length, body.len(), "no byte is lost");
                }
            }
        }
    }

    #[test]
    fn lines_are_complete_for_every_chunk_size() {
        let line = |name: &str| {
            let metadata = format!(r#"{{"name":"{name}","resourceVersion":"1"}}"#);
            format!(r#"{{"type":"ADDED","object":{{"metadata":{metadata}}}}}"#) + "\n"
        };
        let body = line("a") + &line("b");
        for size in [1, 7, 1000] {
            let chunks: Vec<Result<Bytes, String>> =
                body.as_bytes().chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
            let mut frames = Frames::new(Form::Json, stream::iter(chunks), SILENCE);
            let mut next = || run(frames.next()).expect("no damage");
            let expected = ["a", "b"].map(|name| json::frame(line(name).as_bytes()).expect("a frame"));
            assert_eq!([next(), next(), next()], [Some(expected[0].clone()), Some(expected[1].clone()), None]);
        }
    }

    #[test]
    fn damaged_frames_are_reported() {
        let text = b"{\"kind\":\"Status\"}".to_vec();
        assert!(matches!(run(read(text, 64)), Err(FrameError::Length(_))));
        assert!(matches!(run(read(vec![0, 0, 0, 9, 1], 64)), Err(FrameError::Body(_))));
    }
}
