//! Parser of the classic text format, for sources that return their metrics only as text.

use super::escape::unescaped;
use super::protobuf::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary, Untyped,
};

/// Returns the families of a text. Lines that cannot be read are left out.
pub(super) fn families(text: &str) -> Vec<MetricFamily> {
    let mut families: Vec<MetricFamily> = Vec::new();
    let mut help = None;
    for line in text.lines() {
        if let Some(about) = line.strip_prefix("# HELP ") {
            help = about.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|about| about.split_once(' ')) {
            let help = help.take().filter(|(of, _)| *of == name).map(|(_, words)| unescaped(words));
            families.push(family(name, kind_of(kind), help.unwrap_or_default()));
        } else if !line.starts_with('#')
            && let Some(sample) = Sample::read(line)
        {
            match families.last_mut().filter(|family| sample.part_in(family).is_some()) {
                Some(family) => sample.add_to(family),
                None => {
                    let mut untyped = family(sample.name, MetricType::Untyped, String::new());
                    sample.add_to(&mut untyped);
                    families.push(untyped);
                }
            }
        }
    }
    families
}

fn family(name: &str, kind: MetricType, help: String) -> MetricFamily {
    MetricFamily { name: name.to_owned(), help, r#type: kind as i32, ..MetricFamily::default() }
}

fn kind_of(name: &str) -> MetricType {
    match name.trim_end() {
        "counter" => MetricType::Counter,
        "gauge" => MetricType::Gauge,
        "histogram" => MetricType::Histogram,
        "summary" => MetricType::Summary,
        _ => MetricType::Untyped,
    }
}

/// The part of a family's metric that a sample has.
#[derive(Clone, Copy)]
enum Part {
    Value,
    Sum,
    Count,
    Bucket,
}

/// A line with a value.
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    pub(super) labels: Vec<LabelPair>,
    pub(super) value: f64,
}

impl<'a> Sample<'a> {
    /// Reads a line; `None` if it is not a sample.
    pub(super) fn read(line: &'a str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }

    /// Returns the part of the family's metric that the sample has; `None` if it is of another family.
    fn part_in(&self, family: &MetricFamily) -> Option<Part> {
        let suffix = self.name.strip_prefix(family.name.as_str())?;
        match (family.r#type(), suffix) {
            (MetricType::Histogram, "_bucket") => Some(Part::Bucket),
            (MetricType::Histogram | MetricType::Summary, "_sum") => Some(Part::Sum),
            (MetricType::Histogram | MetricType::Summary, "_count") => Some(Part::Count),
            (MetricType::Histogram, _) => None,
            (_, "") => Some(Part::Value),
            _ => None,
        }
    }

    fn add_to(mut self, family: &mut MetricFamily) {
        let Some(part) = self.part_in(family) else { return };
        let (kind, value) = (family.r#type(), self.value);
        match (kind, part) {
            (MetricType::Histogram, Part::Bucket) => {
                let Some(upper_bound) = self.take_number("le") else { return };
                let bucket = Bucket { cumulative_count: value as u64, upper_bound, ..Bucket::default() };
                self.histogram_in(family).bucket.push(bucket);
            }
            (MetricType::Histogram, Part::Sum) => self.histogram_in(family).sample_sum = value,
            (MetricType::Histogram, _) => self.histogram_in(family).sample_count = value as u64,
            (MetricType::Summary, Part::Sum) => self.summary_in(family).sample_sum = value,
            (MetricType::Summary, Part::Count) => self.summary_in(family).sample_count = value as u64,
            (MetricType::Summary, _) => {
                let Some(quantile) = self.take_number("quantile") else { return };
                self.summary_in(family).quantile.push(Quantile { quantile, value });
            }
            (MetricType::Counter, _) => {
                self.metric_in(family).counter = Some(Counter { value, ..Counter::default() });
            }
            (MetricType::Gauge, _) => self.metric_in(family).gauge = Some(Gauge { value }),
            _ => self.metric_in(family).untyped = Some(Untyped { value }),
        }
    }

    /// Removes a label and returns its value as a number.
    fn take_number(&mut self, label: &str) -> Option<f64> {
        let at = self.labels.iter().position(|pair| pair.name == label)?;
        self.labels.remove(at).value.parse().ok()
    }

    /// Returns the metric with the sample's labels, which is created if it does not exist.
    fn metric_in(self, family: &mut MetricFamily) -> &mut Metric {
        // The samples of a histogram follow each other.
        if family.metric.last().is_none_or(|last| last.label != self.labels) {
            family.metric.push(Metric { label: self.labels, ..Metric::default() });
        }
        let last = family.metric.len() - 1;
        &mut family.metric[last]
    }

    fn histogram_in(self, family: &mut MetricFamily) -> &mut Histogram {
        self.metric_in(family).histogram.get_or_insert_default()
    }

    fn summary_in(self, family: &mut MetricFamily) -> &mut Summary {
        self.metric_in(family).summary.get_or_insert_default()
    }
}

/// Reads labels after the opening brace; returns them with the text after the closing one.
fn labels(mut rest: &str) -> Option<(Vec<LabelPair>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let end = closing_quote(after)?;
        labels.push(LabelPair { name: name.trim().to_owned(), value: unescaped(&after[..end]) });
        rest = &after[end + 1..];
    }
}

/// Returns the position of the first quote that is not escaped.
fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => return Some(at),
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(metric: &Metric) -> Vec<(&str, &str)> {
        metric.label.iter().map(|pair| (pair.name.as_str(), pair.value.as_str())).collect()
    }

    #[test]
    fn families_are_read_with_their_types_labels_and_values() {
        let text = "# HELP calls_total Calls\\nof all.\n# TYPE calls_total counter\n\
                    calls_total{action=\"a \\\"b\\\" \\\\\",result=\"x,}\"} 3\ncalls_total{} 4 1700000000000\n\
                    # TYPE size gauge\nsize -2.5e+3\nsize{zone=\"\"} +Inf\nsize_other 7\nnot a sample\nbad{a=\"1} 1\n";
        let read = families(text);
        let names: Vec<(&str, MetricType)> =
            read.iter().map(|family| (family.name.as_str(), family.r#type())).collect();
        let counter = ("calls_total", MetricType::Counter);
        assert_eq!(names, [counter, ("size", MetricType::Gauge), ("size_other", MetricType::Untyped)]);
        assert_eq!(read[0].help, "Calls\nof all.");
        assert_eq!(pairs(&read[0].metric[0]), [("action", "a \"b\" \\"), ("result", "x,}")]);
        let counts: Vec<f64> =
            read[0].metric.iter().filter_map(|metric| Some(metric.counter.as_ref()?.value)).collect();
        assert_eq!(counts, [3.0, 4.0]);
        let sizes: Vec<f64> = read[1].metric.iter().filter_map(|metric| Some(metric.gauge.as_ref()?.value)).collect();
        assert_eq!(sizes, [-2500.0, f64::INFINITY]);
        assert_eq!(pairs(&read[1].metric[1]), [("zone", "")]);
        assert_eq!(read[2].metric[0].untyped.as_ref().map(|untyped| untyped.value), Some(7.0));
    }

    #[test]
    fn histograms_and_summaries_are_read_from_several_lines() {
        let text = "# TYPE t histogram\nt_sum{c=\"1\"} 2.5\nt_count{c=\"1\"} 3\nt_bucket{le=\"0.1\",c=\"1\"} 1\n\
                    t_bucket{le=\"+Inf\",c=\"1\"} 3\nt_bucket{c=\"2\",le=\"0.1\"} 5\nt_bucket{c=\"2\"} 5\n\
                    # TYPE s summary\ns{quantile=\"0.5\"} 4\ns_sum 6\ns_count 2\n";
        let read = families(text);
        assert_eq!(read.len(), 2);
        let [first, second] = &read[0].metric[..] else { panic!("{:?}", read[0].metric) };
        assert_eq!((pairs(first), pairs(second)), (vec![("c", "1")], vec![("c", "2")]));
        let histogram = first.histogram.as_ref().expect("a histogram");
        let buckets: Vec<(f64, u64)> =
            histogram.bucket.iter().map(|bucket| (bucket.upper_bound, bucket.cumulative_count)).collect();
        assert_eq!(buckets, [(0.1, 1), (f64::INFINITY, 3)]);
        assert_eq!((histogram.sample_sum, histogram.sample_count), (2.5, 3));
        assert_eq!(second.histogram.as_ref().map(|histogram| histogram.bucket.len()), Some(1));
        let summary = read[1].metric[0].summary.as_ref().expect("a summary");
        assert_eq!((summary.sample_sum, summary.sample_count, summary.quantile.len()), (6.0, 2, 1));
    }
}
