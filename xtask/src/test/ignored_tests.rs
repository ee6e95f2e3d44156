//! Each cluster test that `cargo xtask test` leaves out is run by `cargo xtask soak` or `cargo xtask differential`.

use crate::{differential, soak};

const MAIN: &str = include_str!("../../../tests/cluster/tests/cluster/main.rs");

/// Returns the names of the ignored tests of the table in a source file: `domain::module::{test, ...}`.
fn ignored(source: &str) -> Vec<String> {
    let table = source.split_once("cases![Ignored:").and_then(|(_, rest)| rest.split_once("]);"));
    let (table, _) = table.expect("a table of ignored tests");
    let modules = table.split('}').filter_map(|module| module.split_once("::{"));
    modules
        .flat_map(|(module, tests)| {
            let module = module.trim_start_matches(',').trim();
            tests.split(',').map(str::trim).filter(|test| !test.is_empty()).map(move |test| format!("{module}::{test}"))
        })
        .collect()
}

#[test]
fn each_ignored_test_is_run_by_a_command() {
    let names = ignored(MAIN);
    assert!(names.len() > 20, "{names:?}");
    let filters: Vec<&str> = [soak::CRASHES].into_iter().chain(soak::HOSTILE).chain(differential::TESTS).collect();
    let unused: Vec<_> = names.iter().filter(|name| !filters.iter().any(|filter| name.contains(filter))).collect();
    assert!(unused.is_empty(), "no command runs {unused:?}");
    for filter in soak::HOSTILE {
        assert!(names.iter().any(|name| name.contains(filter)), "{filter} matches no ignored test");
    }
}

#[test]
fn ignored_tests_are_found_in_the_table() {
    let source = "cases![Usual: a::b::{c}]; cases![Ignored:\n  d::e::{\n    f, g,\n  },\n  h::i::{j},\n]);";
    assert_eq!(ignored(source), ["d::e::f", "d::e::g", "h::i::j"]);
}
