//! Directories of the host that stand in for storage, for tests on a cluster of one node.
//!
//! Upstream: pkg/volume/hostpath.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Component, Path};

/// The parent of the volumes' directories.
const BASE: &str = "/tmp/hostpath_pv";
const TMP: &str = "/tmp/";

/// Returns the directory of the volume for the claim with this uid.
///
/// Differs from upstream, which generates a random name for each attempt: an attempt that is repeated after a crash
/// leaks nothing.
pub fn directory(claim_uid: &str) -> String {
    format!("{BASE}/{claim_uid}")
}

/// Creates a volume's directory; one that exists is kept.
///
/// # Errors
/// An error of the file system.
pub fn create(path: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(path)
}

/// Deletes a volume's directory with everything in it.
///
/// # Errors
/// When the path is not below a directory `/tmp` or contains `..`, or the file system refuses.
pub fn delete(path: &str) -> Result<(), String> {
    if !is_temporary(path) {
        return Err(format!("host_path deleter only supports /tmp/.+ but received provided {path}"));
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| format!("{path}: {error}"))
}

/// Returns true if a path contains a directory `/tmp` at any place, as in upstream's pattern, with something below it,
/// and no `..`.
fn is_temporary(path: &str) -> bool {
    let below = path.find(TMP).is_some_and(|at| at + TMP.len() < path.len());
    below && !Path::new(path).components().any(|part| part == Component::ParentDir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_below_tmp_are_deleted() {
        for (path, expected) in [
            ("/tmp/a", true),
            ("/var/tmp/a", true),
            ("/tmp/", false),
            ("/tmp", false),
            ("/data", false),
            ("", false),
            ("/tmp/../etc", false),
            ("/tmp/a/../../etc", false),
        ] {
            assert_eq!(is_temporary(path), expected, "{path}");
        }
        assert!(delete("/data").expect_err("refused").starts_with("host_path deleter only supports /tmp/.+"));
    }

    #[test]
    fn directory_is_created_once_and_deleted_with_its_content() {
        let path = format!("/tmp/binder-host-path-test-{}", std::process::id());
        create(&path).expect("created");
        fs::write(format!("{path}/file"), "data").expect("written");
        create(&path).expect("kept");
        assert!(fs::exists(format!("{path}/file")).expect("readable"));
        delete(&path).expect("deleted");
        delete(&path).expect("deleting it again is not an error");
        assert!(!fs::exists(&path).expect("readable"));
    }
}
