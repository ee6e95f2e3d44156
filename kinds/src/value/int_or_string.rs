//! A number or a text: a percentage, or the name of a port (apimachinery/pkg/util/intstr).

use crate::intern::Str;
use crate::wire::schema::int_or_string;
use crate::wire::{WireError, fields};

/// A number or a text. Fields with a count accept a percentage as text, fields with a port the port's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IntOrString {
    /// A count, or the number of a port.
    Int(i32),
    /// A percentage such as `25%`, or the name of a port; not validated.
    Text(Str),
}

impl IntOrString {
    /// Reads an `IntOrString` message.
    ///
    /// # Errors
    /// When `message` is not well-formed.
    pub fn decode(message: &[u8]) -> Result<Self, WireError> {
        let (mut kind, mut int, mut text) = (0, 0, "");
        for field in fields(message) {
            let field = field?;
            match field.number {
                int_or_string::TYPE => kind = field.value.i64(),
                int_or_string::INT_VAL => int = field.value.i32(),
                int_or_string::STR_VAL => text = field.value.str(),
                _ => {}
            }
        }
        Ok(if kind == 0 { Self::Int(int) } else { Self::Text(text.into()) })
    }

    /// Returns the count, or the percentage of `total`; `None` if the text is not a percentage. The result
    /// saturates: 200 % of the largest number of replicas is not a 32-bit number. Upstream:
    /// apimachinery/pkg/util/intstr, GetScaledValueFromIntOrPercent.
    pub fn scaled(&self, total: i32, round_up: bool) -> Option<i32> {
        let percent = match self {
            Self::Int(count) => return Some(*count),
            Self::Text(text) => i64::from(text.strip_suffix('%')?.parse::<i32>().ok()?),
        };
        let share = percent * i64::from(total);
        let rounded = if round_up { -(-share).div_euclid(100) } else { share.div_euclid(100) };
        Some(i32::try_from(rounded).unwrap_or(if rounded < 0 { i32::MIN } else { i32::MAX }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_requested() {
        let text = |text: &str| IntOrString::Text(text.into());
        for (value, total, up, expected) in [
            (IntOrString::Int(3), 10, true, Some(3)),
            (text("25%"), 10, true, Some(3)),
            (text("25%"), 10, false, Some(2)),
            (text("1%"), 2, true, Some(1)),
            (text("1%"), 2, false, Some(0)),
            (text("100%"), 7, false, Some(7)),
            (text("200%"), 2_000_000_000, true, Some(i32::MAX)),
            (text("-200%"), 2_000_000_000, true, Some(i32::MIN)),
            (text("25"), 10, false, None),
            (text("a%"), 10, false, None),
        ] {
            assert_eq!(value.scaled(total, up), expected, "{value:?} of {total}");
        }
    }
}
