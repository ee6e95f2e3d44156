//! How often and how long balancers get other hosts, under upstream's names (cloud-provider, controllers/service), and
//! what is left of Services that are gone.

use std::time::Duration;

use runtime::metrics::{Count, Gauges, Metrics, Seconds, powers_of_two};

/// What is counted about nodes behind balancers.
pub struct Hosts {
    updates: Count,
    failures: Count,
    update: Seconds,
    pass: Seconds,
}

impl Hosts {
    /// Nothing counted yet.
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

    /// One balancer was given other hosts, or could not be.
    pub fn updated(&self, time: Duration, well: bool) {
        self.updates.add();
        self.update.observe(time.as_secs_f64());
        if !well {
            self.failures.add();
        }
    }

    /// The balancers that nodes' changes concern were found.
    pub fn passed(&self, time: Duration) {
        self.pass.observe(time.as_secs_f64());
    }
}

/// What is counted about what Services had left.
pub struct Leaks {
    there: Gauges<0>,
    collected: Count,
}

impl Leaks {
    /// Nothing found yet.
    pub fn register(metrics: &Metrics) -> Self {
        let there = metrics.gauges(
            "service_controller_leaked_loadbalancers",
            "Services that are gone or want no load balancer and for which the cloud holds something, at the last audit",
        );
        there.set([], 0.0);
        Self {
            there,
            collected: metrics.count(
                "service_controller_leaked_loadbalancers_deleted",
                "Services that are gone and whose leftovers in the cloud were deleted",
            ),
        }
    }

    /// There are so many leaks.
    pub fn there_are(&self, count: usize) {
        self.there.set([], f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    /// All of one is gone.
    pub fn collected(&self) {
        self.collected.add();
    }
}
