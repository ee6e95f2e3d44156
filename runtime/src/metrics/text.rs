//! The text for scrapers: Prometheus' classic format, with numbers as Go writes them.

use std::fmt::Write as _;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

/// Returns a registry in Prometheus' classic text format. The library writes OpenMetrics, in which samples are the
/// same, but metadata differs: the names of counters lack `_total`, and there are units and an end marker.
#[must_use]
pub(super) fn exposition(registry: &Registry) -> String {
    let mut open = String::new();
    // Writing to a String cannot fail; if a collector fails, the text before it is kept.
    let _ = encode_registry(&mut open, registry);
    let mut text = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(about) = line.strip_prefix("# HELP ") {
            help = about.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|about| about.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                // Only `plain_counters` appends this type.
                "unknown" => ("", "counter"),
                kind => ("", kind),
            };
            if let Some((_, words)) = help.take() {
                let _ = writeln!(text, "# HELP {name}{suffix} {words}");
            }
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            push_sample(&mut text, line);
        }
    }
    text
}

/// Appends a sample, with a bucket's bound in Go's notation: a query over upstream's buckets and ours needs equal
/// bounds.
fn push_sample(text: &mut String, line: &str) {
    // The label follows the opening brace or a comma; the names of other labels may end in `le`, too.
    let bound = ["{le=\"", ",le=\""].into_iter().find_map(|label| {
        let (before, rest) = line.split_once(label).filter(|(before, _)| before.contains("_bucket"))?;
        let (bound, after) = rest.split_once('"')?;
        Some((before, label, bound.parse().ok()?, after))
    });
    let _ = match bound {
        Some((before, label, bound, after)) => writeln!(text, "{before}{label}{}\"{after}", go_number(bound)),
        None => writeln!(text, "{line}"),
    };
}

/// Formats a number like Go's `strconv.FormatFloat(x, 'g', -1, 64)`.
pub(super) fn go_number(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "+Inf".into() } else { "-Inf".into() };
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_go_does() {
        for (number, text) in [
            (1e-8, "1e-08"),
            (9.999_999_999_999_999e-5, "9.999999999999999e-05"),
            (0.0001, "0.0001"),
            (0.025, "0.025"),
            (1.0, "1"),
            (1000.0, "1000"),
            (16_777_216.0, "1.6777216e+07"),
            (1e6, "1e+06"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(go_number(number), text);
        }
    }
}
