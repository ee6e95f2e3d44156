//! The processes: connections, serving, metrics, manifests, diagnostics, and an operator of the SDK.

pub mod all_gates;
pub mod connections;
pub mod coordinated_election;
pub mod diagnostics;
pub mod diagnostics_page;
pub mod echo_operator;
pub mod manifests;
pub mod many_kinds;
pub mod metric_flags;
pub mod monitoring;
pub mod odd_servers;
pub mod serving;
pub mod shutdown;
