//! Controllers of volumes and claims.

pub mod binder;
pub mod ephemeral_volume;
pub mod expander;
pub mod indexes;
pub mod migration;
pub mod pv_protection;
pub mod pvc_protection;
#[cfg(test)]
mod testing;
pub mod vac_protection;
