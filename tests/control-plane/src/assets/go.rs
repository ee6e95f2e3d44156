//! Builds a program with Go: under a lock, in a separate folder, from which it is renamed into the cache, so that files
//! in the cache are always complete.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::statvfs;

use crate::file_lock::FileLock;
use crate::last_lines::last_lines;

/// The linker's flags of every program of Kubernetes. They set the version: without one, the scheduler and kwok refuse
/// the API server.
pub const LINKER_FLAGS: &str = "-s -w \
    -X k8s.io/component-base/version.gitVersion=v1.37.0 \
    -X k8s.io/component-base/version.gitMajor=1 \
    -X k8s.io/component-base/version.gitMinor=37 \
    -X k8s.io/component-base/version.gitTreeState=clean \
    -X k8s.io/component-base/version.gitCommit=0000000000000000000000000000000000000000 \
    -X k8s.io/component-base/version.buildDate=2026-08-26T00:00:00Z";

/// Bytes that must be free before the build of a program with Kubernetes' libraries. Several builds need more:
/// commands that build several programs check the total before the first of them.
pub const LARGE_BUILD_BYTES: u64 = 1 << 30;

/// Bytes that must be free before the build of any other program.
pub const SMALL_BUILD_BYTES: u64 = 300 << 20;

/// The oldest version of Go that builds the programs: its first two numbers.
const MIN_GO_VERSION: (u32, u32) = (1, 26);

const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// One call of Go, and the file that it creates.
#[derive(Clone, Debug)]
pub struct Recipe<'a> {
    /// Its name in progress and errors.
    pub title: &'a str,
    /// The file that Go creates.
    pub binary: &'a str,
    /// The names that the binary has in the cache, besides its own.
    pub links: &'a [&'a str],
    /// The folder of the Go module that the program is built from.
    pub module: PathBuf,
    /// The arguments of Go, which leave the binary in [`folder`].
    pub arguments: Vec<String>,
    /// The build needs a C compiler.
    pub cgo: bool,
    /// Free bytes that its build needs: [`LARGE_BUILD_BYTES`] or [`SMALL_BUILD_BYTES`].
    pub space: u64,
}

/// Returns the version of programs in the cache: a hash (FNV-1a) of all inputs of their build and of the platform.
pub fn version(sources: &[&str]) -> String {
    let platform = [std::env::consts::OS, std::env::consts::ARCH];
    let bytes = sources.iter().chain(&platform).flat_map(|text| text.bytes().chain([0]));
    let hash = bytes
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

/// Returns the folder of a running build. The build removes it if it succeeds; otherwise the next build does.
pub fn folder(cache: &Path) -> PathBuf {
    cache.join("building")
}

/// Builds a program into the cache, unless another process has just done so.
///
/// # Errors
/// If Go is missing or too old, or the disk has too little space: then the error contains the fix. If Go fails: then it
/// contains the end of Go's output.
pub fn build(recipe: &Recipe, cache: &Path) -> Result<()> {
    fs::create_dir_all(cache).with_context(|| format!("make the folder {}", cache.display()))?;
    let _lock = lock(&cache.join("lock"))?;
    if cache.join(recipe.binary).is_file() {
        return link(recipe, cache);
    }
    if let Some(obstacle) = obstacle(&recipe.module) {
        bail!("{} cannot be built: {obstacle}", recipe.title);
    }
    for folder_on_disk in [cache.to_owned()].into_iter().chain(caches()?) {
        if let Some(shortage) = shortage(recipe, &folder_on_disk, free_space(&folder_on_disk)?) {
            bail!(shortage);
        }
    }
    let folder = folder(cache);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}, left by a build", folder.display()))?;
    }
    fs::create_dir(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
    run_go(recipe, &folder)?;
    fs::rename(folder.join(recipe.binary), cache.join(recipe.binary))
        .with_context(|| format!("move {} into {}", recipe.binary, cache.display()))?;
    fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    link(recipe, cache)
}

fn link(recipe: &Recipe, cache: &Path) -> Result<()> {
    for name in recipe.links {
        match symlink(recipe.binary, cache.join(name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("link {name} in {}", cache.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Acquires a lock that is released when it is dropped, even if the process is killed. Blocks while another process has
/// it.
///
/// # Errors
/// When the file cannot be made, locked, or given to the owner of its folder.
pub fn lock(path: &Path) -> Result<FileLock> {
    let open = || File::create(path).with_context(|| format!("open {}", path.display()));
    let locked = || format!("lock {}", path.display());
    let lock = match FileLock::try_lock(open()?).with_context(locked)? {
        Some(lock) => lock,
        None => {
            eprintln!("control-plane: another process builds the programs; waiting for it");
            FileLock::lock(open()?).with_context(locked)?
        }
    };
    give_to_owner(path)?;
    Ok(lock)
}

/// Gives a file that root has made in a user's cache to the owner of its folder, who needs it without root rights
/// later.
///
/// # Errors
/// When the kernel refuses.
pub fn give_to_owner(path: &Path) -> Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    let owner = fs::metadata(folder).with_context(|| format!("read the owner of {}", folder.display()))?;
    if !rustix::process::geteuid().is_root() || owner.uid() == 0 {
        return Ok(());
    }
    lchown(path, Some(owner.uid()), Some(owner.gid()))
        .with_context(|| format!("give {} to the owner of its folder", path.display()))
}

/// Returns the reason why this machine's Go cannot build a module, or `None`.
///
/// Go may switch to the toolchain that the module names. It chooses the toolchain in the module's folder.
pub fn obstacle(module: &Path) -> Option<String> {
    let advice = format!("install Go {}.{} or later: https://go.dev/dl", MIN_GO_VERSION.0, MIN_GO_VERSION.1);
    let output = match Command::new("go").args(["env", "GOVERSION"]).current_dir(module).output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(format!("Go is not installed: {advice}")),
        Err(error) => return Some(format!("Go cannot be started ({error}): {advice}")),
    };
    let error_output = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Some(format!("Go fails ({}): {advice}", error_output.trim()));
    }
    let version = String::from_utf8_lossy(&output.stdout);
    (!is_new_enough(version.trim())).then(|| format!("Go is {}: {advice}", version.trim()))
}

/// Returns true if a version such as `go1.26.3` or `go1.27rc1` can build the programs. A version in another format
/// counts as new enough.
fn is_new_enough(version: &str) -> bool {
    let Some(numbers) = version.strip_prefix("go") else { return true };
    let leading = |text: &str| -> Option<u32> {
        let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let mut numbers = numbers.split('.').map(leading);
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= MIN_GO_VERSION,
        _ => true,
    }
}

/// Returns the folders of Go's build cache and of downloaded modules, or their nearest existing parents.
///
/// # Errors
/// When Go cannot be started or does not return the folders.
pub fn caches() -> Result<[PathBuf; 2]> {
    let output = Command::new("go").args(["env", "GOCACHE", "GOMODCACHE"]).output().context("run go env")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines().map(|line| {
        let path = Path::new(line.trim());
        path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
    });
    let mut next = || lines.next().context("go env returned no folders");
    Ok([next()?, next()?])
}

/// Returns a sentence if a disk has too little space for a build.
fn shortage(recipe: &Recipe, folder_on_disk: &Path, free: u64) -> Option<String> {
    (free < recipe.space).then(|| {
        format!(
            "building {} needs {} MiB of free disk space, and {} has {}: free some, or set KCM_TEST_ASSETS, GOCACHE and \
             GOMODCACHE to another disk",
            recipe.title,
            recipe.space >> 20,
            folder_on_disk.display(),
            free >> 20,
        )
    })
}

fn free_space(folder_on_disk: &Path) -> Result<u64> {
    let disk =
        statvfs(folder_on_disk).with_context(|| format!("read the free disk space of {}", folder_on_disk.display()))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Runs Go and waits for it; prints the elapsed time every few seconds.
fn run_go(recipe: &Recipe, folder: &Path) -> Result<()> {
    let log = folder.join("go.log");
    let output = File::create(&log).with_context(|| format!("open {}", log.display()))?;
    let mut go = Command::new("go")
        .args(&recipe.arguments)
        .current_dir(&recipe.module)
        .env("CGO_ENABLED", if recipe.cgo { "1" } else { "0" })
        .env("GOFLAGS", "-mod=readonly")
        .env("GOBIN", folder)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .context("run go")?;
    let title = recipe.title;
    eprintln!("control-plane: building {title} with Go (once; the first build takes about ten minutes)");
    let start = Instant::now();
    let mut reported = start;
    let status = loop {
        if let Some(status) = go.try_wait().context("wait for go")? {
            break status;
        }
        if reported.elapsed() >= PROGRESS_INTERVAL {
            reported = Instant::now();
            eprintln!("control-plane: building {title}: {} s", start.elapsed().as_secs());
        }
        sleep(Duration::from_millis(100));
    };
    if !status.success() {
        bail!("go could not build {title} ({status}); its last lines:\n{}", last_lines(&log));
    }
    eprintln!("control-plane: built {title} in {} s", start.elapsed().as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_excludes_others_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let is_free = || FileLock::try_lock(File::create(&path).unwrap()).unwrap().is_some();
        let first = lock(&path).unwrap();
        assert!(!is_free());
        drop(first);
        assert!(is_free());
    }

    #[test]
    fn version_of_go_is_compared_by_its_first_two_numbers() {
        for (version, expected) in [
            ("go1.26", true),
            ("go1.26.8", true),
            ("go1.27rc1", true),
            ("go1.26.3-X:nodwarf5", true),
            ("go2.0", true),
            ("devel go1.28-abcdef", true),
            ("go1.25.9", false),
            ("go1.9", false),
            ("go1.19", false),
        ] {
            assert_eq!(is_new_enough(version), expected, "{version}");
        }
    }

    #[test]
    fn file_of_root_belongs_to_the_owner_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        // Only root can give files away; other users have made both.
        if rustix::process::geteuid().is_root() {
            lchown(folder.path(), Some(1234), Some(1235)).unwrap();
        }
        give_to_owner(&file).unwrap();
        let (file, folder) = (fs::metadata(&file).unwrap(), fs::metadata(folder.path()).unwrap());
        assert_eq!((file.uid(), file.gid()), (folder.uid(), folder.gid()));
    }

    fn recipe() -> Recipe<'static> {
        Recipe {
            title: "kube",
            binary: "kube",
            links: &["kube-apiserver", "kubectl"],
            module: PathBuf::new(),
            arguments: Vec::new(),
            cgo: false,
            space: LARGE_BUILD_BYTES,
        }
    }

    #[test]
    fn second_program_is_built_in_the_space_that_the_first_left() {
        // The command has checked 6 GiB, and the first program took some of it.
        assert_eq!(shortage(&recipe(), Path::new("/cache"), 5 << 30), None);
        let text = shortage(&recipe(), Path::new("/cache"), 900 << 20).unwrap();
        assert!(text.starts_with("building kube needs 1024 MiB of free disk space, and /cache has 900"), "{text}");
    }

    #[test]
    fn linking_again_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kube"), "program").unwrap();
        let recipe = recipe();
        for _ in 0..2 {
            link(&recipe, folder.path()).unwrap();
        }
        assert_eq!(fs::read_to_string(folder.path().join("kubectl")).unwrap(), "program");
    }
}
