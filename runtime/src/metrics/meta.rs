//! Metrics of the metrics themselves, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::former_name::FormerName;
use super::restrictions::{Applied, Restrictions};

/// Counts of the families of one exposition, without the families in this file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FamilyCounts {
    /// Served families, by the version since which their name is deprecated; empty for names that are not deprecated.
    pub registered: BTreeMap<&'static str, usize>,
    /// Names of families that must not be served, whether such families exist or not.
    pub disabled: usize,
    /// Families that are not served: disabled ones, and those under former names.
    pub hidden: usize,
    /// Replaced values of labels.
    pub unexpected: u64,
}

impl FamilyCounts {
    /// Counts the served families by their names. A former name counts even before its family has samples.
    pub(super) fn of<'a>(
        names: impl Iterator<Item = &'a str>,
        former_names: &[FormerName],
        restrictions: &Restrictions,
        applied: Applied,
    ) -> Self {
        let is_former = |name: &str| former_names.iter().any(|former| former.name == name);
        let mut registered = BTreeMap::from([("", names.filter(|name| !is_former(name)).count())]);
        let mut hidden = applied.disabled;
        for former in former_names {
            if restrictions.is_shown(former) {
                *registered.entry(former.deprecated_since).or_default() += 1;
            } else {
                hidden += 1;
            }
        }
        Self { registered, disabled: restrictions.disabled.len(), hidden, unexpected: applied.unexpected }
    }

    /// Returns the counts as text. Every family is counted with the stability level `ALPHA`.
    pub(super) fn text(&self) -> String {
        let registered = self.registered.iter().map(|(version, count)| {
            (format!("{{stability_level=\"ALPHA\",deprecated_version=\"{version}\"}}"), *count as u64)
        });
        let single = |count: u64| vec![(String::new(), count)];
        let mut text = String::new();
        for (name, help, samples) in [
            (
                "registered_metrics_total",
                "The count of registered metrics broken by stability level and deprecation version.",
                registered.collect(),
            ),
            ("disabled_metrics_total", "The count of disabled metrics.", single(self.disabled as u64)),
            ("hidden_metrics_total", "The count of hidden metrics.", single(self.hidden as u64)),
            (
                "cardinality_enforcement_unexpected_categorizations_total",
                "The count of unexpected categorizations during cardinality enforcement.",
                single(self.unexpected),
            ),
        ] {
            // Writing to a String cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n");
            for (labels, count) in samples {
                let _ = writeln!(text, "{name}{labels} {count}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_counted_by_their_deprecation() {
        let former = |name| FormerName { name, replaced_by: "new", deprecated_since: "1.36.0" };
        let former_names = [former("b"), former("without_samples"), former("disabled")];
        let applied = Applied { disabled: 2, unexpected: 7 };
        let disabled = ["disabled", "x", "y"].map(str::to_owned).into();
        let restrictions = Restrictions { disabled, shows_hidden: true, ..Restrictions::default() };
        let shown = FamilyCounts::of(["a", "b", "c"].into_iter(), &former_names, &restrictions, applied).text();
        for line in [
            "# TYPE registered_metrics_total counter",
            "registered_metrics_total{stability_level=\"ALPHA\",deprecated_version=\"\"} 2",
            "registered_metrics_total{stability_level=\"ALPHA\",deprecated_version=\"1.36.0\"} 2",
            "disabled_metrics_total 3",
            "hidden_metrics_total 3",
            "cardinality_enforcement_unexpected_categorizations_total 7",
        ] {
            assert!(shown.lines().any(|own| own == line), "{line} is not in\n{shown}");
        }
        let none = Restrictions::default();
        let hidden = FamilyCounts::of(["a"].into_iter(), &former_names, &none, Applied::default()).text();
        assert!(hidden.contains("\nhidden_metrics_total 3\n") && !hidden.contains("1.36.0"), "{hidden}");
    }
}
