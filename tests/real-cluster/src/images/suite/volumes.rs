//! Images of the CSI driver of upstream's specs and its sidecars, and of the proxy to CSI and DRA drivers that run
//! inside the suite.
//!
//! The sidecars are upstream's, except for the registrar. It and the driver have replacements in `go/`, because other
//! Go modules cannot require their releases: the registrar's path lacks `/v2`, and the driver depends on `replace`
//! directives.

use std::path::{Path, PathBuf};

use anyhow::Result;
use control_plane::assets::{Program, csi_sidecars};

use super::super::layout::{Entry, Layout, Start, layer, program_layer};
use super::{busybox, cached, read};
use crate::programs::Programs;
use crate::storage::{self, HOST_PATH, REGISTRAR};

/// The name of the file in the folder of programs. A change of its content needs another name.
pub const FILE: &str = "csi-1.tar";

/// The prefix of the images.
const PREFIX: &str = "registry.k8s.io/sig-storage";

/// Upstream's sidecars, and the versions that its specs name.
const SIDECARS: [(Program, &str); 3] = [
    (Program::CsiProvisioner, "csi-provisioner:v6.3.0"),
    (Program::CsiAttacher, "csi-attacher:v4.12.0"),
    (Program::CsiResizer, "csi-resizer:v2.2.0"),
];

/// Returns the file with the images, which is created if it does not exist. The programs must be built
/// (`storage::SUITE`).
///
/// # Errors
/// If a program cannot be read, or the file cannot be written.
pub fn file(programs: &Programs) -> Result<PathBuf> {
    cached::file(programs, FILE, write)
}

fn write(path: &Path) -> Result<()> {
    let mut layout = Layout::create(path)?;
    let sidecars = csi_sidecars()?;
    for (program, image) in SIDECARS {
        write_program(&mut layout, image, sidecars.path(program)?)?;
    }
    write_program(&mut layout, &format!("{REGISTRAR}:v2.17.0"), &storage::SUITE.path(REGISTRAR)?)?;
    // Specs run commands in its container.
    let shell = layout.layer(&busybox::root()?)?;
    let driver = Entry::File(HOST_PATH.into(), 0o755, read(&storage::SUITE.path(HOST_PATH)?)?);
    let driver = layout.layer(&layer(&[driver])?)?;
    let start = Start { entrypoint: &[&format!("/{HOST_PATH}")], ..Start::default() };
    layout.image(&[&format!("{PREFIX}/{HOST_PATH}:v1.17.1")], &[shell, driver], &start)?;
    layout.finish()
}

/// Writes the image of a program without a shell. The program has the image's name, without its version.
fn write_program(layout: &mut Layout, image: &str, program: &Path) -> Result<()> {
    let (name, _) = image.split_once(':').unwrap_or((image, ""));
    let entrypoint = format!("/{name}");
    let layer = layout.layer(&program_layer(&entrypoint, program)?)?;
    let start = Start { entrypoint: &[&entrypoint], ..Start::default() };
    layout.image(&[&format!("{PREFIX}/{image}")], &[layer], &start)
}
