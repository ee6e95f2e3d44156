//! Checks the rules about files: maximum lengths of files and functions, and the places of modules.
//!
//! A function counts from its signature to its closing brace, without blank lines and comments. rustfmt puts the
//! closing brace below the first word of the signature.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use super::files::files;
use crate::cargo::workspace;

/// Maximum number of lines of a file.
const MAX_FILE_LINES: usize = 600;

/// Maximum number of lines of a function.
const MAX_FUNCTION_LINES: usize = 60;

/// Functions that may be longer, because they consist of a table or list of test cases: their file and name.
const TABLES: &[(&str, &str)] = &[
    ("ccm/src/controllers/route/tests.rs", "plan_compares_routes_with_nodes"),
    ("ccm/src/controllers/service/tests/actions.rs", "next_action_follows_from_request_and_state"),
    ("kcm/src/devices/resource_claim/tests/sync.rs", "claim_is_released_when_its_consumers_no_longer_need_it"),
    ("kcm/src/devices/resource_claim/tests/sync.rs", "pod_gets_the_claims_that_it_lacks"),
    ("kcm/src/flags/tests/mod.rs", "each_violated_rule_is_reported_with_its_reason"),
    ("kcm/src/nodes/node_lifecycle/tests/mod.rs", "loss_and_return_of_all_nodes_stop_and_resume_evictions"),
    ("kcm/src/storage/binder/tests/claim_table.rs", "unbound_claim_takes_the_best_volume_or_waits"),
    ("kcm/src/storage/inline_volume.rs", "volume_of_a_migrated_plugin_becomes_one_of_its_driver"),
    ("kcm/src/workloads/deployment/tests/status.rs", "progress_condition_is_decided_by_precedence"),
    ("kcm/src/workloads/disruption/tests/reconcile.rs", "owner_counts_by_its_kind_group_and_uid"),
    ("kcm/src/workloads/disruption/tests/reconcile.rs", "status_counts_pods_and_the_scales_of_their_owners"),
    ("kcm/src/workloads/statefulset/tests/reconcile.rs", "each_write_of_a_pod_and_its_claim_is_recorded"),
    ("runtime/src/client/tests/configuration.rs", "error_of_an_unusable_configuration_names_the_fix"),
    ("tests/cluster/tests/cluster/api/policy_types.rs", "policies"),
    ("tests/cluster/tests/cluster/main.rs", "main"),
    ("tests/cluster/tests/cluster/robustness/hostile_objects.rs", "workloads"),
    ("tests/moto/tests/moto/main.rs", "main"),
];

/// A function of a file.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    /// The number of its first line, from 1.
    line: usize,
    /// The number of its lines, without blank lines and comments.
    length: usize,
}

/// Returns the functions of a source with a body of several lines.
fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let starts = lines.iter().enumerate().filter_map(|(at, line)| Some((at, name(line)?)));
    starts.filter_map(|(at, name)| Some(Function { name, line: at + 1, length: length(&lines[at..])? })).collect()
}

/// Returns the name of the function whose signature begins on this line.
fn name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_modifier = |word: &str| {
        matches!(word, "pub" | "const" | "async" | "unsafe" | "extern" | "default" | "in" | "\"C\"")
            || word.starts_with("pub(")
            || word.ends_with(')')
    };
    let end = after.find(['(', '<'])?;
    before.split_whitespace().all(is_modifier).then_some(&after[..end])
}

/// Returns the length of the function at the beginning of `lines`; `None` if it has no body of several lines.
fn length(lines: &[&str]) -> Option<usize> {
    let indent = &lines[0][..lines[0].len() - lines[0].trim_start().len()];
    let is_end = |line: &&str| line.strip_prefix(indent).is_some_and(|rest| rest == "}");
    // A signature ends with the line that opens the body.
    let opening = lines.iter().position(|line| line.ends_with('{') || line.ends_with('}') || line.ends_with(';'))?;
    if !lines[opening].ends_with('{') {
        return None;
    }
    let end = opening + lines[opening..].iter().position(is_end)?;
    let is_code = |line: &&&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    Some(lines[..=end].iter().filter(is_code).count())
}

/// Returns all source files.
fn sources() -> Vec<PathBuf> {
    files(workspace()).into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect()
}

#[test]
fn module_with_submodules_is_in_their_folder() {
    let sources = sources();
    let folders: BTreeSet<_> = sources.iter().filter_map(|path| path.parent()).collect();
    for path in &sources {
        let folder = path.with_extension("");
        assert!(!folders.contains(&*folder), "{} has submodules: rename it to mod.rs in their folder", path.display());
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut long = String::new();
    for path in sources() {
        let relative = path.strip_prefix(workspace()).unwrap_or(&path).to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a source file");
        let lines = text.lines().count();
        if lines > MAX_FILE_LINES {
            let _ = writeln!(long, "{relative}: {lines} lines; split the file");
        }
        for Function { name, line, length } in functions(&text) {
            let is_table = TABLES.contains(&(relative.as_str(), name));
            if length > MAX_FUNCTION_LINES && !is_table {
                let _ = writeln!(long, "{relative}:{line}: {name} has {length} lines; split it");
            }
            if is_table && length <= MAX_FUNCTION_LINES {
                let _ = writeln!(long, "{relative}:{line}: {name} is short now; remove it from TABLES");
            }
        }
    }
    assert!(long.is_empty(), "\n{long}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
impl Door {
    /// Opens it.
    pub(super) async fn open<T>(
        &self,
    ) -> T
    where
        T: Default,
    {
        // A comment.

        if self.is_locked() {
            T::default()
        }
    }

    fn lock(&self);

    fn is_locked(&self) -> bool { self.locked }
}

fn knock() {
    fn wait() {
        sleep();
    }
}
";

    #[test]
    fn functions_count_without_comments_and_blank_lines() {
        let found: Vec<(&str, usize, usize)> =
            functions(SOURCE).iter().map(|function| (function.name, function.line, function.length)).collect();
        assert_eq!(found, [("open", 4, 10), ("knock", 22, 5), ("wait", 23, 3)]);
    }
}
