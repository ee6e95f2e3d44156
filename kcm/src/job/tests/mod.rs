//! Tables of Job decisions in upstream's cases, and random histories of a small model of the API server.

mod builders;
mod histories;
mod tables;
