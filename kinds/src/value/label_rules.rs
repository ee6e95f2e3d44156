//! The requirements of a selector, grouped by key: the cost of a match depends only on the number of the object's
//! labels.
//!
//! A tenant's selector may have tens of thousands of requirements and values, and is compared with thousands of pods.

use std::collections::{HashMap, HashSet};

use super::requirement::Requirement;
use crate::intern::Str;

/// All requirements of a selector, by key.
#[derive(Debug, Default)]
pub(super) struct LabelRules {
    by_key: HashMap<Str, Rule>,
    /// The number of keys that an object must have.
    required: usize,
}

/// All requirements of one key.
#[derive(Debug, Default)]
struct Rule {
    is_required: bool,
    is_forbidden: bool,
    /// Boxed to save memory: a selector may have tens of thousands of keys without requirements on their values.
    values: Option<Box<ValueRule>>,
}

/// The requirements on the value of a label.
#[derive(Debug, Default)]
struct ValueRule {
    /// The values that are allowed; `None` for all.
    allowed: Option<HashSet<Str>>,
    refused: HashSet<Str>,
    /// The value is a number above this one.
    above: Option<i64>,
    /// The value is a number below this one.
    below: Option<i64>,
}

impl Rule {
    fn add(&mut self, requirement: &Requirement) {
        match requirement {
            Requirement::Exists(_) => self.is_required = true,
            Requirement::DoesNotExist(_) => self.is_forbidden = true,
            Requirement::NotEquals(_, value) => self.values().refuse(std::slice::from_ref(value)),
            Requirement::NotIn(_, values) => self.values().refuse(values),
            Requirement::Equals(_, value) | Requirement::DoubleEquals(_, value) => {
                self.require().allow_only(std::slice::from_ref(value));
            }
            Requirement::In(_, values) => self.require().allow_only(values),
            Requirement::Greater(_, bound) => {
                let values = self.require();
                values.above = values.above.max(Some(*bound));
            }
            Requirement::Less(_, bound) => {
                let values = self.require();
                values.below = Some(values.below.map_or(*bound, |below| below.min(*bound)));
            }
        }
    }

    fn values(&mut self) -> &mut ValueRule {
        self.values.get_or_insert_default()
    }

    /// Returns the requirements on the value of a label that an object must have.
    fn require(&mut self) -> &mut ValueRule {
        self.is_required = true;
        self.values()
    }

    fn allows(&self, value: &Str) -> bool {
        !self.is_forbidden && self.values.as_ref().is_none_or(|values| values.allows(value))
    }
}

impl ValueRule {
    fn refuse(&mut self, values: &[Str]) {
        self.refused.extend(values.iter().cloned());
    }

    fn allow_only(&mut self, values: &[Str]) {
        let values = values.iter().cloned();
        self.allowed = Some(match self.allowed.take() {
            None => values.collect(),
            Some(allowed) => values.filter(|value| allowed.contains(value)).collect(),
        });
    }

    fn allows(&self, value: &Str) -> bool {
        !self.refused.contains(value)
            && self.allowed.as_ref().is_none_or(|allowed| allowed.contains(value))
            && self.is_in_bounds(value)
    }

    fn is_in_bounds(&self, value: &str) -> bool {
        if self.above.is_none() && self.below.is_none() {
            return true;
        }
        let number = value.parse::<i64>();
        number.is_ok_and(|number| {
            self.above.is_none_or(|above| number > above) && self.below.is_none_or(|below| number < below)
        })
    }
}

impl LabelRules {
    /// Converts requirements to rules.
    pub fn of(requirements: &[Requirement]) -> Self {
        let mut rules = Self::default();
        for requirement in requirements {
            rules.by_key.entry(requirement.key().clone()).or_default().add(requirement);
        }
        rules.required = rules.by_key.values().filter(|rule| rule.is_required).count();
        rules
    }

    /// Returns true if a label set satisfies all requirements.
    pub fn match_labels(&self, labels: &[(Str, Str)]) -> bool {
        let mut found = 0;
        for (key, value) in labels {
            let Some(rule) = self.by_key.get(key) else { continue };
            if !rule.allows(value) {
                return false;
            }
            found += usize::from(rule.is_required);
        }
        found == self.required
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn requirement() -> impl Strategy<Value = Requirement> {
        let word = |words: &'static [&'static str]| proptest::sample::select(words).prop_map(Str::from);
        let values = vec(word(&["1", "2", "c"]), 1..3);
        (0..9_u8, word(&["disk", "zone", "rack"]), values).prop_map(|(kind, key, values)| match kind {
            0 => Requirement::Equals(key, values[0].clone()),
            1 => Requirement::DoubleEquals(key, values[0].clone()),
            2 => Requirement::NotEquals(key, values[0].clone()),
            3 => Requirement::In(key, values),
            4 => Requirement::NotIn(key, values),
            5 => Requirement::Exists(key),
            6 => Requirement::DoesNotExist(key),
            7 => Requirement::Greater(key, 1),
            _ => Requirement::Less(key, 2),
        })
    }

    proptest! {
        #[test]
        fn rules_match_the_same_labels_as_the_requirements(
            requirements in vec(requirement(), 0..5),
            labels in proptest::collection::btree_map("disk|zone|rack|other", "1|2|c", 0..4),
        ) {
            let labels: Vec<(Str, Str)> =
                labels.iter().map(|(key, value)| (Str::from(&**key), Str::from(&**value))).collect();
            let expected = requirements.iter().all(|requirement| requirement.matches(&labels));
            prop_assert_eq!(LabelRules::of(&requirements).match_labels(&labels), expected);
        }
    }
}
