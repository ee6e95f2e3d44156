//! Tests: tables of decisions, audits, scenarios of single Services and of those that refer to others, crashes at every
//! place, random histories.

mod actions;
mod audits;
mod crashes;
mod histories;
mod others;
mod scenarios;
mod tables;
mod world;
