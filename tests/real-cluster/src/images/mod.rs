//! The images that every cluster has, built from the programs: no registry outside the machine is needed.

mod cached;
mod layout;
pub mod registry;
pub mod suite;

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::programs::Programs;
use layout::{Layout, Start, program_layer};

/// The name of the file in the folder of programs.
pub const FILE: &str = "images.tar";

/// The image that holds a pod's namespaces.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10.2";

/// An HTTP server for tests: upstream's agnhost, without the tools of its usual image.
pub const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";

/// The same server under another name, so that a Deployment can be updated.
pub const AGNHOST_OLD: &str = "registry.k8s.io/e2e-test-images/agnhost:2.55";

const COREDNS: &str = "registry.k8s.io/coredns/coredns:v1.15.0";

/// Returns the tar file with the images, which is built from the programs if it does not exist.
///
/// # Errors
/// When a program cannot be read, or the file cannot be written.
pub fn file(programs: &Programs) -> Result<PathBuf> {
    cached::file(programs, FILE, |path| write(programs, path))
}

fn write(programs: &Programs, path: &Path) -> Result<()> {
    let mut layout = Layout::create(path)?;
    let pause = layout.layer(&program_layer("/pause", &programs.path("pause"))?)?;
    layout.image(&[PAUSE], &[pause], &Start { entrypoint: &["/pause"], user: "65535:65535", ..Start::default() })?;
    let coredns = layout.layer(&program_layer("/coredns", &programs.path("coredns"))?)?;
    layout.image(&[COREDNS], &[coredns], &Start { entrypoint: &["/coredns"], ..Start::default() })?;
    let agnhost = layout.layer(&program_layer("/agnhost", &programs.path("agnhost"))?)?;
    let start = Start { entrypoint: &["/agnhost"], command: &["pause"], ..Start::default() };
    layout.image(&[AGNHOST, AGNHOST_OLD], &[agnhost], &start)?;
    layout.finish()
}
