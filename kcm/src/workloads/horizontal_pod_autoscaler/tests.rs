//! Tables of decisions, and histories that must keep their bounds.

mod pace;
mod replicas;
mod verdict;
