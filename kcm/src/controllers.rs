//! The table of the controllers that are here, and what each needs and may do.

use std::sync::Arc;

use jiff::Timestamp;
use runtime::manager::Manager;
use runtime::watch::Builder;

use crate::credentials::Credentials;
use crate::flags::Options;

/// Where controllers read the time of day.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// A verb of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// POST
    Create,
    /// PUT
    Update,
    /// PATCH
    Patch,
    /// DELETE
    Delete,
}

/// A write that a controller does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// The verb.
    pub verb: Verb,
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural name, with its subresource after a slash.
    pub resource: &'static str,
}

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
        usize::try_from(self.options.values.get_i64(flag)).unwrap_or(0).max(1)
    }
}

/// A controller: its names, what it reads and writes, and how it starts.
pub struct Descriptor {
    /// Its name in `--controllers`.
    pub name: &'static str,
    /// Its service account in `kube-system`; its role is `system:controller:` and this name. Empty for the one
    /// controller that writes as the process itself.
    pub service_account: &'static str,
    /// Declares the kinds, sections and indexes that it reads.
    pub needs: fn(&mut Builder),
    /// Everything that it writes; all of it must be in its bootstrap role.
    pub writes: &'static [Write],
    /// Adds it to a manager.
    pub start: fn(&mut Manager, &Settings),
}

/// All controllers.
pub const CONTROLLERS: &[Descriptor] = &[
    crate::bootstrap_signer::DESCRIPTOR,
    crate::cronjob::DESCRIPTOR,
    crate::csr_approving::DESCRIPTOR,
    crate::csr_cleaning::DESCRIPTOR,
    crate::csr_signing::DESCRIPTOR,
    crate::clusterrole_aggregation::DESCRIPTOR,
    crate::deployment::DESCRIPTOR,
    crate::garbagecollector::DESCRIPTOR,
    crate::job::DESCRIPTOR,
    crate::trust_bundle_publisher::DESCRIPTOR,
    crate::legacy_token_cleaner::DESCRIPTOR,
    crate::namespace::DESCRIPTOR,
    crate::replicaset::DESCRIPTOR,
    crate::root_ca_publisher::DESCRIPTOR,
    crate::serviceaccount::DESCRIPTOR,
    crate::serviceaccount_token::DESCRIPTOR,
    crate::token_cleaner::DESCRIPTOR,
    crate::ttl::DESCRIPTOR,
    crate::ttlafterfinished::DESCRIPTOR,
];
