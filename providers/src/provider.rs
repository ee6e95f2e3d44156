//! The provider trait; each optional capability is an accessor that returns `None` if unsupported.

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::CloudError;
use crate::instance::Instances;
use crate::load_balancer::LoadBalancers;
use crate::records::Records;
use crate::route::Routes;
use crate::secret::{SecretData, SecretName};
use crate::tagging::Tagging;

/// A cloud. Controllers that need a missing capability do not start.
///
/// A provider is built on every replica, leader or not; therefore, building it must make no calls. The first calls are
/// made by [`initialize`](CloudProvider::initialize), never on a standby.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait CloudProvider: Send + Sync {
    /// Returns the provider's name in `--cloud-provider`, which is also the scheme of its provider IDs (`name://...`).
    fn name(&self) -> &'static str;

    /// Returns true if the provider has an id of the cluster, which distinguishes the cluster's resources in the cloud
    /// from those of other clusters. Without an id, the process does not start unless `--allow-untagged-cloud` is set.
    /// Upstream: cloud-provider, HasClusterID.
    fn has_cluster_id(&self) -> bool {
        true
    }

    /// Makes the calls that everything else needs: finds the network, checks the credentials. Called on the leader
    /// before any controller calls the cloud, and again after an error; a check of the configuration calls it, too. A
    /// second call after a success does nothing.
    ///
    /// # Errors
    /// Any kind; the caller logs it and retries, because operators fix configuration and permissions while the process
    /// runs.
    async fn initialize(&self) -> Result<(), CloudError> {
        Ok(())
    }

    /// Returns the instances, for cloud-node and cloud-node-lifecycle.
    fn instances(&self) -> Option<Arc<dyn Instances>> {
        None
    }

    /// Returns the load balancers, for service-lb.
    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        None
    }

    /// Returns the routes to nodes' pod networks, for node-route.
    fn routes(&self) -> Option<Arc<dyn Routes>> {
        None
    }

    /// Returns the tags of instances, for the tagging controller.
    fn tagging(&self) -> Option<Arc<dyn Tagging>> {
        None
    }

    /// Returns the Secrets that the provider's configuration names as sources of credentials; constant while the
    /// process runs. The process needs the permission to get them.
    fn secrets(&self) -> Vec<SecretName> {
        Vec::new()
    }

    /// Receives one of the Secrets in [`secrets`](CloudProvider::secrets), without a call to the cloud. `data` is
    /// `None` if the Secret does not exist. Called before [`initialize`](CloudProvider::initialize), and again whenever
    /// the Secret has changed. Later calls to the cloud use the new credentials, and `initialize` is not called again.
    ///
    /// # Errors
    /// `Invalid` if the Secret cannot be used; the message names the Secret, the key and the fix. The provider then
    /// keeps the credentials that it has.
    fn receive_secret(&self, name: &SecretName, data: Option<SecretData>) -> Result<(), CloudError> {
        let _ = (name, data);
        Ok(())
    }

    /// Receives the storage in the cluster for state that must survive the process; a provider without such state
    /// ignores it. Called once, when service-lb starts, before that controller calls the cloud. Methods that make no
    /// calls may be called earlier, and other controllers may call the cloud earlier. Not called if service-lb does not
    /// run, nor by a check of the configuration.
    fn keep_records(&self, records: Arc<dyn Records>) {
        drop(records);
    }

    /// Returns the provider's own metrics in the Prometheus text format, which are added to `/metrics`. Labels must be
    /// bounded: operations and error kinds, never IDs.
    fn metrics(&self) -> String {
        String::new()
    }
}
