//! Tests: tables of decisions, courses of single Services, crashes at every place, random histories.

mod courses;
mod crashes;
mod histories;
mod tables;
mod world;
