//! Functions on texts: percent-encoding, queries, quotes, times, durations, lengths.

use jiff::Timestamp;

/// Maximum length of a human-readable text, in bytes: of an event, a condition, an error in the log. Tenants can make
/// such texts as long as an object, for example by the selector in the scale of a custom resource.
pub const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// Truncates a text to a number of bytes and marks the truncation.
#[must_use]
pub fn shortened(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
    text
}

/// Formats a time as the API does, in whole seconds: `2026-01-02T15:04:05Z`.
#[must_use]
pub fn api_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Percent-encodes all but unreserved characters: a selector may contain spaces, commas, parentheses.
#[must_use]
pub fn percent_encode(text: &str) -> String {
    escaped(text, |_| false)
}

/// Percent-encodes a text that becomes one segment of a path: like [`percent_encode`], but keeps colons, which many
/// names of roles contain, and asterisks, which stand for all pods in the metrics API.
pub(crate) fn percent_encode_segment(text: &str) -> String {
    escaped(text, |byte| matches!(byte, b':' | b'*'))
}

fn escaped(text: &str, is_plain: impl Fn(u8) -> bool) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') || is_plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.extend([byte >> 4, byte & 0xf].map(|digit| char::from(DIGITS[usize::from(digit)])));
        }
    }
    out
}

/// Decodes percent-encoding; `None` if a percent sign is not followed by two hexadecimal digits, or the bytes are not
/// UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, tail) = rest.split_first_chunk::<2>()?;
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push(u8::try_from(digit(digits[0])? * 16 + digit(digits[1])?).ok()?);
        rest = tail;
    }
    String::from_utf8(bytes).ok()
}

/// Returns the decoded pairs of a query; those that cannot be decoded or contain a semicolon are left out, as in Go's
/// net/url.
pub(crate) fn query(text: &str) -> Vec<(String, String)> {
    let decode = |part: &str| percent_decode(&part.replace('+', " "));
    let pairs = text.split('&').filter(|pair| !pair.is_empty() && !pair.contains(';'));
    pairs
        .filter_map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(key)?, decode(value)?))
        })
        .collect()
}

/// Returns a text in double quotes, escaped in a way that is valid in Go and JSON.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Formats a duration, such as `2h 5m` or `1.5s`.
pub(crate) fn human_duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.1}s"),
        10..60 => format!("{whole}s"),
        60..3600 => format!("{}m {}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h {}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d {}h", whole / 86_400, whole / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn negative_duration_is_shown_as_zero() {
        for (seconds, expected) in [(-3.0, "0.0s"), (2.5, "2.5s"), (61.0, "1m 1s")] {
            assert_eq!(human_duration(seconds), expected);
        }
    }

    #[test]
    fn long_text_is_truncated_at_a_character() {
        for (text, limit, expected) in
            [("abc", 3, "abc"), ("abcd", 3, "abc…"), ("äöü", 3, "ä…"), ("", 0, ""), ("ä", 1, "…")]
        {
            assert_eq!(shortened(text.to_owned(), limit), expected, "{text}");
        }
    }

    #[test]
    fn percent_signs_are_decoded_or_refused() {
        assert_eq!(percent_decode("/m%65trics").as_deref(), Some("/metrics"));
        assert_eq!(percent_decode("/%e2%82%aC").as_deref(), Some("/€"));
        for bad in ["%", "%4", "%zz", "%ff", "%+1"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
    }

    #[test]
    fn query_is_split_into_pairs() {
        let pairs = |text| query(text).into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
        assert_eq!(pairs("verbose&exclude=a&exclude=b%20c&&x=1+2"), ["verbose=", "exclude=a", "exclude=b c", "x=1 2"]);
        assert_eq!(pairs("exclude=%zz&verbose"), ["verbose="]);
        assert!(query("").is_empty());
    }

    proptest! {
        #[test]
        fn encoded_text_is_plain_and_decodes_to_itself(text in any::<String>()) {
            for encoded in [percent_encode(&text), percent_encode_segment(&text)] {
                prop_assert!(encoded.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%:*".contains(&byte)));
                prop_assert_eq!(percent_decode(&encoded), Some(text.clone()));
            }
        }

        #[test]
        fn any_query_is_read_without_panic(text in "[%+=&;a0é]{0,40}|.{0,40}") {
            let _ = (query(&text), percent_decode(&text), quoted(&text));
        }

        #[test]
        fn plain_text_is_not_changed(text in "[^%]*") {
            prop_assert_eq!(percent_decode(&text), Some(text));
        }
    }
}
