//! The mock from its users' perspective: through the trait, in code, and over HTTP.

mod conformance;
mod defects;
mod faults;
mod fixture;
mod history;
mod http;
mod remote;
