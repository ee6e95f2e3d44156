//! `cargo xtask docs`: writes the generated parts of the docs.

use anyhow::{Result, bail};

use crate::cargo::cargo;

/// The tests that compare generated sections with the docs.
const SECTIONS: &[&str] =
    &["test", "--no-default-features", "--package", "kcm", "--package", "ccm", "--lib", "status_page"];
/// The test that opens the diagnostics page in a browser.
const SCREENSHOT: &[&str] = &["test", "--package", "cluster-tests", "--test", "cluster", "--", "diagnostics_page"];

/// Write the generated parts of the docs, such as the table of controllers in docs/status.md.
///
/// The unit tests fail when a generated section is stale.
#[derive(clap::Args)]
pub struct Arguments {
    /// Also write docs/images/diagnostics.png, from a real control plane in a headless browser
    #[arg(long)]
    screenshot: bool,
}

/// Runs the tests that compare or show the generated parts, in their writing mode.
pub fn run(arguments: Arguments) -> Result<()> {
    write(SECTIONS)?;
    if arguments.screenshot {
        write(SCREENSHOT)?;
    }
    Ok(())
}

fn write(arguments: &[&str]) -> Result<()> {
    let status = cargo().args(arguments).env("UPDATE_DOCS", "1").status()?;
    if !status.success() {
        bail!("generated parts of the docs could not be written ({status}); the tests above name the reason");
    }
    Ok(())
}
