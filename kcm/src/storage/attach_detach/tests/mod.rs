//! Tests of more than one file.

mod bed;
mod detach;
mod model;
mod observe;
mod reconcile;
mod undecodable;
mod unresolved;
mod users;
