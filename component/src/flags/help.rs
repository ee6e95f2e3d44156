//! The table of flags for `--help`: by group, with type, description and default.

use std::io::IsTerminal;

use super::component::Component;
use super::controllers;
use super::gates;
use super::table::{Effect, Flag};
use super::value::Type;

/// Returns the width in columns to wrap at: `COLUMNS` or 100 if standard output is a terminal, else none.
pub fn width() -> Option<usize> {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    std::io::stdout().is_terminal().then(|| columns().unwrap_or(100))
}

/// Returns the text of a binary's `--help`, wrapped at `width` columns if given.
pub fn text(component: &Component, width: Option<usize>) -> String {
    let mut out = format!("{}\nUsage:\n  {} [flags]\n", component.about, component.name);
    let shown: Vec<&Flag> = component.flags.iter().filter(|flag| flag.deprecated.is_none()).collect();
    for group in shown.chunk_by(|left, right| left.group == right.group) {
        out.push_str(&format!("\n{} flags:\n\n", group[0].group));
        let longest = group.iter().map(|flag| head(flag).len()).max().unwrap_or(0);
        let mut group = group.to_vec();
        group.sort_by_key(|flag| flag.name);
        for flag in group {
            out.push_str(&entry(component, flag, longest + 3, width));
        }
    }
    out
}

/// Returns the name of a flag with its letter and type, as in `--help`.
pub fn head(flag: &Flag) -> String {
    let letter = flag.shorthand().map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
    let gap = if flag.kind.hint().is_empty() { "" } else { " " };
    format!("  {letter}--{}{gap}{}", flag.name, flag.kind.hint())
}

/// Returns the `(default ...)` after a description, with a leading space; empty for zero values.
fn default(flag: &Flag) -> String {
    match flag.kind {
        kind if kind.is_zero(flag.default) => String::new(),
        Type::Text => format!(" (default \"{}\")", flag.default),
        _ => format!(" (default {})", flag.default),
    }
}

fn entry(component: &Component, flag: &Flag, indent: usize, width: Option<usize>) -> String {
    let without_effect = if flag.effect == Effect::NoEffect { "; has no effect" } else { "" };
    let mut paragraphs = vec![format!("{}{without_effect}", flag.help)];
    match flag.name {
        "controllers" => {
            paragraphs.push(format!("All controllers: {}", controllers::all_names(component.controllers).join(", ")));
            let off = controllers::off_by_default(component.controllers);
            if !off.is_empty() {
                paragraphs.push(format!("Off by default: {}", off.join(", ")));
            }
        }
        "feature-gates" => paragraphs.extend(gates::help_lines(component.gates)),
        _ => {}
    }
    if let Some(last) = paragraphs.last_mut() {
        last.push_str(&default(flag));
    }
    let text_width = width.map(|width| width.saturating_sub(indent).max(24));
    let lines = paragraphs.iter().flat_map(|paragraph| wrapped(paragraph, text_width));
    let gap = format!("\n{}", " ".repeat(indent));
    format!("{:indent$}{}\n", head(flag), lines.collect::<Vec<_>>().join(&gap))
}

fn wrapped(text: &str, width: Option<usize>) -> Vec<String> {
    let Some(width) = width else {
        return vec![text.to_owned()];
    };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.len() - 1;
        if lines[line].is_empty() {
            lines[line].push_str(word);
        } else if lines[line].len() + 1 + word.len() <= width {
            lines[line].push(' ');
            lines[line].push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_text_wraps_at_word_boundaries() {
        assert_eq!(wrapped("aa bb cc", Some(5)), ["aa bb", "cc"]);
        assert_eq!(wrapped("aa bb cc", None), ["aa bb cc"]);
    }
}
