//! A claim's selector in a form whose cost for a volume depends on the volume's labels alone.
//!
//! A tenant's selector may have tens of thousands of requirements and values, and a search compares it with all free
//! volumes of the class.

use std::collections::{HashMap, HashSet};

use kinds::selector::{Requirement, Selector};
use kinds::{PersistentVolume, Str};

/// All requirements of a selector, by key.
#[derive(Debug, Default)]
pub struct LabelRules {
    by_key: HashMap<Str, Rule>,
    /// The number of keys that a volume must have.
    required: usize,
    /// No volume satisfies the selector.
    is_unsatisfiable: bool,
}

/// All requirements of one key.
#[derive(Debug, Default)]
struct Rule {
    is_required: bool,
    is_forbidden: bool,
    /// The values that are allowed; `None` for all.
    allowed: Option<HashSet<Str>>,
    refused: HashSet<Str>,
}

impl Rule {
    fn allow_only(&mut self, values: &[Str]) {
        self.is_required = true;
        let values = values.iter().cloned();
        self.allowed = Some(match self.allowed.take() {
            None => values.collect(),
            Some(allowed) => values.filter(|value| allowed.contains(value)).collect(),
        });
    }

    fn allows(&self, value: &Str) -> bool {
        !self.is_forbidden
            && !self.refused.contains(value)
            && self.allowed.as_ref().is_none_or(|allowed| allowed.contains(value))
    }
}

impl LabelRules {
    /// Returns the rules of a selector.
    pub fn of(selector: &Selector) -> Self {
        let mut rules = Self::default();
        match selector {
            Selector::All(requirements) => requirements.iter().for_each(|requirement| rules.add(requirement)),
            Selector::Nothing | Selector::Invalid(_) => rules.is_unsatisfiable = true,
        }
        rules.required = rules.by_key.values().filter(|rule| rule.is_required).count();
        rules
    }

    fn add(&mut self, requirement: &Requirement) {
        let mut rule = |key: &Str, change: &dyn Fn(&mut Rule)| change(self.by_key.entry(key.clone()).or_default());
        match requirement {
            Requirement::Equals(key, value) | Requirement::DoubleEquals(key, value) => {
                rule(key, &|rule| rule.allow_only(std::slice::from_ref(value)));
            }
            Requirement::In(key, values) => rule(key, &|rule| rule.allow_only(values)),
            Requirement::NotEquals(key, value) => rule(key, &|rule| rule.refused.extend([value.clone()])),
            Requirement::NotIn(key, values) => rule(key, &|rule| rule.refused.extend(values.iter().cloned())),
            Requirement::Exists(key) => rule(key, &|rule| rule.is_required = true),
            Requirement::DoesNotExist(key) => rule(key, &|rule| rule.is_forbidden = true),
            // Only queries compare numbers.
            Requirement::Greater(..) | Requirement::Less(..) => self.is_unsatisfiable = true,
        }
    }

    /// Returns true if a volume's labels satisfy the selector.
    pub fn select(&self, volume: &PersistentVolume) -> bool {
        let mut found = 0;
        for (key, value) in volume.meta.labels.iter() {
            let Some(rule) = self.by_key.get(key) else { continue };
            if !rule.allows(value) {
                return false;
            }
            found += usize::from(rule.is_required);
        }
        found == self.required && !self.is_unsatisfiable
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::storage::testing::volume;

    fn requirement() -> impl Strategy<Value = Requirement> {
        let word = |words: &'static [&'static str]| proptest::sample::select(words).prop_map(Str::from);
        let values = vec(word(&["a", "b", "c"]), 1..3);
        (0..7_u8, word(&["disk", "zone", "rack"]), values).prop_map(|(kind, key, values)| match kind {
            0 => Requirement::Equals(key, values[0].clone()),
            1 => Requirement::DoubleEquals(key, values[0].clone()),
            2 => Requirement::NotEquals(key, values[0].clone()),
            3 => Requirement::In(key, values),
            4 => Requirement::NotIn(key, values),
            5 => Requirement::Exists(key),
            _ => Requirement::DoesNotExist(key),
        })
    }

    proptest! {
        #[test]
        fn rules_select_the_same_volumes_as_the_selector(
            requirements in vec(requirement(), 0..5),
            labels in proptest::collection::btree_map("disk|zone|rack|other", "a|b|c", 0..4),
        ) {
            let selector = Selector::All(requirements);
            let mut volume = volume("pv");
            volume.meta.labels = labels.iter().map(|(key, value)| (Str::from(&**key), Str::from(&**value))).collect();
            prop_assert_eq!(LabelRules::of(&selector).select(&volume), selector.matches(&volume.meta.labels));
        }
    }

    #[test]
    fn selector_that_matches_nothing_selects_no_volume() {
        for selector in [Selector::Nothing, Selector::Invalid("why".into())] {
            assert!(!LabelRules::of(&selector).select(&volume("pv")));
        }
    }

    /// With a scan of the values for each volume this takes minutes.
    #[test]
    fn huge_selectors_are_compared_with_many_volumes_in_linear_time() {
        const MANY: usize = 30_000;
        let text = |number: usize| Str::from(format!("some-rather-long-value-of-a-label-{number:08}"));
        let values: Vec<Str> = (0..MANY).map(text).collect();
        let refusing = Requirement::NotIn("disk".into(), values);
        let each = (0..MANY).map(|number| Requirement::NotEquals("disk".into(), text(number)));
        let selector = Selector::All(std::iter::once(refusing).chain(each).collect());
        let rules = LabelRules::of(&selector);
        let mut volume = volume("pv");
        volume.meta.labels = Arc::new([("disk".into(), text(MANY))]);
        let start = std::time::Instant::now();
        assert!((0..MANY).all(|_| rules.select(&volume)));
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}
