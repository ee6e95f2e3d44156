//! Numbers of volumes and of forced detachments under upstream's names, counted at each scrape of
//! the metrics.
//!
//! Upstream: pkg/controller/volume/attachdetach/metrics and pkg/volume/util, metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kinds::pod::ClaimVolume;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::metrics::{Labels, counted, gauges, plain_counters};

use super::memory::Memory;
use super::observe::Caches;
use super::reconcile::AttachDetach;
use crate::storage::bound_volume::bound_volume;
use crate::storage::inline_volume;
use crate::storage::volume_name::{Plugin, of_volume};

const FORCED_DETACHES: &str = "attach_detach_controller_attachdetach_controller_forced_detaches";
const FORCED_REASONS: [&str; 2] = ["timeout", "out-of-service"];

/// Numbers of volumes, counted at each scrape of the metrics.
pub struct Totals(pub Arc<AttachDetach>);

impl fmt::Debug for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Totals")
    }
}

fn as_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Returns the numbers of attachable volumes of all scheduled pods, by node and plugin. Inline
/// volumes of CSI drivers count, although they are not attached.
pub fn volumes_in_use(caches: &Caches) -> BTreeMap<Labels<2>, f64> {
    let pods = caches.pods.all();
    let on_nodes = pods.iter().filter(|pod| !pod.node.is_empty());
    counted(on_nodes.flat_map(|pod| {
        let volumes = pod.volumes.iter();
        let drivers = volumes.clone().flat_map(|volumes| volumes.csi_drivers.iter());
        let of_drivers = drivers.map(|driver| Plugin::Csi { driver, handle: "" }.metric_name());
        let bound = move |used: &ClaimVolume| bound_volume((&caches.claims, &caches.volumes), pod, used);
        let names = volumes.flat_map(|volumes| &volumes.claims).filter_map(move |used| of_volume(&*bound(used)?));
        let names = names.chain(inline_volume::names(pod).map(|(_, name)| name));
        let of_names = names.filter_map(|name| Plugin::of(&name).map(Plugin::metric_name));
        of_drivers.chain(of_names).map(move |plugin| [("node", pod.node.to_string()), ("volume_plugin", plugin)])
    }))
}

/// Returns the numbers of wanted and attached volumes by plugin and state. A volume counts once
/// for each of its nodes.
pub fn volumes_by_state(memory: &Memory) -> BTreeMap<Labels<2>, u64> {
    memory.count(|volume, is_wanted, site| {
        let Some(plugin) = Plugin::of(volume) else { return Vec::new() };
        let labels = |state: &str| [("plugin_name", plugin.metric_name()), ("state", state.to_owned())];
        let desired = is_wanted.then(|| labels("desired_state_of_world"));
        let actual = site.is_attached.then(|| labels("actual_state_of_world"));
        desired.into_iter().chain(actual).collect()
    })
}

impl Collector for Totals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Number of volumes in A/D Controller";
        let counts = volumes_by_state(&self.0.memory).into_iter().map(|(labels, count)| (labels, as_f64(count)));
        gauges(&mut encoder, "attachdetach_controller_total_volumes", help, counts)?;
        let help = "Measure number of volumes in use";
        gauges(&mut encoder, "storage_count_attachable_volumes_in_use", help, volumes_in_use(&self.0.caches))?;
        let counts = FORCED_REASONS.iter().zip(&self.0.operations.forced);
        let counts =
            counts.map(|(reason, count)| ([("reason", (*reason).to_owned())], as_f64(count.load(Ordering::Relaxed))));
        let help = "Number of times the A/D Controller performed a forced detach";
        plain_counters(&mut encoder, FORCED_DETACHES, help, counts)
    }
}
