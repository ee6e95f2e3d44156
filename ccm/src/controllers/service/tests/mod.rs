//! Tests: tables of decisions, endpoints, audits, forecasts, scenarios of single Services and of Services that refer
//! to others, crashes after every step, refusals, restarts, annotations, readiness gates, random histories.

mod actions;
mod annotations;
mod audits;
mod crashes;
mod crashing_cloud;
mod endpoints;
mod forecasts;
mod gates;
mod histories;
mod kinds_of_targets;
mod others;
mod refusals;
mod restarts;
mod scenarios;
mod simulation;
mod tables;
