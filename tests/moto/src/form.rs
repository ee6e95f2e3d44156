//! Bodies of AWS's query protocol: names and values, percent-encoded.

/// Parses a body; invalid UTF-8 is replaced.
pub(crate) fn read(body: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(body);
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

/// Formats a body.
pub(crate) fn write<N: AsRef<str>, V: AsRef<str>>(pairs: &[(N, V)]) -> String {
    let pairs = pairs.iter().map(|(name, value)| format!("{}={}", encode(name.as_ref()), encode(value.as_ref())));
    pairs.collect::<Vec<_>>().join("&")
}

fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
        encoded
    })
}

fn decode(text: &str) -> String {
    let (bytes, mut at, mut decoded) = (text.as_bytes(), 0, Vec::new());
    while let Some(byte) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 3).and_then(|code| std::str::from_utf8(code).ok());
        match (byte, code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(value)) => {
                decoded.push(value);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            _ => decoded.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_body_reads_the_same() {
        let pairs = [("Action", "RunInstances"), ("Filter.1.Name", "tag:a b/c"), ("Empty", ""), ("Odd", "ü=&%+")];
        let body = write(&pairs);
        assert!(
            body.is_ascii() && body.starts_with("Action=RunInstances&Filter.1.Name=tag%3Aa%20b%2Fc&Empty=&"),
            "{body}"
        );
        let read: Vec<(String, String)> = read(body.as_bytes());
        assert_eq!(read, pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn bodies_of_other_clients_are_parsed() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read(b"a=b+c&d&e=%zz%4"), [pair("a", "b c"), pair("d", ""), pair("e", "%zz%4")]);
        assert_eq!(read(b""), []);
    }
}
