//! Network Load Balancers: what a Service asks for, what there is, the steps from one to the other, and the calls.
//!
//! `annotations`, `ports`, `actions` and `backends` read what is asked for; `model` makes the whole desired stack of it;
//! `inventory` and `calls` read what there is; `diff` compares the two and answers steps; `balancers` follows them.

mod actions;
mod annotations;
mod backends;
mod balancers;
mod calls;
mod convert;
mod course;
mod diff;
mod exchange;
mod gates;
mod inventory;
mod leftovers;
mod model;
mod names;
mod network;
mod noderules;
mod observe;
mod plan;
mod pointing;
mod ports;
mod reading;
#[cfg(test)]
mod samples;
mod seen;
mod shared;
mod sharing;
mod subnets;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use balancers::Balancers;
