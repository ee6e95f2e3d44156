//! Controllers of volumes and claims.

pub mod ephemeral_volume;
pub mod expander;
pub mod objects;
pub mod protection;
