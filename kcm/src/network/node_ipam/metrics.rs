//! Metrics of the usage of the cluster's ranges, under upstream's names. Upstream:
//! pkg/controller/nodeipam/ipam/cidrset, metrics.

use std::fmt;
use std::sync::{Arc, Mutex};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{counters, gauges};

use super::pool::Pool;
use super::range::Range;

/// Reads the pool when metrics are collected.
#[derive(Debug)]
pub struct Usage(pub Arc<Mutex<Pool>>);

impl Collector for Usage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let pool = lock(&self.0);
        let (ranges, tries) = pool.usage();
        let encoder = &mut encoder;
        let each = |value: fn(&Range) -> f64| {
            ranges.iter().map(move |range| ([("clusterCIDR", range.whole().to_string())], value(range)))
        };
        counters(
            encoder,
            "node_ipam_controller_cidrset_cidrs_allocations",
            "Counter measuring total number of CIDR allocations.",
            each(|range| range.counts().allocations as f64),
        )?;
        counters(
            encoder,
            "node_ipam_controller_cidrset_cidrs_releases",
            "Counter measuring total number of CIDR releases.",
            each(|range| range.counts().releases as f64),
        )?;
        // Upstream's spelling.
        gauges(
            encoder,
            "node_ipam_controller_cirdset_max_cidrs",
            "Maximum number of CIDRs that can be allocated.",
            each(|range| range.fill().0 as f64),
        )?;
        gauges(
            encoder,
            "node_ipam_controller_cidrset_usage_cidrs",
            "Gauge measuring percentage of allocated CIDRs.",
            each(|range| range.fill().1 as f64 / range.fill().0 as f64),
        )?;
        tries.encode(
            encoder,
            "node_ipam_controller_cidrset_allocation_tries_per_request",
            "Number of endpoints added on each Service sync",
        )
    }
}

#[cfg(test)]
mod tests {
    use kinds::Uid;
    use runtime::metrics::Metrics;

    use super::super::config::{Config, Share};
    use super::*;

    #[test]
    fn usage_of_ranges_is_reported() {
        let share = |range: &str, prefix| Share { range: range.parse().expect("a range"), prefix };
        let services = vec!["10.0.1.0/24".parse().expect("a range")];
        let shares = vec![share("10.0.0.0/22", 24), share("fd00::/62", 64)];
        let mut pool = Pool::new(&Config { shares, services, ignored_services: vec![] });
        pool.reserve(&"a".into(), &Uid::parse("a")).expect("room");
        pool.reserve(&"b".into(), &Uid::parse("b")).expect("room");
        pool.release(&"a".into(), &Uid::parse("a"));
        let metrics = Metrics::default();
        metrics.collect(Usage(Arc::new(Mutex::new(pool))));
        let text = metrics.text();
        for line in [
            // Parts for services count as allocated, as in upstream.
            "node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR=\"10.0.0.0/22\"} 3.0",
            "node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR=\"fd00::/62\"} 2.0",
            "node_ipam_controller_cidrset_cidrs_releases_total{clusterCIDR=\"10.0.0.0/22\"} 1.0",
            "node_ipam_controller_cirdset_max_cidrs{clusterCIDR=\"10.0.0.0/22\"} 4.0",
            "node_ipam_controller_cidrset_usage_cidrs{clusterCIDR=\"10.0.0.0/22\"} 0.5",
            "node_ipam_controller_cidrset_usage_cidrs{clusterCIDR=\"fd00::/62\"} 0.25",
            "node_ipam_controller_cidrset_allocation_tries_per_request_bucket{le=\"1\",clusterCIDR=\"10.0.0.0/22\"} 2",
            // The part for services was skipped. An allocation on the first attempt counts zero.
            "node_ipam_controller_cidrset_allocation_tries_per_request_sum{clusterCIDR=\"10.0.0.0/22\"} 1",
            "node_ipam_controller_cidrset_allocation_tries_per_request_sum{clusterCIDR=\"fd00::/62\"} 0",
        ] {
            let (name, value) = line.rsplit_once(' ').expect("a sample");
            let is_line = |found: &str| found == line || found == format!("{name} {value}.0");
            assert!(text.lines().any(is_line), "{line} is not in {text}");
        }
    }
}
