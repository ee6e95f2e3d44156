//! The members of a JSON object as texts. They are found without recursion, so that each can be parsed with its own
//! limit of depth.

/// Returns the text of the member with this name. A name that is written with escape sequences is not found. The text
/// is empty if `text` is not an object, or has no such member.
pub fn member<'a>(text: &'a [u8], name: &str) -> &'a [u8] {
    let is_named =
        |found: &[u8]| found.strip_prefix(b"\"").and_then(|found| found.strip_suffix(b"\"")) == Some(name.as_bytes());
    members(text).into_iter().rev().find(|(found, _)| is_named(found)).map_or(&[], |(_, value)| value)
}

/// Splits the text of a JSON object into its members: names, in their quotes, and values. The text has to be
/// well-formed; otherwise the result is arbitrary.
pub fn members(text: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut members = Vec::new();
    let mut name = &text[..0];
    let mut start = 1;
    let text = text.trim_ascii();
    if text.first() != Some(&b'{') {
        return members;
    }
    let mut depth = 0u32;
    let mut in_string = false;
    let mut is_escaped = false;
    for (at, byte) in text.iter().enumerate() {
        if in_string {
            in_string = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'{' | b'[' => depth += 1,
            b':' if depth == 1 => (name, start) = (text[start..at].trim_ascii(), at + 1),
            b',' if depth == 1 => {
                members.push((name, text[start..at].trim_ascii()));
                start = at + 1;
            }
            b'}' | b']' => {
                if depth == 1 && start < at && !name.is_empty() {
                    members.push((name, text[start..at].trim_ascii()));
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(text: &str) -> Vec<(String, String)> {
        let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        members(text.as_bytes()).into_iter().map(|(name, value)| (text_of(name), text_of(value))).collect()
    }

    #[test]
    fn object_is_split_into_its_members() {
        for (text, expected) in [
            ("{}", &[][..]),
            (" { } ", &[]),
            ("[1, 2]", &[]),
            ("", &[]),
            (r#"{"a":1}"#, &[(r#""a""#, "1")]),
            (
                r#" { "a" : {"b": [1, "}"]} , "c\"\\" : "x,y:\"{" } "#,
                &[(r#""a""#, r#"{"b": [1, "}"]}"#), (r#""c\"\\""#, r#""x,y:\"{""#)],
            ),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(texts(text), expected, "{text}");
        }
        assert_eq!(member(br#"{"a": 1, "b": {"a": 2}, "b": 3}"#, "b"), b"3", "the last one counts");
    }

    proptest! {
        #[test]
        fn any_bytes_are_split_without_a_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            members(&text);
            members(&[b"{\"", &text[..], b"}"].concat());
        }

        #[test]
        fn members_are_those_that_a_parser_finds(
            object in prop::collection::btree_map(".{0,8}", prop::collection::vec(".{0,8}", 0..4), 0..8)
        ) {
            let text = serde_json::to_string(&object).expect("JSON");
            let parsed = |(name, value)| {
                (serde_json::from_slice(name).expect("a name"), serde_json::from_slice(value).expect("a value"))
            };
            let found: std::collections::BTreeMap<String, Vec<String>> =
                members(text.as_bytes()).into_iter().map(parsed).collect();
            prop_assert_eq!(found, object);
        }
    }
}
