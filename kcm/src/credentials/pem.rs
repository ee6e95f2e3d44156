//! Reads the first PEM block of a text, as Go reads it.
//!
//! The API server accepts a certificate request that Go can read. With a stricter reader, some of these requests would
//! never be signed: those with headers, with blanks in the lines, or after a block that is not well-formed. Upstream:
//! encoding/pem, Decode.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

/// Accepts any value of the unused bits in the last digit.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

const BEGIN: &[u8] = b"-----BEGIN ";
/// The beginning of the line that ends a block.
const END: &[u8] = b"\n-----END ";
const DASHES: &[u8] = b"-----";

/// A PEM block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The type, for example `CERTIFICATE`.
    pub label: Vec<u8>,
    /// The content, as DER.
    pub der: Vec<u8>,
}

/// Returns the first well-formed block of a text. Text and malformed blocks before it are ignored.
pub fn first_block(text: &[u8]) -> Option<Block> {
    let mut rest = text;
    loop {
        let end = find(rest, END)?;
        let (before, after) = (&rest[..end], &rest[end + END.len()..]);
        if let Some(block) = block(before, after) {
            return Some(block);
        }
        rest = after;
    }
}

/// Returns the last block that begins in `before`, if `after` begins with the rest of its end line: the block's type
/// and five dashes.
fn block(before: &[u8], after: &[u8]) -> Option<Block> {
    let begin = before.windows(BEGIN.len()).rposition(|window| window == BEGIN)?;
    if begin > 0 && before[begin - 1] != b'\n' {
        return None;
    }
    let (line, mut body) = split_line(&before[begin + BEGIN.len()..]);
    let label = line.strip_suffix(DASHES)?;
    let (end_line, _) = split_line(after);
    if end_line.strip_prefix(label) != Some(DASHES) {
        return None;
    }
    loop {
        let (line, next) = split_line(body.unwrap_or_default());
        if !line.contains(&b':') {
            break;
        }
        // At least one line must follow the headers.
        body = Some(next?);
    }
    let is_digit = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let digits: Vec<u8> = body.unwrap_or_default().iter().copied().filter(is_digit).collect();
    Some(Block { label: label.to_vec(), der: BASE64.decode(digits).ok()? })
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

/// Returns a line without the blanks at its end, and the text after it; `None` if it is the last line.
fn split_line(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let (line, rest) = match text.iter().position(|byte| *byte == b'\n') {
        Some(at) => (text[..at].strip_suffix(b"\r").unwrap_or(&text[..at]), Some(&text[at + 1..])),
        None => (text, None),
    };
    let length = line.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    (&line[..length], rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<(String, Vec<u8>)> {
        first_block(text.as_bytes()).map(|block| (String::from_utf8(block.label).expect("ASCII"), block.der))
    }

    #[test]
    fn first_well_formed_block_is_read() {
        let good = Some(("A B".to_owned(), vec![0, 16, 131]));
        for (text, expected) in [
            ("-----BEGIN A B-----\nABCD\n-----END A B-----\n", good.clone()),
            ("-----BEGIN A B-----\nABCD\n-----END A B-----", good.clone()),
            ("-----BEGIN A B-----\r\nABCD\r\n-----END A B-----\r\n", good.clone()),
            ("-----BEGIN A B----- \t\nAB \tC\n D\n\n-----END A B----- \n", good.clone()),
            ("Text: before\n-----BEGIN A B-----\nABCD\n-----END A B-----\ntext after", good.clone()),
            ("-----BEGIN A B-----\nProc-Type: 4\nComment: me\n\nABCD\n-----END A B-----\n", good.clone()),
            ("-----BEGIN A B-----\nComment: me\nABCD\n-----END A B-----\n", good.clone()),
            ("-----BEGIN X-----\n!\n-----END X-----\n-----BEGIN A B-----\nABCD\n-----END A B-----\n", good.clone()),
            ("-----BEGIN X-----\nAAAA\n-----BEGIN A B-----\nABCD\n-----END A B-----\n", good.clone()),
            ("-----BEGIN X-----\nAAAA\n-----END Y-----\n-----BEGIN A B-----\nABCD\n-----END A B-----\n", good.clone()),
            // Unused bits in the last digit that are not zero.
            ("-----BEGIN A-----\nAB==\n-----END A-----\n", Some(("A".to_owned(), vec![0]))),
            ("-----BEGIN A-----\n-----END A-----\n", Some(("A".to_owned(), vec![]))),
            ("", None),
            ("ABCD", None),
            ("-----BEGIN A-----\nABCD\n", None),
            ("-----BEGIN A-----\nABCD\n-----END B-----\n", None),
            ("-----BEGIN A-----\nABCD\n-----END A----- x\n", None),
            ("-----BEGIN A-----\nABC\n-----END A-----\n", None),
            ("-----BEGIN A-----\nComment: me\n-----END A-----\n", None),
            ("x-----BEGIN A-----\nABCD\n-----END A-----\n", None),
            ("-----BEGIN A-----\nABCD-----END A-----\n", None),
        ] {
            assert_eq!(read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn text_of_many_ends_is_read_in_linear_time() {
        let text = "\n-----END A-----".repeat(100_000);
        assert_eq!(read(&text), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(-----BEGIN A-----|-----END A-----|[A=: \r\n-]|AAAA){0,40}") {
            drop(first_block(text.as_bytes()));
        }
    }
}
