//! One list-watch a kind, and the registry that makes sure of it.

mod every;
mod frames;
mod going;
mod items;
pub(crate) mod json;
mod reflector;
mod registry;
mod request;

pub use every::{EveryKind, MetaChange, Metadata, Source};
pub use going::{Watched, gone, is_empty_since};
pub use registry::{Builder, Registry, WatchStats};
pub use request::serves;
pub(crate) use request::{METADATA_LIST, refusal};
