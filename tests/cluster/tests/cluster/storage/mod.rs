//! Controllers of volumes and claims.

pub mod attach_detach;
pub mod binder;
pub mod binder_faults;
pub mod csi;
pub mod default_class;
pub mod ephemeral_volume;
pub mod expander;
pub mod host_path;
pub mod kubelet;
pub mod objects;
pub mod protection;
pub mod selinux_warning;
pub mod topology;
pub mod waiting_claims;
