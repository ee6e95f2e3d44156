//! The cloud controllers.

pub mod node;
pub mod node_lifecycle;
pub mod route;
pub mod service;
pub mod tagging;
