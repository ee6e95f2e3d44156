//! Metrics of a process in one registry. Metrics that upstream has, too, have upstream's names.
//!
//! Scrapers get Prometheus' classic text (0.0.4) or, if they prefer it, its protobuf, as from upstream's managers; both
//! have the same names, types and bucket bounds. Only the protobuf has native buckets. Metrics of this crate that
//! upstream does not have begin with `controllers_`; those of a controller or a cloud provider have other prefixes.

mod encode;
mod escape;
mod families;
mod format;
mod former_name;
mod histogram;
mod labels;
mod limit;
mod meta;
mod parse;
mod process;
mod protobuf;
mod registry;
mod rest_client;
mod restrictions;
mod text;

#[cfg(test)]
mod tests;

pub use encode::{Histograms, counters, gauges, plain_counters, powers, powers_of_two};
pub use families::{Count, Counts, Gauges, Seconds};
pub use format::{Encoding, Format};
pub use former_name::FormerName;
pub(crate) use histogram::histogram;
pub use histogram::set_native_histograms;
pub use labels::Labels;
pub use limit::{MAX_COUNTED_SERIES, MAX_SERIES, OTHER, counted, limited_entry};
pub(crate) use process::StartTime;
pub(crate) use registry::exposition;
pub use registry::{Exposition, Metrics};
pub(crate) use rest_client::CaReload;
pub use rest_client::RestClient;
pub use restrictions::{AllowedValues, Restrictions};
