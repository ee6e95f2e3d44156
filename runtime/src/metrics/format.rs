//! The formats of metrics, and the choice between them by the header `Accept`.
//!
//! Upstream: prometheus/common, expfmt.Negotiate.

/// A format of metrics that a scraper accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    /// The encoding.
    pub encoding: Encoding,
    /// The scheme for names outside of Prometheus' classic alphabet. All names here are within it, so that every scheme
    /// leaves them unchanged.
    pub(super) escaping: &'static str,
}

/// An encoding of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The classic text format (0.0.4). Histograms have their classic buckets only.
    Text,
    /// Messages `io.prometheus.client.MetricFamily`, each preceded by its length.
    Protobuf,
}

const PROTOBUF: &str = "application/vnd.google.protobuf";
const FAMILY: &str = "io.prometheus.client.MetricFamily";
const TEXT_VERSION: &str = "0.0.4";

/// The known schemes; others are ignored.
const ESCAPING: [&str; 4] = ["allow-utf-8", "underscores", "dots", "values"];

impl Default for Format {
    fn default() -> Self {
        Self { encoding: Encoding::Text, escaping: "underscores" }
    }
}

impl Format {
    /// Chooses the format for an `Accept` header: the first supported one in the order of preference, otherwise text.
    ///
    /// Quality values only order the media types, as in upstream: zero does not exclude one.
    #[must_use]
    pub fn negotiate(accept: &str) -> Self {
        let mut clauses: Vec<Clause<'_>> = accept.split(',').filter_map(Clause::read).collect();
        clauses.sort_by(|left, right| right.quality.total_cmp(&left.quality));
        let mut format = Self::default();
        for clause in clauses {
            let requested = clause.parameter("escaping");
            format.escaping = ESCAPING.into_iter().find(|known| Some(*known) == requested).unwrap_or(format.escaping);
            if let Some(encoding) = clause.encoding() {
                return Self { encoding, ..format };
            }
        }
        format
    }

    /// Returns the value of `Content-Type`.
    #[must_use]
    pub fn media_type(self) -> String {
        let escaping = self.escaping;
        match self.encoding {
            Encoding::Text => format!("text/plain; version={TEXT_VERSION}; charset=utf-8; escaping={escaping}"),
            Encoding::Protobuf => format!("{PROTOBUF}; proto={FAMILY}; encoding=delimited; escaping={escaping}"),
        }
    }
}

/// One media type of an `Accept` header.
struct Clause<'a> {
    media_type: &'a str,
    /// The parameters except the quality, in their order.
    parameters: Vec<(&'a str, &'a str)>,
    quality: f64,
}

impl<'a> Clause<'a> {
    /// Reads a clause; `None` if it has no media type. Parameters that are not a name and a value are ignored.
    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';');
        let media_type = parts.next()?.trim_matches(' ');
        if media_type.split('/').count() != 2 {
            return None;
        }
        let mut clause = Self { media_type, parameters: Vec::new(), quality: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match (name.trim_matches(' '), value) {
                (_, value) if value.is_empty() || value.contains('=') => {}
                // As in upstream, which ignores the error of strconv.ParseFloat, an unreadable quality is 0. NaN is
                // replaced by 0, too, because it cannot be compared.
                ("q", value) => clause.quality = value.parse().ok().filter(|q: &f64| !q.is_nan()).unwrap_or_default(),
                (name, value) => clause.parameters.push((name, value.trim_matches(' '))),
            }
        }
        Some(clause)
    }

    /// Returns the last value of a parameter.
    fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().rev().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }

    /// Returns the encoding that the clause accepts; `None` if it is not supported.
    fn encoding(&self) -> Option<Encoding> {
        let version = self.parameter("version").unwrap_or_default();
        match self.media_type {
            PROTOBUF if self.parameter("proto") == Some(FAMILY) && self.parameter("encoding") == Some("delimited") => {
                Some(Encoding::Protobuf)
            }
            "text/plain" if version.is_empty() || version == TEXT_VERSION => Some(Encoding::Text),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=";
    const DELIMITED: &str =
        "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping=";

    /// The header of Prometheus 3 with native histograms.
    const PROMETHEUS: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                              application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                              application/openmetrics-text;version=0.0.1;q=0.4,\
                              text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";

    /// The header of Prometheus 3 without native histograms.
    const CLASSIC: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                           text/plain;version=0.0.4;q=0.4,*/*;q=0.1";

    #[test]
    fn format_is_the_first_supported_one_by_quality() {
        let protobuf = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";
        let both = |protobuf_quality: &str, text_quality: &str| {
            format!("text/plain;version=0.0.4;q={text_quality},{protobuf};q={protobuf_quality}")
        };
        for (name, accept, media_type, escaping) in [
            ("nothing", String::new(), TEXT, "underscores"),
            ("anything", "*/*".into(), TEXT, "underscores"),
            ("Prometheus", PROMETHEUS.into(), DELIMITED, "underscores"),
            ("Prometheus without native histograms", CLASSIC.into(), TEXT, "allow-utf-8"),
            ("protobuf", protobuf.into(), DELIMITED, "underscores"),
            ("protobuf with escaping", format!("{protobuf};escaping=dots"), DELIMITED, "dots"),
            ("protobuf with unknown escaping", format!("{protobuf};escaping=none"), DELIMITED, "underscores"),
            ("the last of equal parameters", format!("{protobuf};encoding=text"), TEXT, "underscores"),
            ("text preferred", both("0.2", "0.3"), TEXT, "underscores"),
            ("protobuf preferred", both("0.3", "0.2"), DELIMITED, "underscores"),
            ("equal quality", both("0.5", "0.5"), TEXT, "underscores"),
            ("unreadable quality", both("0.5", "much"), DELIMITED, "underscores"),
            ("no number as quality", both("nan", "0.1"), TEXT, "underscores"),
            ("quality zero", format!("{protobuf};q=0"), DELIMITED, "underscores"),
            (
                "other messages",
                "application/vnd.google.protobuf;proto=a.B;encoding=delimited".into(),
                TEXT,
                "underscores",
            ),
            ("no encoding", format!("application/vnd.google.protobuf;proto={FAMILY}"), TEXT, "underscores"),
            ("other case", protobuf.to_uppercase(), TEXT, "underscores"),
            ("no media type", format!("application,;;;=,a/b/c,{protobuf};;a=b=c;q"), DELIMITED, "underscores"),
            ("OpenMetrics", "application/openmetrics-text;version=1.0.0".into(), TEXT, "underscores"),
            ("a newer text", format!("text/plain;version=1.0.0,{protobuf};q=0.1"), DELIMITED, "underscores"),
        ] {
            assert_eq!(Format::negotiate(&accept).media_type(), format!("{media_type}{escaping}"), "{name}: {accept}");
        }
    }
}
