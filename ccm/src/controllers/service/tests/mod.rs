//! Tests: tables of decisions, audits, courses of single Services and of those that refer to others, crashes at every
//! place, random histories.

mod audits;
mod courses;
mod crashes;
mod histories;
mod others;
mod tables;
mod world;
