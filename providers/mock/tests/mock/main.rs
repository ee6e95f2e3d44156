//! The mock as its users see it: through the trait, in code, and over HTTP.

mod conformance;
mod defects;
mod faults;
mod fixture;
mod history;
mod http;
