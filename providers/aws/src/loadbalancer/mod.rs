//! Network Load Balancers, in the steps of a reconcile.
//!
//! `spec` reads what a Service asks for; `observed` reads what AWS has; `model` builds the desired stack and the steps from
//! one to the other, without IO; `apply` makes the calls. What all of them speak of is in `types`, `names`,
//! `ownership` and `plan`. A
//! folder imports only those before it: `spec`, `observed`, `model`, `apply`.

mod apply;
mod model;
mod names;
mod observed;
mod ownership;
mod plan;
#[cfg(test)]
mod samples;
mod spec;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use apply::Balancers;
