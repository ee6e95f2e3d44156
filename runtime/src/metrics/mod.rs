//! Metrics of a process in one registry. Metrics that upstream has, too, have upstream's names.
//!
//! The text is always in Prometheus' classic format (0.0.4), as in upstream's managers, whatever format a scraper
//! accepts. Dashboards, `kubectl get --raw` and old scrapers get the same names, types and bucket bounds. Names of
//! metrics that upstream does not have begin with `controllers_`.

mod encode;
mod families;
mod limit;
mod meta;
mod process;
mod registry;
mod rest_client;
mod text;

pub use encode::{Histograms, Labels, counters, gauges, plain_counters, powers, powers_of_two};
pub use families::{Count, Counts, Gauges, Seconds};
pub use limit::{MAX_SERIES, OTHER, limited_entry};
pub use registry::Metrics;
pub(crate) use rest_client::CaReload;
pub use rest_client::RestClient;
pub use text::exposition;
