//! Restrictions on an exposition in the text format.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::{AllowedValues, Applied, Block, Restrictions, blocks, constrain};
use crate::metrics::escape::escaped_value;
use crate::metrics::parse::Sample;
use crate::metrics::text::go_number;

/// Applies restrictions to a text in the classic format.
pub(in crate::metrics) fn apply_to_text(restrictions: &Restrictions, text: String) -> (String, Applied) {
    let mut applied = Applied::default();
    if restrictions.is_empty() {
        return (text, applied);
    }
    let mut restricted = String::with_capacity(text.len());
    for block in blocks(&text) {
        if restrictions.disabled.contains(block.name) {
            applied.disabled += 1;
            continue;
        }
        match restrictions.allowed.get(block.name) {
            Some(allowed) => applied.unexpected += push_constrained(&mut restricted, block, allowed),
            None => restricted.push_str(block.text),
        }
    }
    (restricted, applied)
}

/// Appends a family with allowed values only: samples with equal labels are added up. Returns the number to add to
/// [`Applied::unexpected`].
fn push_constrained(out: &mut String, block: Block<'_>, allowed: &AllowedValues) -> u64 {
    let is_counter = block.text.lines().any(|line| line.starts_with("# TYPE ") && line.ends_with(" counter"));
    let mut unexpected = 0;
    let mut sums: Vec<(String, f64)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for line in block.text.lines() {
        let Some(mut sample) = Sample::read(line).filter(|_| !line.starts_with('#')) else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        let replaced = constrain(&mut sample.labels, allowed);
        if is_counter || sample.name.strip_prefix(block.name) == Some("_count") {
            unexpected += replaced * sample.value as u64;
        }
        let series = series(&sample);
        let place = *places.entry(series.clone()).or_insert(sums.len());
        match sums.get_mut(place) {
            Some((_, sum)) => *sum += sample.value,
            None => sums.push((series, sample.value)),
        }
    }
    for (series, sum) in sums {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{series} {}", go_number(sum));
    }
    unexpected
}

/// Returns the name and the labels of a sample, as in the text format.
fn series(sample: &Sample<'_>) -> String {
    if sample.labels.is_empty() {
        return sample.name.to_owned();
    }
    let labels = sample.labels.iter().map(|label| format!("{}=\"{}\"", label.name, escaped_value(&label.value)));
    format!("{}{{{}}}", sample.name, labels.collect::<Vec<_>>().join(","))
}
