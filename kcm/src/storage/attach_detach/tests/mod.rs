//! Tests of more than one file.

mod model;
mod observe;
