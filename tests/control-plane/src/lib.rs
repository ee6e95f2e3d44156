//! A real Kubernetes control plane for tests: stock etcd, API server and scheduler with fake kubelets, private to its
//! owner, removed when it is dropped.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use control_plane::{ControlPlane, Identity, Options};
//!
//! let cluster = ControlPlane::start(Options { nodes: 3, ..Options::default() }).await?;
//! let client = cluster.client(Identity::ControllerManager).await?;
//! println!("{}", cluster.kubectl(&["get", "nodes"])?);
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! The programs come from `KUBEBUILDER_ASSETS`, from a cache, or are built
//! once with Go: see [`assets`]. CSI drivers with their sidecars are in [`csi`]. Annotations script the behaviour of
//! fake kubelets: see [`behaviour`].

#![allow(clippy::disallowed_methods, reason = "tests change things as users do, without a controller's identity")]

mod abandoned;
pub mod aggregated;
mod aggregation;
pub mod assets;
pub mod audit;
pub mod behaviour;
mod cluster;
pub mod command;
pub mod csi;
mod custom_kind;
mod file_lock;
mod flags;
mod identity;
mod kubelet_policy;
mod last_lines;
pub mod lock;
pub mod metrics;
mod nodes;
mod options;
mod pki;
mod processes;
pub mod proxy;
mod stored;

pub use abandoned::remove_abandoned;
pub use cluster::ControlPlane;
pub use custom_kind::CustomKind;
pub use file_lock::FileLock;
pub use identity::Identity;
pub use options::{Network, Options, keeps_folder};
