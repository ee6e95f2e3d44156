//! Controllers of volumes and claims.

pub mod attach_detach;
pub mod binder;
pub mod csi;
pub mod ephemeral_volume;
pub mod expander;
pub mod kubelet;
pub mod objects;
pub mod protection;
pub mod selinux_warning;
pub mod topology;
pub mod waiting_claims;
