//! The registry of a process's metrics.

use std::fmt;
use std::sync::{Mutex, OnceLock};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::encode::Histograms;
use super::escape::escaped;
use super::families::{Count, Counts, Gauges, Seconds};
use super::format::{Encoding, Format};
use super::former_name::FormerName;
use super::histogram::histogram;
use super::meta::FamilyCounts;
use super::process::{Process, StartTime};
use super::rest_client::RestClient;
use super::restrictions::{Applied, Restrictions, apply, apply_to_text, blocks};
use super::{parse, protobuf, text};
use crate::lock::lock;

/// All metrics of a process.
#[derive(Debug, Default)]
pub struct Metrics {
    registry: Mutex<Registry>,
    texts: Texts,
    former_names: Mutex<Vec<FormerName>>,
    restrictions: OnceLock<Restrictions>,
}

static UNRESTRICTED: Restrictions = Restrictions::NONE;

impl Metrics {
    /// Creates a registry with the process's use of system resources.
    #[must_use]
    pub fn new() -> Self {
        let metrics = Self::default();
        metrics.collect(Process);
        metrics.collect(StartTime);
        metrics
    }

    /// Adds a source of metrics; each name must come from one source only.
    pub fn collect(&self, source: impl Collector) {
        self.registry().register_collector(Box::new(source));
    }

    /// Adds the counts of requests to the API server.
    pub fn rest_client(&self, requests: &RestClient) {
        requests.register(&mut self.registry());
    }

    /// Declares a former name of a family; each name only once.
    pub fn former_name(&self, name: FormerName) {
        lock(&self.former_names).push(name);
    }

    /// Restricts the metrics that are served from now on. Only the first call has an effect.
    pub fn restrict(&self, restrictions: Restrictions) {
        // The only error is that there are restrictions already.
        let _ = self.restrictions.set(restrictions);
    }

    /// Returns all served metrics as text, for `Content-Type: text/plain; version=0.0.4`.
    #[must_use]
    pub fn text(&self) -> String {
        let restrictions = self.restrictions();
        let mut text = text::exposition(&self.registry()) + &self.texts.read();
        let former_names: String = self.shown_former_names().iter().map(|former| former.text(&text)).collect();
        text += &former_names;
        let (mut text, applied) = apply_to_text(restrictions, text);
        let counts = self.family_counts(blocks(&text).iter().map(|block| block.name), applied);
        text += &apply_to_text(restrictions, counts.text()).0;
        text
    }

    /// Returns all metrics in a format; as text if they cannot be encoded otherwise.
    #[must_use]
    pub fn exposition(&self, format: Format) -> Exposition {
        let families = match format.encoding {
            Encoding::Text => None,
            Encoding::Protobuf => protobuf::families(&self.registry()).ok(),
        };
        let Some(mut families) = families else { return Exposition::of_text(format, self.text()) };
        families.extend(parse::families(&self.texts.read()));
        let former: Vec<_> = self.shown_former_names().iter().filter_map(|name| name.family(&families)).collect();
        families.extend(former);
        let applied = apply(self.restrictions(), &mut families);
        let counts = self.family_counts(families.iter().map(|family| family.name.as_str()), applied);
        let mut counts = parse::families(&counts.text());
        apply(self.restrictions(), &mut counts);
        families.extend(counts);
        Exposition { media_type: format.media_type(), body: protobuf::delimited(families) }
    }

    fn restrictions(&self) -> &Restrictions {
        self.restrictions.get().unwrap_or(&UNRESTRICTED)
    }

    /// Returns the former names under which families are served, too.
    fn shown_former_names(&self) -> Vec<FormerName> {
        let restrictions = self.restrictions();
        lock(&self.former_names).iter().filter(|former| restrictions.is_shown(former)).copied().collect()
    }

    /// Counts the served families by their names.
    fn family_counts<'a>(&self, names: impl Iterator<Item = &'a str>, applied: Applied) -> FamilyCounts {
        FamilyCounts::of(names, &lock(&self.former_names), self.restrictions(), applied)
    }

    /// Adds a histogram of seconds with these upper bounds; each name only once.
    pub fn seconds(&self, name: &str, help: &str, bounds: &[f64]) -> Seconds {
        let histogram = histogram(bounds.iter().copied());
        self.register(name, help, histogram.clone());
        Seconds(histogram)
    }

    /// Adds a counter, whose name is given without `_total`; each name only once.
    pub fn counts<const N: usize>(&self, name: &str, help: &str) -> Counts<N> {
        let counts = Counts::default();
        self.register(name, help, counts.family.clone());
        counts
    }

    /// Adds a counter without labels, whose name is given without `_total`; each name only once.
    pub fn count(&self, name: &str, help: &str) -> Count {
        let count = Counter::default();
        self.register(name, help, count.clone());
        Count(count)
    }

    /// Adds gauges; each name only once.
    pub fn gauges<const N: usize>(&self, name: &str, help: &str) -> Gauges<N> {
        let gauges = Family::default();
        self.register(name, help, gauges.clone());
        Gauges(gauges)
    }

    /// Adds histograms with labels and these upper bounds; each name only once.
    pub fn histograms<const N: usize>(&self, name: &str, help: &str, bounds: Vec<f64>) -> Histograms<N> {
        let histograms = Histograms::new(bounds);
        self.register(name, help, histograms.family.clone());
        histograms
    }

    /// Adds a source of metrics that are already in the text format.
    pub fn append(&self, source: impl Fn() -> String + Send + Sync + 'static) {
        lock(&self.texts.0).push(Box::new(source));
    }

    fn register(&self, name: &str, help: &str, metric: impl EncodeMetric + fmt::Debug + Send + Sync + 'static) {
        let (name, help) = (name.to_owned(), escaped(help));
        self.collect(Registered { name, help, metric });
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

/// A metric with its help, escaped for the text format. The library would append a full stop to the help.
#[derive(Debug)]
struct Registered<M> {
    name: String,
    help: String,
    metric: M,
}

impl<M: EncodeMetric + fmt::Debug + Send + Sync + 'static> Collector for Registered<M> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if self.metric.is_empty() {
            return Ok(());
        }
        let family = encoder.encode_descriptor(&self.name, &self.help, None, self.metric.metric_type())?;
        self.metric.encode(family)
    }
}

/// Metrics in a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exposition {
    /// The value of `Content-Type`.
    pub media_type: String,
    /// The metrics.
    pub body: Vec<u8>,
}

impl Exposition {
    /// Returns a text, whichever encoding the format has.
    fn of_text(format: Format, text: String) -> Self {
        let format = Format { encoding: Encoding::Text, ..format };
        Self { media_type: format.media_type(), body: text.into_bytes() }
    }
}

/// Returns the metrics of a registry in a format; as text if they cannot be encoded otherwise.
#[must_use]
pub(crate) fn exposition(registry: &Registry, restrictions: &Restrictions, format: Format) -> Exposition {
    if format.encoding == Encoding::Protobuf
        && let Ok(mut families) = protobuf::families(registry)
    {
        apply(restrictions, &mut families);
        return Exposition { media_type: format.media_type(), body: protobuf::delimited(families) };
    }
    Exposition::of_text(format, apply_to_text(restrictions, text::exposition(registry)).0)
}

type Source = Box<dyn Fn() -> String + Send + Sync>;

/// Sources of metrics in the text format.
#[derive(Default)]
struct Texts(Mutex<Vec<Source>>);

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Texts")
    }
}

impl Texts {
    /// Returns the current text of all sources.
    fn read(&self) -> String {
        lock(&self.0).iter().map(|source| source()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_has_the_given_text_in_both_formats() {
        let metrics = Metrics::default();
        let help = "Calls, by\n\t\"operation\", and back\\slashes";
        metrics.counts("calls", help).add([("operation", "list".into())]);
        let text = metrics.text();
        let line = "# HELP calls_total Calls, by\\n\t\"operation\", and back\\\\slashes";
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        let families = protobuf::families(&metrics.registry()).expect("encoded");
        assert_eq!(families.iter().map(|family| family.help.as_str()).collect::<Vec<_>>(), [help]);
    }

    #[test]
    fn controller_metrics_are_exposed_in_the_text_format() {
        let metrics = Metrics::default();
        metrics.seconds("wait_seconds", "Waiting.", &[1.0, 4.0]).observe(2.0);
        let counts = metrics.counts("calls", "Calls.");
        counts.add([("operation", "list".into())]);
        counts.add([("operation", "list".into())]);
        metrics.append(|| "other_total 7\n".into());
        metrics.count("quiet", "Nothing.");
        metrics.gauges("size", "Size.").set([("zone", "a".into())], 2.5);
        metrics.histograms("time", "Time.", vec![1.0]).observe([("code", "200".into())], 3.0);
        let text = metrics.text();
        for line in [
            "wait_seconds_bucket{le=\"4\"} 1",
            "calls_total{operation=\"list\"} 2",
            "other_total 7",
            "quiet_total 0",
            "size{zone=\"a\"} 2.5",
            "time_bucket{le=\"1\",code=\"200\"} 0",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }
}
