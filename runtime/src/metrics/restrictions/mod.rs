//! Restrictions on the served metrics: families that are not served, and lists of the allowed values of labels.
//!
//! They apply to an exposition when it is encoded. Counting therefore costs the same with and without them, and they
//! apply to all families, also to those that are read at each scrape.
//!
//! Upstream: component-base, metrics. Differs from upstream: there, some families are not restricted, and series with
//! replaced values are merged when they are written (docs/differences.md).

mod blocks;
mod native;
mod protobuf;
mod text;

use std::collections::{BTreeMap, BTreeSet};

pub(super) use blocks::{Block, blocks};
pub(super) use protobuf::apply;
pub(super) use text::apply_to_text;

use super::former_name::FormerName;
use super::protobuf::LabelPair;

/// The value that replaces all values of a label that are not allowed.
const UNEXPECTED: &str = "unexpected";

/// Parts of histograms and summaries that the text format writes as labels.
const NOT_LABELS: [&str; 2] = ["le", "quantile"];

/// The allowed values of labels, by the names of the labels. Labels without an entry may have any value.
pub type AllowedValues = BTreeMap<String, BTreeSet<String>>;

/// Restrictions on the served metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restrictions {
    /// The full names of families that are not served.
    pub disabled: BTreeSet<String>,
    /// Allowed values, by the full names of their families.
    pub allowed: BTreeMap<String, AllowedValues>,
    /// Families are also served under former names that upstream no longer serves by default.
    pub shows_hidden: bool,
}

impl Restrictions {
    /// Restrictions that change nothing.
    pub(crate) const NONE: Self = Self { disabled: BTreeSet::new(), allowed: BTreeMap::new(), shows_hidden: false };

    /// Returns true if a family is served under a former name.
    pub(super) fn is_shown(&self, former: &FormerName) -> bool {
        self.shows_hidden && !self.disabled.contains(former.name)
    }

    /// Returns true if no family is changed or left out.
    fn is_empty(&self) -> bool {
        self.disabled.is_empty() && self.allowed.is_empty()
    }
}

/// The effects of restrictions on one exposition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Applied {
    /// Families that were left out.
    pub disabled: usize,
    /// Replaced label values, once per observation: the value of each affected counter, or the count of each affected
    /// histogram (in text: also summary), times the number of its replaced labels. Gauges are not counted.
    pub unexpected: u64,
}

/// Replaces the values that are not allowed. Returns the number of replaced values.
fn constrain(labels: &mut [LabelPair], allowed: &AllowedValues) -> u64 {
    let mut replaced = 0;
    for label in labels.iter_mut().filter(|label| !NOT_LABELS.contains(&&*label.name)) {
        if allowed.get(&label.name).is_some_and(|values| !values.contains(&label.value)) {
            UNEXPECTED.clone_into(&mut label.value);
            replaced += 1;
        }
    }
    replaced
}
