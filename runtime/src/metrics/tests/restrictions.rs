//! Restrictions on expositions: the same in all formats.

use std::collections::BTreeSet;

use super::super::{AllowedValues, FormerName};
use super::*;

fn set<const N: usize>(values: [&str; N]) -> BTreeSet<String> {
    values.map(str::to_owned).into()
}

/// Returns the allowed values of one label.
fn allowed<const N: usize>(family: &str, label: &str, values: [&str; N]) -> (String, AllowedValues) {
    (family.to_owned(), [(label.to_owned(), set(values))].into())
}

/// Adds metrics of all types, with several series each.
fn metrics() -> Metrics {
    let metrics = filled();
    let errors = metrics.counts("errors", "Errors \\.");
    for (plugin, operation, count) in
        [("a", "delete", 1), ("b\"", "delete", 20), ("c", "delete", 300), ("", "delete", 4000), ("c", "add", 50_000)]
    {
        errors.add_many([("plugin", plugin.to_owned()), ("operation", operation.to_owned())], count);
    }
    let sizes = metrics.gauges("sizes", "Sizes.");
    for (zone, size) in [("a", 0.25), ("b", 2.0), ("c", 4.0)] {
        sizes.set([("zone", zone.to_owned())], size);
    }
    let waits = metrics.histograms("waits", "Waits.", vec![0.5, 2.0]);
    for (code, value) in [("200", 0.25), ("404", 0.25), ("404", 1.0), ("500", 3.5), ("500", 0.5)] {
        waits.observe([("code", code.to_owned())], value);
    }
    metrics.former_name(FormerName { name: "errors_of_old", replaced_by: "errors_total", deprecated_since: "1.36.0" });
    metrics
}

/// Returns the text with these restrictions; the protobuf has the same content.
fn restricted(restrictions: Restrictions) -> String {
    let metrics = metrics();
    metrics.restrict(restrictions);
    let text = metrics.text();
    let own = decoded(&metrics.exposition(accepting_protobuf()).body);
    assert_eq!(own, decoded(&protobuf::delimited(parse::families(&text))), "{text}");
    text
}

/// Returns the sample lines of a family.
fn samples<'a>(text: &'a str, family: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(family)).collect()
}

#[test]
fn exposition_is_unchanged_by_empty_restrictions() {
    // The order of series is random.
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(&restricted(Restrictions::default())), sorted(&metrics().text()));
}

#[test]
fn disabled_families_are_not_served() {
    let disabled = set(["errors_total", "waits", "other_total", "empty", "calls", "unknown", "hidden_metrics_total"]);
    let text = restricted(Restrictions { disabled, ..Restrictions::default() });
    for name in ["errors", "waits", "other", "# TYPE hidden_metrics_total", "hidden_metrics_total"] {
        assert!(!text.lines().any(|line| line.starts_with(name)), "{name} is in\n{text}");
    }
    assert!(!text.contains("# TYPE errors_total") && !text.contains("# HELP waits"), "{text}");
    // The full name is `calls_total`.
    assert_eq!(samples(&text, "calls_total").len(), 2);
    assert_eq!(samples(&text, "disabled_metrics_total"), ["disabled_metrics_total 7"]);
    let all = samples(&metrics().text(), "registered_metrics_total")[0].rsplit_once(' ').expect("a count").1.to_owned();
    let served = format!("{}", all.parse::<usize>().expect("a number") - 3);
    let registered = format!("registered_metrics_total{{stability_level=\"ALPHA\",deprecated_version=\"\"}} {served}");
    assert_eq!(samples(&text, "registered_metrics_total"), [registered]);
}

#[test]
fn hidden_families_are_counted() {
    let text = restricted(Restrictions { disabled: set(["errors_total", "nothing"]), ..Restrictions::default() });
    // The family, and its former name.
    assert_eq!(samples(&text, "hidden_metrics_total"), ["hidden_metrics_total 2"]);
}

#[test]
fn values_that_are_not_allowed_are_added_up() {
    let allowed = [
        allowed("errors_total", "plugin", ["a", "b\""]),
        allowed("sizes", "zone", ["c"]),
        allowed("waits", "code", ["200"]),
        // A bound is not a label, and a label of another name has any value.
        allowed("time", "le", ["1"]),
        allowed("calls_total", "other", []),
        allowed("other_total", "a", [""]),
    ];
    let text = restricted(Restrictions { allowed: allowed.into(), ..Restrictions::default() });
    let mut errors = samples(&text, "errors_total");
    errors.sort_unstable();
    assert_eq!(
        errors,
        [
            "errors_total{plugin=\"a\",operation=\"delete\"} 1",
            "errors_total{plugin=\"b\\\"\",operation=\"delete\"} 20",
            "errors_total{plugin=\"unexpected\",operation=\"add\"} 50000",
            "errors_total{plugin=\"unexpected\",operation=\"delete\"} 4300",
        ]
    );
    for line in [
        "# HELP errors_total Errors \\\\.",
        "# TYPE errors_total counter",
        "sizes{zone=\"c\"} 4",
        "sizes{zone=\"unexpected\"} 2.25",
        "waits_bucket{le=\"0.5\",code=\"200\"} 1",
        "waits_bucket{le=\"0.5\",code=\"unexpected\"} 2",
        "waits_bucket{le=\"2\",code=\"unexpected\"} 3",
        "waits_bucket{le=\"+Inf\",code=\"unexpected\"} 4",
        "waits_sum{code=\"unexpected\"} 5.25",
        "waits_count{code=\"unexpected\"} 4",
        "time_bucket{le=\"+Inf\",code=\"404\"} 1",
        "other_total{a=\"unexpected\"} 7",
        // Values of counters and histograms: 54,300, 4, and 7.
        "cardinality_enforcement_unexpected_categorizations_total 54311",
    ] {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }
    assert_eq!((samples(&text, "sizes").len(), samples(&text, "waits_count").len()), (2, 2), "{text}");
    assert!(!samples(&text, "calls_total").iter().any(|line| line.contains("unexpected")), "{text}");
}

#[test]
fn former_names_are_served_if_hidden_ones_are_shown() {
    let shows_hidden = Restrictions { shows_hidden: true, ..Restrictions::default() };
    let allowed_values = [allowed("errors_of_old", "plugin", ["c"])];
    let text = restricted(Restrictions { allowed: allowed_values.into(), ..shows_hidden.clone() });
    let mut errors = samples(&text, "errors_of_old");
    errors.sort_unstable();
    assert_eq!(
        errors,
        [
            "errors_of_old{plugin=\"c\",operation=\"add\"} 50000",
            "errors_of_old{plugin=\"c\",operation=\"delete\"} 300",
            "errors_of_old{plugin=\"unexpected\",operation=\"delete\"} 4021",
        ]
    );
    assert_eq!(samples(&text, "errors_total").len(), 5);
    for line in [
        "# HELP errors_of_old (Deprecated since 1.36.0) Errors \\\\.",
        "# TYPE errors_of_old counter",
        "hidden_metrics_total 0",
        "registered_metrics_total{stability_level=\"ALPHA\",deprecated_version=\"1.36.0\"} 1",
    ] {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }
    let disabled = restricted(Restrictions { disabled: set(["errors_of_old"]), ..shows_hidden.clone() });
    assert!(!disabled.contains("errors_of_old") && samples(&disabled, "errors_total").len() == 5, "{disabled}");
    assert_eq!(samples(&disabled, "hidden_metrics_total"), ["hidden_metrics_total 1"]);
    let replaced = restricted(Restrictions { disabled: set(["errors_total"]), ..shows_hidden });
    assert_eq!((samples(&replaced, "errors_of_old").len(), samples(&replaced, "errors_total").len()), (5, 0));
    assert!(!metrics().text().contains("errors_of_old"));
}

#[test]
fn restrictions_of_a_registry_apply_in_all_formats() {
    let mut registry = registry_of("one", &Histogram::new([1.0]));
    registry.register("two", "Help", Histogram::new([1.0]));
    let restrictions = Restrictions { disabled: set(["one"]), ..Restrictions::default() };
    let text = super::super::exposition(&registry, &restrictions, Format::default());
    let names: Vec<String> =
        parse::families(&String::from_utf8(text.body).expect("text")).into_iter().map(|family| family.name).collect();
    assert_eq!(names, ["two"]);
    let families = decoded(&super::super::exposition(&registry, &restrictions, accepting_protobuf()).body);
    assert_eq!(families.into_iter().map(|family| family.name).collect::<Vec<_>>(), names);
}
