//! Controllers of volumes and claims.

pub mod indexes;
pub mod migration;
