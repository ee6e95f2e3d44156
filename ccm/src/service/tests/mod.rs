//! Tests: tables of decisions, audits, courses of single Services, crashes at every place, random histories.

mod audits;
mod courses;
mod crashes;
mod histories;
mod tables;
mod world;
