//! The table of the cloud controllers that are here, and what each needs and may do.

use std::sync::Arc;

pub use component::controllers::{Verb, Write};
use jiff::Timestamp;

use crate::cloud::Cloud;
use crate::flags::Options;

/// Where controllers read the time of day.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the command line and the cloud say to controllers.
pub struct Settings {
    /// The command line.
    pub options: Options,
    /// The cloud.
    pub cloud: Arc<Cloud>,
    /// The time of day.
    pub clock: Clock,
}

/// What a controller has to do with the cloud and the flags at hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// It runs.
    Here,
    /// It does not run, as upstream skips it; why.
    None(&'static str),
}

/// The work of a controller of machines.
pub fn machines(settings: &Settings) -> Work {
    match settings.cloud.provider().instances() {
        Some(_) => Work::Here,
        None => Work::None("the cloud provider does not support instances"),
    }
}

/// A cloud controller.
pub struct Descriptor {
    /// Its names, and what it reads and writes.
    pub controller: component::controllers::Descriptor<Settings>,
    /// Whether it has anything to do. An error ends the process: the flags contradict each other.
    pub work: fn(&Settings) -> anyhow::Result<Work>,
}

/// All controllers.
pub const CONTROLLERS: &[Descriptor] = &[
    crate::node::DESCRIPTOR,
    crate::lifecycle::DESCRIPTOR,
    crate::route::DESCRIPTOR,
    crate::service::DESCRIPTOR,
    crate::tagging::DESCRIPTOR,
];
