//! Folders of control planes whose owner, and the shell that cleans up after it (see `processes`), have both ended, as
//! after a reset of the machine.
//!
//! The owner of a folder holds a lock on a file in it, which the kernel releases with the process. Folders that are to
//! be kept have no such file.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::file_lock::FileLock;
use anyhow::{Context, Result};

/// The prefix of the folders' names.
pub(crate) const PREFIX: &str = "control-plane-";

/// The file with the owner's lock.
const LOCK: &str = "owner.lock";

/// Marks a folder for removal after the death of its owner. The owner holds the returned lock while it uses the folder.
pub(crate) fn mark(folder: &Path) -> Result<FileLock> {
    // The file gets its name when it is locked, so that no other process finds it without the lock.
    let unnamed = folder.join("owner.lock.new");
    let file = File::create(&unnamed).with_context(|| format!("make {}", unnamed.display()))?;
    let lock = FileLock::try_lock(file).context("lock a new file")?.context("another process has locked a new file")?;
    fs::rename(&unnamed, folder.join(LOCK)).context("name the lock of a control plane's folder")?;
    Ok(lock)
}

/// Removes this user's control plane folders whose owners are dead from the folder for temporary files. Folders that
/// cannot be removed stay for the next attempt.
pub fn remove_abandoned() {
    remove_abandoned_in(&env::temp_dir());
}

fn remove_abandoned_in(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let folder = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_own(&folder) && is_abandoned(&folder) {
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

/// Returns true if a path is a folder of this user. Any user may create folders and links in the folder for temporary
/// files.
fn is_own(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|data| data.is_dir() && data.uid() == user)
}

fn is_abandoned(folder: &Path) -> bool {
    let file = File::open(folder.join(LOCK));
    file.is_ok_and(|file| matches!(FileLock::try_lock(file), Ok(Some(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_removed_when_no_process_holds_its_lock() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = parent.path().join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let (running, dead) = (make("control-plane-running"), make("control-plane-dead"));
        let (kept, other) = (make("control-plane-kept"), make("other"));
        let _lock = mark(&running).unwrap();
        drop(mark(&dead).unwrap());
        drop(mark(&other).unwrap());
        let link = parent.path().join("control-plane-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        remove_abandoned_in(parent.path());
        assert!(!dead.exists());
        assert!(running.exists() && kept.exists() && other.exists() && link.exists());
    }
}
