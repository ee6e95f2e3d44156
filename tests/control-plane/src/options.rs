//! Options of a control plane, and the constants that its parts share.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// The variable that keeps the folders of control planes.
pub(crate) const KEEP: &str = "KEEP_CONTROL_PLANE";

/// The cluster addresses of services.
pub(crate) const SERVICE_RANGE: &str = "10.96.0.0/16";

/// The cluster address of the API server itself: the range's first.
pub(crate) const SERVICE_ADDRESS: &str = "10.96.0.1";

/// Options of a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// Initial number of fake nodes, which are called `node-0` and so on. Default 0.
    pub nodes: u32,
    /// Log the managers' requests, for
    /// [`ControlPlane::audit_counts`](crate::ControlPlane::audit_counts). Default false.
    pub audit: bool,
    /// Run fake kubelets, so that nodes and pods become Ready. Default true.
    pub kwok: bool,
    /// Run the scheduler. Default true.
    pub scheduler: bool,
    /// Lease duration of fake kubelets in seconds; they renew a Lease four times in that time. Default 40, as for
    /// kubelets.
    pub node_lease_seconds: u32,
    /// The network that the control plane runs in. Default: this machine's loopback device.
    pub network: Option<Network>,
    /// The file `cgroup.procs` of a cgroup that all programs are moved into. Default: they stay in the owner's cgroup.
    pub cgroup: Option<PathBuf>,
    /// Additional flags for the API server, each as `--name=value`.
    pub extra_apiserver_flags: Vec<String>,
    /// Additional flags for the scheduler, in the same form.
    pub extra_scheduler_flags: Vec<String>,
    /// Called with the folder after the end of all processes if the folder is kept (see [`keeps_folder`]), even if the
    /// start failed. Default: nothing is called.
    pub when_kept: Option<fn(&Path)>,
}

/// Returns true if the folders of control planes, with data and logs, are kept after their end: `KEEP_CONTROL_PLANE` is
/// set, and neither empty nor `0`.
pub fn keeps_folder() -> bool {
    std::env::var_os(KEEP).is_some_and(|value| value != "0" && !value.is_empty())
}

/// A network namespace for a control plane that real kubelets connect to.
#[derive(Clone, Debug)]
pub struct Network {
    /// The namespace's file, which must last as long as the control plane.
    pub namespace: PathBuf,
    /// The API server's address there; its port is [`Network::PORT`].
    pub address: Ipv4Addr,
}

impl Network {
    /// The API server's port in a network of its own.
    pub const PORT: u16 = 6443;
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 0,
            audit: false,
            kwok: true,
            scheduler: true,
            node_lease_seconds: 40,
            network: None,
            cgroup: None,
            extra_apiserver_flags: Vec::new(),
            extra_scheduler_flags: Vec::new(),
            when_kept: None,
        }
    }
}
