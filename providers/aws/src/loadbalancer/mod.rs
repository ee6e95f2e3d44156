//! Network Load Balancers, in the steps of a reconcile.
//!
//! `spec` reads the Service's fields and annotations; `observed` reads from AWS; `model` builds the desired stack and
//! the steps that lead to it, without IO; `apply` makes the calls. Each module imports only modules that precede it in
//! this list, and the shared modules: `types`, `names`, `ownership` and `plan`.

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
pub(crate) use observed::balancer_state::VISIBLE;
