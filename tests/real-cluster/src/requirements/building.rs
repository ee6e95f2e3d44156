//! The requirements of building the programs of nodes and of the control plane, when some are not built yet.

use std::path::Path;
use std::process::{Command, Stdio};

use control_plane::assets::{Assets, Program, go};

use super::tools;
use crate::programs::Programs;

/// The programs of the control plane.
const CONTROL_PLANE: [Program; 4] = [Program::Etcd, Program::KubeApiserver, Program::KubeScheduler, Program::Kubectl];

/// The tools and libraries for a C program that uses libseccomp.
const C_TOOLS: [(&str, &str); 2] = [("gcc", "gcc libc6-dev"), ("pkg-config", "pkg-config")];

/// Returns what this machine lacks to build programs that do not exist yet.
pub(super) fn missing(programs: &Programs) -> Vec<String> {
    let mut missing = Vec::new();
    if !programs.are_built() || !Assets::are_built(&CONTROL_PLANE).unwrap_or(false) {
        missing.extend(go());
    }
    if programs.need_c() {
        missing.extend(tools(&C_TOOLS));
        missing.extend(seccomp());
    }
    missing
}

/// Returns what is wrong with this machine's Go, or `None`.
pub(super) fn go() -> Option<String> {
    go::obstacle(&Path::new(env!("CARGO_MANIFEST_DIR")).join("go/kubernetes"))
}

fn seccomp() -> Option<String> {
    let found = Command::new("pkg-config").args(["--exists", "libseccomp"]).stderr(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    (!is_there).then(|| "the library libseccomp: install the Debian package libseccomp-dev, or its like".to_owned())
}
