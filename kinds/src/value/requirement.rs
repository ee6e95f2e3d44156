//! One condition of a label selector.

use crate::intern::{Str, label};

/// One condition on a label set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// The label has this value: `key=value`.
    ///
    /// It matches like `In` with one value, but queries must spell it like this: metrics adapters such as KEDA parse
    /// the query again and accept nothing else.
    Equals(Str, Str),
    /// `key==value`. Matches like `Equals`, and keeps the spelling of its source.
    DoubleEquals(Str, Str),
    /// The label has another value, or is absent: `key!=value`.
    NotEquals(Str, Str),
    /// The label has one of these values.
    In(Str, Vec<Str>),
    /// The label has none of these values, or is absent.
    NotIn(Str, Vec<Str>),
    /// The label is present.
    Exists(Str),
    /// The label is absent.
    DoesNotExist(Str),
    /// The label is a number above this one; only in queries.
    Greater(Str, i64),
    /// The label is a number below this one; only in queries.
    Less(Str, i64),
}

impl Requirement {
    /// Returns the number of texts that a comparison with one object may scan.
    pub(super) fn scanned(&self) -> usize {
        match self {
            Self::In(_, values) | Self::NotIn(_, values) => values.len(),
            _ => 1,
        }
    }

    pub(super) fn key(&self) -> &Str {
        match self {
            Self::Equals(key, _)
            | Self::DoubleEquals(key, _)
            | Self::NotEquals(key, _)
            | Self::In(key, _)
            | Self::NotIn(key, _)
            | Self::Exists(key)
            | Self::DoesNotExist(key)
            | Self::Greater(key, _)
            | Self::Less(key, _) => key,
        }
    }

    /// Returns the label, as key and value, that every matching object has; `None` if the requirement does not
    /// determine one value.
    pub fn only_label(&self) -> Option<(&Str, &Str)> {
        match self {
            Self::Equals(key, value) | Self::DoubleEquals(key, value) => Some((key, value)),
            Self::In(key, values) => match &values[..] {
                [value] => Some((key, value)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Formats the requirement as a part of a query.
    pub(super) fn query(&self) -> String {
        let list = |values: &[Str]| {
            let mut values: Vec<&str> = values.iter().map(|value| &**value).collect();
            values.sort_unstable();
            values.join(",")
        };
        match self {
            Self::Equals(key, value) => format!("{key}={value}"),
            Self::DoubleEquals(key, value) => format!("{key}=={value}"),
            Self::NotEquals(key, value) => format!("{key}!={value}"),
            Self::In(key, values) => format!("{key} in ({})", list(values)),
            Self::NotIn(key, values) => format!("{key} notin ({})", list(values)),
            Self::Exists(key) => key.to_string(),
            Self::DoesNotExist(key) => format!("!{key}"),
            Self::Greater(key, bound) => format!("{key}>{bound}"),
            Self::Less(key, bound) => format!("{key}<{bound}"),
        }
    }

    /// Returns true if a label set satisfies the requirement.
    pub(super) fn matches(&self, labels: &[(Str, Str)]) -> bool {
        match self {
            Self::Equals(key, wanted) | Self::DoubleEquals(key, wanted) => {
                label(labels, key).is_some_and(|value| *value == **wanted)
            }
            Self::NotEquals(key, refused) => label(labels, key).is_none_or(|value| *value != **refused),
            Self::In(key, values) => {
                label(labels, key).is_some_and(|value| values.iter().any(|wanted| **wanted == *value))
            }
            Self::NotIn(key, values) => {
                label(labels, key).is_none_or(|value| values.iter().all(|refused| **refused != *value))
            }
            Self::Exists(key) => label(labels, key).is_some(),
            Self::DoesNotExist(key) => label(labels, key).is_none(),
            Self::Greater(key, bound) => number(labels, key).is_some_and(|value| value > *bound),
            Self::Less(key, bound) => number(labels, key).is_some_and(|value| value < *bound),
        }
    }
}

fn number(labels: &[(Str, Str)], key: &str) -> Option<i64> {
    label(labels, key)?.parse().ok()
}
