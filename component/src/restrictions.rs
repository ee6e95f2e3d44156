//! Restrictions on the served metrics, from the command line.
//!
//! Upstream: component-base, metrics/options.go and metrics/api/v1.

use std::collections::BTreeMap;

use anyhow::Context as _;
use runtime::metrics::{AllowedValues, Restrictions};
use serde_saphyr::options::DuplicateKeyPolicy;
use tracing::warn;

use crate::flags::Values;
use crate::flags::rules::is_metric_label;

/// The flag that names a file with allowed values of labels.
const MANIFEST: &str = "allow-metric-labels-manifest";

/// Returns the restrictions; none for binaries without such flags. The manifest is read once, and only if
/// `--allow-metric-labels` is not set.
///
/// # Errors
/// If the manifest cannot be read, or is not a map of labels to values.
pub fn read(values: &Values) -> anyhow::Result<Restrictions> {
    if !values.has("disabled-metrics") {
        return Ok(Restrictions::default());
    }
    let manifest = values.get_str(MANIFEST);
    let entries = if values.is_set("allow-metric-labels") || manifest.is_empty() {
        values.get_map("allow-metric-labels").clone()
    } else {
        let text = std::fs::read_to_string(manifest).with_context(|| {
            format!("--{MANIFEST}={manifest}: cannot be read; correct the path or the file's permissions")
        })?;
        let entries = parse_manifest(&text).with_context(|| format!("--{MANIFEST}={manifest}"))?;
        if entries.is_empty() {
            warn!(file = manifest, "the manifest of allowed metric labels is empty: all values are allowed");
        }
        entries
    };
    Ok(Restrictions {
        disabled: values.get_strings("disabled-metrics").iter().cloned().collect(),
        allowed: allowed(&entries),
        shows_hidden: !values.get_str("show-hidden-metrics-for-version").is_empty(),
    })
}

/// Parses a manifest: YAML or JSON with the values of each label, by `metric,label`. Of equal keys, the last one
/// counts.
fn parse_manifest(text: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let entries: Option<BTreeMap<String, Option<String>>> = serde_saphyr::from_str_with_options(text, options)
        .context("is not a YAML map of texts; write lines like \"metric,label\": \"value,value\"")?;
    let entries = entries.unwrap_or_default();
    if let Some(key) = entries.keys().find(|key| !is_metric_label(key)) {
        anyhow::bail!("must have keys metric,label, but got {key:?}");
    }
    Ok(entries.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect())
}

/// Returns the allowed values by metric and label. Blanks are part of a value; an empty list allows only the empty
/// value.
fn allowed(entries: &BTreeMap<String, String>) -> BTreeMap<String, AllowedValues> {
    let mut allowed = BTreeMap::<String, AllowedValues>::new();
    for (key, values) in entries {
        // The keys were validated before.
        if let Some((metric, label)) = key.split_once(',') {
            let values = values.split(',').map(str::to_owned).collect();
            allowed.entry(metric.to_owned()).or_default().insert(label.to_owned(), values);
        }
    }
    allowed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
        entries.map(|(key, values)| (key.to_owned(), values.to_owned())).into()
    }

    #[test]
    fn manifest_is_a_map_of_texts() {
        for (text, expected) in [
            ("", entries([])),
            ("# Nothing.\n", entries([])),
            ("{}", entries([])),
            ("\"a,b\": \"c,d\"\n", entries([("a,b", "c,d")])),
            ("a_total,b: c\n'd:e,_f': \"\"\n", entries([("a_total,b", "c"), ("d:e,_f", "")])),
            ("{\"a,b\": \"c\"}", entries([("a,b", "c")])),
            // As in upstream: numbers and booleans as they are written, null as empty, and the last of equal keys.
            ("a,b: 200\na,c: true\na,d: 1.50\na,e: null\na,f:\n", {
                entries([("a,b", "200"), ("a,c", "true"), ("a,d", "1.50"), ("a,e", ""), ("a,f", "")])
            }),
            ("a,b: c\na,b: d\n", entries([("a,b", "d")])),
        ] {
            assert_eq!(parse_manifest(text).expect(text), expected, "{text}");
        }
    }

    #[test]
    fn manifest_that_upstream_refuses_is_refused() {
        for (text, expected) in [
            ("a: b\n", "must have keys metric,label, but got \"a\""),
            ("\"a,b,c\": d\n", "must have keys metric,label, but got \"a,b,c\""),
            ("\"a, b\": d\n", "must have keys metric,label, but got \"a, b\""),
            ("\"a,b:c\": d\n", "must have keys metric,label, but got \"a,b:c\""),
            ("\"1a,b\": d\n", "must have keys metric,label, but got \"1a,b\""),
            ("- a\n", "is not a YAML map of texts"),
            ("a,b: [c, d]\n", "is not a YAML map of texts"),
            ("allowListMapping:\n  a,b: c\n", "is not a YAML map of texts"),
            ("\"a,b: c\n", "is not a YAML map of texts"),
        ] {
            let error = parse_manifest(text).expect_err(text).to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn values_are_allowed_by_metric_and_label() {
        let read = allowed(&entries([("m,a", "x,y"), ("m,b", ""), ("n,a", " x,x")]));
        let set = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect();
        let m = AllowedValues::from([("a".to_owned(), set(&["x", "y"])), ("b".to_owned(), set(&[""]))]);
        let n = AllowedValues::from([("a".to_owned(), set(&[" x", "x"]))]);
        assert_eq!(read, BTreeMap::from([("m".to_owned(), m), ("n".to_owned(), n)]));
    }

    proptest! {
        #[test]
        fn any_manifest_is_read_or_refused(text in "([a,b:\\[\\]{}\"'&*!|> \n-]|.){0,40}") {
            if let Ok(entries) = parse_manifest(&text) {
                prop_assert!(entries.keys().all(|key| is_metric_label(key)));
                prop_assert!(allowed(&entries).len() <= entries.len());
            }
        }
    }
}
