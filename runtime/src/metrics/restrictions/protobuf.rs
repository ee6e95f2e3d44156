//! Restrictions on families of the protobuf.

use std::collections::BTreeMap;

use super::{AllowedValues, Applied, Restrictions, constrain, native};
use crate::metrics::protobuf::{Histogram, Metric, MetricFamily};

/// Applies restrictions to families.
pub(in crate::metrics) fn apply(restrictions: &Restrictions, families: &mut Vec<MetricFamily>) -> Applied {
    let mut applied = Applied::default();
    if restrictions.is_empty() {
        return applied;
    }
    let all = families.len();
    families.retain(|family| !restrictions.disabled.contains(&family.name));
    applied.disabled = all - families.len();
    for family in families {
        if let Some(allowed) = restrictions.allowed.get(&family.name) {
            applied.unexpected += apply_to_family(allowed, family);
        }
    }
    applied
}

/// Replaces the values that are not allowed, and adds up metrics with equal labels. Returns the number to add to
/// [`Applied::unexpected`].
fn apply_to_family(allowed: &AllowedValues, family: &mut MetricFamily) -> u64 {
    let mut unexpected = 0;
    let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    let mut sums: Vec<Metric> = Vec::new();
    for mut metric in std::mem::take(&mut family.metric) {
        unexpected += constrain(&mut metric.label, allowed) * values_in(&metric);
        let values = metric.label.iter().map(|label| label.value.clone()).collect();
        let place = *places.entry(values).or_insert(sums.len());
        match sums.get_mut(place) {
            Some(sum) => add(sum, &metric),
            None => sums.push(metric),
        }
    }
    family.metric = sums;
    unexpected
}

/// Returns the value of a counter or the number of observations of a histogram; 0 for other types.
fn values_in(metric: &Metric) -> u64 {
    let counted = metric.counter.as_ref().map(|counter| counter.value as u64);
    counted.or_else(|| Some(metric.histogram.as_ref()?.sample_count)).unwrap_or_default()
}

/// Adds the values of a metric of the same family.
fn add(sum: &mut Metric, more: &Metric) {
    if let (Some(sum), Some(more)) = (&mut sum.counter, &more.counter) {
        sum.value += more.value;
    }
    if let (Some(sum), Some(more)) = (&mut sum.gauge, &more.gauge) {
        sum.value += more.value;
    }
    if let (Some(sum), Some(more)) = (&mut sum.untyped, &more.untyped) {
        sum.value += more.value;
    }
    if let (Some(sum), Some(more)) = (&mut sum.histogram, &more.histogram) {
        add_histogram(sum, more);
    }
    if let (Some(sum), Some(more)) = (&mut sum.summary, &more.summary) {
        sum.sample_count += more.sample_count;
        sum.sample_sum += more.sample_sum;
    }
}

/// Adds the values of a histogram with the same bounds.
fn add_histogram(sum: &mut Histogram, more: &Histogram) {
    sum.sample_count += more.sample_count;
    sum.sample_sum += more.sample_sum;
    for (sum, more) in sum.bucket.iter_mut().zip(&more.bucket) {
        sum.cumulative_count += more.cumulative_count;
    }
    native::add(sum, more);
}
