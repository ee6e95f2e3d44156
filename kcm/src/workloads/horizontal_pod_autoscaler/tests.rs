//! Tables of decisions, histories that must keep their bounds, and reconciles against a simulated API server.

mod pace;
mod reconcile;
mod replicas;
mod verdict;
