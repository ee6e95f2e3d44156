//! The programs that a cluster is started with: built by cargo, given by path, or upstream's.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use control_plane::assets::Assets;
use real_cluster::Setup;
use real_cluster::programs::Programs;
use real_cluster::requirements::{self, Demand};

use crate::{cargo, root};

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
    /// Returns the path of its program. Ours is built with this profile of cargo, upstream's with Go if it is not
    /// cached.
    pub fn program(&self, profile: &str) -> Result<PathBuf> {
        match self {
            Self::Ours => cargo::build("kcm", &["--profile", profile]),
            Self::Upstream => Assets::of(&[])?.upstream_manager(),
            Self::Path(path) => path.canonicalize().with_context(|| format!("find the manager {}", path.display())),
        }
    }

    /// Returns the reason why a program that the user names cannot be used, or `None`.
    fn obstacle(&self) -> Option<String> {
        match self {
            Self::Path(path) => program_obstacle(path),
            Self::Ours | Self::Upstream => None,
        }
    }
}

/// The clusters of a command, one after the other: their managers and the other choices of the user.
#[derive(Clone, Debug)]
pub struct Order<'a> {
    /// The number of nodes.
    pub nodes: u8,
    /// The controller managers.
    pub managers: &'a [Manager],
    /// ccm, instead of building it.
    pub cloud_manager: Option<&'a Path>,
    /// The profile of cargo with which our managers are built.
    pub profile: &'a str,
    /// The clusters have volumes.
    pub has_volumes: bool,
    /// The clusters run upstream's conformance suite.
    pub has_suite: bool,
    /// The suite uses metrics of pods.
    pub has_metrics: bool,
}

impl Order<'_> {
    /// Returns the contents of the clusters, and the builds that they need.
    pub fn demand(&self) -> Demand {
        let kcm = self.managers.contains(&Manager::Ours).then_some("kcm");
        let ccm = self.cloud_manager.is_none().then_some("ccm");
        let packages: Vec<&str> = kcm.into_iter().chain(ccm).collect();
        Demand {
            nodes: self.nodes,
            has_volumes: self.has_volumes,
            has_suite: self.has_suite,
            has_metrics: self.has_metrics,
            has_upstream: self.managers.contains(&Manager::Upstream),
            cargo: cargo::space(&packages, self.profile),
        }
    }

    /// Fails with a list of the requirements that this machine does not meet; otherwise builds the clusters' programs
    /// and images. Without root rights, it first tries the steps that need them with sudo, which may ask for the
    /// password.
    pub fn prepare(&self) -> Result<()> {
        let programs = Programs::locate()?;
        let demand = self.demand();
        let wrong = self.managers.iter().filter_map(Manager::obstacle);
        let wrong: Vec<String> = wrong.chain(self.cloud_manager.and_then(program_obstacle)).collect();
        if root::is_root() {
            root::warn_of_builds();
            requirements::check(&programs, &demand, wrong)?;
        } else {
            let missing = requirements::missing_for_all(&programs, &demand)?;
            let missing_for_root = match root::obstacle() {
                Some(obstacle) => vec![obstacle],
                None => root::try_out(self.nodes, false).unwrap_or_else(|error| vec![format!("{error:#}")]),
            };
            requirements::fail_with([missing_for_root, missing, wrong].concat())?;
        }
        demand.build(&programs)
    }
}

fn program_obstacle(path: &Path) -> Option<String> {
    (!requirements::is_program(path)).then(|| format!("the program {}: it is not an executable file", path.display()))
}

/// Starts this command again as root with the binaries that were built for a setup: ccm, and kcm if `manager` is ours.
pub fn continue_as_root(setup: &Setup, manager: &Manager) -> Result<()> {
    let mut binaries = vec![("ccm", setup.cloud_manager.as_path())];
    if *manager == Manager::Ours {
        binaries.push(("kcm", &setup.manager));
    }
    root::restart(&binaries)
}

/// Builds the programs of a cluster with the first manager of the order.
pub fn setup(order: &Order) -> Result<Setup> {
    let manager = order.managers.first().context("a cluster without a manager")?;
    Ok(Setup {
        nodes: order.nodes,
        manager: manager.program(order.profile)?,
        cloud_manager: cloud_program(order.cloud_manager, order.profile)?,
        inside: std::env::current_exe().context("find this program")?,
        images: Vec::new(),
        has_volumes: order.has_volumes,
        when_kept: Some(root::give_kept_logs_to_user),
    })
}

/// Returns ccm, which is built without the SDKs of clouds unless its path is given.
pub fn cloud_program(given: Option<&Path>, profile: &str) -> Result<PathBuf> {
    match given {
        Some(path) => path.canonicalize().with_context(|| format!("find {}", path.display())),
        None => cargo::build("ccm", &["--no-default-features", "--profile", profile]),
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

    #[test]
    fn demand_has_the_programs_of_all_managers() {
        let managers = [Manager::Path("/bin/sh".into()), Manager::Upstream];
        let ccm = Path::new("/bin/sh");
        let order = Order {
            nodes: 3,
            managers: &managers,
            cloud_manager: Some(ccm),
            profile: cargo::RELEASE,
            has_volumes: true,
            has_suite: false,
            has_metrics: false,
        };
        let demand = order.demand();
        let expected = Demand { has_upstream: true, ..Demand::of_cluster(3, true) };
        assert_eq!(demand, expected, "nothing is left for cargo");
        let ours = Order { managers: &[Manager::Ours], ..order };
        assert!(!ours.demand().has_upstream && ours.demand().cargo.is_some());
    }

    #[test]
    fn named_program_must_be_executable() {
        assert_eq!(Manager::Path("/bin/sh".into()).obstacle(), None);
        for manager in [concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "/nonexistent/kcm", "/"] {
            assert!(Manager::Path(manager.into()).obstacle().unwrap().contains(manager));
        }
        assert_eq!(Manager::Ours.obstacle(), None);
    }
}
