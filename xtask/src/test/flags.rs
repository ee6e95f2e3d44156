//! Checks that code reads every flag that its table declares as effective, and no other flag, because the log reports
//! the others as without effect.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders with tables and readers of flags.
const FOLDERS: [&str; 5] = ["component/src", "runtime/src", "kcm/src", "ccm/src", "providers"];

/// The file that copies values into fields; a flag that is read only there counts if its field is read elsewhere.
const COPIES: &str = "component/src/flags/mod.rs";

/// Files that only validate values.
const CHECKS: [&str; 2] = ["rules.rs", "validate.rs"];

/// Flags that need no reader, because with each valid value the process behaves as upstream does. The only valid lock
/// is a Lease; and Go sets SO_REUSEADDR on each listening socket, so `permit-address-sharing` changes nothing in
/// upstream.
const WITHOUT_READER: [&str; 2] = ["leader-elect-resource-lock", "permit-address-sharing"];

/// The prefix that the autoscaler adds to the names of its flags when it reads them.
const ADDED_PREFIX: &str = "horizontal-pod-autoscaler-";

/// A source file without its tests.
struct Source {
    path: PathBuf,
    text: String,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn collect(folder: &Path, found: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if name == "tests" || name == "target" {
            continue;
        }
        if entry.is_dir() {
            collect(&entry, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&entry).expect("a source file");
            let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
            found.push(Source { path: entry, text });
        }
    }
}

/// Returns the name of the flag that a line of a table declares with this effect.
fn declared<'a>(line: &'a str, effect: &str) -> Option<&'a str> {
    let (name, rest) = line.trim_start().strip_prefix('"')?.split_once("\": ")?;
    rest.contains(&format!(", {effect}, \"")).then_some(name)
}

fn is_declaration(line: &str) -> bool {
    ["Effective", "NoEffect"].iter().any(|effect| declared(line, effect).is_some())
}

/// Returns the field that a line such as `master: text("master"),` fills.
fn field_of(line: &str) -> Option<&str> {
    let (field, _) = line.trim_start().split_once(": ")?;
    field.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(field)
}

/// Returns true if a flag is read where its value can matter.
fn is_read(name: &str, sources: &[Source]) -> bool {
    let literals = [name, name.strip_prefix(ADDED_PREFIX).unwrap_or(name)].map(|name| format!("\"{name}\""));
    let mentioned = |line: &str| literals.iter().any(|literal| line.contains(literal));
    let mentions = |source: &Source| -> Vec<String> {
        let lines = source.text.lines().filter(|line| mentioned(line) && !is_declaration(line));
        lines.filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned).collect()
    };
    let (copies, others): (Vec<&Source>, Vec<&Source>) =
        sources.iter().partition(|source| source.path.ends_with(COPIES));
    let is_check = |source: &Source| CHECKS.iter().any(|check| source.path.ends_with(check));
    if others.iter().any(|source| !is_check(source) && !mentions(source).is_empty()) {
        return true;
    }
    let copied: Vec<String> = copies.iter().flat_map(|source| mentions(source)).collect();
    copied.iter().any(|line| {
        let Some(field) = field_of(line) else { return true };
        let read = format!(".{field}");
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
        let reads =
            |source: &&Source| source.text.match_indices(&read).any(|(at, _)| ends(&source.text[at + read.len()..]));
        others.iter().any(reads)
    })
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    FOLDERS.iter().for_each(|folder| collect(&workspace().join(folder), &mut sources));
    sources
}

fn flags<'a>(sources: &'a [Source], effect: &str) -> BTreeSet<&'a str> {
    sources.iter().flat_map(|source| source.text.lines().filter_map(|line| declared(line, effect))).collect()
}

#[test]
fn effective_flag_is_read_by_code() {
    let sources = sources();
    let flags = flags(&sources, "Effective");
    assert!(flags.len() > 80, "only {} flags were found", flags.len());
    let unread: Vec<&&str> =
        flags.iter().filter(|name| !WITHOUT_READER.contains(*name) && !is_read(name, &sources)).collect();
    assert!(unread.is_empty(), "declared effective and read nowhere: {unread:?}");
}

#[test]
fn flag_without_effect_is_read_nowhere() {
    let sources = sources();
    // ccm has effects for some flags that kcm only accepts.
    let effective = flags(&sources, "Effective");
    let flags = flags(&sources, "NoEffect");
    assert!(flags.len() > 10, "only {} flags were found", flags.len());
    let read: Vec<&&str> = flags.difference(&effective).filter(|name| is_read(name, &sources)).collect();
    assert!(read.is_empty(), "declared without effect, but read: {read:?}");
}

#[test]
fn flag_counts_as_read_only_where_its_value_matters() {
    let table = "        \"a-flag\": Bool = \"false\", Effective, \"Does\";\n        \"idle\": Bool = \"false\", NoEffect, \"Does\";";
    assert_eq!(table.lines().filter_map(|line| declared(line, "Effective")).collect::<Vec<_>>(), ["a-flag"]);
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.to_owned() };
    let copy = || source(COPIES, "            a_flag: values.get_bool(\"a-flag\"),");
    for (sources, read) in [
        (vec![source("t.rs", table)], false),
        (vec![source("t.rs", table), copy()], false),
        (vec![copy(), source("u.rs", "if options.a_flags {}")], false),
        (vec![copy(), source("u.rs", "if options.a_flag {}")], true),
        (vec![source("validate.rs", "values.get_bool(\"a-flag\")")], false),
        (vec![source("u.rs", "// \"a-flag\" is ignored")], false),
        (vec![source("u.rs", "values.get_bool(\"a-flag\")")], true),
    ] {
        let text: Vec<&str> = sources.iter().map(|source| &*source.text).collect();
        assert_eq!(is_read("a-flag", &sources), read, "{text:?}");
    }
}
