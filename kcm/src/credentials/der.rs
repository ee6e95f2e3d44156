//! Writes DER: the encodings that PKCS #8 keys and certificates need.

/// Tag of an `INTEGER`.
pub const INTEGER: u8 = 0x02;
/// Tag of a `BIT STRING`.
pub const BIT_STRING: u8 = 0x03;
/// Tag of an `OCTET STRING`.
pub const OCTET_STRING: u8 = 0x04;
/// Tag of a `SEQUENCE`.
pub const SEQUENCE: u8 = 0x30;
/// Tag of a `SET`.
pub const SET: u8 = 0x31;

/// Encodes one value.
pub fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut value = vec![tag];
    let length = content.len().to_be_bytes();
    match content.len() {
        short @ 0..0x80 => value.push(short as u8),
        _ => {
            let significant = &length[length.iter().position(|byte| *byte != 0).unwrap_or(0)..];
            value.push(0x80 | significant.len() as u8);
            value.extend_from_slice(significant);
        }
    }
    value.extend_from_slice(content);
    value
}

/// Encodes a value that contains several values.
pub fn nested(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    der(tag, &parts.concat())
}

/// Encodes a number that is not negative, from its big-endian bytes.
pub fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let significant = &bytes[bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len())..];
    match significant.first() {
        Some(0..=0x7f) => der(INTEGER, significant),
        _ => der(INTEGER, &[&[0], significant].concat()),
    }
}

/// Returns whole bytes as a bit string.
pub fn bits(bytes: &[u8]) -> Vec<u8> {
    der(BIT_STRING, &[&[0], bytes].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_signs_are_minimal() {
        for (length, header) in
            [(0, vec![4, 0]), (127, vec![4, 127]), (128, vec![4, 0x81, 128]), (256, vec![4, 0x82, 1, 0])]
        {
            let value = der(OCTET_STRING, &vec![7; length]);
            assert_eq!(value[..header.len()], header, "{length}");
            assert_eq!(value.len(), header.len() + length);
        }
        for (bytes, expected) in [
            (&[][..], &[2, 1, 0][..]),
            (&[0, 0], &[2, 1, 0]),
            (&[0, 5], &[2, 1, 5]),
            (&[0x80], &[2, 2, 0, 0x80]),
            (&[0x7f, 0xff], &[2, 2, 0x7f, 0xff]),
        ] {
            assert_eq!(unsigned(bytes), expected, "{bytes:?}");
        }
    }
}
