//! Reads the body of a list object by object as it arrives, so that at most one object is held in memory.

use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use kinds::envelope::{MAGIC, list_version, require_list};
use kinds::schema::{list_meta, type_meta, unknown};
use kinds::wire::{Head, find, find_str};
use tokio::time::{Instant, timeout_at};

use super::frames::{FrameError, MAX_FRAME_BYTES, MAX_FRAME_TIME};

/// Metadata is field 1 and items are field 2 in every list kind.
const METADATA: u32 = 1;
const ITEMS: u32 = 2;

/// Reads the objects of a list from the chunks of a protobuf body.
pub struct Items<S> {
    chunks: S,
    buffer: BytesMut,
    position: Position,
    /// The time by which the next object has to be complete.
    deadline: Instant,
    version: Option<u64>,
    next_page: String,
}

/// The position in the body where the buffer begins.
#[derive(Clone, Copy)]
enum Position {
    Magic,
    Envelope,
    /// Inside the list, with the number of its remaining bytes.
    List(usize),
}

impl<S, E> Items<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    /// Creates a reader of a body's chunks.
    pub fn new(chunks: S) -> Self {
        let (position, deadline) = (Position::Magic, Instant::now());
        Self { chunks, buffer: BytesMut::new(), position, deadline, version: None, next_page: String::new() }
    }

    /// Returns the list's version, once the whole list was read.
    ///
    /// # Errors
    /// [`FrameError::NoList`] if the list has none.
    pub fn version(&self) -> Result<u64, FrameError> {
        self.version.ok_or(FrameError::NoList("it has no resourceVersion"))
    }

    /// Returns the token of the next page, once the whole page was read; empty if it was the last.
    pub fn continue_token(&self) -> &str {
        &self.next_page
    }

    /// Returns the next object; `None` at the regular end of the body.
    ///
    /// # Errors
    /// When the connection fails or is too slow, an object is too large, or the body is not a list.
    pub async fn next(&mut self) -> Result<Option<Bytes>, FrameError> {
        self.deadline = Instant::now() + MAX_FRAME_TIME;
        loop {
            match self.position {
                Position::Magic => {
                    if !self.fill(MAGIC.len()).await? || !self.buffer.starts_with(MAGIC) {
                        return Err(FrameError::NoList("it does not begin with the Kubernetes protobuf prefix"));
                    }
                    self.buffer.advance(MAGIC.len());
                    self.position = Position::Envelope;
                }
                Position::Envelope => match self.head().await? {
                    None => return Ok(None),
                    Some(head) if head.number == unknown::RAW => {
                        self.buffer.advance(head.size);
                        self.position = Position::List(head.length);
                    }
                    Some(head) => {
                        let field = self.field(head).await?;
                        if head.number == unknown::TYPE_META {
                            require_list(find_str(&field, type_meta::KIND))?;
                        }
                    }
                },
                Position::List(0) => self.position = Position::Envelope,
                Position::List(left) => {
                    let head = self.head().await?.ok_or(FrameError::NoList("it ends too early"))?;
                    let left = left.checked_sub(head.size + head.length);
                    self.position = Position::List(left.ok_or(FrameError::NoList("a field reaches beyond its end"))?);
                    let field = self.field(head).await?;
                    match head.number {
                        ITEMS => return Ok(Some(field)),
                        METADATA => {
                            self.version = Some(list_version(&field)?);
                            let token = std::str::from_utf8(find(&field, list_meta::CONTINUE));
                            token
                                .map_err(|_| FrameError::NoList("its continue token is not UTF-8"))?
                                .clone_into(&mut self.next_page);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Returns the head of the next field; `None` at the end of the body.
    async fn head(&mut self) -> Result<Option<Head>, FrameError> {
        loop {
            match Head::read(&self.buffer).map_err(kinds::DecodeError::from)? {
                Some(head) if head.length > MAX_FRAME_BYTES && !self.opens_list(head) => {
                    return Err(FrameError::Length(head.length));
                }
                Some(head) => return Ok(Some(head)),
                None => {
                    let wanted = self.buffer.len() + 1;
                    if !self.fill(wanted).await? {
                        let ended = self.buffer.is_empty();
                        return if ended { Ok(None) } else { Err(FrameError::NoList("it ends inside a field")) };
                    }
                }
            }
        }
    }

    /// Returns true if a field contains the list. It may have any length, because it is never held in memory as a
    /// whole.
    fn opens_list(&self, head: Head) -> bool {
        matches!(self.position, Position::Envelope) && head.number == unknown::RAW
    }

    async fn field(&mut self, head: Head) -> Result<Bytes, FrameError> {
        if !self.fill(head.size + head.length).await? {
            return Err(FrameError::NoList("it ends inside a field"));
        }
        self.buffer.advance(head.size);
        Ok(self.buffer.split_to(head.length).freeze())
    }

    /// Waits for a number of bytes; returns false if the body ends before them.
    async fn fill(&mut self, wanted: usize) -> Result<bool, FrameError> {
        self.buffer.reserve(wanted.saturating_sub(self.buffer.len()));
        while self.buffer.len() < wanted {
            let chunk = timeout_at(self.deadline, self.chunks.next()).await;
            match chunk.map_err(|_| FrameError::Slow(MAX_FRAME_TIME))? {
                Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                Some(Err(error)) => return Err(FrameError::Body(error.to_string())),
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use kinds::envelope::wrap_as;
    use kinds::wire::Put as _;
    use proptest::prelude::*;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn object_fails_when_it_arrives_byte_by_byte() {
        let body = body(&[vec![0; 100]]);
        let chunks = stream::iter(body).then(|byte| async move {
            tokio::time::sleep(std::time::Duration::from_secs(20)).await;
            Ok::<_, String>(Bytes::copy_from_slice(&[byte]))
        });
        let read = Items::new(Box::pin(chunks)).next().await;
        assert!(matches!(read, Err(FrameError::Slow(_))), "{read:?}");
    }

    #[test]
    fn body_of_another_kind_is_no_list() {
        let mut status = Vec::new();
        status.put_message(METADATA, |meta| meta.put_str(list_meta::RESOURCE_VERSION, "42"));
        status.put_str(2, "Failure");
        let read = read(&wrap_as("v1", "Status", &status), 100).map_err(|error| error.to_string());
        assert_eq!(read, Err("not a valid list: kind is Status, which is not a list".to_owned()));
    }

    fn body(items: &[Vec<u8>]) -> Vec<u8> {
        let mut list = Vec::new();
        list.put_message(METADATA, |meta| meta.put_str(list_meta::RESOURCE_VERSION, "42"));
        for item in items {
            list.put_bytes(ITEMS, item);
        }
        wrap_as("v1", "PodList", &list)
    }

    fn read(body: &[u8], chunk: usize) -> Result<(Vec<Bytes>, u64), FrameError> {
        let chunks: Vec<Result<Bytes, String>> =
            body.chunks(chunk.max(1)).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        let mut items = Items::new(stream::iter(chunks));
        let mut read = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            while let Some(item) = items.next().await? {
                read.push(item);
            }
            let version = items.version()?;
            Ok((read, version))
        })
    }

    proptest! {
        #[test]
        fn objects_are_whole_for_every_chunk_size(
            sent in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..6),
            chunk in 1usize..400,
        ) {
            let (read, version) = read(&body(&sent), chunk).expect("a list");
            prop_assert_eq!(version, 42);
            prop_assert_eq!(read, sent);
        }

        #[test]
        fn truncated_list_is_an_error(sent in proptest::collection::vec(any::<Vec<u8>>(), 1..5), cut in 1usize..40) {
            let body = body(&sent);
            let end = body.len().saturating_sub(cut);
            prop_assert!(read(&body[..end], 16).is_err());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>, chunk in 1usize..9) {
            let _ = read(&bytes, chunk);
            let _ = read(&[&MAGIC[..], &bytes].concat(), chunk);
        }
    }
}
