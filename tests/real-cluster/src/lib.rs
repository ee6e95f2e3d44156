//! A real Kubernetes cluster on one Linux machine: stock kubelets, kube-proxies and containers, with a control plane of
//! the crate `control-plane`.
//!
//! Each node has its own network, mount, pid, host name, IPC and cgroup namespaces. The control plane runs in the
//! network namespace of a router between the nodes, to which this machine is connected. All processes are killed when
//! their owner exits. The network and all mounts are in namespaces, which the kernel removes with their last process;
//! the keeper removes cgroups and folders.

#![allow(clippy::disallowed_methods, reason = "tests change things as users do, without a controller's identity")]

pub mod address;
mod bed;
mod cgroups;
mod cluster;
mod command;
pub mod control;
mod copies;
mod fabric;
pub mod http;
pub mod images;
pub mod inside;
mod keeper;
pub mod load;
mod managers;
pub mod metrics;
mod network;
mod node;
mod occupied;
mod parts;
pub mod programs;
pub mod requirements;
pub mod storage;

pub use address::{Addresses, node_name};
pub use bed::Footprint;
pub use cluster::{RealCluster, Setup};
pub use copies::ManagerProgram;
