//! kube-controller-manager: its controllers, its command line, and the binary's inside.

pub mod app;
pub mod controllers;
pub mod deployment;
pub mod flags;
pub mod names;
pub mod reference;
pub mod replicaset;
