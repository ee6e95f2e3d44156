//! Controllers of volumes and claims.

pub mod attach_detach;
pub mod binder;
pub mod bound_volume;
pub mod ephemeral_volume;
pub mod expander;
pub mod indexes;
pub mod inline_volume;
pub mod lost_write;
pub mod migration;
pub mod pv_protection;
pub mod pvc_protection;
pub mod selinux_warning;
#[cfg(test)]
mod testing;
pub mod translation;
pub mod unused;
pub mod vac_protection;
pub mod volume_name;
