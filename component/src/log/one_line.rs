//! Keeps each event on one line, regardless of the characters in its values.
//!
//! Names, and the messages of admission webhooks and policies, may contain line ends: a user could forge lines of other
//! controllers, and a parser would get lines without a level. Upstream quotes such values. The JSON format has no line
//! ends within an event.

use std::io::{self, Write};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// A stream that gets each event as one line.
pub(super) struct OneLine<W>(pub(super) W);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for OneLine<M> {
    type Writer = OneLine<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLine(self.0.make_writer())
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        OneLine(self.0.make_writer_for(metadata))
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Writes a whole event, which ends with a line end.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = event.strip_suffix(b"\n").unwrap_or(event);
        if line.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            // The line is written in one call, because the stream may be shared.
            self.0.write_all(&[&escaped(line), &event[line.len()..]].concat())?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns a text with `\n` and `\r` in place of its line ends.
fn escaped(line: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(2 * line.len());
    for byte in line {
        match byte {
            b'\n' => escaped.extend(b"\\n"),
            b'\r' => escaped.extend(b"\\r"),
            byte => escaped.push(*byte),
        }
    }
    escaped
}
