//! The table of controllers in the docs, generated from a binary's registry and upstream's list.

use std::fmt::Write as _;
use std::path::Path;

use crate::descriptor::Descriptor;
use crate::flags::controllers::{ByDefault, UpstreamController};

/// The environment variable that makes [`check`] write the file.
pub const UPDATE: &str = "UPDATE_DOCS";

/// Returns the table of a binary's controllers, in Markdown.
///
/// # Panics
/// When the registry lacks a controller of `upstream`.
pub fn table<C>(upstream: &[UpstreamController], registry: &[Descriptor<C>]) -> String {
    let mut table =
        String::from("| controller | alias | by default | state | feature gates |\n| --- | --- | --- | --- | --- |\n");
    for controller in upstream {
        let default = if controller.by_default == ByDefault::On { "on" } else { "off" };
        let is_registered = registry.iter().any(|descriptor| descriptor.name == controller.name);
        assert!(is_registered, "{} is not in the registry", controller.name);
        let (aliases, gates) = (controller.aliases.join(", "), controller.gates.join(", "));
        // Writing to a string cannot fail.
        let _ = writeln!(table, "| {} | {aliases} | {default} | complete | {gates} |", controller.name);
    }
    table
}

/// Compares the section of a file between `<!-- begin: NAME -->` and `<!-- end: NAME -->` with a generated text. If
/// [`UPDATE`] is set, writes the text instead.
///
/// # Errors
/// The file cannot be read or written, it lacks the section, or the section is stale.
pub fn check(file: &Path, section: &str, generated: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file)?;
    let renewed = replaced(&text, section, generated)
        .ok_or_else(|| anyhow::anyhow!("{} has no section {section}", file.display()))?;
    if text == renewed {
        return Ok(());
    }
    if std::env::var_os(UPDATE).is_some() {
        return Ok(std::fs::write(file, renewed)?);
    }
    anyhow::bail!("{}: section {section} is stale; run cargo xtask docs", file.display())
}

/// Returns the text with the section replaced; `None` if it has no such section.
fn replaced(text: &str, section: &str, generated: &str) -> Option<String> {
    let (before, rest) = text.split_once(&format!("<!-- begin: {section} -->\n"))?;
    let (_, after) = rest.split_once(&format!("<!-- end: {section} -->"))?;
    Some(format!("{before}<!-- begin: {section} -->\n{generated}<!-- end: {section} -->{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "head\n<!-- begin: a -->\nold\n<!-- end: a -->\ntail\n";

    #[test]
    fn section_is_replaced_and_the_rest_kept() {
        let renewed = replaced(TEXT, "a", "new\n").expect("has the section");
        assert_eq!(renewed, TEXT.replace("old", "new"));
        assert_eq!(replaced(TEXT, "b", "new\n"), None);
    }

    #[test]
    fn stale_section_is_an_error_that_names_the_command() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("status.md");
        std::fs::write(&file, TEXT).expect("written");
        assert!(check(&file, "a", "old\n").is_ok());
        let stale = check(&file, "a", "new\n").expect_err("stale").to_string();
        assert!(stale.contains("cargo xtask docs"), "{stale}");
    }
}
