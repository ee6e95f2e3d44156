//! The table of the controllers that are here, and what each needs and may do.

use std::sync::Arc;

pub use component::controllers::{Verb, Write};
use jiff::Timestamp;

use crate::credentials::Credentials;
use crate::flags::Options;

/// Where controllers read the time of day.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the command line says to controllers.
pub struct Settings {
    /// The command line.
    pub options: Options,
    /// Keys and certificates that the command line names.
    pub credentials: Credentials,
    /// The time of day.
    pub clock: Clock,
}

impl Settings {
    /// The number of workers that a flag asks for; less than one counts as one.
    pub fn workers(&self, flag: &str) -> usize {
        self.options.workers(flag)
    }
}

/// A controller of the manager.
pub type Descriptor = component::controllers::Descriptor<Settings>;

/// All controllers.
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
