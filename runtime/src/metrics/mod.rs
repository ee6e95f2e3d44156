//! What a process counts, in one registry, under upstream's names where upstream has one.
//!
//! The text is Prometheus' classic format (0.0.4), because that is what upstream's managers answer whatever a scraper
//! accepts: a dashboard, `kubectl get --raw` and old scrapers see the same names, types and bucket bounds. What only
//! this runtime counts is called `controllers_*`.

mod encode;
mod families;
mod process;
mod registry;
mod rest_client;
mod text;

pub use encode::{Histograms, Labels, counters, gauges, plain_counters, powers, powers_of_two};
pub use families::{Count, Counts, Gauges, Seconds};
pub use registry::Metrics;
pub use rest_client::RestClient;
pub use text::exposition;
