//! Upstream's unit tests as cases: each is covered by a test of ours, or has a reason why it is not.
//!
//! One list per controller, a line per case: upstream's test function, a description of the case, and `file::function`
//! of the test that covers it, with `|` between them. Several tests are separated by blanks. A case that does not apply
//! has `-` and the reason instead. There is no mark for a case that nothing covers yet: its test comes first. A header
//! names upstream's packages.
//!
//! `cargo xtask test` sets variables with the folders of upstream's modules ([`variable`]). With them, the test also
//! fails when a list lacks one of a package's test functions, and when a package of [`SCOPE`] that has tests is in no
//! list.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folders of upstream's source whose packages are all listed: those of controllers, and of modules that only
/// controllers use.
const SCOPE: [&str; 4] =
    ["pkg/controller", "pkg/quota", "staging/src/k8s.io/cloud-provider", "staging/src/k8s.io/endpointslice"];

/// The lists, by controller.
const LISTS: [(&str, &str); 39] = [
    ("attach_detach", include_str!("attach_detach.txt")),
    ("bootstrap_tokens", include_str!("bootstrap_tokens.txt")),
    ("certificates", include_str!("certificates.txt")),
    ("clusterrole_aggregation", include_str!("clusterrole_aggregation.txt")),
    ("cloud", include_str!("cloud.txt")),
    ("configuration", include_str!("configuration.txt")),
    ("controller_revisions", include_str!("controller_revisions.txt")),
    ("cronjob", include_str!("cronjob.txt")),
    ("daemonset", include_str!("daemonset.txt")),
    ("deployment", include_str!("deployment.txt")),
    ("device_taint_eviction", include_str!("device_taint_eviction.txt")),
    ("disruption", include_str!("disruption.txt")),
    ("endpoints", include_str!("endpoints.txt")),
    ("endpointslice", include_str!("endpointslice.txt")),
    ("endpointslice_mirroring", include_str!("endpointslice_mirroring.txt")),
    ("endpointslice_module", include_str!("endpointslice_module.txt")),
    ("garbage_collector", include_str!("garbage_collector.txt")),
    ("horizontal_pod_autoscaler", include_str!("horizontal_pod_autoscaler.txt")),
    ("job", include_str!("job.txt")),
    ("namespace", include_str!("namespace.txt")),
    ("node_ipam", include_str!("node_ipam.txt")),
    ("node_lifecycle", include_str!("node_lifecycle.txt")),
    ("pod_garbage_collector", include_str!("pod_garbage_collector.txt")),
    ("podgroup_protection", include_str!("podgroup_protection.txt")),
    ("replicaset", include_str!("replicaset.txt")),
    ("resource_claim", include_str!("resource_claim.txt")),
    ("resource_pool_status_request", include_str!("resource_pool_status_request.txt")),
    ("resource_quota", include_str!("resource_quota.txt")),
    ("service_accounts", include_str!("service_accounts.txt")),
    ("service_cidr", include_str!("service_cidr.txt")),
    ("shared_by_controllers", include_str!("shared_by_controllers.txt")),
    ("statefulset", include_str!("statefulset.txt")),
    ("storage_version_migrator", include_str!("storage_version_migrator.txt")),
    ("storageversion_garbage_collector", include_str!("storageversion_garbage_collector.txt")),
    ("taint_eviction", include_str!("taint_eviction.txt")),
    ("ttl", include_str!("ttl.txt")),
    ("validating_admission_policy_status", include_str!("validating_admission_policy_status.txt")),
    ("volume_binder", include_str!("volume_binder.txt")),
    ("volume_protection", include_str!("volume_protection.txt")),
];

/// A case of a list.
#[derive(Debug, PartialEq, Eq)]
struct Case<'a> {
    /// Upstream's test function.
    upstream: &'a str,
    /// A description of the case.
    case: &'a str,
    /// Tests that cover the case, or the reason why no test does.
    covered: Result<Vec<&'a str>, &'a str>,
}

fn case(line: &str) -> Result<Case<'_>, String> {
    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
    let [upstream, case, covered] = parts[..] else { return Err(format!("{line}: not three parts separated by '|'")) };
    if !upstream.starts_with("Test") || case.is_empty() {
        return Err(format!("{line}: the first part is not a test of upstream, or the case is empty"));
    }
    let covered = match covered.strip_prefix('-') {
        Some(reason) if reason.trim().is_empty() => return Err(format!("{line}: no reason")),
        Some(reason) if reason.trim().starts_with("gap") => return Err(format!("{line}: no test covers it yet")),
        Some(reason) => Err(reason.trim()),
        None => Ok(covered.split_whitespace().collect::<Vec<_>>()),
    };
    match &covered {
        Ok(tests) if tests.is_empty() => Err(format!("{line}: no test covers it")),
        _ => Ok(Case { upstream, case, covered }),
    }
}

/// Returns the packages of a list, and its cases.
fn read(list: &str) -> Result<(Vec<&str>, Vec<Case<'_>>), String> {
    let packages = list.lines().filter_map(|line| line.strip_prefix("# package ")).collect();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok((packages, lines.map(case).collect::<Result<_, _>>()?))
}

/// Checks that a file has a test function: one with a test attribute, of a property test, or of a cluster test.
pub(super) fn has_test(root: &Path, test: &str) -> Result<(), String> {
    let (file, function) = test.split_once("::").ok_or_else(|| format!("{test}: no `file::function`"))?;
    let text = std::fs::read_to_string(root.join(file)).map_err(|error| format!("{file}: {error}"))?;
    let mut is_marked = false;
    for line in text.lines().map(str::trim_start) {
        is_marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let is_cluster_test = line.starts_with("pub async fn") && file.starts_with("tests/cluster/");
        let Some((_, after)) = line.split_once("fn ") else { continue };
        let name = after.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        if name == function && (is_marked || is_cluster_test) {
            return Ok(());
        }
        is_marked = false;
    }
    Err(format!("{test}: there is no such test"))
}

/// Returns the name of the variable with the folder of an upstream module, for a path of a package in upstream's
/// repository, and the path of the package in the module.
fn variable(package: &str) -> (String, &str) {
    match package.strip_prefix("staging/src/k8s.io/") {
        Some(staged) => {
            let (module, folder) = staged.split_once('/').unwrap_or((staged, ""));
            (format!("{}_SOURCE", module.replace('-', "_").to_uppercase()), folder)
        }
        None => ("KUBERNETES_SOURCE".to_owned(), package),
    }
}

/// Returns the folder of an upstream package; `None` without the variable of its module.
fn folder(package: &str) -> Option<PathBuf> {
    let (variable, folder) = variable(package);
    std::env::var_os(variable).map(|module| Path::new(&module).join(folder))
}

/// Returns the paths of a folder's entries.
fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path())
}

/// Returns the names of the test functions of a Go package.
fn upstream_tests(package: &Path) -> Vec<String> {
    let tests = entries(package).filter(|path| path.to_string_lossy().ends_with("_test.go"));
    let text: String = tests.map(|path| std::fs::read_to_string(path).expect("a source file")).collect();
    let name = |line: &str| {
        let after = line.strip_prefix("func ")?;
        let name = after.split('(').next().unwrap_or_default();
        (name.starts_with("Test") && name != "TestMain").then(|| name.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// Adds the package in a folder, and those below it, if they have tests and are in no list.
fn find_unlisted(package: &str, folder: &Path, listed: &BTreeSet<&str>, unlisted: &mut Vec<String>) {
    if !listed.contains(package) && !upstream_tests(folder).is_empty() {
        unlisted.push(format!("{package} has tests and is in no list"));
    }
    for path in entries(folder).filter(|path| path.is_dir()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        find_unlisted(&format!("{package}/{name}"), &path, listed, unlisted);
    }
}

#[test]
fn each_upstream_case_is_covered_by_a_test_or_has_a_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut problems = Vec::new();
    for (controller, list) in LISTS {
        let (packages, cases) = match read(list) {
            Ok(read) => read,
            Err(problem) => {
                problems.push(format!("{controller}: {problem}"));
                continue;
            }
        };
        assert!(!packages.is_empty() && !cases.is_empty(), "{controller}: {} cases", cases.len());
        for case in &cases {
            for test in case.covered.iter().flatten() {
                problems.extend(has_test(root, test).err().map(|problem| format!("{controller}: {problem}")));
            }
        }
        let listed: BTreeSet<&str> = cases.iter().map(|case| case.upstream).collect();
        let all = packages.iter().filter_map(|package| folder(package)).flat_map(|package| upstream_tests(&package));
        let missing = all.filter(|test| !listed.contains(test.as_str()));
        problems.extend(missing.map(|test| format!("{controller}: {test} is not listed")));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn each_package_in_scope_is_in_a_list() {
    let lists = LISTS.iter().filter_map(|(_, list)| read(list).ok());
    let listed: BTreeSet<&str> = lists.flat_map(|(packages, _)| packages).collect();
    let mut unlisted = Vec::new();
    for package in SCOPE {
        if let Some(folder) = folder(package) {
            find_unlisted(package, &folder, &listed, &mut unlisted);
        }
    }
    assert!(unlisted.is_empty(), "{}", unlisted.join("\n"));
}

#[test]
fn package_with_tests_that_no_list_names_is_found() {
    let source = tempfile::tempdir().expect("a folder");
    for (file, text) in [
        ("a/a_test.go", "func TestA(t *testing.T) {\n"),
        ("a/b/b_test.go", "func TestB(t *testing.T) {\n"),
        ("a/c/c.go", "func TestC(t *testing.T) {\n"),
        ("a/d/main_test.go", "func TestMain(m *testing.M) {\n"),
    ] {
        let path = source.path().join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    let mut unlisted = Vec::new();
    find_unlisted("pkg/a", &source.path().join("a"), &["pkg/a"].into(), &mut unlisted);
    assert_eq!(unlisted, ["pkg/a/b has tests and is in no list"]);
    let cloud = variable("staging/src/k8s.io/cloud-provider/node/helpers");
    assert_eq!(cloud, ("CLOUD_PROVIDER_SOURCE".to_owned(), "node/helpers"));
    assert_eq!(variable("pkg/quota/v1"), ("KUBERNETES_SOURCE".to_owned(), "pkg/quota/v1"));
}

#[test]
fn each_file_of_cases_is_in_the_lists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/test/upstream_cases");
    let names = std::fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry").file_name());
    let names: BTreeSet<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let files: BTreeSet<&str> = names.iter().filter_map(|name| name.strip_suffix(".txt")).collect();
    assert_eq!(files, LISTS.iter().map(|(controller, _)| *controller).collect());
}

#[test]
fn line_without_test_or_reason_is_a_problem() {
    for line in [
        "TestA | case",
        "TestA | case |",
        "TestA | case | -",
        "TestA | | a.rs::b",
        "a | case | a.rs::b",
        "TestA | case | - gap: no test",
    ] {
        assert!(case(line).is_err(), "{line}");
    }
    let read = case("TestA | two pods | a.rs::b c.rs::d").expect("a case");
    assert_eq!(read, Case { upstream: "TestA", case: "two pods", covered: Ok(vec!["a.rs::b", "c.rs::d"]) });
    assert_eq!(case("TestA | cache | - no such cache").expect("a case").covered, Err("no such cache"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let own = "xtask/src/test/upstream_cases/mod.rs";
    assert!(has_test(root, &format!("{own}::line_without_test_or_reason_is_a_problem")).is_ok());
    for no_test in ["case", "missing"] {
        assert!(has_test(root, &format!("{own}::{no_test}")).is_err(), "{no_test}");
    }
}
