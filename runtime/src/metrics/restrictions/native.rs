//! Sums of native histograms.

use std::collections::BTreeMap;

use crate::metrics::histogram::MAX_BUCKETS;
use crate::metrics::protobuf::{BucketSpan, Histogram};

/// The coarsest resolution. Upstream: prometheus/client_golang, nativeHistogramSchemaMinimum.
const MIN_SCHEMA: i32 = -4;

/// The largest gap between buckets that is filled with empty ones; after a larger one, a new span needs less space.
/// Upstream: prometheus/client_golang, makeBuckets.
const MAX_GAP: i32 = 2;

/// Counts by the index of their bucket.
type Buckets = BTreeMap<i32, i64>;

/// Adds the native buckets of a histogram with the same zero bucket. The sum has the coarser one of the resolutions.
pub(super) fn add(sum: &mut Histogram, more: &Histogram) {
    sum.zero_count += more.zero_count;
    let mut schema = sum.schema.min(more.schema);
    let added = |own: (&[BucketSpan], &[i64]), other: (&[BucketSpan], &[i64])| {
        let mut buckets = reduced(read(own.0, own.1), sum.schema - schema);
        for (index, count) in reduced(read(other.0, other.1), more.schema - schema) {
            *buckets.entry(index).or_default() += count;
        }
        buckets
    };
    let mut positive = added((&sum.positive_span, &sum.positive_delta), (&more.positive_span, &more.positive_delta));
    let mut negative = added((&sum.negative_span, &sum.negative_delta), (&more.negative_span, &more.negative_delta));
    while positive.len() + negative.len() > MAX_BUCKETS && schema > MIN_SCHEMA {
        schema -= 1;
        (positive, negative) = (reduced(positive, 1), reduced(negative, 1));
    }
    sum.schema = schema;
    (sum.positive_span, sum.positive_delta) = written(&positive);
    (sum.negative_span, sum.negative_delta) = written(&negative);
}

/// Reads the counts of buckets: each span follows the previous one after a gap, each count is relative to the previous
/// one.
fn read(spans: &[BucketSpan], deltas: &[i64]) -> Buckets {
    let mut buckets = Buckets::new();
    let (mut index, mut count) = (0, 0);
    let mut deltas = deltas.iter();
    for span in spans {
        index += span.offset;
        for delta in deltas.by_ref().take(span.length as usize) {
            count += delta;
            if count != 0 {
                buckets.insert(index, count);
            }
            index += 1;
        }
    }
    buckets
}

/// Halves the resolution of buckets `steps` times. A bucket's index is that of its upper bound.
fn reduced(buckets: Buckets, steps: i32) -> Buckets {
    let mut reduced = Buckets::new();
    for (index, count) in buckets {
        let coarse = (0..steps).fold(index, |index, _| (index + 1) >> 1);
        *reduced.entry(coarse).or_default() += count;
    }
    reduced
}

/// Returns spans and relative counts. Small gaps are filled with empty buckets.
fn written(buckets: &Buckets) -> (Vec<BucketSpan>, Vec<i64>) {
    let (mut spans, mut deltas): (Vec<BucketSpan>, Vec<i64>) = (Vec::new(), Vec::new());
    let (mut next, mut previous) = (0, 0);
    let mut push = |span: &mut BucketSpan, count: i64| {
        span.length += 1;
        deltas.push(count - previous);
        previous = count;
    };
    for (index, count) in buckets {
        let gap = index - next;
        match spans.last_mut().filter(|_| gap <= MAX_GAP) {
            Some(span) => (0..gap).for_each(|_| push(span, 0)),
            None => spans.push(BucketSpan { offset: gap, length: 0 }),
        }
        if let Some(span) = spans.last_mut() {
            push(span, *count);
        }
        next = index + 1;
    }
    (spans, deltas)
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;
    use crate::metrics::histogram::with_native_buckets;
    use crate::metrics::protobuf;

    /// Returns the histogram of these values.
    fn histogram_of(values: impl IntoIterator<Item = f64>) -> Histogram {
        let histogram = with_native_buckets([1.0]);
        values.into_iter().for_each(|value| histogram.observe(value));
        let mut registry = Registry::default();
        registry.register("a", "A", histogram);
        let families = protobuf::families(&registry).expect("encoded");
        families[0].metric[0].histogram.clone().expect("a histogram")
    }

    fn native(histogram: &Histogram) -> (i32, f64, u64, [Buckets; 2]) {
        let positive = read(&histogram.positive_span, &histogram.positive_delta);
        let negative = read(&histogram.negative_span, &histogram.negative_delta);
        (histogram.schema, histogram.zero_threshold, histogram.zero_count, [positive, negative])
    }

    #[test]
    fn sum_equals_the_histogram_of_all_values() {
        // Values in few buckets, in more buckets than are allowed at this resolution, and in almost as many.
        let few = vec![0.0, 0.1, 0.11, 0.5, -3.0, 7.0, 7.1, 9000.0];
        let many: Vec<f64> = (0..300).map(|power| 1.1_f64.powi(power - 150)).collect();
        let more: Vec<f64> = (0..150).map(|power| -(1.1_f64.powi(power))).collect();
        for (left, right) in
            [(&few, &few), (&few, &vec![]), (&few, &many), (&many, &few), (&more, &many), (&few, &more)]
        {
            let mut sum = histogram_of(left.iter().copied());
            add(&mut sum, &histogram_of(right.iter().copied()));
            let all = histogram_of(left.iter().chain(right).copied());
            assert_eq!(native(&sum), native(&all), "{left:?} {right:?}");
            assert_eq!((&sum.positive_span, &sum.positive_delta), (&all.positive_span, &all.positive_delta));
            assert_eq!((&sum.negative_span, &sum.negative_delta), (&all.negative_span, &all.negative_delta));
        }
    }
}
