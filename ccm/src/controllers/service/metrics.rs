//! Metrics: updates of the targets of load balancers, which upstream's names call hosts, and leaked resources.
//! Upstream: cloud-provider, controllers/service.

use std::time::Duration;

use providers::CloudError;
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

    /// Records an update of the targets of one load balancer and its error. A load balancer that does not exist is no
    /// failure: it is created again. Upstream: cloud-provider, controllers/service, lockedUpdateLoadBalancerHosts.
    pub fn record_update(&self, time: Duration, error: Option<&CloudError>) {
        self.updates.add();
        self.update.observe(time.as_secs_f64());
        if error.is_some_and(|error| !error.is_not_found()) {
            self.failures.add();
        }
    }

    /// Records the duration of a pass, which gathers the nodes and requeues the Services that have them as targets.
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

#[cfg(test)]
mod tests {
    use providers::ErrorKind;

    use super::*;

    #[test]
    fn update_of_a_missing_load_balancer_is_no_failure() {
        let metrics = Metrics::new();
        let hosts = Hosts::register(&metrics);
        let error = |kind| CloudError::new(kind, "RegisterTargets", "");
        for error in [None, Some(error(ErrorKind::NotFound)), Some(error(ErrorKind::Transient))] {
            hosts.record_update(Duration::ZERO, error.as_ref());
        }
        let text = metrics.text();
        for sample in ["service_controller_loadbalancer_sync_total 3\n", "service_controller_nodesync_error_total 1\n"]
        {
            assert!(text.contains(sample), "{sample} in {text}");
        }
    }
}
