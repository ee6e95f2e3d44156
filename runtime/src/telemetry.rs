//! Metrics of the parts of a manager, read at each scrape: leadership, controllers, stores, events, the build.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;

use crate::consistency::Consistency;
use crate::events::Recorder;
use crate::fence::Fence;
use crate::metrics::{counters, gauges};
use crate::watch::WatchStats;
use crate::worker::WorkCounts;

/// Leadership: `leader_election_master_status` and `leader_election_slowpath_total`.
#[derive(Debug)]
pub struct Leadership {
    /// The name of the lease.
    pub lease: String,
    /// The state of the election.
    pub fence: Fence,
}

impl Collector for Leadership {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let name = || [("name", self.lease.clone())];
        let leads = u8::from(self.fence.is_leader());
        gauges(
            &mut encoder,
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
            [(name(), f64::from(leads))],
        )?;
        counters(
            &mut encoder,
            "leader_election_slowpath",
            "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name.",
            [(name(), self.fence.slow_renewals() as f64)],
        )
    }
}

/// The controllers of a process, and the results of their work.
pub struct Controllers {
    /// The manager's name, for instance `kube-controller-manager`.
    pub manager: &'static str,
    /// Pairs of upstream's name in `running_managed_controllers` and the name in `running`, for controllers whose names
    /// differ.
    pub running_as: &'static [(&'static str, &'static str)],
    /// Each controller with its counts.
    pub running: Vec<(&'static str, Arc<WorkCounts>)>,
    /// The fence: controllers run while this process leads.
    pub fence: Fence,
}

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controllers").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl Collector for Controllers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let runs = u8::from(self.fence.is_leader());
        gauges(
            &mut encoder,
            "running_managed_controllers",
            "Indicates where instances of a controller are currently running",
            self.running
                .iter()
                .map(|(name, _)| {
                    self.running_as.iter().find(|(_, own)| own == name).map_or(*name, |(theirs, _)| *theirs)
                })
                .map(|name| ([("name", name.into()), ("manager", self.manager.into())], f64::from(runs))),
        )?;
        let outcomes = self.running.iter().flat_map(|(name, counts)| {
            let outcome = |outcome: &str, count: &AtomicU64| {
                let labels = [("controller", (*name).to_owned()), ("outcome", outcome.to_owned())];
                (labels, count.load(Ordering::Relaxed) as f64)
            };
            [
                outcome("succeeded", &counts.succeeded),
                outcome("failed", &counts.failed),
                outcome("panicked", &counts.panicked),
                outcome("waiting_for_cache", &counts.waiting_for_cache),
            ]
        });
        counters(&mut encoder, "controllers_reconciles", "Runs of reconcilers by their outcome", outcomes)
    }
}

/// The stores and their watches.
pub struct Stores {
    /// The process's name, the label `name` of upstream's informer metrics.
    pub name: &'static str,
    /// The stores.
    pub stores: Vec<Arc<dyn WatchStats>>,
}

/// A metric reports a version modulo this number, because a floating-point number holds only 15 digits exactly.
const VERSION_MODULUS: u64 = 1_000_000_000_000_000;

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stores({})", self.stores.len())
    }
}

impl Stores {
    /// Appends upstream's metrics of informers.
    fn encode_informers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = |stats: &Arc<dyn WatchStats>| {
            let [group, version, resource] = stats.group_version_resource();
            let labels = [("name", self.name), ("group", group), ("version", version), ("resource", resource)];
            labels.map(|(label, value)| (label, value.to_owned()))
        };
        let version = |stats: &Arc<dyn WatchStats>| (labels(stats), (stats.version() % VERSION_MODULUS) as f64);
        gauges(
            encoder,
            "informer_store_resource_version",
            "The 15 least significant digits of the resource version of the store.",
            self.stores.iter().map(version),
        )?;
        // An event is applied when it arrives: there is no queue between a watch and its store.
        gauges(
            encoder,
            "informer_queued_items",
            "Number of items currently queued in the FIFO.",
            self.stores.iter().map(|stats| (labels(stats), 0.0)),
        )?;
        let (name, help) = ("informer_processing_latency_seconds", "Time to decode and apply an event.");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for stats in &self.stores {
            stats.latency().encode(family.encode_family(&labels(stats))?)?;
        }
        Ok(())
    }
}

impl Collector for Stores {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let each = |value: fn(&dyn WatchStats) -> f64| {
            self.stores.iter().map(move |stats| ([("resource", stats.resource())], value(&**stats)))
        };
        counters(
            &mut encoder,
            "controllers_store_panics",
            "Panics of watches and of their subscribers",
            each(|stats| stats.panics() as f64),
        )?;
        gauges(
            &mut encoder,
            "controllers_store_objects",
            "Objects kept in memory",
            each(|stats| stats.objects() as f64),
        )?;
        gauges(
            &mut encoder,
            "controllers_store_undecodable_objects",
            "Objects that the API server has and that cannot be decoded; until that is fixed, no objects of their kind are deleted as surplus",
            each(|stats| stats.undecodable() as f64),
        )?;
        gauges(
            &mut encoder,
            "controllers_store_stale_objects",
            "Objects kept in memory in an older state, because the newest one cannot be decoded; a reconcile that reads one deletes nothing in its namespace",
            each(|stats| stats.stale() as f64),
        )?;
        self.encode_informers(&mut encoder)?;
        counters(
            &mut encoder,
            "controllers_watch_restarts",
            "Watches that failed or had to relist",
            each(|stats| stats.restarts() as f64),
        )
    }
}

/// Numbers of events by their result.
pub struct Events(pub Vec<Recorder>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({})", self.0.len())
    }
}

impl Collector for Events {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Several recorders may serve one component: their counts are added to one sample.
        let mut sums = std::collections::BTreeMap::new();
        for recorder in &self.0 {
            let counts = recorder.counts();
            for (outcome, count) in [
                ("written", counts.written),
                ("dropped", counts.dropped),
                ("filtered", counts.filtered),
                ("abandoned", counts.abandoned),
            ] {
                *sums.entry((recorder.component(), outcome)).or_insert(0) += count;
            }
        }
        counters(
            &mut encoder,
            "controllers_events",
            "Events by their result",
            sums.into_iter().map(|((component, outcome), count)| {
                ([("component", component.to_owned()), ("outcome", outcome.to_owned())], count as f64)
            }),
        )
    }
}

/// `kubernetes_build_info`: the version of Kubernetes that the process implements, and the version of the process
/// itself.
#[derive(Debug)]
pub struct BuildInfo {
    /// The full version, such as `v1.37.0`.
    pub git_version: String,
    /// The first part of the version, such as `1`.
    pub major: &'static str,
    /// The second part of the version, such as `37`.
    pub minor: &'static str,
}

/// The operating system and the architecture, as Go names them.
pub const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

impl Collector for BuildInfo {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [
            ("build_date", ""),
            ("compiler", "rustc"),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("git_version", &self.git_version),
            ("go_version", ""),
            ("major", self.major),
            ("minor", self.minor),
            ("platform", PLATFORM),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        gauges(
            &mut encoder,
            "kubernetes_build_info",
            "A metric with a constant '1' value labeled by version, compiler and platform",
            [(labels, 1.0)],
        )
    }
}

/// `version_info`: the version of Kubernetes that the process is compatible with.
#[derive(Debug)]
pub struct CompatibilityVersions {
    /// The version of the program, such as `1.37`.
    pub binary: String,
    /// The version that the program emulates.
    pub emulation: String,
    /// The oldest version that the program stays compatible with.
    pub min_compatibility: String,
}

impl Collector for CompatibilityVersions {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [
            ("component", "kube".to_owned()),
            ("binary", self.binary.clone()),
            ("emulation", self.emulation.clone()),
            ("min_compat", self.min_compatibility.clone()),
        ];
        let help = "Versions that the component is, emulates and stays compatible with";
        gauges(&mut encoder, "version_info", help, [(labels, 1.0)])
    }
}

/// `kubernetes_feature_enabled`: each feature gate with its stage (empty: generally available), and whether it is on.
#[derive(Debug)]
pub struct Features(pub Vec<(&'static str, &'static str, bool)>);

impl Collector for Features {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.0.iter().map(|(name, stage, enabled)| {
            ([("name", (*name).to_owned()), ("stage", (*stage).to_owned())], f64::from(u8::from(*enabled)))
        });
        gauges(&mut encoder, "kubernetes_feature_enabled", "Stage and enablement of each feature gate", samples)
    }
}

/// Syncs that waited for the cache to contain earlier writes: `<subsystem>_stale_sync_skips_total`, by the kind of the
/// cache.
#[derive(Debug)]
pub struct StaleSyncs {
    /// The subsystem, such as `job_controller`.
    pub subsystem: &'static str,
    /// The kind of the controller, as in upstream's help text.
    pub kind: &'static str,
    /// The controller's consistency.
    pub consistency: Arc<Consistency>,
}

impl Collector for StaleSyncs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.consistency.skips().into_iter().map(|((group, resource), count)| {
            ([("group", group.to_owned()), ("resource", resource.to_owned())], count as f64)
        });
        let help = format!("Total number of {} syncs skipped due to a stale watch cache.", self.kind);
        counters(&mut encoder, &format!("{}_stale_sync_skips", self.subsystem), &help, samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::queue::{Queue, QueueOptions, QueueStats, Queues};

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }

    #[test]
    fn queues_have_upstreams_names_types_and_bounds() {
        let queue = Queue::new(QueueOptions::named("replicaset"));
        queue.add("a".to_owned());
        let metrics = Metrics::new();
        metrics.collect(Queues::new([queue.clone() as Arc<dyn QueueStats>]));
        let text = metrics.text();
        for line in [
            "# HELP workqueue_adds_total Total number of adds handled by workqueue",
            "# TYPE workqueue_adds_total counter",
            "workqueue_adds_total{name=\"replicaset\"} 1",
            "# TYPE workqueue_retries_total counter",
            "# TYPE workqueue_depth gauge",
            "workqueue_depth{name=\"replicaset\"} 1",
            "# TYPE workqueue_queue_duration_seconds histogram",
            "workqueue_queue_duration_seconds_bucket{le=\"1e-08\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"9.999999999999999e-06\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"0.001\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"10\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"+Inf\",name=\"replicaset\"} 0",
            "# TYPE workqueue_work_duration_seconds histogram",
            "# TYPE workqueue_unfinished_work_seconds gauge",
            "# TYPE workqueue_longest_running_processor_seconds gauge",
        ] {
            has(&text, line);
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    #[test]
    fn metrics_report_leadership_controllers_and_version() {
        let counts = Arc::new(WorkCounts::default());
        counts.failed.fetch_add(2, Ordering::Relaxed);
        let metrics = Metrics::new();
        metrics.collect(Leadership { lease: "kube-controller-manager".into(), fence: Fence::open() });
        metrics.collect(Controllers {
            manager: "kube-controller-manager",
            running_as: &[("nodeipam", "node-ipam-controller")],
            running: vec![("replicaset-controller", counts), ("node-ipam-controller", Arc::default())],
            fence: Fence::open(),
        });
        metrics.collect(BuildInfo { git_version: "v1.37.0".to_owned(), major: "1", minor: "37" });
        metrics.collect(CompatibilityVersions {
            binary: "1.37".into(),
            emulation: "1.36".into(),
            min_compatibility: "1.35".into(),
        });
        metrics.collect(Features(vec![("JobBackoffLimitPerIndex", "", true), ("NewThing", "ALPHA", false)]));
        let text = metrics.text();
        for line in [
            "leader_election_master_status{name=\"kube-controller-manager\"} 1.0",
            "leader_election_slowpath_total{name=\"kube-controller-manager\"} 0.0",
            "running_managed_controllers{name=\"replicaset-controller\",manager=\"kube-controller-manager\"} 1.0",
            "running_managed_controllers{name=\"nodeipam\",manager=\"kube-controller-manager\"} 1.0",
            "version_info{component=\"kube\",binary=\"1.37\",emulation=\"1.36\",min_compat=\"1.35\"} 1.0",
            "kubernetes_feature_enabled{name=\"JobBackoffLimitPerIndex\",stage=\"\"} 1.0",
            "kubernetes_feature_enabled{name=\"NewThing\",stage=\"ALPHA\"} 0.0",
            "controllers_reconciles_total{controller=\"replicaset-controller\",outcome=\"failed\"} 2.0",
        ] {
            has(&text, line);
        }
        assert!(text.contains("git_version=\"v1.37.0\""), "{text}");
    }
}
