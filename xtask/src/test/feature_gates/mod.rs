//! Feature gates and their tests: each gate that switches something has a cluster test with it on and one with it off.
//!
//! The gates are those of `docs/feature-gates.md`, which is made from the table of the binary. `tests.txt` has a line
//! per gate that is not fixed, and that is not locked in all versions that can be emulated: the gate, the tests with it
//! on, and the tests with it off, with `|` between them; a test is `file::function`, and several are separated by
//! blanks. A test of another kind does not count: only the real API server shows the effect of a gate.
//!
//! If `KUBERNETES_SOURCE` is set to the root of upstream's source, the test also fails when upstream's manager reads a
//! gate that is not on the page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::upstream_cases::has_test;

const TESTS: &str = include_str!("tests.txt");

/// The folder of the tests on the real API server.
const CLUSTER_TESTS: &str = "tests/cluster/tests/cluster/";

/// Folders of upstream's manager, and of functions for pods that its controllers call.
const FOLDERS: [&str; 4] = ["cmd/kube-controller-manager", "pkg/api/v1/pod", "pkg/controller", "pkg/quota"];

/// Names that look like gates there: functions, fields of resourceclaim-controller's own `features`, and a gate of a
/// function that only the kubelet calls.
const NO_GATES: [&str; 6] = [
    "AddFeatureGates",
    "AdminAccess",
    "ApplyFeatureGates",
    "PrioritizedList",
    "RestartAllContainersOnContainerExits",
    "WorkloadResourceClaims",
];

/// Returns the gates of the page; true if both of their values can be tested.
fn gates<'a>(page: &'a str) -> BTreeMap<&'a str, bool> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let cells = rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    let gate = |cells: Vec<&'a str>| match cells[..] {
        [gate, stage, effect] => {
            // A gate that is locked since a version can be changed when an older one is emulated.
            let is_always = ["always on", "always off"].iter().any(|text| effect.starts_with(text));
            let is_fixed = stage.ends_with(", locked") || is_always;
            Some((gate, !is_fixed))
        }
        _ => None,
    };
    cells.filter_map(gate).filter(|(gate, _)| !matches!(*gate, "feature gate" | "---")).collect()
}

/// Parses a line of the list; returns the gate and its tests.
fn line(text: &str) -> Result<(&str, Vec<&str>), String> {
    let parts: Vec<&str> = text.split('|').map(str::trim).collect();
    match parts[..] {
        [gate, on, off] if !on.is_empty() && !off.is_empty() => {
            let tests: Vec<&str> = on.split_whitespace().chain(off.split_whitespace()).collect();
            match tests.iter().find(|test| !test.starts_with(CLUSTER_TESTS)) {
                Some(test) => Err(format!("{gate}: {test} does not run on the real API server")),
                None => Ok((gate, tests)),
            }
        }
        _ => Err(format!("{text}: write `gate | tests with it on | tests with it off`")),
    }
}

/// Returns the problems of the list of tests for the gates of a page.
fn problems(page: &str, list: &str, root: &Path) -> Vec<String> {
    let mut listed = BTreeSet::new();
    let mut problems = Vec::new();
    for text in list.lines().filter(|text| !text.is_empty() && !text.starts_with('#')) {
        match line(text) {
            Ok((gate, tests)) => {
                listed.insert(gate);
                problems.extend(tests.iter().filter_map(|test| has_test(root, test).err()));
            }
            Err(problem) => problems.push(problem),
        }
    }
    let gates = gates(page);
    let testable: BTreeSet<&str> = gates.iter().filter(|(_, testable)| **testable).map(|(gate, _)| *gate).collect();
    problems.extend(testable.difference(&listed).map(|gate| format!("{gate}: no tests")));
    problems.extend(listed.difference(&testable).map(|gate| format!("{gate}: switches nothing, or is locked")));
    problems
}

/// Adds the gates that Go files of a folder and of all folders in it read.
fn collect_read_gates(folder: &Path, gates: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of upstream's source") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            collect_read_gates(&path, gates);
        } else if name.ends_with(".go") && !name.ends_with("_test.go") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let after = text.split("features.").skip(1);
            let name = |after: &str| after.chars().take_while(char::is_ascii_alphanumeric).collect::<String>();
            gates.extend(after.map(name).filter(|name| name.starts_with(|first: char| first.is_ascii_uppercase())));
        }
    }
}

#[test]
fn each_gate_that_switches_something_is_tested_on_and_off() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let page = std::fs::read_to_string(root.join("docs/feature-gates.md")).expect("the page of gates");
    let gates = gates(&page);
    assert!(gates.len() > 60, "the page has {} gates", gates.len());
    let mut problems = problems(&page, TESTS, root);
    if let Some(source) = std::env::var_os("KUBERNETES_SOURCE") {
        let mut read = BTreeSet::new();
        for folder in FOLDERS {
            collect_read_gates(&Path::new(&source).join(folder), &mut read);
        }
        assert!(read.len() > 40, "upstream reads {} gates", read.len());
        let missing =
            read.iter().map(String::as_str).filter(|gate| !gates.contains_key(gate) && !NO_GATES.contains(gate));
        problems.extend(missing.map(|gate| format!("{gate}: upstream reads it, and the page does not have it")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn fixed_and_locked_gates_need_no_tests() {
    let page = "| feature gate | stage, default | effect |\n| --- | --- | --- |\n\
                | A | beta, on | this |\n| B | GA, on, locked | that |\n\
                | C | beta, on | always on, `C=false` is refused: why |\n\
                | D | GA, on, locked since 1.36 | that |\n";
    assert_eq!(gates(page).into_iter().collect::<Vec<_>>(), [("A", true), ("B", false), ("C", false), ("D", true)]);
    for text in ["A", "A | a.rs::b", "A | a.rs::b |", "A | | a.rs::b"] {
        assert!(line(text).is_err(), "{text}");
    }
}

#[test]
fn test_without_the_api_server_does_not_count_for_a_gate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let page = "| A | beta, on | this |\n";
    let [cluster, other, unit] = [
        "tests/cluster/tests/cluster/gates/logging.rs::json_is_logged_with_its_gate",
        "tests/cluster/tests/cluster/gates/logging.rs::no_such_test",
        "kcm/src/flags/tests/gates.rs::gates_are_resolved_like_upstreams",
    ];
    assert_eq!(problems(page, &format!("A | {cluster} | {cluster} {cluster}"), root), [""; 0]);
    for (list, expected) in [
        (String::new(), vec!["A: no tests".to_owned()]),
        (
            format!("A | {cluster} | {unit}"),
            vec![format!("A: {unit} does not run on the real API server"), "A: no tests".to_owned()],
        ),
        (format!("A | {other} | {cluster}"), vec![format!("{other}: there is no such test")]),
        (
            format!("A | {cluster} | {cluster}\nB | {cluster} | {cluster}"),
            vec!["B: switches nothing, or is locked".to_owned()],
        ),
    ] {
        assert_eq!(problems(page, &list, root), expected, "{list}");
    }
}
