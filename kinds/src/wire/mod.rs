//! Protobuf's wire format without a schema: iterate over fields, append fields, splice messages.
//!
//! Reading borrows from the input; nothing is copied until a caller decides to store it.

pub mod schema;
pub mod splice;
pub mod whole;

/// The reason why a message could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A field is damaged.
    #[error("unexpected end or invalid tag at byte {at} of {len}")]
    Damaged {
        /// Offset of the field that could not be read.
        at: usize,
        /// Length of the message.
        len: usize,
    },
    /// The message has more elements in a repeated field than its length allows.
    #[error("{elements} elements in a message of {len} bytes: most are empty")]
    Sparse {
        /// Number of elements that were read.
        elements: usize,
        /// Length of the message.
        len: usize,
    },
}

/// Bytes of memory that the elements of a repeated field may take for each byte of their message.
///
/// An API server sends all fields of an element that are not optional, and validates some of them. Therefore even the
/// records of the smallest elements that a tenant can create, addresses such as `2::`, take at most 17 times the bytes
/// of the elements. The limit is above that: objects of an API server never exceed it. Only a hostile aggregated API
/// does: it may send elements of two bytes.
const MAX_EXPANSION: usize = 24;

/// Memory that the elements of a repeated field may take in any case, in bytes.
const FREE_BYTES: usize = 4 << 10;

/// Appends an element of a repeated field of `message` to a list.
///
/// # Errors
/// When the list would take many times the memory of the message.
pub fn push<T>(list: &mut Vec<T>, element: T, message: &[u8]) -> Result<(), WireError> {
    let elements = list.len() + 1;
    if elements * size_of::<T>() > FREE_BYTES + MAX_EXPANSION * message.len() {
        return Err(WireError::Sparse { elements, len: message.len() });
    }
    list.push(element);
    Ok(())
}

/// A field's value in its encoded form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Integers, booleans and enums.
    Varint(u64),
    /// Eight fixed bytes.
    Fixed64(u64),
    /// Strings, bytes and nested messages.
    Bytes(&'a [u8]),
    /// Four fixed bytes.
    Fixed32(u32),
}

impl<'a> Value<'a> {
    /// Returns the bytes of a string, bytes field or nested message; empty for other types.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Value::Bytes(bytes) => bytes,
            _ => &[],
        }
    }

    /// Returns a string; text that is not UTF-8 reads as empty.
    pub fn str(self) -> &'a str {
        std::str::from_utf8(self.bytes()).unwrap_or_default()
    }

    /// Returns a signed 64-bit integer.
    pub fn i64(self) -> i64 {
        match self {
            Value::Varint(value) | Value::Fixed64(value) => value as i64,
            Value::Fixed32(value) => i64::from(value),
            Value::Bytes(_) => 0,
        }
    }

    /// Returns a signed 32-bit integer.
    pub fn i32(self) -> i32 {
        self.i64() as i32
    }

    /// Returns a boolean.
    pub fn bool(self) -> bool {
        self.i64() != 0
    }
}

/// One field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// Field number.
    pub number: u32,
    /// Its value.
    pub value: Value<'a>,
    /// Tag and value in their encoded form, for copying.
    pub raw: &'a [u8],
}

/// An iterator over the fields of a message; it ends after the first error.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    message: &'a [u8],
    at: usize,
}

/// Returns the fields of `message`, in wire order.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { message, at: 0 }
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.message.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(len).ok()?)?;
        let bytes = self.message.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn read(&mut self) -> Option<Field<'a>> {
        let start = self.at;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number != 0)?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let len = self.varint()?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some(Field { number, value, raw: &self.message[start..self.at] })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.message.len() {
            return None;
        }
        let start = self.at;
        let field = self.read();
        Some(field.ok_or_else(|| {
            self.at = self.message.len();
            WireError::Damaged { at: start, len: self.message.len() }
        }))
    }
}

/// The head of a string, bytes or message field, whose value may not have arrived yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Field number.
    pub number: u32,
    /// Bytes of the tag and the length.
    pub size: usize,
    /// Bytes of the value.
    pub length: usize,
}

impl Head {
    /// Reads the head of the first field of `message`; `None` if it has not arrived completely.
    ///
    /// # Errors
    /// When the field is of another type, or invalid.
    pub fn read(message: &[u8]) -> Result<Option<Self>, WireError> {
        // Two varints of ten bytes.
        const MAX_HEAD_BYTES: usize = 20;
        let mut reader = fields(message);
        let Some((tag, length)) = reader.varint().and_then(|tag| Some((tag, reader.varint()?))) else {
            let damaged = message.len() >= MAX_HEAD_BYTES;
            return if damaged { Err(WireError::Damaged { at: 0, len: message.len() }) } else { Ok(None) };
        };
        match (u32::try_from(tag >> 3), tag & 7, usize::try_from(length)) {
            (Ok(number @ 1..), 2, Ok(length)) => Ok(Some(Self { number, size: reader.at, length })),
            _ => Err(WireError::Damaged { at: 0, len: message.len() }),
        }
    }
}

/// Returns the key and value of a `map<string, string>` entry.
///
/// # Errors
/// When `entry` is not well-formed.
pub fn map_entry(entry: &[u8]) -> Result<(&str, &str), WireError> {
    let (mut key, mut value) = ("", "");
    for field in fields(entry) {
        let field = field?;
        match field.number {
            1 => key = field.value.str(),
            2 => value = field.value.str(),
            _ => {}
        }
    }
    Ok((key, value))
}

/// A message that is built by appending fields.
pub trait Put {
    /// Appends a bare varint.
    fn put_varint(&mut self, value: u64);
    /// Appends an integer field.
    fn put_int(&mut self, number: u32, value: i64);
    /// Appends a boolean field.
    fn put_bool(&mut self, number: u32, value: bool);
    /// Appends a string, bytes or message field from its finished bytes.
    fn put_bytes(&mut self, number: u32, bytes: &[u8]);
    /// Appends a string field.
    fn put_str(&mut self, number: u32, text: &str);
    /// Appends a nested message that `build` fills.
    fn put_message(&mut self, number: u32, build: impl FnOnce(&mut Vec<u8>));
    /// Appends a `map<string, string>` entry.
    fn put_entry(&mut self, number: u32, key: &str, value: &str);
}

impl Put for Vec<u8> {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_int(&mut self, number: u32, value: i64) {
        self.put_varint(u64::from(number) << 3);
        self.put_varint(value as u64);
    }

    fn put_bool(&mut self, number: u32, value: bool) {
        self.put_int(number, i64::from(value));
    }

    fn put_bytes(&mut self, number: u32, bytes: &[u8]) {
        self.put_varint(u64::from(number) << 3 | 2);
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }

    fn put_str(&mut self, number: u32, text: &str) {
        self.put_bytes(number, text.as_bytes());
    }

    fn put_message(&mut self, number: u32, build: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = Vec::new();
        build(&mut inner);
        self.put_bytes(number, &inner);
    }

    fn put_entry(&mut self, number: u32, key: &str, value: &str) {
        self.put_message(number, |entry| {
            entry.put_str(1, key);
            entry.put_str(2, value);
        });
    }
}

/// Copies the fields of `message` that `keep` selects to `out`, unchanged.
///
/// # Errors
/// When `message` is not well-formed.
pub fn copy_fields(
    message: &[u8],
    out: &mut Vec<u8>,
    mut keep: impl FnMut(&Field<'_>) -> bool,
) -> Result<(), WireError> {
    for field in fields(message) {
        let field = field?;
        if keep(&field) {
            out.extend_from_slice(field.raw);
        }
    }
    Ok(())
}

/// Returns the last nested message, string or bytes field with this number; empty if absent.
pub fn find(message: &[u8], number: u32) -> &[u8] {
    fields(message).flatten().filter(|field| field.number == number).last().map_or(&[], |field| field.value.bytes())
}

/// Returns the last string field with this number; empty if it is absent or not UTF-8.
pub fn find_str(message: &[u8], number: u32) -> &str {
    std::str::from_utf8(find(message, number)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_fields_decode_to_themselves() {
        let mut message = Vec::new();
        message.put_int(1, -1);
        message.put_str(2, "text");
        message.put_message(3, |inner| inner.put_bool(7, true));
        message.put_entry(11, "key", "value");
        let read: Vec<_> = fields(&message).map(|field| field.expect("well-formed")).collect();
        assert_eq!(read.iter().map(|field| field.number).collect::<Vec<_>>(), [1, 2, 3, 11]);
        assert_eq!(read[0].value.i64(), -1);
        assert_eq!(read[0].value.i32(), -1);
        assert_eq!(read[1].value.str(), "text");
        assert!(fields(read[2].value.bytes()).next().expect("one field").expect("well-formed").value.bool());
        assert_eq!(map_entry(read[3].value.bytes()), Ok(("key", "value")));
        assert_eq!(read.iter().flat_map(|field| field.raw).copied().collect::<Vec<_>>(), message);
    }

    #[test]
    fn damaged_message_is_an_error_without_panic() {
        for damaged in [
            &[0x0a, 5, 1][..],
            &[0x80],
            &[0x03],
            &[0x00, 1],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert!(fields(damaged).any(|field| field.is_err()), "{damaged:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = fields(&bytes).count();
            let _ = map_entry(&bytes);
        }
    }
}
