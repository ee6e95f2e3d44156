//! Advisory locks on files, which the kernel releases with the process that holds them.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A lock on an open file, which lasts until this value is dropped, or the process ends.
///
/// Dropping the value unlocks the file explicitly. Closing the file would not be enough: a child process that another
/// thread is starting shares the open file until it executes its program, and would extend the lock until then.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks a file; returns `None` if it is locked already.
    ///
    /// # Errors
    /// When the kernel cannot lock this file.
    pub fn try_lock(file: File) -> io::Result<Option<Self>> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Locks a file. Blocks while it is locked elsewhere.
    ///
    /// # Errors
    /// When the kernel cannot lock this file.
    pub fn lock(file: File) -> io::Result<Self> {
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }

    /// Returns the locked file.
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Unlocking a locked file cannot fail; closing the file unlocks it in any case.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_unlocked_by_drop_while_a_duplicate_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::create(folder.path().join("lock")).unwrap();
        let lock = FileLock::try_lock(open()).unwrap().expect("the file is new");
        // The duplicate shares the open file, as a child process between fork and exec does.
        let _duplicate = lock.file().try_clone().unwrap();
        assert!(FileLock::try_lock(open()).unwrap().is_none());
        drop(lock);
        assert!(FileLock::try_lock(open()).unwrap().is_some());
    }
}
