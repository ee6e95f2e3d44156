//! Readers of bytes and texts from outside: each has a property test with any input, and `cargo xtask soak --only fuzz`
//! runs it.
//!
//! The list has a line per reader: the reader, the source of its input, and `file::function` of its tests, with `|`
//! between them and blanks between several tests.

use std::path::Path;

use super::upstream_cases::has_test;
use crate::soak::{FUZZ_NAMES, FUZZ_PACKAGES};

const READERS: &str = include_str!("readers.txt");

/// Returns the tests of a line.
fn tests(line: &str) -> Result<Vec<&str>, String> {
    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
    match parts[..] {
        [reader, source, tests] if !reader.is_empty() && !source.is_empty() && !tests.is_empty() => {
            Ok(tests.split_whitespace().collect())
        }
        _ => Err(format!("{line}: write `reader | source of its input | tests`")),
    }
}

/// Returns the name of the package that contains a file of the workspace.
fn package_of(root: &Path, file: &str) -> Option<String> {
    let folders = Path::new(file).ancestors().skip(1);
    let manifest = folders.map(|folder| root.join(folder).join("Cargo.toml")).find(|manifest| manifest.exists())?;
    let manifest = std::fs::read_to_string(manifest).ok()?;
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = "))?;
    Some(name.trim_matches('"').to_owned())
}

/// Returns true if a function of a source file has arguments: property tests have them, tests with fixed inputs do not.
fn has_arguments(root: &Path, file: &str, function: &str) -> bool {
    let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let arguments = text.split_once(&format!("fn {function}(")).and_then(|(_, rest)| rest.split_once(')'));
    arguments.is_some_and(|(arguments, _)| !arguments.trim().is_empty())
}

/// Checks a test of the list: it exists, gets random input, and the fuzz part of the soak runs it.
fn check(root: &Path, test: &str) -> Result<(), String> {
    has_test(root, test)?;
    let (file, function) = test.split_once("::").unwrap_or_default();
    if !function.contains(FUZZ_NAMES) {
        return Err(format!("{test}: the soak selects tests by {FUZZ_NAMES:?}"));
    }
    let package = package_of(root, file).ok_or_else(|| format!("{file}: no package"))?;
    if !FUZZ_PACKAGES.contains(&&*package) {
        return Err(format!("{test}: the soak does not fuzz {package}"));
    }
    if !has_arguments(root, file, function) {
        return Err(format!("{test}: a property test gets its input as arguments"));
    }
    Ok(())
}

#[test]
fn each_reader_has_tests_that_the_soak_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let lines: Vec<&str> = READERS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines.len() > 30, "{} readers", lines.len());
    let mut problems = Vec::new();
    for line in lines {
        match tests(line) {
            Ok(tests) => problems.extend(tests.into_iter().filter_map(|test| check(root, test).err())),
            Err(problem) => problems.push(problem),
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn line_without_a_fuzzed_test_is_a_problem() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    for line in ["", "reader | source", "reader | source | ", "| source | a.rs::any_b"] {
        assert!(tests(line).is_err(), "{line}");
    }
    for (test, problem) in [
        ("kinds/tests/texts.rs::any_missing", "there is no such test"),
        ("kinds/tests/texts.rs::any_large_text_is_parsed_in_linear_time", "as arguments"),
        ("runtime/src/watch/frames.rs::frames_are_complete_for_every_chunk_size", "selects tests by"),
        ("providers/mock/tests/mock/history.rs::any_history_reaches_the_last_requested_state", "does not fuzz"),
    ] {
        let found = check(root, test).expect_err("a problem");
        assert!(found.contains(problem), "{found}");
    }
}
