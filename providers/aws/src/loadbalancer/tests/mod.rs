//! The whole model without AWS: what annotations mean, and what plans do to what there is.

mod annotations;
mod backends;
mod histories;
mod plans;
mod stack;
mod world;

pub(crate) use world::settings;
