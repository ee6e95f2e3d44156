//! All controllers. No other file lists them.

use crate::context::Descriptor;

/// All controllers, in the order in which they start.
pub const CONTROLLERS: &[Descriptor] = &[
    crate::bootstrap_signer::DESCRIPTOR,
    crate::cronjob::DESCRIPTOR,
    crate::csr_approving::DESCRIPTOR,
    crate::csr_cleaning::DESCRIPTOR,
    crate::csr_signing::DESCRIPTOR,
    crate::clusterrole_aggregation::DESCRIPTOR,
    crate::daemonset::DESCRIPTOR,
    crate::deployment::DESCRIPTOR,
    crate::devicetainteviction::DESCRIPTOR,
    crate::disruption::DESCRIPTOR,
    crate::endpoint::DESCRIPTOR,
    crate::endpointslice::DESCRIPTOR,
    crate::endpointslicemirroring::DESCRIPTOR,
    crate::garbagecollector::DESCRIPTOR,
    crate::podautoscaler::DESCRIPTOR,
    crate::job::DESCRIPTOR,
    crate::trust_bundle_publisher::DESCRIPTOR,
    crate::legacy_token_cleaner::DESCRIPTOR,
    crate::namespace::DESCRIPTOR,
    crate::nodeipam::DESCRIPTOR,
    crate::nodelifecycle::DESCRIPTOR,
    crate::podgc::DESCRIPTOR,
    crate::pod_certificate_cleaning::DESCRIPTOR,
    crate::replicaset::DESCRIPTOR,
    crate::replicaset::REPLICATION_CONTROLLER,
    crate::resourcequota::DESCRIPTOR,
    crate::root_ca_publisher::DESCRIPTOR,
    crate::serviceaccount::DESCRIPTOR,
    crate::service_cidr::DESCRIPTOR,
    crate::serviceaccount_token::DESCRIPTOR,
    crate::tainteviction::DESCRIPTOR,
    crate::statefulset::DESCRIPTOR,
    crate::token_cleaner::DESCRIPTOR,
    crate::ttl::DESCRIPTOR,
    crate::ttlafterfinished::DESCRIPTOR,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::names::UPSTREAM;

    #[test]
    fn registry_names_each_controller_of_upstream_once() {
        let names: BTreeSet<&str> = CONTROLLERS.iter().map(|descriptor| descriptor.name).collect();
        assert_eq!(names.len(), CONTROLLERS.len());
        for name in names {
            assert!(UPSTREAM.iter().any(|controller| controller.name == name), "{name}");
        }
    }

    #[test]
    fn each_controller_declares_its_queues_once() {
        for descriptor in CONTROLLERS {
            let queues: BTreeSet<&str> = descriptor.queues.iter().map(|keys| keys.queue).collect();
            assert!(!queues.is_empty() && queues.len() == descriptor.queues.len(), "{}", descriptor.name);
        }
    }

    #[test]
    fn status_page_lists_the_registry() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/status.md");
        component::status::check(&page, "kcm", &component::status::table(UPSTREAM, CONTROLLERS)).expect("up to date");
    }
}
