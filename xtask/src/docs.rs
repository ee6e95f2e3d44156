//! `cargo xtask docs`: writes the generated sections of the docs.

use anyhow::{Result, bail};

use crate::cargo::cargo;

/// Write the generated sections of the docs, such as the table of controllers in docs/status.md.
///
/// The unit tests fail when such a section is stale.
#[derive(clap::Args)]
pub struct Arguments {}

/// Runs the tests that compare the sections, in their writing mode.
pub fn run(_: Arguments) -> Result<()> {
    let arguments = ["test", "--no-default-features", "--package", "kcm", "--package", "ccm", "--lib", "status_page"];
    let status = cargo().args(arguments).env("UPDATE_DOCS", "1").status()?;
    if !status.success() {
        bail!("the generated sections could not be written ({status}); the tests above say why");
    }
    Ok(())
}
