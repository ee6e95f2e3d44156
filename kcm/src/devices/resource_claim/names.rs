//! Names of the claims that are created from templates.

/// Maximum length of a prefix in bytes, as in upstream. The API server appends five random characters.
const MAX_PREFIX_BYTES: usize = 57;

/// Returns the prefix of a claim's name. Names that are too long are cut in proportion to their lengths, so that both
/// can be recognized.
pub fn name_prefix(owner: &str, entry: &str) -> String {
    let whole = format!("{owner}-{entry}-");
    if whole.len() <= MAX_PREFIX_BYTES {
        return whole;
    }
    let cut = |name: &str| {
        let length = name.len() * MAX_PREFIX_BYTES / whole.len();
        name.char_indices().take_while(|(at, char)| at + char.len_utf8() <= length).map(|(_, char)| char).collect()
    };
    let (owner, entry): (String, String) = (cut(owner), cut(entry));
    format!("{owner}-{entry}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_in_proportion() {
        let long = "a".repeat(63);
        for (owner, entry, expected) in [
            ("web", "gpu", "web-gpu-".to_owned()),
            (&"a".repeat(51), "gpuu", format!("{}-gpuu-", "a".repeat(51))),
            // The whole has 58 bytes.
            (&"a".repeat(52), "gpuu", format!("{}-gpu", "a".repeat(51))),
            (&long, &long, format!("{0}-{0}", "a".repeat(28))),
            (&"ä".repeat(40), "gpu", format!("{}-gp", "ä".repeat(26))),
        ] {
            assert_eq!(name_prefix(owner, entry), expected, "{owner} {entry}");
        }
    }

    #[test]
    fn prefix_never_exceeds_its_maximum_length() {
        for owner in 1..=253 {
            for entry in [1, 10, 63] {
                assert!(name_prefix(&"p".repeat(owner), &"e".repeat(entry)).len() <= MAX_PREFIX_BYTES);
            }
        }
    }
}
