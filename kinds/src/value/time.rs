//! Points in time.

use crate::wire::schema::time;
use crate::wire::{Put, WireError, fields};

/// A point in time as the API stores it: whole seconds since 1970. Zero means "not set".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub i64);

impl Time {
    /// Returns true if the time is not set.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Reads a `Time` message.
    ///
    /// # Errors
    /// When `message` is not well-formed.
    pub fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut seconds = 0;
        for field in fields(message) {
            let field = field?;
            if field.number == time::SECONDS {
                seconds = field.value.i64();
            }
        }
        Ok(Self(seconds))
    }

    /// Appends a `Time` field.
    pub fn put(self, out: &mut Vec<u8>, number: u32) {
        out.put_message(number, |message| {
            message.put_int(time::SECONDS, self.0);
            message.put_int(time::NANOS, 0);
        });
    }
}
