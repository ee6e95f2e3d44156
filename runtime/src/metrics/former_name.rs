//! Former names of metric families. After the period of deprecation, upstream serves a family under such a name only
//! with `--show-hidden-metrics-for-version`. Upstream: component-base, shouldHide.

use super::protobuf::MetricFamily;
use super::restrictions::blocks;

/// A former name of a family of counters or gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormerName {
    /// The full former name.
    pub name: &'static str,
    /// The full name that replaces it.
    pub replaced_by: &'static str,
    /// The version of Kubernetes since which the former name is deprecated, such as `1.36.0`.
    pub deprecated_since: &'static str,
}

impl FormerName {
    /// Returns the family in a text, under its former name; an empty text if the family has no samples yet.
    pub(super) fn text(&self, text: &str) -> String {
        let family = blocks(text).into_iter().find(|block| block.name == self.replaced_by);
        let renamed = |line: &str| match line.split_once(self.replaced_by) {
            Some(("# HELP ", help)) => format!("# HELP {} {}\n", self.name, self.help(help.trim_start())),
            Some((before, after)) => format!("{before}{}{after}\n", self.name),
            None => String::new(),
        };
        family.map(|family| family.text.lines().map(renamed).collect()).unwrap_or_default()
    }

    /// Returns the family under its former name; `None` if it has no samples yet.
    pub(super) fn family(&self, families: &[MetricFamily]) -> Option<MetricFamily> {
        let family = families.iter().find(|family| family.name == self.replaced_by)?;
        Some(MetricFamily { name: self.name.to_owned(), help: self.help(&family.help), ..family.clone() })
    }

    fn help(&self, help: &str) -> String {
        format!("(Deprecated since {}) {help}", self.deprecated_since)
    }
}
