//! moto's Python environment: created once in the user's cache, with pinned versions.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};

const REQUIREMENTS: &str = include_str!("../requirements.txt");

/// The environment variable that names the folder of the Python environment, if that is not in the cache.
const FOLDER: &str = "MOTO_TEST_ENVIRONMENT";

/// The oldest Python that moto supports.
const OLDEST: (u32, u32) = (3, 10);

/// Returns the Python with moto; installs moto if it is missing.
pub(crate) fn with_moto() -> Result<PathBuf> {
    let folder = folder()?;
    // pip writes the program last: it exists only in a complete environment.
    let (python, program) = (folder.join("bin/python3"), folder.join("bin/moto_server"));
    if program.is_file() {
        return Ok(python);
    }
    let parent = folder.parent().context("the environment's folder has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("make the folder {}", parent.display()))?;
    let lock = parent.join("lock");
    let lock = File::create(&lock).with_context(|| format!("open {}", lock.display()))?;
    flock(&lock, FlockOperation::LockExclusive).context("wait for another process that installs moto")?;
    if !program.is_file() {
        install(&folder)?;
    }
    Ok(python)
}

/// Returns the folder for this set of versions.
fn folder() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Ok(folder.into());
    }
    let cache = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
        (_, Some(home)) => PathBuf::from(home).join(".cache"),
        _ => bail!("neither XDG_CACHE_HOME nor HOME is set: set {FOLDER} to a folder for moto's environment"),
    };
    let hash = REQUIREMENTS
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    Ok(cache.join("kcm-moto").join(format!("{hash:016x}")))
}

fn install(folder: &Path) -> Result<()> {
    let python = python()?;
    eprintln!("installing moto into {} (only once, takes about a minute)", folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("remove the incomplete environment {}", folder.display()))?;
    }
    run(
        Command::new(python).args(["-m", "venv"]).arg(folder),
        "make a Python environment (is python3-venv installed?)",
    )?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS).with_context(|| format!("write {}", requirements.display()))?;
    let pip = folder.join("bin/pip");
    run(Command::new(pip).args(["install", "--quiet", "--requirement"]).arg(requirements), "install moto with pip")
}

/// Returns a Python that is new enough.
fn python() -> Result<&'static str> {
    let script = "import sys; print(sys.version_info[0], sys.version_info[1])";
    for name in ["python3", "python"] {
        let Ok(output) = Command::new(name).args(["-c", script]).output() else { continue };
        if is_new_enough(&String::from_utf8_lossy(&output.stdout)) {
            return Ok(name);
        }
    }
    let (major, minor) = OLDEST;
    bail!(
        "tests without AWS need Python {major}.{minor} or later with venv, and there is none: install python3 and \
         python3-venv, or set {FOLDER} to an environment that has moto_server"
    )
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split_whitespace().map_while(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version: (u32, u32)| version >= OLDEST)
}

fn run(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot {what}"))?;
    if !output.status.success() {
        bail!("cannot {what}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_must_be_new_enough() {
        for (version, expected) in
            [("3 11\n", true), ("3 10", true), ("3 9", false), ("2 7", false), ("4 0", true), ("", false), ("x", false)]
        {
            assert_eq!(is_new_enough(version), expected, "{version:?}");
        }
    }

    #[test]
    fn versions_are_pinned() {
        let lines = REQUIREMENTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let loose: Vec<&str> = lines.filter(|line| !line.contains("==")).collect();
        assert!(loose.is_empty(), "without a version: {loose:?}");
        assert!(REQUIREMENTS.contains("moto=="));
    }
}
