//! Calls of cargo from a command that cargo itself has started.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::root;

/// Prefixes of variables that `cargo run` sets about the program's own package. Build scripts that depend on them would
/// be rebuilt whenever cargo is called alternately from here and from a shell.
const PACKAGE_VARIABLES: [&str; 4] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];

/// cargo's profile of quick builds.
pub const DEBUG: &str = "dev";

/// cargo's profile of programs that are measured.
pub const RELEASE: &str = "release";

/// Returns the workspace's folder.
pub fn workspace() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}

/// Returns the running cargo, in the workspace's folder, with the environment of a shell.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(workspace());
    for (name, _) in env::vars_os() {
        if PACKAGE_VARIABLES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// Builds the binary with a package's name, with cargo's progress on standard error; returns the binary's path. `more`
/// are further arguments, such as `--release`, or `--no-default-features` to exclude the SDKs of clouds. A binary that
/// was built before this command was started again as root is not built again.
pub fn build(package: &str, more: &[&str]) -> Result<PathBuf> {
    if let Some(path) = root::built(package) {
        return Ok(path);
    }
    let arguments = ["build", "--package", package, "--bin", package, "--message-format", "json-render-diagnostics"];
    let output = cargo()
        .args(arguments)
        .args(more)
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("run cargo build --package {package}"))?;
    if !output.status.success() {
        bail!("cargo could not build {package} ({}); its messages are above", output.status);
    }
    let messages = String::from_utf8(output.stdout).context("read cargo's messages")?;
    executable(&messages, package).with_context(|| format!("cargo built {package} and did not report its path"))
}

/// Bytes that a build of a manager writes: of a full build, or of an incremental one.
const BUILD_BYTES: u64 = 3 << 30;
const REBUILD_BYTES: u64 = 500 << 20;

/// Returns the folder of builds, and the bytes that a [`build`] of these packages with a profile writes there; `None`
/// if none of them has to be built.
pub fn space(packages: &[&str], profile: &str) -> Option<(PathBuf, u64)> {
    let packages: Vec<&&str> = packages.iter().filter(|package| root::built(package).is_none()).collect();
    // This program is in the folder of a profile in the folder of all builds.
    let folder = env::current_exe().ok()?.parent()?.parent()?.to_owned();
    let of_profile = folder.join(if profile == DEBUG { "debug" } else { profile });
    let are_built = packages.iter().all(|package| of_profile.join(package).is_file());
    (!packages.is_empty()).then_some((folder, if are_built { REBUILD_BYTES } else { BUILD_BYTES }))
}

/// Returns the path of a binary in cargo's messages, one JSON object per line.
pub fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Returns the names of the workspace's packages.
pub fn packages() -> Result<Vec<String>> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed ({}); its messages are above", output.status);
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("read the output of cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    Ok(packages.iter().filter_map(|package| package["name"].as_str().map(String::from)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_is_found_among_other_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"kinds"},"executable":null}
not json
{"reason":"compiler-artifact","target":{"name":"kcm"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"kcm"},"executable":"/target/debug/kcm"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "kcm"), Some(PathBuf::from("/target/debug/kcm")));
        assert_eq!(executable(messages, "ccm"), None);
    }
}
