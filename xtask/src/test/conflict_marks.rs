//! Checks that no file has the marks that git writes into files with conflicts.

use std::fs;

use super::files::files;
use crate::cargo::workspace;

/// Number of equal characters at the beginning of a mark.
const MARK_LENGTH: usize = 7;

/// Returns true if a line is the mark at the beginning, in the middle or at the end of a conflict.
fn is_mark(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let starts = |character: u8| line.starts_with(&[character; MARK_LENGTH]);
    let is_named = line.get(MARK_LENGTH).is_none_or(|next| *next == b' ');
    let is_middle = line.len() == MARK_LENGTH && starts(b'=');
    is_middle || is_named && (starts(b'<') || starts(b'>') || starts(b'|'))
}

/// Returns the numbers of the lines that are marks.
fn marks(text: &[u8]) -> Vec<usize> {
    let lines = text.split(|byte| *byte == b'\n').enumerate();
    lines.filter(|(_, line)| is_mark(line)).map(|(at, _)| at + 1).collect()
}

#[test]
fn no_file_has_conflict_marks() {
    let files = files(workspace());
    assert!(files.len() > 1000, "only {} files were found", files.len());
    let mut found = Vec::new();
    for file in files {
        let lines = marks(&fs::read(&file).expect("a readable file"));
        found.extend(lines.into_iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(found.is_empty(), "conflict marks; remove them:\n{}", found.join("\n"));
}

#[test]
fn marks_stand_alone_or_before_a_name_at_the_beginning_of_a_line() {
    let line = |character: &str, count: usize, rest: &str| character.repeat(count) + rest;
    for (name, text, expected) in [
        ("begin", line("<", 7, " HEAD"), true),
        ("base", line("|", 7, " 0123abc"), true),
        ("middle", line("=", 7, ""), true),
        ("middle, with a carriage return", line("=", 7, "\r"), true),
        ("end", line(">", 7, " branch"), true),
        ("end without a name", line(">", 7, ""), true),
        ("underlined heading", line("=", 8, ""), false),
        ("shift operators", line("<", 8, ""), false),
        ("indented", line(" <", 1, "<<<<<< HEAD"), false),
        ("quote", line(">", 3, " text"), false),
    ] {
        let found = marks(format!("first\n{text}\nlast").as_bytes());
        assert_eq!(found, if expected { vec![2] } else { Vec::new() }, "{name}");
    }
}
