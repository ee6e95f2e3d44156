//! kube-controller-manager: its controllers, its command line, and the entry point of the binary.

pub mod api;
pub mod app;
pub mod auth;
pub mod certificates;
pub mod context;
pub mod credentials;
pub mod devices;
pub mod flags;
pub mod network;
pub mod nodes;
pub mod pods;
pub mod protection;
pub mod registry;
pub mod shared_read;
pub mod storage;
pub mod workloads;
