//! Metrics of the maximum and the current number of unavailable pods. Upstream: pkg/controller/statefulset/metrics.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use kinds::StatefulSet;
use kinds::meta::ObjectKey;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{Labels, gauges};
use runtime::store::Store;

use super::decide::max_unavailable;

/// Numbers of unavailable pods by StatefulSet, as last counted.
#[derive(Debug, Default)]
pub struct Unavailable(Mutex<HashMap<ObjectKey, usize>>);

impl Unavailable {
    /// Records a count. A StatefulSet whose pods are not counted keeps the last count, as in upstream.
    pub fn record(&self, key: &ObjectKey, count: usize) {
        self.lock().insert(key.clone(), count);
    }

    /// Removes a StatefulSet that no longer exists.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn of(&self, key: &ObjectKey) -> Option<usize> {
        self.lock().get(key).copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, usize>> {
        lock(&self.0)
    }
}

/// The metrics of all StatefulSets.
pub struct Availability {
    /// All StatefulSets.
    pub sets: Arc<Store<StatefulSet>>,
    /// True if `maxUnavailable` is used (gate MaxUnavailableStatefulSet).
    pub bounded: bool,
    /// Their numbers of unavailable pods.
    pub unavailable: Arc<Unavailable>,
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
            sets.iter().filter_map(|set| Some((labels(set), self.unavailable.of(&set.meta.key())? as f64))),
        )
    }
}

#[cfg(test)]
mod tests {
    use kinds::schema::{object_meta, stateful_set, stateful_set_spec};
    use kinds::wire::Put as _;
    use kinds::{Decode, Kind as _, Sections};
    use runtime::metrics::Metrics;
    use runtime::testing::filled_store;

    use super::*;

    fn context() -> Decode {
        Decode { interner: Arc::default(), sections: Sections::default() }
    }

    fn set(name: &str, policy: &str) -> StatefulSet {
        let mut object = Vec::new();
        object.put_message(stateful_set::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(stateful_set::SPEC, |spec| {
            spec.put_int(stateful_set_spec::REPLICAS, 3);
            spec.put_str(stateful_set_spec::POD_MANAGEMENT_POLICY, policy);
        });
        StatefulSet::decode(&context(), &object).expect("well-formed")
    }

    #[test]
    fn unavailable_pods_and_their_maximum_are_reported_only_with_the_gate() {
        for bounded in [true, false] {
            let sets = [set("ordered", "OrderedReady"), set("parallel", "Parallel")];
            let unavailable = Arc::<Unavailable>::default();
            unavailable.record(&ObjectKey::new("ns", "parallel"), 2);
            let sets = Arc::new(filled_store(context(), vec![], sets));
            let metrics = Metrics::new();
            metrics.collect(Availability { sets, bounded, unavailable });
            let text = metrics.text();
            let family = |family: &str, name: &str, policy: &str, value: u32| {
                format!(
                    "statefulset_controller_statefulset_{family}{{statefulset_namespace=\"ns\",\
                     statefulset_name=\"{name}\",pod_management_policy=\"{policy}\"}} {value}.0"
                )
            };
            for line in [
                family("max_unavailable", "ordered", "OrderedReady", 1),
                family("max_unavailable", "parallel", "Parallel", 1),
                family("unavailable_replicas", "parallel", "Parallel", 2),
            ] {
                assert_eq!(text.contains(&line), bounded, "{line} in\n{text}");
            }
            assert!(!text.contains(&family("unavailable_replicas", "ordered", "OrderedReady", 0)), "not counted yet");
        }
    }
}
