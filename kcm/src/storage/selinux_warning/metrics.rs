//! The current conflicts as gauges.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::metrics::gauges;

use super::used_volumes::UsedVolumes;

/// Maximum number of series: pods that share a volume conflict in pairs, so the number of conflicts grows with the
/// square of the number of pods.
const MAX_SERIES: usize = 10_000;

/// The current conflicts, gathered at each scrape of the metrics.
#[derive(Debug)]
pub struct ConflictGauges(pub Arc<UsedVolumes>);

impl Collector for ConflictGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let series = self.0.conflicts(MAX_SERIES).into_iter().map(|conflict| {
            let labels = [
                ("property", conflict.property.name().to_owned()),
                ("pod1_namespace", conflict.pod.namespace.to_string()),
                ("pod1_name", conflict.pod.name.to_string()),
                ("pod1_value", conflict.value.to_string()),
                ("pod2_namespace", conflict.other.namespace.to_string()),
                ("pod2_name", conflict.other.name.to_string()),
                ("pod2_value", conflict.other_value.to_string()),
            ];
            (labels, 1.0)
        });
        let help = "Conflict between two Pods using the same volume";
        gauges(&mut encoder, "selinux_warning_controller_selinux_volume_conflict", help, series)
    }
}
