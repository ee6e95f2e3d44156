//! Prints the table of flags as `--help` does: by group, with type, description and default.

use std::io::IsTerminal;

use super::gates;
use super::table::{FLAGS, Flag};
use super::value::Type;
use crate::names;

/// The width in columns to wrap at: `COLUMNS` or 100 when standard output is a terminal, none
/// otherwise.
pub fn width() -> Option<usize> {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    std::io::stdout().is_terminal().then(|| columns().unwrap_or(100))
}

/// The text of `--help`, wrapped at `width` columns if there is one.
pub fn text(width: Option<usize>) -> String {
    let mut out = String::from(
        "Runs the control loops of Kubernetes: each watches objects through the API server and\n\
         works to bring what is closer to what is wanted.\n\n\
         Usage:\n  kube-controller-manager [flags]\n",
    );
    let shown: Vec<&Flag> = FLAGS.iter().filter(|flag| flag.deprecated.is_none()).collect();
    for group in shown.chunk_by(|left, right| left.group == right.group) {
        out.push_str(&format!("\n{} flags:\n\n", group[0].group));
        let longest = group.iter().map(|flag| head(flag).len()).max().unwrap_or(0);
        for flag in group {
            out.push_str(&entry(flag, longest + 3, width));
        }
    }
    out
}

fn head(flag: &Flag) -> String {
    let letter = flag.shorthand().map_or_else(|| "    ".to_owned(), |letter| format!("-{letter}, "));
    let gap = if flag.kind.hint().is_empty() { "" } else { " " };
    format!("  {letter}--{}{gap}{}", flag.name, flag.kind.hint())
}

/// The `(default ...)` behind a description, with a blank in front; empty for zero values.
fn default(flag: &Flag) -> String {
    match flag.kind {
        kind if kind.is_zero(flag.default) => String::new(),
        Type::Text => format!(" (default \"{}\")", flag.default),
        _ => format!(" (default {})", flag.default),
    }
}

fn entry(flag: &Flag, indent: usize, width: Option<usize>) -> String {
    let mut paragraphs = vec![flag.help.to_owned()];
    match flag.name {
        "controllers" => {
            paragraphs.push(format!("All controllers: {}", names::all_names().join(", ")));
            paragraphs.push(format!("Off by default: {}", names::off_by_default().join(", ")));
        }
        "feature-gates" => paragraphs.extend(gates::help_lines()),
        _ => {}
    }
    if let Some(last) = paragraphs.last_mut() {
        last.push_str(&default(flag));
    }
    let room = width.map(|width| width.saturating_sub(indent).max(24));
    let lines = paragraphs.iter().flat_map(|paragraph| wrapped(paragraph, room));
    let gap = format!("\n{}", " ".repeat(indent));
    format!("{:indent$}{}\n", head(flag), lines.collect::<Vec<_>>().join(&gap))
}

fn wrapped(text: &str, room: Option<usize>) -> Vec<String> {
    let Some(room) = room else {
        return vec![text.to_owned()];
    };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.len() - 1;
        if lines[line].is_empty() {
            lines[line].push_str(word);
        } else if lines[line].len() + 1 + word.len() <= room {
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
    use std::collections::BTreeMap;

    /// Head, then default, of each flag in a text of `--help`.
    fn entries(help: &str) -> BTreeMap<String, (String, String)> {
        let mut found: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut current = String::new();
        let flags = help.lines().skip_while(|line| !line.ends_with(" flags:"));
        for line in flags {
            let (head, rest) = match line.trim_start().strip_prefix('-') {
                Some(_) if line.len() - line.trim_start().len() <= 6 => {
                    line.trim_start().split_once("   ").unwrap_or((line.trim_start(), ""))
                }
                _ => ("", line),
            };
            if !head.is_empty() {
                let name = head.split("--").nth(1).unwrap().split(' ').next().unwrap();
                current = name.to_owned();
                found.insert(current.clone(), (head.to_owned(), String::new()));
            }
            let default = rest.trim_end().strip_suffix(')').and_then(|text| text.rsplit_once("(default "));
            if let (Some((_, default)), Some(entry)) = (default, found.get_mut(&current)) {
                // A list of gates ends each of its lines with something alike.
                if !rest.contains("=true|false") {
                    entry.1 = default.to_owned();
                }
            }
        }
        found
    }

    /// The lines of `help` on single gates, without their place on the page.
    fn gate_lines(help: &str) -> Vec<String> {
        let gates = help.lines().filter_map(|line| Some(&line[line.find("kube:")?..]));
        let lines = gates.filter(|line| line.contains("=true|false ("));
        lines.map(|line| line.split("), or ").next().unwrap().trim_end_matches(')').to_owned()).collect()
    }

    #[test]
    fn every_flag_that_is_not_deprecated_is_shown_once() {
        let help = text(None);
        for flag in FLAGS {
            let lines =
                help.lines().filter(|line| line.starts_with(&head(flag)) && line[head(flag).len()..].starts_with("  "));
            assert_eq!(lines.count(), usize::from(flag.deprecated.is_none()), "{}", flag.name);
        }
        assert!(help.contains("  -v, --v Level"), "{help}");
        assert!(help.contains("--cluster-name string") && help.contains("(default \"kubernetes\")"));
    }

    #[test]
    fn lines_are_wrapped_at_the_width() {
        let help = text(Some(120));
        let columns = help.lines().map(|line| (line.len(), line));
        let prose = columns.filter(|(_, line)| !line.contains("kube:") && !line.contains("--concurrent"));
        for (length, line) in prose.filter(|(_, line)| line.trim_start().contains(' ')) {
            assert!(length <= 130, "{length}: {line}");
        }
        assert!(help.lines().count() > text(None).lines().count());
        assert_eq!(wrapped("aa bb cc", Some(5)), ["aa bb", "cc"]);
    }

    /// Runs only where `UPSTREAM_MANAGER` names a stock kube-controller-manager 1.37.
    #[test]
    fn flags_types_defaults_gates_and_controllers_equal_the_stock_managers() {
        let Some(stock) = std::env::var_os("UPSTREAM_MANAGER") else {
            return;
        };
        let output = std::process::Command::new(stock).arg("--help").output().unwrap();
        let theirs = String::from_utf8(output.stdout).unwrap();
        let ours = text(None);
        let mut want = entries(&theirs);
        let mut have = entries(&ours);
        // Spoken of in the description there, printed by ours as part of it too.
        for list in [&mut want, &mut have] {
            for versions in ["emulated-version", "min-compatibility-version"] {
                list.get_mut(versions).unwrap().1.clear();
            }
        }
        assert!(want.len() > 140, "{want:?}");
        assert_eq!(have, want);
        assert_eq!(gate_lines(&ours), gate_lines(&theirs));
        let all = |help: &str| {
            let line = help.lines().find_map(|line| line.split_once("All controllers: "));
            line.map(|(_, names)| names.trim().to_owned())
        };
        assert_eq!(all(&ours), all(&theirs));
    }
}
