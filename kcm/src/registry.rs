//! The descriptors of all controllers. No other file lists the descriptors.

use crate::context::Descriptor;

/// All controllers. They start in the order of [`UPSTREAM`](crate::flags::controllers::UPSTREAM).
pub const CONTROLLERS: &[Descriptor] = &[
    crate::auth::bootstrap_signer::DESCRIPTOR,
    crate::workloads::cronjob::DESCRIPTOR,
    crate::certificates::approving::DESCRIPTOR,
    crate::certificates::cleaner::DESCRIPTOR,
    crate::certificates::signing::DESCRIPTOR,
    crate::auth::clusterrole_aggregation::DESCRIPTOR,
    crate::workloads::daemonset::DESCRIPTOR,
    crate::workloads::deployment::DESCRIPTOR,
    crate::devices::device_taint_eviction::DESCRIPTOR,
    crate::workloads::disruption::DESCRIPTOR,
    crate::network::endpoints::DESCRIPTOR,
    crate::network::endpointslice::DESCRIPTOR,
    crate::network::endpointslice_mirroring::DESCRIPTOR,
    crate::storage::ephemeral_volume::DESCRIPTOR,
    crate::api::garbage_collector::DESCRIPTOR,
    crate::workloads::horizontal_pod_autoscaler::DESCRIPTOR,
    crate::workloads::job::DESCRIPTOR,
    crate::certificates::clustertrustbundle_publisher::DESCRIPTOR,
    crate::auth::legacy_serviceaccount_token_cleaner::DESCRIPTOR,
    crate::api::namespace::DESCRIPTOR,
    crate::network::node_ipam::DESCRIPTOR,
    crate::nodes::node_lifecycle::DESCRIPTOR,
    crate::storage::attach_detach::DESCRIPTOR,
    crate::storage::binder::DESCRIPTOR,
    crate::storage::expander::DESCRIPTOR,
    crate::storage::pv_protection::DESCRIPTOR,
    crate::storage::pvc_protection::DESCRIPTOR,
    crate::workloads::pod_garbage_collector::DESCRIPTOR,
    crate::certificates::podcertificaterequest_cleaner::DESCRIPTOR,
    crate::workloads::podgroup_protection::DESCRIPTOR,
    crate::workloads::replicaset::DESCRIPTOR,
    crate::workloads::replicaset::REPLICATION_CONTROLLER,
    crate::devices::resource_claim::DESCRIPTOR,
    crate::devices::resource_pool_status_request::DESCRIPTOR,
    crate::api::resourcequota::DESCRIPTOR,
    crate::certificates::root_ca_publisher::DESCRIPTOR,
    crate::auth::serviceaccount::DESCRIPTOR,
    crate::network::service_cidr::DESCRIPTOR,
    crate::auth::serviceaccount_token::DESCRIPTOR,
    crate::nodes::taint_eviction::DESCRIPTOR,
    crate::storage::selinux_warning::DESCRIPTOR,
    crate::workloads::statefulset::DESCRIPTOR,
    crate::api::storage_version_migrator::DESCRIPTOR,
    crate::api::storageversion_garbage_collector::DESCRIPTOR,
    crate::auth::token_cleaner::DESCRIPTOR,
    crate::nodes::ttl::DESCRIPTOR,
    crate::workloads::ttl_after_finished::DESCRIPTOR,
    crate::api::validating_admission_policy_status::DESCRIPTOR,
    crate::storage::vac_protection::DESCRIPTOR,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::flags::controllers::UPSTREAM;

    #[test]
    fn registry_names_each_controller_of_upstream_once() {
        let names: BTreeSet<&str> = CONTROLLERS.iter().map(|descriptor| descriptor.name).collect();
        assert_eq!(names.len(), CONTROLLERS.len());
        assert_eq!(names, UPSTREAM.iter().map(|controller| controller.name).collect());
    }

    #[test]
    fn each_controller_declares_its_queues_once() {
        for descriptor in CONTROLLERS {
            let queues: BTreeSet<&str> = descriptor.queues.iter().map(|keys| keys.queue).collect();
            assert!(!queues.is_empty() && queues.len() == descriptor.queues.len(), "{}", descriptor.name);
        }
    }

    /// `ccm` and operators do not contain these descriptors: their diagnostics pages explain finalizers with the list
    /// of well-known finalizers.
    #[test]
    fn well_known_finalizers_are_those_of_the_registry() {
        let number = CONTROLLERS.iter().map(|descriptor| descriptor.finalizers.len()).sum();
        let owners = component::finalizers::owners(CONTROLLERS);
        let rows: Vec<_> = owners.iter().map(|owner| (owner.by, owner.finalizer, owner.condition)).collect();
        let (registry, well_known) = rows.split_at(number);
        let of_kcm = well_known.iter().filter(|(by, ..)| UPSTREAM.iter().any(|controller| controller.name == *by));
        let registry: BTreeSet<_> = registry.iter().collect();
        assert_eq!(of_kcm.collect::<BTreeSet<_>>(), registry);
    }

    #[test]
    fn status_page_lists_the_registry() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/status.md");
        component::status::check(&page, "kcm", &component::status::table(UPSTREAM, CONTROLLERS)).expect("up to date");
    }
}
