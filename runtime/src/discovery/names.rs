//! Names of groups, versions, kinds and resources. They are valid in URLs, and live as long as the process.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::lock::lock;

/// Maximum length of the name of a group, version, kind or resource, in bytes.
const MAX_NAME_BYTES: usize = 253;

/// Maximum memory for distinct names, in bytes: about 300,000 of usual length. Clusters have a few thousand; a tenant
/// who may create CustomResourceDefinitions must not be able to fill the memory with them.
const MAX_BYTES_OF_NAMES: usize = 16 << 20;

/// Memory of a name in addition to its bytes: its entry in the set, which may be half empty.
const BYTES_OF_ENTRY: usize = 32;

/// Returns true if a text is valid as the name of a group (the core group's is empty), version, kind or resource, all
/// of which become part of URLs.
pub(super) fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    text.len() <= MAX_NAME_BYTES && text.bytes().all(is_plain) && !matches!(text, "." | "..")
}

/// Returns a name with static lifetime; `None` if there are too many names.
pub(super) type KeepName = dyn Fn(&str) -> Option<&'static str>;

/// The names that were read so far. Each distinct name is leaked once.
#[derive(Debug, Default)]
struct Names {
    known: HashSet<&'static str>,
    bytes: usize,
}

impl Names {
    /// Returns the name with static lifetime; `None` if all names together would need more than `max_bytes`.
    fn keep(&mut self, text: &str, max_bytes: usize) -> Option<&'static str> {
        if let Some(known) = self.known.get(text) {
            return Some(known);
        }
        let bytes = self.bytes + text.len() + BYTES_OF_ENTRY;
        if bytes > max_bytes {
            return None;
        }
        let name: &'static str = Box::leak(text.into());
        self.known.insert(name);
        self.bytes = bytes;
        Some(name)
    }
}

/// Returns the name with static lifetime; `None` if [`MAX_BYTES_OF_NAMES`] is reached.
pub(super) fn static_name(text: &str) -> Option<&'static str> {
    static NAMES: Mutex<Option<Names>> = Mutex::new(None);
    lock(&NAMES).get_or_insert_default().keep(text, MAX_BYTES_OF_NAMES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_kept_once_within_the_limit() {
        let mut names = Names::default();
        let size = |text: &str| text.len() + BYTES_OF_ENTRY;
        let limit = size("a") + size("bb");
        assert_eq!(
            ["a", "bb", "a", "c", "bb"].map(|text| names.keep(text, limit).is_some()),
            [true, true, true, false, true]
        );
        let name = static_name("widgets").expect("a name");
        assert!(std::ptr::eq(name, static_name(String::from("widgets").as_str()).expect("a name")));
    }
}
