//! What every binary of ours shares from its command line to its end: flags in pflag's ways, gates, the choice of
//! controllers, logs, what is served, and the process around a manager.
//!
//! A binary says in one [`Component`] what is its own: names and tables. All else follows from that.

pub mod assembly;
pub mod descriptor;
pub mod finalizers;
pub mod flags;
mod log;
pub mod process;
pub mod serving;
pub mod status;

pub use flags::Component;
