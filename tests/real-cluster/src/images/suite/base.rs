//! The Debian base of most images, created once by debootstrap from this machine's Debian mirror or the public one.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use control_plane::FileLock;

use super::super::cached::LOCK;
use super::enclosed;
use crate::bed::remove_folder;
use crate::command;
use crate::programs::Programs;

const RELEASE: &str = "bookworm";

/// The mirror for machines with another distribution.
const PUBLIC_MIRROR: &str = "http://deb.debian.org/debian";

/// The folder of the base, in the folder of programs. It belongs to root, and is removed when the images exist.
const FOLDER: &str = "debian.unfinished";

/// Programs that specs run in pods.
const PACKAGES: &str = "bash,curl,bind9-dnsutils,netcat-openbsd,iproute2,iputils-ping,procps,socat,wget,nginx-light,\
    ca-certificates,iperf,libseccomp2";

/// Files that no spec needs.
const EXCLUDED: [&str; 8] = [
    "./proc/*",
    "./sys/*",
    "./dev/*",
    "./run/*",
    "./usr/share/doc/*",
    "./usr/share/locale/*",
    "./var/cache/*",
    "./var/lib/apt/lists/*",
];

/// Creates the base, calls `with` with its folder and the content of its layer, and removes the folder.
pub(super) fn create(programs: &Programs, with: impl FnOnce(&Path, &[u8]) -> Result<()>) -> Result<()> {
    let tree = programs.path(FOLDER);
    remove(&tree)?;
    let result = install(&tree).and_then(|()| pack(&tree)).and_then(|layer| with(&tree, &layer));
    result.and(remove(&tree))
}

fn install(tree: &Path) -> Result<()> {
    let mirror = mirror();
    eprintln!("cluster: creating the base of test images with debootstrap from {mirror} (once; some minutes)");
    // `command::run` is not used, because it removes the proxies from the environment, which debootstrap may need.
    let variant = ["--variant=minbase", &format!("--include={PACKAGES}"), RELEASE].map(OsString::from);
    let arguments = variant.into_iter().chain([tree.into(), mirror.as_str().into()]);
    let output = enclosed::output("debootstrap", arguments, tree)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last: Vec<&str> = text.lines().rev().take(5).collect();
    ensure!(
        output.status.success(),
        "debootstrap from {mirror} ({}): {} {}",
        output.status,
        last.into_iter().rev().collect::<Vec<_>>().join("; "),
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    Ok(())
}

fn pack(tree: &Path) -> Result<Vec<u8>> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--file=-", "--sort=name", "--mtime=@0", "--numeric-owner"]);
    tar.arg(format!("--directory={}", tree.display()));
    let output = tar.args(EXCLUDED.map(|path| format!("--exclude={path}"))).arg(".").output().context("run tar")?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// Removes the tree of a process that was killed, unless another process is creating one.
pub(super) fn remove_unfinished(programs: &Programs) {
    let tree = programs.path(FOLDER);
    let lock = File::open(programs.path(LOCK)).and_then(FileLock::try_lock);
    if tree.exists()
        && let Ok(Some(_lock)) = lock
    {
        let _ = remove_folder(&tree);
    }
}

/// Removes the tree. The last process of a previous attempt may be removing it concurrently.
fn remove(tree: &Path) -> Result<()> {
    if tree.exists() { remove_folder(tree) } else { Ok(()) }
}

/// Returns the Debian mirror that this machine uses, or the public one.
fn mirror() -> String {
    let targets = command::run("apt-get", &["indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)"]);
    targets.ok().and_then(|targets| debian_mirror(&targets)).unwrap_or_else(|| PUBLIC_MIRROR.to_owned())
}

/// Returns the first mirror of Debian's main archive in a list with origin, label and URL. Other archives, such as
/// those of security updates, other distributions and vendors, do not have the packages.
fn debian_mirror(targets: &str) -> Option<String> {
    let mut mirrors = targets.lines().filter_map(|line| line.strip_prefix("Debian|Debian|"));
    mirrors.find(|url| url.starts_with("http")).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_is_removed_when_no_process_creates_it() {
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs { folder: folder.path().to_owned() };
        let tree = programs.path(FOLDER);
        std::fs::create_dir_all(tree.join("usr")).unwrap();
        let lock = FileLock::try_lock(File::create(programs.path(LOCK)).unwrap()).unwrap().unwrap();
        remove_unfinished(&programs);
        assert!(tree.exists());
        drop(lock);
        remove_unfinished(&programs);
        assert!(!tree.exists());
        remove_unfinished(&programs);
    }

    #[test]
    fn mirror_is_that_of_debians_main_archive() {
        for (name, targets, expected) in [
            (
                "Debian with vendors",
                "Docker|Docker CE|https://vendor.invalid/debian/\nDebian|Debian-Security|http://security.invalid/debian-security/\nDebian|Debian|http://mirror.invalid/debian/\n",
                Some("http://mirror.invalid/debian/"),
            ),
            ("Ubuntu", "Ubuntu|Ubuntu|http://mirror.invalid/ubuntu/\n", None),
            ("a local folder", "Debian|Debian|file:/media/disk/\n", None),
            ("nothing", "", None),
        ] {
            assert_eq!(debian_mirror(targets).as_deref(), expected, "{name}");
        }
    }
}
