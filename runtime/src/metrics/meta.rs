//! Metrics of the metrics themselves, under upstream's names.

use std::fmt::Write as _;

/// Returns the number of families in a text.
pub(super) fn families_in(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("# TYPE ")).count()
}

/// Returns the counts of this number of families as text: none of them is disabled, hidden, or limited in its labels,
/// and none is more stable than alpha.
pub(super) fn registry_metrics(families: usize) -> String {
    let mut about = String::new();
    for (name, help, labels, count) in [
        (
            "registered_metrics_total",
            "The count of registered metrics broken by stability level and deprecation version.",
            "{stability_level=\"ALPHA\",deprecated_version=\"\"}",
            families,
        ),
        ("disabled_metrics_total", "The count of disabled metrics.", "", 0),
        ("hidden_metrics_total", "The count of hidden metrics.", "", 0),
        (
            "cardinality_enforcement_unexpected_categorizations_total",
            "The count of unexpected categorizations during cardinality enforcement.",
            "",
            0,
        ),
    ] {
        // Writing to a String cannot fail.
        let _ = write!(about, "# HELP {name} {help}\n# TYPE {name} counter\n{name}{labels} {count}\n");
    }
    about
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_counted_once() {
        let text = "# HELP a A.\n# TYPE a counter\na{b=\"# TYPE\"} 1\n# TYPE c gauge\nc 1\n";
        let about = registry_metrics(families_in(text));
        for line in [
            "# TYPE registered_metrics_total counter",
            "registered_metrics_total{stability_level=\"ALPHA\",deprecated_version=\"\"} 2",
            "disabled_metrics_total 0",
        ] {
            assert!(about.lines().any(|own| own == line), "{line} is not in\n{about}");
        }
    }
}
