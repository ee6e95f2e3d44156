//! Metrics of a process in one registry, under upstream's names where upstream has one.
//!
//! The text is Prometheus' classic format (0.0.4), which upstream's managers return whatever a scraper accepts: a
//! dashboard, `kubectl get --raw` and old scrapers see the same names, types and bucket bounds. Metrics that only this
//! runtime has are called `controllers_*`.

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
