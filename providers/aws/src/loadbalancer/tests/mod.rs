//! The whole model without AWS: effects of annotations, and effects of plans on existing resources.

mod account;
mod annotations;
mod backends;
mod created;
mod following;
mod histories;
mod hostile;
mod plans;
mod stack;
mod user_balancers;

pub(crate) use account::settings;
