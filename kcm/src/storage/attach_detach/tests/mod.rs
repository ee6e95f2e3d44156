//! Tests of more than one file.

mod bed;
mod model;
mod observe;
mod reconcile;
mod users;
