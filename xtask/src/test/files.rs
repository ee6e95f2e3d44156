//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders without files of the repository.
const SKIPPED: [&str; 2] = [".git", "target"];

/// Returns all files of a folder and of the folders below it.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    visit(folder, &mut found);
    found
}

fn visit(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        let kind = entry.file_type().expect("a type");
        if kind.is_file() {
            found.push(entry.path());
        } else if kind.is_dir() && !SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
            visit(&entry.path(), found);
        }
    }
}
