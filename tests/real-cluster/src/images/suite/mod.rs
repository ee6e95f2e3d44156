//! Replacements for the images of upstream's conformance suite: a Debian base, busybox, and upstream's test programs.
//!
//! A spec is one test of the suite. Names and users that specs need are those of the original images.

mod base;
mod busybox;
mod elf;
mod enclosed;
pub mod metrics;
mod servers;
pub mod volumes;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control_plane::assets::{Assets, Program};

use super::cached;
use super::layout::{Entry, Layer, Layout, Start, layer, program_layer};
use crate::programs::Programs;
use crate::requirements;

/// The name of the file in the folder of programs. A change of its content needs another name.
pub const FILE: &str = "conformance-1.tar";

/// The prefix of most images.
const E2E: &str = "registry.k8s.io/e2e-test-images";

/// Programs that the images are created with, and their Debian packages.
const TOOLS: [(&str, &str); 2] = [("debootstrap", "debootstrap"), ("tar", "tar")];

/// Programs that are put into images, and their Debian packages.
const STATIC: [(&str, &str); 2] = [(busybox::BUSYBOX, "busybox-static"), (busybox::BASH, "bash-static")];

/// The keys with which debootstrap verifies packages.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns what this machine lacks to create the images, one sentence each; nothing if they exist already.
pub fn missing(programs: &Programs) -> Vec<String> {
    if programs.path(FILE).is_file() {
        return Vec::new();
    }
    let mut missing = requirements::tools(&TOOLS);
    let dynamic = STATIC.iter().filter(|(path, _)| !fs::read(path).is_ok_and(|program| elf::is_static(&program)));
    missing.extend(dynamic.map(|(path, package)| {
        format!("{path} without shared libraries, for images: install the Debian package {package}, or an equivalent")
    }));
    if !Path::new(KEYS).is_file() {
        missing.push(format!("{KEYS}: install the Debian package debian-archive-keyring, or an equivalent"));
    }
    missing
}

/// Returns the file with the images, which is created if it does not exist. Blocks for some minutes then.
///
/// # Errors
/// If a program is not installed or fails, or a file cannot be read or written.
pub fn file(programs: &Programs) -> Result<PathBuf> {
    cached::file(programs, FILE, |path| {
        base::create(programs, |root, base| {
            let mut layout = Layout::create(path)?;
            let base = layout.layer(base)?;
            busybox::write(&mut layout)?;
            servers::write(&mut layout, programs, root, &base)?;
            write_programs(&mut layout, programs, &base)?;
            write_shells(&mut layout, base)?;
            layout.finish()
        })
    })
}

/// Removes the remains if the creation was killed, or the machine was reset during it. Files that cannot be removed
/// stay for the next attempt.
pub fn remove_unfinished(programs: &Programs) {
    base::remove_unfinished(programs);
}

/// Writes the images that contain a single program.
fn write_programs(layout: &mut Layout, programs: &Programs, base: &Layer) -> Result<()> {
    // The spec of this image tests that the user of a container cannot gain the rights of the program's owner.
    let setuid = Entry::File("usr/local/bin/nnp".into(), 0o6755, read(&programs.path("nonewprivs"))?);
    let setuid = layout.layer(&layer(&[setuid])?)?;
    let start = Start { command: &["nnp"], ..Start::default() };
    layout.image(&[&format!("{E2E}/nonewprivs:1.4")], &[base.clone(), setuid], &start)?;

    let sample = layout.layer(&program_layer("/sample-apiserver", &programs.path("sample-apiserver"))?)?;
    let start = Start { entrypoint: &["/sample-apiserver"], ..Start::default() };
    layout.image(&[&format!("{E2E}/sample-apiserver:1.29.2")], &[sample], &start)?;

    let assets = Assets::of(&[Program::Etcd])?;
    let etcd = layout.layer(&program_layer("/usr/local/bin/etcd", assets.path(Program::Etcd)?)?)?;
    let start = Start { command: &["etcd"], ..Start::default() };
    layout.image(&["registry.k8s.io/etcd:3.7.0-0"], &[etcd], &start)?;

    let path = programs.path("regression-issue-74839");
    let issue = layout.layer(&program_layer("/regression-issue-74839", &path)?)?;
    let start = Start { entrypoint: &["/regression-issue-74839"], ..Start::default() };
    layout.image(&[&format!("{E2E}/regression-issue-74839:1.5")], &[issue], &start)
}

/// Writes the images whose specs need a shell and the base's programs.
fn write_shells(layout: &mut Layout, base: Layer) -> Result<()> {
    let shell = Start { command: &["/bin/sh"], ..Start::default() };
    let layers = [base];
    let user = Start { user: "1234", ..shell.clone() };
    layout.image(&[&format!("{E2E}/nonroot:1.5")], &layers, &user)?;
    let names = ["ipc-utils:1.4", "perl:5.26", "glibc-dns-testing:2.1.1"].map(|name| format!("{E2E}/{name}"));
    layout.image(&names.each_ref().map(String::as_str), &layers, &shell)?;
    layout.image(&["registry.k8s.io/build-image/distroless-iptables:v0.9.6"], &layers, &shell)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {}", path.display()))
}
