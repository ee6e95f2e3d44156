//! Tests of more than one file.

mod bed;
mod kubelet_model;
mod model;
mod observe;
mod reconcile;
