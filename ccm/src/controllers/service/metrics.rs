//! Metrics: updates of the targets of load balancers, which upstream's names call hosts, and leaked resources.
//! Upstream: cloud-provider, controllers/service.

use std::time::Duration;

use runtime::metrics::{Count, Gauges, Metrics, Seconds, powers_of_two};

/// Metrics of the targets of load balancers.
pub struct Hosts {
    updates: Count,
    failures: Count,
    update: Seconds,
    pass: Seconds,
}

impl Hosts {
    /// Registers the metrics.
    pub fn register(metrics: &Metrics) -> Self {
        let bounds = powers_of_two(1.0, 15);
        Self {
            updates: metrics.count(
                "service_controller_loadbalancer_sync",
                "A metric counting the amount of times any load balancer has been configured, as an effect of service/node changes on the cluster",
            ),
            failures: metrics.count(
                "service_controller_nodesync_error",
                "A metric counting the amount of times any load balancer has been configured and errored, as an effect of node changes on the cluster",
            ),
            update: metrics.seconds(
                "service_controller_update_loadbalancer_host_latency_seconds",
                "A metric measuring the latency for updating each load balancer hosts.",
                &bounds,
            ),
            pass: metrics.seconds(
                "service_controller_nodesync_latency_seconds",
                "A metric measuring the latency for nodesync which updates loadbalancer hosts on cluster node updates.",
                &bounds,
            ),
        }
    }

    /// Records an update of the targets of one load balancer; `succeeded` is its result.
    pub fn record_update(&self, time: Duration, succeeded: bool) {
        self.updates.add();
        self.update.observe(time.as_secs_f64());
        if !succeeded {
            self.failures.add();
        }
    }

    /// Records the time in which the nodes were gathered, and the Services whose targets they are were requeued.
    pub fn record_pass(&self, time: Duration) {
        self.pass.observe(time.as_secs_f64());
    }
}

/// Metrics of leaked resources.
pub struct Leaks {
    existing: Gauges<0>,
    collected: Count,
}

impl Leaks {
    /// Registers the metrics.
    pub fn register(metrics: &Metrics) -> Self {
        let existing = metrics.gauges(
            "service_controller_leaked_loadbalancers",
            "Services that were deleted or request no load balancer and for which cloud resources exist, at the last audit",
        );
        existing.set([], 0.0);
        Self {
            existing,
            collected: metrics.count(
                "service_controller_leaked_loadbalancers_deleted",
                "Deleted Services whose leaked cloud resources were deleted",
            ),
        }
    }

    /// Sets the number of leaks that still exist.
    pub fn set_count(&self, count: usize) {
        self.existing.set([], f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    /// Counts a leak whose resources were all deleted.
    pub fn count_collected(&self) {
        self.collected.add();
    }
}
