//! How many pods may be and are unavailable, under upstream's names (pkg/controller/statefulset/metrics); read from the
//! store when it is asked for.

use std::fmt;
use std::sync::Arc;

use kinds::StatefulSet;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::metrics::{Labels, gauges};
use runtime::store::Store;

use super::decide::max_unavailable;

/// All StatefulSets.
pub struct Availability {
    /// Where they are.
    pub sets: Arc<Store<StatefulSet>>,
    /// Whether `maxUnavailable` counts (gate MaxUnavailableStatefulSet).
    pub bounded: bool,
}

impl fmt::Debug for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Availability")
    }
}

fn labels(set: &StatefulSet) -> Labels<3> {
    let policy = if set.parallel { "Parallel" } else { "OrderedReady" };
    [
        ("statefulset_namespace", set.meta.namespace.to_string()),
        ("statefulset_name", set.meta.name.to_string()),
        ("pod_management_policy", policy.to_owned()),
    ]
}

impl Collector for Availability {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let sets = if self.bounded { self.sets.all() } else { Vec::new() };
        gauges(
            &mut encoder,
            "statefulset_controller_statefulset_max_unavailable",
            "Maximum number of unavailable pods allowed during StatefulSet rolling updates",
            sets.iter().filter_map(|set| Some((labels(set), max_unavailable(set)? as f64))),
        )?;
        gauges(
            &mut encoder,
            "statefulset_controller_statefulset_unavailable_replicas",
            "Current number of unavailable pods in StatefulSet",
            sets.iter().map(|set| (labels(set), f64::from((set.replicas - set.status.available_replicas).max(0)))),
        )
    }
}
