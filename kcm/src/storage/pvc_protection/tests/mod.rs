//! Tests of the protection of claims.

mod sync;
mod tables;
