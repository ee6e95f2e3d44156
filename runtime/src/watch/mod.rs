//! One list-watch a kind, and the registry that makes sure of it.

mod frames;
mod reflector;
mod registry;
mod request;

pub use registry::{Builder, Registry};
pub(crate) use request::refusal;
