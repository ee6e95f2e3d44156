//! The whole model without AWS: effects of annotations, and effects of plans on existing resources.

mod annotations;
mod backends;
mod created;
mod given;
mod histories;
mod hostile;
mod plans;
mod stack;
mod world;

pub(crate) use world::settings;
