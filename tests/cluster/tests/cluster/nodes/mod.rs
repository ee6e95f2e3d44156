//! Nodes: their lifecycle, and what happens when they fail.

pub mod failure;
pub mod lifecycle;
