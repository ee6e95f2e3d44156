//! Objects as events name them.

pub use runtime::events::about;
