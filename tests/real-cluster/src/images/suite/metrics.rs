//! Images of metrics-server, and of upstream's resource consumer with a replacement for the Debian program `stress`.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::super::layout::{Entry, Layout, Start, layer, program_layer};
use super::{E2E, busybox, cached, read};
use crate::metrics::{CONSUME_CPU, CONSUMER, PARTS, SERVER, STRESS};
use crate::programs::Programs;

/// The name of the file in the folder of programs. A change of its content needs another name.
pub const FILE: &str = "metrics-1.tar";

/// Returns the file with the images, which is created if it does not exist. The programs must be built.
///
/// # Errors
/// If a program cannot be read, or the file cannot be written.
pub fn file(programs: &Programs) -> Result<PathBuf> {
    cached::file(programs, FILE, write)
}

fn write(path: &Path) -> Result<()> {
    let mut layout = Layout::create(path)?;
    let server = layout.layer(&program_layer("/metrics-server", &PARTS.path(SERVER)?)?)?;
    let start = Start { entrypoint: &["/metrics-server"], ..Start::default() };
    layout.image(&["registry.k8s.io/metrics-server/metrics-server:v0.8.0"], &[server], &start)?;

    let shell = layout.layer(&busybox::root()?)?;
    let consumer = layout.layer(&layer(&[
        Entry::File("consumer".into(), 0o755, read(&PARTS.path(CONSUMER)?)?),
        Entry::Folder("consume-cpu".into(), 0o755),
        Entry::File("consume-cpu/consume-cpu".into(), 0o755, read(&PARTS.path(CONSUME_CPU)?)?),
        Entry::File("usr/bin/stress".into(), 0o755, read(&PARTS.path(STRESS)?)?),
    ])?)?;
    let start = Start { entrypoint: &["/consumer"], ..Start::default() };
    layout.image(&[&format!("{E2E}/resource-consumer:1.14")], &[shell, consumer], &start)?;
    layout.finish()
}
