//! Tests of more than one file.

mod bed;
mod detach;
mod failures;
mod model;
mod observe;
mod reconcile;
mod undecodable;
mod unresolved;
mod users;
