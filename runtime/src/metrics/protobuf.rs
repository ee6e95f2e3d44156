//! The protobuf for scrapers: messages `io.prometheus.client.MetricFamily`.

use std::fmt;

use prometheus_client::encoding::prometheus_protobuf::encode;
pub(super) use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    Bucket, BucketSpan, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary,
    Untyped,
};
use prometheus_client::registry::Registry;
use prost::Message as _;

use super::escape::unescaped;

/// Returns the families of a registry.
///
/// # Errors
/// If a collector fails.
pub(super) fn families(registry: &Registry) -> Result<Vec<MetricFamily>, fmt::Error> {
    let mut families = encode(registry)?;
    for family in &mut families {
        restore_counter(family);
        // Descriptions are registered in the escaped form of the text format.
        family.help = unescaped(&family.help);
    }
    Ok(families)
}

/// Changes a family that `plain_counters` has appended with the type `unknown` into counters.
fn restore_counter(family: &mut MetricFamily) {
    if family.r#type() != MetricType::Untyped {
        return;
    }
    family.set_type(MetricType::Counter);
    for metric in &mut family.metric {
        metric.counter = metric.gauge.take().map(|gauge| Counter { value: gauge.value, ..Counter::default() });
    }
}

/// Returns families as messages, each preceded by its length, in upstream's form: without families that have no
/// samples, everything sorted, and without the bucket `+Inf`, which equals the number of values.
pub(super) fn delimited(mut families: Vec<MetricFamily>) -> Vec<u8> {
    families.retain(|family| !family.metric.is_empty());
    families.sort_by(|left, right| left.name.cmp(&right.name));
    let mut body = Vec::new();
    for mut family in families {
        family.metric.iter_mut().for_each(normalize);
        let values = |metric: &Metric| metric.label.iter().map(|label| label.value.clone()).collect::<Vec<_>>();
        family.metric.sort_by_cached_key(values);
        // Only a buffer of fixed size can be too small.
        let _ = family.encode_length_delimited(&mut body);
    }
    body
}

fn normalize(metric: &mut Metric) {
    metric.label.sort_by(|left, right| left.name.cmp(&right.name));
    if let Some(histogram) = &mut metric.histogram {
        histogram.bucket.retain(|bucket| bucket.upper_bound != f64::INFINITY);
    }
}
