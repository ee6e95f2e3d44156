//! The Debian base of most images, created once by debootstrap from this machine's own package mirror.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command;
use crate::programs::Programs;

const RELEASE: &str = "bookworm";

/// The folder of the base, in the folder of programs.
pub(super) const FOLDER: &str = "debian";

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

/// Returns the layer of the base, whose folder is kept.
pub(super) fn make(programs: &Programs) -> Result<Vec<u8>> {
    let tree = programs.path(FOLDER);
    if !tree.exists() {
        let unfinished = programs.path("debian.unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        eprintln!("cluster: creating the base of test images with debootstrap (once; some minutes)");
        let include = format!("--include={PACKAGES}");
        let target = unfinished.display().to_string();
        command::run("debootstrap", &["--variant=minbase", &include, RELEASE, &target, &mirror()?])
            .context("create the base of test images")?;
        fs::rename(&unfinished, &tree).context("complete the base of test images")?;
    }
    let mut tar = Command::new("tar");
    tar.args(["--create", "--file=-", "--sort=name", "--mtime=@0", "--numeric-owner"]);
    tar.arg(format!("--directory={}", tree.display()));
    let output = tar.args(EXCLUDED.map(|path| format!("--exclude={path}"))).arg(".").output().context("run tar")?;
    ensure!(output.status.success(), "tar: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// Returns the package mirror that this machine uses.
fn mirror() -> Result<String> {
    let mirrors = command::run("apt-get", &["indextargets", "--format", "$(REPO_URI)"])
        .context("find a Debian mirror; the test images can be created on Debian only")?;
    mirrors.lines().next().map(String::from).context("this machine has no Debian mirror in its apt sources")
}
