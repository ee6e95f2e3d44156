//! Expositions of whole registries: native buckets as in Prometheus' Go library, and equal content of all formats.
//!
//! `recorded.jsonl` has the Go library's results; `record.go` next to it records them.

mod restrictions;

use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use prost::Message as _;
use serde::Deserialize;

use super::histogram::with_native_buckets;
use super::protobuf::{self, MetricFamily, MetricType};
use super::{Encoding, Format, Metrics, Restrictions, parse, text};
use crate::queue::{Queue, QueueOptions, QueueStats, Queues};

const RECORDED: &str = include_str!("recorded.jsonl");

/// The classic bounds of the recorded histograms.
const BOUNDS: [f64; 3] = [0.001, 1.0, 1000.0];

/// A histogram of the Go library. Floating-point numbers are recorded as their bits.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recorded {
    name: String,
    values: Vec<u64>,
    count: u64,
    sum: u64,
    classic: Vec<u64>,
    schema: i32,
    zero_threshold: u64,
    zero_count: u64,
    positive_spans: Vec<(i32, u32)>,
    positive_deltas: Vec<i64>,
    negative_spans: Vec<(i32, u32)>,
    negative_deltas: Vec<i64>,
}

fn accepting_protobuf() -> Format {
    Format { encoding: Encoding::Protobuf, ..Format::default() }
}

fn registry_of(name: &str, histogram: &Histogram) -> Registry {
    let mut registry = Registry::default();
    registry.register(name, "Help", histogram.clone());
    registry
}

/// Reads messages that are each preceded by their length.
fn decoded(mut body: &[u8]) -> Vec<MetricFamily> {
    let mut families = Vec::new();
    while !body.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut body).expect("a family"));
    }
    families
}

#[test]
fn native_histogram_equals_the_recorded_one() {
    let recordings: Vec<Recorded> =
        RECORDED.lines().map(|line| serde_json::from_str(line).expect("a recording")).collect();
    assert!(recordings.len() > 100 && recordings.iter().any(|recorded| recorded.schema == -4));
    for recorded in recordings {
        let histogram = with_native_buckets(BOUNDS);
        recorded.values.iter().for_each(|value| histogram.observe(f64::from_bits(*value)));
        let families = decoded(
            &super::exposition(&registry_of("recorded", &histogram), &Restrictions::NONE, accepting_protobuf()).body,
        );
        let own = families[0].metric[0].histogram.as_ref().expect("a histogram");
        let name = format!("{} {:?}", recorded.name, recorded.values.first().map(|value| f64::from_bits(*value)));
        let spans =
            |spans: &[prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::BucketSpan]| {
                spans.iter().map(|span| (span.offset, span.length)).collect::<Vec<_>>()
            };
        assert_eq!(own.sample_count, recorded.count, "{name}");
        let sum = f64::from_bits(recorded.sum);
        assert!(own.sample_sum == sum || own.sample_sum.is_nan() && sum.is_nan(), "{name}: {}", own.sample_sum);
        let classic: Vec<u64> = own.bucket.iter().map(|bucket| bucket.cumulative_count).collect();
        assert_eq!(classic, recorded.classic, "{name}");
        assert_eq!((own.schema, own.zero_count), (recorded.schema, recorded.zero_count), "{name}");
        assert_eq!(own.zero_threshold.to_bits(), recorded.zero_threshold, "{name}");
        assert_eq!(spans(&own.positive_span), recorded.positive_spans, "{name}");
        assert_eq!(own.positive_delta, recorded.positive_deltas, "{name}");
        assert_eq!(spans(&own.negative_span), recorded.negative_spans, "{name}");
        assert_eq!(own.negative_delta, recorded.negative_deltas, "{name}");
    }
}

#[test]
fn native_buckets_change_nothing_in_the_text() {
    let (native, classic) = (with_native_buckets(BOUNDS), Histogram::new(BOUNDS));
    for histogram in [&native, &classic] {
        [0.0, 0.5, 70.0, f64::INFINITY].into_iter().for_each(|value| histogram.observe(value));
    }
    let [native, classic] = [native, classic].map(|histogram| text::exposition(&registry_of("a", &histogram)));
    assert_eq!(native, classic);
    assert!(native.contains("a_bucket{le=\"1\"} 2\n"), "{native}");
}

/// Adds metrics of all types.
fn filled() -> Metrics {
    let metrics = Metrics::default();
    metrics.seconds("wait_seconds", "Waiting.", &[1.0, 4.0]).observe(2.0);
    let counts = metrics.counts("calls", "Calls \"of\" all.");
    counts.add([("operation", "list \"\\\n".into()), ("again", String::new())]);
    counts.add_many([("operation", "get".into()), ("again", "no".into())], 7);
    metrics.count("quiet", "Nothing.");
    metrics.gauges("size", "Size.").set([("zone", "ä".into())], -2.5);
    metrics.gauges::<1>("empty", "No samples.");
    metrics.append(|| "# HELP other_total Others.\n# TYPE other_total counter\nother_total{a=\"b\"} 7\n".into());
    let times = metrics.histograms("time", "Time.", vec![1.0]);
    times.observe([("code", "200".into())], 3.0);
    times.observe([("code", "404".into())], 0.5);
    metrics
}

#[test]
fn protobuf_and_text_have_equal_content() {
    let metrics = filled();
    let queue = Queue::new(QueueOptions::named("replicaset"));
    queue.add("a".to_owned());
    metrics.collect(Queues::new([queue.clone() as std::sync::Arc<dyn QueueStats>]));
    let exposition = metrics.exposition(accepting_protobuf());
    assert!(exposition.media_type.contains("encoding=delimited"), "{}", exposition.media_type);
    let own = decoded(&exposition.body);
    assert_eq!(own, decoded(&protobuf::delimited(parse::families(&metrics.text()))));
    let types: Vec<(&str, MetricType)> = own.iter().map(|family| (family.name.as_str(), family.r#type())).collect();
    for expected in [
        ("calls_total", MetricType::Counter),
        ("other_total", MetricType::Counter),
        ("registered_metrics_total", MetricType::Counter),
        ("size", MetricType::Gauge),
        ("time", MetricType::Histogram),
        ("workqueue_queue_duration_seconds", MetricType::Histogram),
    ] {
        assert!(types.contains(&expected), "{expected:?} is not in {types:?}");
    }
    assert!(types.is_sorted_by_key(|(name, _)| *name) && !types.iter().any(|(name, _)| *name == "empty"), "{types:?}");
    let labels = &own[0].metric[0].label;
    assert!(labels.is_sorted_by(|left, right| left.name < right.name), "{labels:?}");
}

#[test]
fn counters_without_suffix_are_counters_in_protobuf() {
    #[derive(Debug)]
    struct Attempts;
    impl prometheus_client::collector::Collector for Attempts {
        fn encode(&self, mut encoder: prometheus_client::encoding::DescriptorEncoder<'_>) -> std::fmt::Result {
            super::plain_counters(&mut encoder, "attempts", "Attempts", [([("result", "ok".to_owned())], 4.0)])
        }
    }
    let metrics = Metrics::default();
    metrics.collect(Attempts);
    let families = decoded(&metrics.exposition(accepting_protobuf()).body);
    let attempts = families.iter().find(|family| family.name == "attempts").expect("the family");
    assert_eq!(attempts.r#type(), MetricType::Counter);
    assert_eq!(attempts.metric[0].counter.as_ref().map(|counter| counter.value), Some(4.0));
    assert!(attempts.metric[0].gauge.is_none());
}

#[test]
fn exposition_is_text_when_a_collector_fails() {
    #[derive(Debug)]
    struct Broken;
    impl prometheus_client::collector::Collector for Broken {
        fn encode(&self, _: prometheus_client::encoding::DescriptorEncoder<'_>) -> std::fmt::Result {
            Err(std::fmt::Error)
        }
    }
    let metrics = filled();
    metrics.collect(Broken);
    let exposition = metrics.exposition(accepting_protobuf());
    assert!(exposition.media_type.starts_with("text/plain"), "{}", exposition.media_type);
    assert_eq!(exposition.body, metrics.text().into_bytes());
}
