//! Volumes: a CSI driver whose volumes are folders that all nodes share. Its controller service and the usual sidecars
//! run next to the control plane, its node service on each node.
//!
//! The driver is built from `go/csi`. Its controller service and its node services report requests that would damage
//! the data of a real volume: a second attachment of a single-node volume, a mount of a volume that is not attached, a
//! detachment of a mounted volume, and a deletion of an attached or mounted one.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use control_plane::assets::{Assets, CSI_SIDECARS, csi_sidecars};
use control_plane::csi::{Driver, Service};
use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, ResourceExt, api::ListParams};
use tokio::time::{Instant, sleep};

use crate::node::NodeConfig;
use crate::parts::Parts;

/// The name of the driver, the provisioner of its StorageClass.
pub const DRIVER: &str = "folder.csi.example.com";

const MANIFEST: &str = include_str!("../manifests/volumes.yaml");

/// All inputs of the programs' builds.
const SOURCES: [&str; 11] = [
    include_str!("../go/csi/go.mod"),
    include_str!("../go/csi/go.sum"),
    include_str!("../go/csi/plugin/plugin.go"),
    include_str!("../go/csi/registrar/main.go"),
    include_str!("../go/csi/main.go"),
    include_str!("../go/csi/identity.go"),
    include_str!("../go/csi/volumes.go"),
    include_str!("../go/csi/controller.go"),
    include_str!("../go/csi/node.go"),
    include_str!("../go/kubernetes/hostpathplugin/main.go"),
    include_str!("../go/kubernetes/hostpathplugin/proxy.go"),
];

/// The driver of a cluster.
const CLUSTER: Parts = Parts { sources: &SOURCES, parts: &[(NodeConfig::DRIVER, "csi", ".")] };

/// The programs of upstream's specs.
pub(crate) const SUITE: Parts = Parts {
    sources: &SOURCES,
    parts: &[(REGISTRAR, "csi", "./registrar"), (HOST_PATH, "kubernetes", "./hostpathplugin")],
};

/// The driver of upstream's specs, and the proxy to drivers that run inside the suite.
pub(crate) const HOST_PATH: &str = "hostpathplugin";

/// The sidecar that announces a driver to the kubelet.
pub(crate) const REGISTRAR: &str = "csi-node-driver-registrar";

/// Maximum time until kubelets have registered the driver, on a machine that is busy with other programs.
const REGISTRATION_DEADLINE: Duration = Duration::from_secs(60);

/// Builds the driver and its sidecars, unless they exist. Blocks, for minutes the first time.
///
/// # Errors
/// When Go is missing or fails, or the disk is full.
pub fn build() -> Result<()> {
    csi_sidecars()?;
    CLUSTER.build()
}

/// Returns true if the driver and its sidecars exist.
///
/// # Errors
/// When the environment names no place for them.
pub fn are_built() -> Result<bool> {
    Ok(CLUSTER.are_built()? && Assets::are_built(&CSI_SIDECARS)?)
}

/// The driver of a running cluster.
pub struct Storage {
    driver: Driver,
    folder: PathBuf,
}

impl Storage {
    /// Starts the controller service and the sidecars, and creates the driver's objects. They must be built
    /// ([`build`]).
    ///
    /// # Errors
    /// When a program cannot be started, or the API server refuses an object.
    pub(crate) async fn start(cluster: &ControlPlane) -> Result<Self> {
        let folder = cluster.folder().join("volumes");
        fs::create_dir(&folder).with_context(|| format!("make {}", folder.display()))?;
        let socket = cluster.folder().join("csi-folder.sock");
        let service = Service {
            program: CLUSTER.path(NodeConfig::DRIVER)?,
            arguments: vec![format!("--socket={}", socket.display()), format!("--volumes={}", folder.display())],
            socket,
            actions: folder.join("events.log"),
        };
        let driver = Driver::start_service(cluster, DRIVER, service).await?;
        cluster.kubectl_with_input(&["apply", "--filename=-"], MANIFEST)?;
        Ok(Self { driver, folder })
    }

    /// Returns the driver, with its actions on all nodes.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Returns the names of all volumes in the driver.
    ///
    /// # Errors
    /// When its folder cannot be read.
    pub fn volumes(&self) -> Result<BTreeSet<String>> {
        let entries = fs::read_dir(&self.folder).context("read the folder of volumes")?;
        let mut volumes = BTreeSet::new();
        for entry in entries {
            let entry = entry.context("read the folder of volumes")?;
            if entry.path().is_dir() {
                volumes.insert(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(volumes)
    }

    /// Returns the folder of volumes.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies the driver into a node's folder.
    pub(crate) fn copy_driver(&self, node: &Path) -> Result<()> {
        let from = CLUSTER.path(NodeConfig::DRIVER)?;
        fs::copy(&from, node.join(NodeConfig::DRIVER)).with_context(|| format!("copy {}", from.display())).map(drop)
    }

    /// Waits until the kubelets of all nodes have registered the driver.
    pub(crate) async fn wait_for_nodes(&self, cluster: &ControlPlane, nodes: u8) -> Result<()> {
        let api: Api<CSINode> = Api::all(cluster.client(Identity::Admin).await?);
        let deadline = Instant::now() + REGISTRATION_DEADLINE;
        loop {
            cluster.check()?;
            let list = api.list(&ListParams::default()).await.context("list CSINodes")?;
            let registered = list.iter().filter(|node| is_registered(node)).map(ResourceExt::name_any);
            let registered: Vec<String> = registered.collect();
            if registered.len() == usize::from(nodes) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("after {} s, only {registered:?} have the CSI driver", REGISTRATION_DEADLINE.as_secs());
            }
            sleep(Duration::from_millis(100)).await;
        }
    }
}

fn is_registered(node: &CSINode) -> bool {
    node.spec.drivers.iter().any(|driver| driver.name == DRIVER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifest_and_program_have_the_name_of_the_driver() {
        assert_eq!(MANIFEST.matches(DRIVER).count(), 2);
        assert!(SOURCES.iter().any(|source| source.contains(&format!("driverName = \"{DRIVER}\""))));
    }
}
