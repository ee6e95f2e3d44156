//! Cycles of imports between the files of a crate.
//!
//! A folder's `mod.rs` and the crate root do not count: they assemble their parts, which may use their constants.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::Source;

/// Returns the groups of modules that import each other in cycles: their names, in the order of `files`.
pub fn cycles(files: &[Source], heads: &[Source]) -> Vec<Vec<String>> {
    let places = files.iter().enumerate().map(|(at, file)| (&file.module[..], Some(at)));
    let places: BTreeMap<&[String], Option<usize>> =
        places.chain(heads.iter().map(|head| (&head.module[..], None))).collect();
    let file_of = |path: &[String]| (1..=path.len()).rev().find_map(|end| places.get(&path[..end]).copied()).flatten();
    let edges: Vec<BTreeSet<usize>> =
        files.iter().map(|file| file.imports.iter().filter_map(|import| file_of(&import.path)).collect()).collect();
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(|from| reachable(&edges, from)).collect();
    let cycle = |from: usize| -> BTreeSet<usize> {
        reached[from].iter().copied().filter(|to| *to == from || reached[*to].contains(&from)).collect()
    };
    let found: BTreeSet<BTreeSet<usize>> = (0..files.len()).map(cycle).filter(|cycle| cycle.len() > 1).collect();
    let name = |at: usize| files[at].module.join("::");
    found.into_iter().map(|cycle| cycle.into_iter().map(name).collect()).collect()
}

/// Returns the files that imports lead to, in one or more steps.
fn reachable(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        next.extend(edges[file].iter().copied().filter(|to| found.insert(*to)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(module: &str, text: &str) -> Source {
        Source::read(module.split("::").map(str::to_owned).collect(), text)
    }

    #[test]
    fn files_that_import_each_other_are_a_cycle() {
        let sources = [
            source("house::door", "use super::wall::Brick;"),
            source("house::wall", "use crate::house::roof::Tile;"),
            source("house::roof", "use super::door::Lock;"),
            source("house::garden", "use super::door::Lock;"),
        ];
        assert_eq!(cycles(&sources, &[]), [["house::door", "house::wall", "house::roof"]]);
    }

    #[test]
    fn constants_of_the_folder_are_not_a_cycle() {
        let (head, file) = (source("house", "use door::Lock;"), source("house::door", "use super::HEIGHT;"));
        assert!(cycles(&[file], &[head]).is_empty());
    }

    #[test]
    fn imports_of_lower_files_are_not_a_cycle() {
        let sources = [source("house::door", "use super::wall::Brick;"), source("house::wall", "use std::fmt;")];
        assert!(cycles(&sources, &[]).is_empty());
    }
}
