//! The programs that a cluster is started with: built by cargo, given by path, or upstream's.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use control_plane::assets::{Assets, Program};
use real_cluster::programs::Programs;
use real_cluster::{Setup, images, requirements};

use crate::{cargo, root};

/// The programs of the control plane.
const CONTROL_PLANE: [Program; 4] = [Program::Etcd, Program::KubeApiserver, Program::KubeScheduler, Program::Kubectl];

/// A controller manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manager {
    /// This project's kcm.
    Ours,
    /// Upstream's kube-controller-manager.
    Upstream,
    /// Any program with upstream's flags.
    Path(PathBuf),
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours => f.write_str("ours"),
            Self::Upstream => f.write_str("upstream"),
            Self::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Manager {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "ours" => Self::Ours,
            "upstream" => Self::Upstream,
            path => Self::Path(path.into()),
        })
    }
}

impl Manager {
    /// The path of its program, which is built if it must be.
    pub fn program(&self, release: bool) -> Result<PathBuf> {
        match self {
            Self::Ours => cargo::build("kcm", if release { &["--release"] } else { &[] }),
            Self::Upstream => Assets::of(&[Program::Etcd])?.upstream_manager(),
            Self::Path(path) => path.canonicalize().with_context(|| format!("find the manager {}", path.display())),
        }
    }
}

/// Fails with everything that this machine lacks for a real cluster, and with `more`, before anything is built.
pub fn check_machine(more: Vec<String>) -> Result<()> {
    requirements::check(&Programs::locate()?, more)
}

/// Builds the programs and images of all clusters as a user without root rights, so that root finds them. Fails before
/// with everything that this machine lacks, and with `more`.
pub fn build_as_user(more: Vec<String>) -> Result<Programs> {
    let programs = Programs::locate()?;
    requirements::check_as_user(&programs, more)?;
    programs.build()?;
    images::file(&programs)?;
    Assets::of(&CONTROL_PLANE)?;
    Ok(programs)
}

/// Starts this command again as root with the managers of a setup, of which `manager` may be ours.
pub fn continue_as_root(setup: &Setup, manager: &Manager) -> Result<()> {
    let mut binaries = vec![("ccm", setup.cloud_manager.as_path())];
    if *manager == Manager::Ours {
        binaries.push(("kcm", &setup.manager));
    }
    root::restart(&binaries)
}

/// Builds what is needed of a cluster's programs. Without a path, ccm is built without the SDKs of clouds. The cluster has no
/// volumes unless the caller requests them.
pub fn setup(nodes: u8, manager: &Manager, cloud_manager: Option<&Path>, release: bool) -> Result<Setup> {
    Ok(Setup {
        nodes,
        manager: manager.program(release)?,
        cloud_manager: cloud_program(cloud_manager, release)?,
        inside: std::env::current_exe().context("find this program")?,
        images: Vec::new(),
        has_volumes: false,
    })
}

/// Returns ccm, which is built without the SDKs of clouds unless its path is given.
pub fn cloud_program(given: Option<&Path>, release: bool) -> Result<PathBuf> {
    let profile: &[&str] = if release { &["--release"] } else { &[] };
    match given {
        Some(path) => path.canonicalize().with_context(|| format!("find {}", path.display())),
        None => cargo::build("ccm", &[&["--no-default-features"], profile].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_is_a_word_or_a_path() {
        for (text, manager) in
            [("ours", Manager::Ours), ("upstream", Manager::Upstream), ("./kcm", Manager::Path("./kcm".into()))]
        {
            assert_eq!(text.parse(), Ok(manager));
        }
    }
}
