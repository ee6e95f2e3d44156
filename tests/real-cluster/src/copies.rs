//! Private copies of the controller managers' programs.
//!
//! A manager runs for hours, and may be started again from the same program. In that time a build can replace the file
//! that it was started from. A cluster therefore starts copies only: the previous program still exists when a new one
//! fails, and a manager that is killed and started again is the same program.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::requirements::is_program;

/// A copy of a controller manager's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagerProgram {
    /// The file that was copied.
    pub original: PathBuf,
    /// The file that is started.
    pub(crate) copy: PathBuf,
}

/// The copies of a cluster.
#[derive(Debug)]
pub(crate) struct Copies {
    folder: PathBuf,
    count: u32,
}

impl Copies {
    /// Keeps copies in a folder, which is created with the first one.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder, count: 0 }
    }

    /// Copies a program as it is now. The copy has the same file name, in a folder of its own: some programs depend on
    /// their names.
    ///
    /// # Errors
    /// When it is not an executable file, or cannot be copied.
    pub(crate) fn add(&mut self, program: &Path) -> Result<ManagerProgram> {
        ensure!(is_program(program), "{} is not an executable file", program.display());
        self.count += 1;
        let folder = self.folder.join(self.count.to_string());
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let copy = folder.join(program.file_name().context("a program without a name")?);
        fs::copy(program, &copy).with_context(|| format!("copy {} to {}", program.display(), copy.display()))?;
        Ok(ManagerProgram { original: program.to_owned(), copy })
    }

    /// Removes a copy that will not be started again.
    pub(crate) fn remove(program: &ManagerProgram) {
        if let Some(folder) = program.copy.parent() {
            // A copy that cannot be removed now is removed with the cluster.
            let _ = fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write_program(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn copy_stays_the_same_when_its_original_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let kcm = folder.path().join("kcm");
        let mut copies = Copies::new(folder.path().join("managers"));
        write_program(&kcm, "works");
        let previous = copies.add(&kcm).unwrap();
        write_program(&kcm, "broken");
        let next = copies.add(&kcm).unwrap();
        assert_eq!(previous.original, next.original);
        assert_eq!(fs::read_to_string(&previous.copy).unwrap(), "works");
        assert_eq!(fs::read_to_string(&next.copy).unwrap(), "broken");
        assert_eq!(previous.copy.file_name(), kcm.file_name());
        assert!(is_program(&previous.copy));

        Copies::remove(&next);
        assert!(previous.copy.exists() && !next.copy.exists());
        assert_ne!(copies.add(&kcm).unwrap().copy, next.copy);
    }

    #[test]
    fn file_that_cannot_be_executed_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notes");
        fs::write(&file, "text").unwrap();
        let mut copies = Copies::new(folder.path().join("managers"));
        for path in [&file, folder.path(), Path::new("/nonexistent/kcm")] {
            assert!(copies.add(path).unwrap_err().to_string().contains("is not an executable file"));
        }
        assert!(!folder.path().join("managers").exists());
    }
}
