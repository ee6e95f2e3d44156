//! The text of `--help`.

use std::collections::BTreeMap;

use component::flags::help::{self, head};

use super::*;

fn text(width: Option<usize>) -> String {
    help::text(&COMPONENT, width)
}

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
            // Lines of the list of gates end similarly, but not with the default of the flag.
            if !rest.contains("=true|false") {
                entry.1 = default.to_owned();
            }
        }
    }
    found
}

/// Returns the lines of `help` on single gates, without their indentation.
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
    // Both managers name the default of these flags in the description only.
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
