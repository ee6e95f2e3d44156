//! Secrets of the cluster with a provider's credentials.

use std::collections::BTreeMap;
use std::fmt;

use zeroize::Zeroizing;

/// The name of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretName {
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub name: String,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The data of a Secret. Its values are never printed, and are overwritten in memory when they are dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretData(BTreeMap<String, Zeroizing<Vec<u8>>>);

impl SecretData {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(|value| value.as_slice())
    }

    /// Returns the keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl<K: Into<String>> FromIterator<(K, Vec<u8>)> for SecretData {
    fn from_iter<T: IntoIterator<Item = (K, Vec<u8>)>>(entries: T) -> Self {
        Self(entries.into_iter().map(|(key, value)| (key.into(), Zeroizing::new(value))).collect())
    }
}

/// Lists the keys.
impl fmt::Debug for SecretData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_is_printed_without_its_values() {
        let data: SecretData = [("token", b"hunter2".to_vec())].into_iter().collect();
        assert_eq!(format!("{data:?}"), r#"{"token"}"#);
        assert_eq!(data.get("token"), Some(b"hunter2".as_slice()));
        assert_eq!(data.keys().collect::<Vec<_>>(), ["token"]);
        assert_eq!(data.get("other"), None);
    }
}
