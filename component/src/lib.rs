//! The common parts of all binaries: flags in pflag's syntax, feature gates, the selection of controllers, logs,
//! serving, and the process around a manager.
//!
//! A binary declares its names, tables and rules in one [`Component`]. Everything else is derived from that.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod assembly;
pub mod descriptor;
pub mod finalizers;
pub mod flags;
mod log;
pub mod process;
pub mod restrictions;
pub mod serving;
pub mod status;
mod threads;

pub use flags::Component;
