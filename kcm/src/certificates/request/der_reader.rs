//! Reads DER, one value at a time.

use crate::credentials::der::SEQUENCE;

/// One value, with its tag and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DerValue<'a> {
    /// Class, form and number of the tag.
    pub tag: u8,
    /// The content.
    pub content: &'a [u8],
    /// Tag, length and content.
    pub raw: &'a [u8],
}

impl<'a> DerValue<'a> {
    /// Returns the next value and the bytes after it; `None` if the value is truncated, its tag has more than one byte,
    /// or its length is indefinite, not minimal, or encoded in more than four bytes.
    pub fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let [tag, first, rest @ ..] = bytes else { return None };
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (length, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
                let length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
                let is_minimal = length >= 0x80 && digits[0] != 0;
                (is_minimal.then_some(length)?, rest)
            }
            _ => return None,
        };
        let (content, after) = rest.split_at_checked(length)?;
        Some((Self { tag: *tag, content, raw: &bytes[..bytes.len() - after.len()] }, after))
    }

    /// Returns the only value in `bytes`, if it has this tag.
    pub fn only(bytes: &'a [u8], tag: u8) -> Option<Self> {
        let (value, rest) = Self::split(bytes)?;
        (rest.is_empty() && value.tag == tag).then_some(value)
    }

    /// Returns the values inside. At malformed bytes the last item is `None`.
    pub fn parts(self) -> Parts<'a> {
        Parts { rest: self.content }
    }

    /// Returns the values inside a sequence; `None` if it is not a sequence, or one of them is not well-formed.
    pub fn sequence(self) -> Option<Vec<DerValue<'a>>> {
        (self.tag == SEQUENCE).then_some(())?;
        self.parts().collect()
    }
}

/// The values inside a value.
#[derive(Debug)]
pub struct Parts<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Parts<'a> {
    type Item = Option<DerValue<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let next = DerValue::split(self.rest);
        self.rest = next.map_or(&[], |(_, rest)| rest);
        Some(next.map(|(value, _)| value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::credentials::der::{OCTET_STRING, der};

    #[test]
    fn length_must_be_minimal_and_within_the_bytes() {
        for (bytes, expected) in [
            (&[4, 1, 7][..], Some(&[7][..])),
            (&[4, 0], Some(&[])),
            (&[4, 2, 7], None),
            (&[4, 0x81, 1, 7], None),
            (&[4, 0x80, 0, 0], None),
            (&[4, 0x85, 0, 0, 0, 0, 1, 7], None),
            (&[0x1f, 1, 7], None),
            (&[4], None),
            (&[], None),
        ] {
            assert_eq!(DerValue::split(bytes).map(|(value, _)| value.content), expected, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn written_value_is_read_back(content in proptest::collection::vec(any::<u8>(), 0..70_000)) {
            let bytes = der(OCTET_STRING, &content);
            prop_assert_eq!(DerValue::only(&bytes, OCTET_STRING).map(|value| value.content), Some(&*content));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let value = DerValue { tag: SEQUENCE, content: &bytes, raw: &bytes };
            let read: usize = value.parts().flatten().map(|part| part.raw.len()).sum();
            prop_assert!(read <= bytes.len());
        }
    }
}
