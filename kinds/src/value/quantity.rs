//! Resource quantities, compared by value (apimachinery/pkg/api/resource, Quantity.Cmp).

/// Returns the value in billionths; `None` if the text is not a quantity, or is too large to compare exactly.
pub fn nanos(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    let (number, suffix) = digits.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (multiplier, exponent) = scale(suffix)?;
    let exponent = exponent + 9 - i32::try_from(fraction.len()).ok()?;
    let value = mantissa.checked_mul(multiplier)?;
    let power = 10i128.checked_pow(exponent.unsigned_abs())?;
    // A finer value than a billionth is rounded away from zero, as upstream does.
    let value = if exponent >= 0 { value.checked_mul(power)? } else { -(-value).div_euclid(power) };
    Some(if negative { -value } else { value })
}

/// Returns the value in thousandths, rounded up and saturated; `None` if [`nanos`] returns `None`. Upstream:
/// apimachinery/pkg/api/resource, Quantity.MilliValue.
pub fn thousandths(text: &str) -> Option<i64> {
    let up = -(-nanos(text)?).div_euclid(1_000_000);
    Some(i64::try_from(up).unwrap_or(if up < 0 { i64::MIN } else { i64::MAX }))
}

/// Formats thousandths as the API does: with powers of 1000, or of 1024 if `binary` and the absolute value is a whole
/// number of at least 1024. Upstream: apimachinery/pkg/api/resource, Quantity.String.
pub fn format_thousandths(thousandths: i64, binary: bool) -> String {
    let (sign, mut number) = if thousandths < 0 { ("-", thousandths.unsigned_abs()) } else { ("", thousandths as u64) };
    // Divides by the base as often as possible without a remainder; returns the number of divisions.
    let divide_out = |number: &mut u64, base: u64, max: usize| {
        let mut steps = 0;
        while *number != 0 && number.is_multiple_of(base) && steps < max {
            *number /= base;
            steps += 1;
        }
        steps
    };
    if binary && number.is_multiple_of(1000) && number >= 1_024_000 {
        number /= 1000;
        let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi"][divide_out(&mut number, 1024, 5)];
        return format!("{sign}{number}{suffix}");
    }
    if number == 0 {
        return "0".to_owned();
    }
    let suffix = ["m", "", "k", "M", "G", "T", "P"][divide_out(&mut number, 1000, 6)];
    format!("{sign}{number}{suffix}")
}

/// Returns factor and power of ten of a suffix.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok().filter(|power| power.unsigned_abs() <= 30)?),
    })
}

/// Returns true if both texts are equal, or are equal amounts.
pub fn equal(a: &str, b: &str) -> bool {
    a == b || matches!((nanos(a), nanos(b)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_are_rounded_up_and_formatted_as_the_api_does() {
        for (text, read, binary, written_as) in [
            ("100m", 100, false, "100m"),
            ("2", 2000, false, "2"),
            ("1500", 1_500_000, false, "1500"),
            ("1000", 1_000_000, false, "1k"),
            ("0", 0, true, "0"),
            ("1Mi", 1_048_576_000, true, "1Mi"),
            ("1536", 1_536_000, true, "1536"),
            ("1000", 1_000_000, true, "1k"),
            ("2048.5", 2_048_500, true, "2048500m"),
            ("1u", 1, false, "1m"),
            ("-1500m", -1500, false, "-1500m"),
        ] {
            assert_eq!(thousandths(text), Some(read), "{text}");
            assert_eq!(format_thousandths(read, binary), written_as, "{text}");
        }
        assert_eq!(thousandths("9E"), Some(i64::MAX));
        assert_eq!(thousandths("x"), None);
    }

    #[test]
    fn equality_ignores_the_spelling() {
        for (a, b, same) in [
            ("1", "1000m", true),
            ("1Ki", "1024", true),
            ("1k", "1e3", true),
            ("1.5Gi", "1536Mi", true),
            ("0.5", "500m", true),
            ("-1", "-1000m", true),
            ("1E", "1000P", true),
            ("1", "1001m", false),
            ("100m", "0.2", false),
            ("x", "x", true),
            ("x", "y", false),
            (".", "0", false),
        ] {
            assert_eq!(equal(a, b), same, "{a} and {b}");
        }
    }
}
