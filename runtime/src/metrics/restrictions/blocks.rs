//! The families of a text in the classic format, as parts of the text.

/// A family's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::metrics) struct Block<'a> {
    /// The full name of the family.
    pub name: &'a str,
    /// Whole lines: metadata, if there is any, then samples.
    pub text: &'a str,
}

/// Returns the families of a text, in their order.
pub(in crate::metrics) fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut starts: Vec<(&str, usize)> = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let about = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        let name = name_in(about.unwrap_or(line)).filter(|_| about.is_some() || !line.starts_with('#'));
        let is_of = |family: &str, name: &str| if about.is_some() { family == name } else { has_sample(family, name) };
        if let Some(name) = name
            && !starts.last().is_some_and(|(family, _)| is_of(family, name))
        {
            starts.push((name, at));
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([text.len()]);
    starts.iter().zip(ends).map(|((name, start), end)| Block { name, text: &text[*start..end] }).collect()
}

/// Returns the name at the beginning of a text: of a family, or of a sample.
fn name_in(text: &str) -> Option<&str> {
    text.split(['{', ' ', '\n']).next().filter(|name| !name.is_empty())
}

/// Returns true if a sample with this name may belong to a family.
fn has_sample(family: &str, name: &str) -> bool {
    name.strip_prefix(family).is_some_and(|suffix| matches!(suffix, "" | "_bucket" | "_sum" | "_count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_divided_into_families() {
        let parts = [
            ("calls_total", "# HELP calls_total # TYPE x\n# TYPE calls_total counter\ncalls_total{a=\"b c\"} 1\n"),
            ("time", "# TYPE time histogram\ntime_sum 1\ntime_count 1\ntime_bucket{le=\"+Inf\"} 1\n"),
            ("time_count", "# TYPE time_count gauge\ntime_count 1\n"),
            ("time_other", "time_other 7\n"),
            ("empty", "# HELP empty None.\n# TYPE empty gauge\n"),
            ("last", "# TYPE last gauge\nlast 3\n"),
        ];
        let text: String = parts.iter().map(|(_, text)| *text).collect();
        let expected = parts.map(|(name, text)| Block { name, text });
        assert_eq!(blocks(&text), expected);
        assert_eq!(blocks(""), []);
    }
}
