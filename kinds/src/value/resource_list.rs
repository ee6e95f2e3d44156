//! Amounts of resources: added, compared and formatted as the API does (apimachinery/pkg/api/resource, Quantity).

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use crate::value::quantity::nanos;
use crate::wire::schema::quantity;
use crate::wire::{WireError, fields, find_str};

/// The format of an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// `1500m`, `2`, `3k`
    Decimal,
    /// `128Mi`
    Binary,
    /// `3e3`
    Exponent,
}

/// An amount, exact to a billionth. Equality and order compare values.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    nanos: i128,
    format: Format,
}

/// One, in billionths.
const ONE: i128 = 1_000_000_000;

impl Amount {
    /// Zero.
    pub const ZERO: Self = Self { nanos: 0, format: Format::Decimal };

    /// Returns the amount of a whole number.
    pub fn count(number: i64) -> Self {
        Self { nanos: i128::from(number) * ONE, format: Format::Decimal }
    }

    /// Parses a quantity; `None` if it is invalid, or too large to compare exactly.
    pub fn parse(text: &str) -> Option<Self> {
        let suffix = text.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-'));
        let format = match suffix.as_bytes() {
            [_, b'i'] => Format::Binary,
            [b'e' | b'E', _, ..] => Format::Exponent,
            _ => Format::Decimal,
        };
        Some(Self { nanos: nanos(text)?, format })
    }

    /// Returns a text from which [`Amount::from_exact_text`] reads the same amount: the canonical form, or billionths
    /// after a tilde if the canonical form of a binary amount is rounded to whole bytes or has lost the format. The
    /// format is the same, too, except that an amount with the exponent 0 is read as decimal.
    pub(crate) fn exact_text(self) -> String {
        let is_kept = self.nanos % ONE == 0 && self.nanos.unsigned_abs() >= 1024 * ONE.unsigned_abs();
        if self.format == Format::Binary && !is_kept { format!("~{}", self.nanos) } else { self.to_string() }
    }

    /// Reads the text of [`Amount::exact_text`].
    pub(crate) fn from_exact_text(text: &str) -> Option<Self> {
        match text.strip_prefix('~') {
            Some(nanos) => Some(Self { nanos: nanos.parse().ok()?, format: Format::Binary }),
            None => Self::parse(text),
        }
    }

    /// Returns true if the amount is zero.
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Returns the sum, in the format of the first nonzero amount.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos), format }
    }

    /// Returns the difference, which may be negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos), ..self }
    }

    /// Returns the amount multiplied by `count`.
    #[must_use]
    pub fn times(self, count: usize) -> Self {
        Self { nanos: self.nanos.saturating_mul(i128::try_from(count).unwrap_or(i128::MAX)), ..self }
    }

    /// Returns the next whole number that is not smaller, or the nearest one that fits into an `i64`.
    pub fn whole(self) -> i64 {
        let whole = self.rounded_up().nanos / ONE;
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns the next whole number that is not smaller.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        // A sum may be saturated: then no larger whole number fits.
        let whole = self.nanos.div_euclid(ONE) + i128::from(self.nanos.rem_euclid(ONE) != 0);
        Self { nanos: whole.saturating_mul(ONE), ..self }
    }
}

impl PartialEq for Amount {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Amount {}

impl PartialOrd for Amount {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Amount {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Amount {
    /// Writes the canonical form: the largest suffix that leaves a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DECIMAL: [(&str, i32); 10] =
            [("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3), ("", 0), ("m", -3), ("u", -6), ("n", -9)];
        const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
        if self.is_zero() {
            return f.write_str("0");
        }
        if self.format == Format::Binary && self.nanos.unsigned_abs() >= 1024 * ONE.unsigned_abs() {
            let mut value = self.rounded_up().nanos / ONE;
            let mut power = 0;
            while value % 1024 == 0 && power + 1 < BINARY.len() {
                (value, power) = (value / 1024, power + 1);
            }
            return write!(f, "{value}{}", BINARY[power]);
        }
        let unit = |power: i32| 10i128.pow((power + 9).unsigned_abs());
        let fits = DECIMAL.into_iter().find(|(_, power)| self.nanos % unit(*power) == 0);
        let (suffix, power) = fits.unwrap_or(("n", -9));
        let value = self.nanos / unit(power);
        match self.format {
            Format::Exponent if power != 0 => write!(f, "{value}e{power}"),
            _ => write!(f, "{value}{suffix}"),
        }
    }
}

/// Amounts by the names of resources.
pub type Amounts<'a> = BTreeMap<&'a str, Amount>;

/// Adds amounts to others.
pub fn add<'a>(sum: &mut Amounts<'a>, more: &Amounts<'a>) {
    for (name, amount) in more {
        let known = sum.entry(name).or_insert(Amount::ZERO);
        *known = known.plus(*amount);
    }
}

/// Raises amounts to those of `other` if they are larger.
pub fn raise<'a>(max: &mut Amounts<'a>, other: &Amounts<'a>) {
    for (name, amount) in other {
        let known = max.entry(name).or_insert(*amount);
        *known = (*known).max(*amount);
    }
}

/// Adds an entry of a `map<string, Quantity>`; a quantity that [`Amount::parse`] refuses is skipped.
///
/// # Errors
/// When `entry` is not well-formed.
pub fn read_entry<'a>(amounts: &mut Amounts<'a>, entry: &'a [u8]) -> Result<(), WireError> {
    let (name, text) = named_text(entry)?;
    amounts.extend(Amount::parse(text).map(|amount| (name, amount)));
    Ok(())
}

/// Returns key and text of an entry of a `map<string, Quantity>`.
///
/// # Errors
/// When `entry` is not well-formed.
pub fn named_text(entry: &[u8]) -> Result<(&str, &str), WireError> {
    let (mut name, mut text) = ("", "");
    for field in fields(entry) {
        let field = field?;
        match field.number {
            1 => name = field.value.str(),
            2 => text = find_str(field.value.bytes(), quantity::STRING),
            _ => {}
        }
    }
    Ok((name, text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amount(text: &str) -> Amount {
        Amount::parse(text).expect("a quantity")
    }

    #[test]
    fn amounts_are_formatted_as_the_api_does() {
        for (text, canonical) in [
            ("0", "0"),
            ("1500m", "1500m"),
            ("2000m", "2"),
            ("0.5", "500m"),
            ("15000", "15k"),
            ("1500", "1500"),
            ("1024Ki", "1Mi"),
            ("1.5Gi", "1536Mi"),
            ("1000Mi", "1000Mi"),
            ("0.5Ki", "512"),
            ("1025Ki", "1025Ki"),
            ("3e3", "3e3"),
            ("12e6", "12e6"),
            ("1E", "1E"),
            ("-5", "-5"),
            ("100n", "100n"),
        ] {
            assert_eq!(amount(text).to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn exact_text_keeps_fractions_and_the_format() {
        for text in ["64Mi", "0.1Gi", "-0.1Gi", "0.5Ki", "0Mi", "1Ki", "1500m", "100n", "3e3", "0"] {
            let amount = amount(text);
            let read = Amount::from_exact_text(&amount.exact_text()).expect("an amount");
            assert_eq!((read.nanos, read.format), (amount.nanos, amount.format), "{text}");
        }
    }

    #[test]
    fn sums_have_the_format_of_their_first_nonzero_part() {
        assert_eq!(Amount::ZERO.plus(amount("64Mi")).plus(amount("64Mi")).to_string(), "128Mi");
        assert_eq!(amount("1").plus(amount("500m")).to_string(), "1500m");
        assert_eq!(amount("1k").minus(amount("1")).to_string(), "999");
        assert_eq!(amount("250m").times(4).to_string(), "1");
        assert_eq!(amount("1.2Gi").rounded_up().to_string(), "1288490189");
        assert_eq!(amount("1Ki").max(amount("1k")).to_string(), "1Ki");
    }

    #[test]
    fn whole_number_is_rounded_up_and_saturates() {
        for (text, whole) in [("1500m", 2), ("0", 0), ("-1500m", -1), ("1Ki", 1024), ("100E", i64::MAX)] {
            assert_eq!(amount(text).whole(), whole, "{text}");
        }
    }

    #[test]
    fn largest_and_smallest_amounts_are_rounded_and_formatted() {
        let large = amount("9E").times(usize::MAX).times(usize::MAX);
        let small = Amount::ZERO.minus(large).minus(amount("1"));
        for (amount, whole, sign) in [(large, i64::MAX, false), (small, i64::MIN, true)] {
            assert_eq!((amount.whole(), amount.rounded_up().whole()), (whole, whole));
            let binary = Amount { format: Format::Binary, ..amount };
            for text in [amount.to_string(), binary.to_string(), amount.rounded_up().to_string()] {
                assert_eq!(text.starts_with('-'), sign, "{text}");
            }
        }
    }

    proptest! {
        /// A formatted amount parses to the same amount, and is formatted in the same way.
        #[test]
        fn canonical_form_is_stable(number in -1_000_000_000_000i64..1_000_000_000_000, suffix in "(n|u|m|k|M|Ki|Mi|Gi|e3|)") {
            let given = amount(&format!("{number}{suffix}"));
            let again = amount(&given.to_string());
            prop_assert_eq!(again, given);
            prop_assert_eq!(again.to_string(), given.to_string());
        }
    }
}
