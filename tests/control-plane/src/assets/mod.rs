//! The control plane's programs: from `KUBEBUILDER_ASSETS`, the cache, or one build with Go.
//!
//! - `KUBEBUILDER_ASSETS` names a folder with `kube-apiserver`, `etcd` and
//!   `kubectl` of Kubernetes 1.37, in envtest's layout. Missing programs come from
//!   the cache.
//! - The cache is `$KCM_TEST_ASSETS`, else `kcm-control-plane` in the user's
//!   cache folder. It contains one folder for each version of each part, which
//!   is named by a hash of the part's inputs.
//! - The build takes about ten minutes the first time, and happens once: other
//!   processes that need the same programs wait for it.

mod build;
pub mod go;

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use build::Part;

/// A program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The store.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// The scheduler.
    KubeScheduler,
    /// The command line client of the same version.
    Kubectl,
    /// The fake kubelets.
    Kwok,
    /// Upstream's controller manager, for comparisons and takeovers.
    UpstreamManager,
    /// Upstream's cloud controller manager with the mock cloud as its provider, for takeovers.
    UpstreamCloudManager,
    /// Upstream's cloud controller manager for AWS, for comparisons and takeovers.
    UpstreamAwsManager,
    /// The AWS Load Balancer Controller, which may run in the same clusters.
    AwsLoadBalancerController,
    /// Checks and renders Helm's charts: `charts lint <chart> [<values file>...]` and
    /// `charts template <chart> <release> <namespace> [<values file>...]`.
    Charts,
    /// Checks and tests alerts: `rules check <rules file>` and `rules test <rules file> <cases file>`.
    Rules,
    /// A CSI driver for tests that detects double attachments.
    CsiDriver,
    /// The sidecar that creates and deletes volumes.
    CsiProvisioner,
    /// The sidecar that attaches and detaches volumes.
    CsiAttacher,
    /// The sidecar that expands volumes.
    CsiResizer,
}

impl Program {
    /// Returns the name of the program's file.
    pub fn file_name(self) -> &'static str {
        match self {
            Program::Etcd => "etcd",
            Program::KubeApiserver => "kube-apiserver",
            Program::KubeScheduler => "kube-scheduler",
            Program::Kubectl => "kubectl",
            Program::Kwok => "kwok",
            Program::UpstreamManager => "kube-controller-manager",
            Program::UpstreamCloudManager => "cloud-controller-manager",
            Program::UpstreamAwsManager => "aws-cloud-controller-manager",
            Program::AwsLoadBalancerController => "aws-load-balancer-controller",
            Program::Charts => "charts",
            Program::Rules => "rules",
            Program::CsiDriver => "csi-driver",
            Program::CsiProvisioner => "csi-provisioner",
            Program::CsiAttacher => "csi-attacher",
            Program::CsiResizer => "csi-resizer",
        }
    }
}

/// Paths of existing programs.
#[derive(Clone, Debug)]
pub struct Assets {
    paths: BTreeMap<Program, PathBuf>,
}

impl Assets {
    /// Returns API server, scheduler, kubectl, etcd and kwok, built if necessary.
    ///
    /// Blocks, for minutes if it builds; progress is printed to standard error. The error names programs to install, or
    /// space to free.
    pub fn base() -> Result<Self> {
        Self::of(&[Program::Etcd, Program::KubeApiserver, Program::KubeScheduler, Program::Kubectl, Program::Kwok])
    }

    /// Returns only these programs; otherwise like [`Assets::base`].
    pub fn of(programs: &[Program]) -> Result<Self> {
        let given = given(env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from))?;
        let paths = programs
            .iter()
            .map(|program| Ok((*program, locate(*program, given.as_deref(), &cache(Part::of(*program))?)?)));
        Ok(Self { paths: paths.collect::<Result<_>>()? })
    }

    /// Returns true if programs exist, so that [`Assets::of`] builds none.
    ///
    /// # Errors
    /// When the environment names no place for them, or one that is not a folder.
    pub fn are_built(programs: &[Program]) -> Result<bool> {
        let given = given(env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from))?;
        for program in programs {
            let cache = cache(Part::of(*program))?;
            if !given.iter().chain([&cache]).any(|place| place.join(program.file_name()).is_file()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns upstream's kube-controller-manager, which only comparisons and takeovers need.
    ///
    /// Blocks and fails as [`Assets::base`] does.
    pub fn upstream_manager(&self) -> Result<PathBuf> {
        locate(Program::UpstreamManager, None, &cache(Part::Upstream)?)
    }

    /// Returns upstream's cloud-controller-manager, whose provider calls the mock cloud's HTTP API. Only
    /// tests of takeovers need it.
    ///
    /// Blocks and fails as [`Assets::base`] does.
    pub fn upstream_cloud_manager(&self) -> Result<PathBuf> {
        locate(Program::UpstreamCloudManager, None, &cache(Part::Cloud)?)
    }

    /// Returns the program that checks and renders charts, which only tests of charts need.
    ///
    /// Blocks and fails as [`Assets::base`] does.
    pub fn charts(&self) -> Result<PathBuf> {
        locate(Program::Charts, None, &cache(Part::Charts)?)
    }

    /// Returns the program that tests alerts, which only the test of alerts needs.
    ///
    /// Blocks and fails as [`Assets::base`] does.
    pub fn rules(&self) -> Result<PathBuf> {
        locate(Program::Rules, None, &cache(Part::Rules)?)
    }

    /// Returns the path of a program. Fails if it was not requested when these assets were created.
    pub fn path(&self, program: Program) -> Result<&Path> {
        self.paths
            .get(&program)
            .map(PathBuf::as_path)
            .ok_or_else(|| anyhow!("{} is not among these assets: pass it to Assets::of", program.file_name()))
    }
}

/// Returns upstream's cloud controller manager for AWS, which only comparisons, and tests of `ccm` next to it and of
/// takeovers, need.
///
/// Blocks and fails as [`Assets::base`] does.
pub fn upstream_aws_manager() -> Result<PathBuf> {
    locate(Program::UpstreamAwsManager, None, &cache(Part::Aws)?)
}

/// Returns the AWS Load Balancer Controller, which only tests of `ccm` next to it and of takeovers need.
///
/// Blocks and fails as [`Assets::base`] does.
pub fn aws_load_balancer_controller() -> Result<PathBuf> {
    locate(Program::AwsLoadBalancerController, None, &cache(Part::AwsLoadBalancers)?)
}

/// The sidecars that run next to every CSI driver of a cluster.
pub const CSI_SIDECARS: [Program; 3] = [Program::CsiProvisioner, Program::CsiAttacher, Program::CsiResizer];

/// Returns the sidecars of CSI drivers, which only clusters with volumes need.
///
/// Blocks and fails as [`Assets::base`] does.
pub fn csi_sidecars() -> Result<Assets> {
    Assets::of(&CSI_SIDECARS)
}

/// Returns the CSI driver for tests and the sidecars of every CSI driver, which only tests of volumes need.
///
/// Blocks and fails as [`Assets::base`] does.
pub fn csi() -> Result<Assets> {
    Assets::of(&[Program::CsiDriver, Program::CsiProvisioner, Program::CsiAttacher, Program::CsiResizer])
}

/// Returns the folder that the environment names, which must exist if it is named.
fn given(folder: Option<PathBuf>) -> Result<Option<PathBuf>> {
    match folder {
        Some(folder) if folder.as_os_str().is_empty() => Ok(None),
        Some(folder) if folder.is_dir() => Ok(Some(folder)),
        Some(folder) => bail!(
            "KUBEBUILDER_ASSETS is {folder:?}, which is not a folder: correct it, or unset it to build the programs with Go"
        ),
        None => Ok(None),
    }
}

/// Returns the path of the program in the first place that has it; builds it into the cache if no place has it.
fn locate(program: Program, given: Option<&Path>, cache: &Path) -> Result<PathBuf> {
    let name = program.file_name();
    let places = given.into_iter().chain([cache]);
    if let Some(path) = places.map(|place| place.join(name)).find(|path| path.is_file()) {
        return Ok(path);
    }
    build::build(Part::of(program), cache).with_context(|| format!("get {name}"))?;
    Ok(cache.join(name))
}

/// Returns the cache folder of this version of a part.
fn cache(part: Part) -> Result<PathBuf> {
    Ok(cache_root()?.join(build::version(part)))
}

/// Returns the folder of all programs that were built.
///
/// # Errors
/// If the environment names no folder for it.
pub fn cache_root() -> Result<PathBuf> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let root = variable("KCM_TEST_ASSETS")
        .or_else(|| variable("XDG_CACHE_HOME").map(|path| path.join("kcm-control-plane")))
        .or_else(|| variable("HOME").map(|path| path.join(".cache/kcm-control-plane")))
        .context("no place for the control plane's programs: set KCM_TEST_ASSETS to a folder")?;
    std::path::absolute(&root).with_context(|| format!("resolve {}", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_folder_takes_precedence_over_the_cache() {
        let (given, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let put = |folder: &tempfile::TempDir, name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        put(&given, "etcd");
        put(&cache, "etcd");
        put(&cache, "kube-scheduler");
        let found = |program| locate(program, Some(given.path()), cache.path()).unwrap();
        assert_eq!(found(Program::Etcd), given.path().join("etcd"));
        assert_eq!(found(Program::KubeScheduler), cache.path().join("kube-scheduler"));
    }

    #[test]
    fn missing_given_folder_is_an_error() {
        let error = given(Some("/nonexistent/assets".into())).unwrap_err().to_string();
        assert!(error.contains("KUBEBUILDER_ASSETS is \"/nonexistent/assets\""), "{error}");
        assert_eq!(given(Some("".into())).unwrap(), None);
        assert_eq!(given(None).unwrap(), None);
    }

    #[test]
    fn program_that_was_not_requested_is_an_error() {
        let assets = Assets { paths: BTreeMap::new() };
        assert!(assets.path(Program::Kwok).unwrap_err().to_string().contains("kwok is not among"));
    }
}
