//! List-watch loops, one per kind, and the registry that starts them.

mod absence;
mod every_kind;
mod frames;
mod items;
pub(crate) mod json;
mod list_permit;
mod list_progress;
mod listing;
mod reflector;
mod refusals;
mod registry;
mod request;
mod resync;
#[cfg(test)]
mod tests;
mod watched_store;

pub use absence::{Watched, is_empty_since, wait_until_deleted};
pub use every_kind::{EveryKind, MetaChange, Metadata, Source};
pub use registry::{Builder, Reads, Registry, WatchStats};
pub use request::{WatchError, serves};
