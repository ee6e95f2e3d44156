//! A file of images in the cache: written once under a lock, so that other processes wait for it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control_plane::assets::go;

use crate::programs::Programs;

/// The lock of everything that is written in the folder of programs.
pub(super) const LOCK: &str = "lock";

/// Returns the path of a file in the folder of programs. If it does not exist, `write` writes it, under another name
/// until it is complete. A killed process leaves at most one unfinished file, which the next attempt overwrites.
///
/// # Errors
/// When it cannot be written.
pub(super) fn file(programs: &Programs, name: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = programs.path(name);
    if path.is_file() {
        return Ok(path);
    }
    let _lock = go::lock(&programs.path(LOCK))?;
    if path.is_file() {
        return Ok(path);
    }
    let unfinished = programs.path(&format!("{name}.unfinished"));
    let written = write(&unfinished).and_then(|()| {
        go::give_to_owner(&unfinished)?;
        fs::rename(&unfinished, &path).with_context(|| format!("move the images to {}", path.display()))
    });
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written.map(|()| path)
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn file_is_written_once_and_failures_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs { folder: folder.path().to_owned() };
        let failed = file(&programs, "images.tar", |path| {
            fs::write(path, "half")?;
            bail!("no space left")
        });
        assert!(failed.is_err());
        let names = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
        assert_eq!(names(), ["lock"]);

        fs::write(folder.path().join("images.tar.unfinished"), "of a process that was killed, longer").unwrap();
        let path = file(&programs, "images.tar", |path| Ok(fs::write(path, "whole")?)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        file(&programs, "images.tar", |_| bail!("it exists")).unwrap();
        assert_eq!(names().len(), 2);
    }
}
