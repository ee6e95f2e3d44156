//! Controllers of volumes and claims.

pub mod binder;
pub mod indexes;
pub mod migration;
