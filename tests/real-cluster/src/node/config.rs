//! The configuration of a node: its name, addresses and paths.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The node's own folder, by its path inside the node.
pub const OWN: &str = "/run/bed/node";

/// The folder of programs, by its path inside the node.
pub const PROGRAMS: &str = "/run/bed/programs";

/// The folder of all volumes, by its path inside the node.
pub const VOLUMES: &str = "/run/bed/volumes";

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// The router's address.
    pub gateway: Ipv4Addr,
    /// The cluster's branch of cgroups.
    pub branch: String,
    /// Its folder, with [`NodeConfig::AUTHORITY`], [`NodeConfig::BOOTSTRAP`] and [`NodeConfig::PROXY`] in it.
    pub folder: PathBuf,
    /// The folder of programs and images.
    pub programs: PathBuf,
    /// The address and port of the image registry.
    pub registry: SocketAddrV4,
    /// Image files in the folder of programs, imported before the kubelet starts.
    pub images: Vec<String>,
    /// The folder of all volumes, if the node runs the CSI driver, whose program is [`NodeConfig::DRIVER`].
    pub volumes: Option<PathBuf>,
}

impl NodeConfig {
    /// The certificate of the cluster's authority.
    pub const AUTHORITY: &str = "ca.crt";
    /// The kubeconfig with which the kubelet requests its certificate.
    pub const BOOTSTRAP: &str = "bootstrap.conf";
    /// The kubeconfig of kube-proxy.
    pub const PROXY: &str = "proxy.conf";
    /// The program of the CSI driver.
    pub const DRIVER: &str = "csi-folder";

    /// Reads the configuration from a file.
    ///
    /// # Errors
    /// When the file does not exist or is not the JSON of a node.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))
    }
}
