//! The folder of a report. A command that runs as root for a user writes it, and everything in it is given to the user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control_plane::FileLock;

use crate::root;

/// The subfolder with the programs that were measured.
const PROGRAMS: &str = "programs";

/// A folder that is locked for this process. Dropping this value gives everything in the folder to the user.
#[derive(Debug)]
pub struct ReportFolder {
    path: PathBuf,
    _lock: FileLock,
}

impl ReportFolder {
    /// Creates the folder, and locks it for this process. It belongs to the user from the beginning: whatever ends this
    /// process, the user can remove the files in it.
    pub fn create(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).with_context(|| format!("resolve {}", path.display()))?;
        create(&path)?;
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let lock =
            FileLock::try_lock(file).with_context(|| format!("lock {}", path.display()))?.with_context(|| {
                format!("another run writes its report to {}: choose another folder with --report", path.display())
            })?;
        Ok(Self { path, _lock: lock })
    }

    /// Creates a subfolder.
    pub fn subfolder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        create(&path)?;
        Ok(path)
    }

    /// Writes a file into the folder; returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Copies a program that is going to be measured, so that a build in the meantime does not change it. The copy of
    /// the previous run is replaced. `name` distinguishes programs with the same file name.
    pub fn copy_program(&self, name: &str, program: &Path) -> Result<PathBuf> {
        let folder = self.subfolder(PROGRAMS).and_then(|_| self.subfolder(&format!("{PROGRAMS}/{name}")))?;
        let copy = folder.join(program.file_name().context("a program without a name")?);
        // The previous copy is replaced, not overwritten: it may be running, and it may be `program` itself.
        let next = copy.with_extension("next");
        fs::copy(program, &next)
            .and_then(|_| fs::rename(&next, &copy))
            .with_context(|| format!("copy {} to {}", program.display(), copy.display()))?;
        Ok(copy)
    }
}

impl Drop for ReportFolder {
    fn drop(&mut self) {
        if let Err(error) = root::give_to_user(&self.path) {
            eprintln!("the report belongs to root: {error:#}");
        }
    }
}

/// Creates a folder and its missing parents, and gives those that are new to the user.
fn create(path: &Path) -> Result<()> {
    let mut missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.is_dir()).collect();
    // The folder may remain from a run that was killed before it gave the folder to the user.
    if missing.is_empty() {
        missing.push(path);
    }
    for folder in missing.iter().rev() {
        if !folder.is_dir() {
            fs::create_dir(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        root::give_one_to_user(folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_folder_is_locked_until_it_is_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/report");
        let folder = ReportFolder::create(&path).unwrap();
        assert!(ReportFolder::create(&path).unwrap_err().to_string().contains("another run"));
        assert_eq!(folder.write("report.md", "text").unwrap(), path.join("report.md"));
        assert!(folder.subfolder("ours").unwrap().is_dir());
        drop(folder);
        ReportFolder::create(&path).unwrap();
    }

    #[test]
    fn copied_program_stays_the_same_when_its_original_is_built_again() {
        let parent = tempfile::tempdir().unwrap();
        let folder = ReportFolder::create(&parent.path().join("report")).unwrap();
        let kcm = parent.path().join("kcm");
        fs::write(&kcm, "first").unwrap();
        let copy = folder.copy_program("ours", &kcm).unwrap();
        fs::write(&kcm, "second").unwrap();
        assert_eq!(fs::read_to_string(&copy).unwrap(), "first");
        assert_eq!(folder.copy_program("ours", &kcm).unwrap(), copy);
        assert_eq!(fs::read_to_string(&copy).unwrap(), "second");
    }
}
